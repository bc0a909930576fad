"""The files of a table are found as by a read of all files, whatever their statistics lack."""

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.bronze.changes_scan import ChangesScan, bounds_of
from pipeline.bronze.files_by_table import FilesByTable
from pipeline.delta.table_log import Snapshot
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

LONG = "a_name_of_more_than_thirty_two_letters_"
NAMES = [
    TableName(schema, table)
    for schema in ("public", "sales", LONG + "1")
    for table in ("a", "b", LONG + "x", LONG + "y")
]


def shortened(text: str, *, is_least: bool) -> str:
    if len(text) <= 32:
        return text
    return text[:32] if is_least else text[:32] + "\U0010ffff"


def file_of(random: Random, number: int) -> dict[str, Any]:
    """Return the `add` action of a file with changes or copied rows of some tables, or with messages only."""
    tables = random.sample(NAMES, random.choice((0, 1, 1, 1, 2, 5)))
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for column, values in (
        ("schema_name", [name.schema for name in tables]),
        ("table_name", [name.table for name in tables]),
    ):
        if values and random.random() < 0.9:
            low[column] = shortened(min(values), is_least=True)
            high[column] = shortened(max(values), is_least=False)
    first = random.randrange(100)
    last = first + random.choice((0, 1, 30))
    if random.random() < 0.9:
        low["end_lsn"], high["end_lsn"] = first, last
    return {
        "path": f"{number}.parquet",
        "stats": json.dumps({"numRecords": 1, "minValues": low, "maxValues": high}),
    }


def may_have(add: Mapping[str, Any], name: TableName, first_lsn: LSN) -> bool:
    low, high = bounds_of(add)
    for column, value in (("schema_name", name.schema), ("table_name", name.table)):
        if column in low and not low[column] <= value <= high[column]:
            return False
    return bool(high.get("end_lsn", first_lsn) >= first_lsn)


@pytest.mark.parametrize("seed", range(20))
def test_no_file_that_may_have_rows_is_left_out(seed: int) -> None:
    random = Random(seed)
    adds = [file_of(random, number) for number in range(60)]
    files = FilesByTable(adds)
    for name in NAMES:
        for lsn in map(LSN, (0, 1, 50, 99, 129, 200)):
            found = files.that_may_have(name, lsn)
            assert [add for add in found if may_have(add, name, lsn)] == [
                add for add in adds if may_have(add, name, lsn)
            ]


@pytest.mark.parametrize("seed", range(20))
def test_a_scan_finds_the_same_files_by_table(seed: int) -> None:
    random = Random(seed)
    adds = {str(number): file_of(random, number) for number in range(60)}
    scan = ChangesScan("/bronze", cast("Snapshot", SimpleNamespace(files=adds)))
    index = FilesByTable(adds.values())
    for name in NAMES:
        start, end = sorted(map(LSN, random.sample(range(140), 2)))
        of_table = replace(scan, name=name, start_lsn=start, end_lsn=end)
        assert replace(of_table, index=index).files() == of_table.files()
        several = {name: start, NAMES[0]: LSN(60)}
        found = {path for each, lsn in several.items() for path in _after(scan, each, lsn)}
        assert set(replace(scan, offsets=several).files()) == found


def _after(scan: ChangesScan, name: TableName, lsn: LSN) -> list[str]:
    return replace(scan, name=name, start_lsn=lsn).files()


def test_files_of_other_tables_and_of_earlier_changes_are_not_found() -> None:
    names = [TableName("public", f"t{i}") for i in range(1000)]
    adds = [of_tables([name], 10) for name in names]
    adds += [of_tables(names[:2], lsn) for lsn in range(100, 200)]
    files = FilesByTable(adds)
    assert [add["path"] for add in files.that_may_have(names[1], LSN(198))] == [
        "t1-t1-10",
        "t0-t1-198",
        "t0-t1-199",
    ]


def test_a_deletion_vector_is_found() -> None:
    add = of_tables([TableName("public", "t")], 10)
    assert not FilesByTable([add]).has_vectors
    assert FilesByTable([add, {**add, "deletionVector": {"cardinality": 1}}]).has_vectors


def of_tables(names: list[TableName], lsn: int) -> dict[str, Any]:
    low = {"schema_name": names[0].schema, "table_name": names[0].table, "end_lsn": lsn}
    high = {"schema_name": names[-1].schema, "table_name": names[-1].table, "end_lsn": lsn}
    path = f"{names[0].table}-{names[-1].table}-{lsn}"
    return {"path": path, "stats": json.dumps({"numRecords": 1, "minValues": low, "maxValues": high})}
