"""Values of partition columns: as texts in the log, as folders, and rows divided by them."""

import json
import re
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pipeline.delta.data_files import DataFile, PartitionedFiles
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.native_commit import Operation
from pipeline.delta.native_write import create
from pipeline.delta.partitions import (
    Partition,
    divided,
    file_columns,
    in_partition,
    partition_bounds,
    partition_value,
)
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.vacuum import find_unneeded
from pipeline.errors import LakeError

UTC = timezone.utc
VALUES: dict[str, list[Any]] = {
    "STRING": [
        *("a", "b/c", "x=y", "100%", "a b", "é 日本🦀", "q?u#o'\"\\", " lead", "trail ", "a\nb\x01\x7f"),
        *("a%2Fb", "null", "1", ".", "..", "+", "{[^]}", "*:", "z" * 190, None),
    ],
    "SMALLINT": [1, -32768, None],
    "INT": [0, -5, None],
    "BIGINT": [2**63 - 1, -(2**63), None],
    "BOOLEAN": [True, False, None],
    "DATE": [date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29), None],
    "DECIMAL(20,4)": [Decimal("1.5000"), Decimal("-2.0000"), Decimal("0.0000"), None],
    # deltalake reads -0.0001 as 0.00-1, and -1.5 as -1.-5, and fails
    "DECIMAL(20,4) of polars": [Decimal("-0.0001"), Decimal("-1.5000")],
    "DECIMAL(38,10)": [Decimal("9999999999999999999999999999.5000000000"), None],
    "TIMESTAMP": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 0, 0, 500, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ],
    "TIMESTAMP_NTZ": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None],
}


def write(table: LakeTable, ddl: str, values: list[Any], columns: tuple[str, ...] = ("p",)) -> list[DataFile]:
    """Append rows (id, p) to a partitioned table, which is created first."""
    schema = TableSchema.of_ddl(f"id INT, p {ddl}")
    if not table.exists():
        create(table.folder, schema, {}, "", by_statement=True, partition_by=columns)
    rows = pa.table(
        [pa.array(range(len(values)), pa.int32()), pa.array(values, schema.arrow[1].type)], ["id", "p"]
    )
    snapshot = table.snapshot()
    files = PartitionedFiles(table.folder, columns, file_columns(snapshot), lambda _: 1 << 20, 1 << 20)
    files.write(rows)
    written = files.close()
    table.commit(snapshot, [file.action() for file in written], {}, Operation("WRITE"))
    return written


def test_few_rows_of_many_partitions_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.delta.data_files._MAX_WAITING", 1 << 20)
    schema = pa.schema([("v", pa.string())])
    files = PartitionedFiles(tmp_path, ("p",), schema, lambda _: 1 << 30, 1 << 30)
    before = pa.total_allocated_bytes()
    for _ in range(40):
        files.write(pa.table({"p": [n % 20 for n in range(200)], "v": [str(n) * 2000 for n in range(200)]}))
        assert pa.total_allocated_bytes() - before < 8 << 20
    assert sum(file.row_count for file in files.close()) == 40 * 200


@pytest.mark.promise("partitioned silver")
@pytest.mark.parametrize("ddl", VALUES)
def test_readers_find_the_rows_of_each_value(tmp_path: Path, ddl: str) -> None:
    table, values = LakeTable(str(tmp_path / "t")), VALUES[ddl]
    ddl, _, reader = ddl.partition(" of ")
    files = write(table, ddl, values)
    assert len(files) == len(values)
    wanted = sorted(enumerate(values))
    names = ["id", "p"]
    path = str(table.folder)
    dataset = None if reader else DeltaTable(path).to_pyarrow_dataset()
    found = {
        "pgdelta": table.rows(names).to_pylist(),
        "polars": polars.read_delta(path).select(names).to_dicts(),
    }
    if dataset is not None:
        found["deltalake"] = dataset.to_table(columns=names).to_pylist()
    for name, rows in found.items():
        assert sorted(tuple(row.values()) for row in rows) == wanted, name
    frame = polars.scan_delta(path)
    kind = frame.collect_schema()["p"]
    for number, value in wanted:
        if value is None:
            continue
        by_polars = frame.filter(polars.col("p") == polars.lit(value, dtype=kind)).collect()
        assert by_polars["id"].to_list() == [number]
        scalar = pa.scalar(value, table.schema().arrow[1].type)
        if dataset is not None:
            assert dataset.to_table(filter=pc.field("p") == scalar)["id"].to_pylist() == [number]


@pytest.mark.parametrize("ddl", VALUES)
def test_a_text_is_one_value_and_the_reverse(ddl: str) -> None:
    kind = TableSchema.of_ddl(f"p {ddl.partition(' of ')[0]}").arrow[0].type
    rows = pa.table({"id": pa.array(range(2 * len(VALUES[ddl]))), "p": pa.array(VALUES[ddl] * 2, kind)})
    texts = set()
    for partition, part in divided(rows, ["p"]):
        assert part.num_rows == 2
        assert part["id"].to_pylist() == sorted(part["id"].to_pylist())
        [(_, text)] = partition.values
        assert partition_value(text, kind).equals(part["p"][0])
        assert in_partition(rows, partition).to_pylist().count(True) == 2
        texts.add(text)
    assert len(texts) == len(VALUES[ddl])


@pytest.mark.parametrize("ddl", ["DATE", "INT", "BOOLEAN", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(10,2)"])
def test_a_text_that_is_not_valid_for_its_type_is_refused_without_it(ddl: str) -> None:
    kind = TableSchema.of_ddl(f"p {ddl}").arrow[0].type
    sentence = f"The log of a table has a partition value that is not a valid {ddl}. Rebuild the table."
    with pytest.raises(LakeError, match=f"^{re.escape(sentence)}$"):
        partition_value("secret", kind)


def test_rows_are_divided_by_several_columns() -> None:
    rows = pa.table({"a": [1, None, 1, 2, None], "b": ["x", "x", None, "x", "x"], "v": [0, 1, 2, 3, 4]})
    found = {partition.values: part["v"].to_pylist() for partition, part in divided(rows, ["a", "b"])}
    assert found == {
        (("a", "1"), ("b", "x")): [0],
        (("a", None), ("b", "x")): [1, 4],
        (("a", "1"), ("b", None)): [2],
        (("a", "2"), ("b", "x")): [3],
    }
    assert not list(divided(rows.slice(0, 0), ["a"]))


def test_folders_are_those_of_spark() -> None:
    assert (
        Partition((("a b", "x/y=%"), ("n", None))).folder == "a b=x%2Fy%3D%25/n=__HIVE_DEFAULT_PARTITION__/"
    )
    assert Partition().folder == ""


def test_rows_of_many_partitions_are_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.delta.data_files._MAX_WAITING", 1)
    monkeypatch.setattr("pipeline.delta.data_files._MAX_OPEN", 3)
    table = LakeTable(str(tmp_path / "t"))
    files = [file for _ in range(2) for file in write(table, "INT", [n % 9 for n in range(90)])]
    assert sum(file.row_count for file in files) == table.rows().num_rows == 180
    assert {len(file.partition.values) for file in files} == {1}
    snapshot = table.snapshot()
    groups = plan_table(snapshot, MergeLimits(few_files=2))
    assert len(groups) == 9
    before = sorted(map(str, table.rows().to_pylist()))
    merge_groups(table, snapshot, groups, plain_layout(snapshot))
    assert sorted(map(str, table.rows().to_pylist())) == before
    assert len(table.snapshot().files) == 9
    # what is not needed any more is found in its folder
    assert len(find_unneeded(table.folder, table.snapshot(), 1e11)) == len(snapshot.files)


def test_a_file_has_the_bounds_of_its_partition(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path / "t"))
    write(table, "DECIMAL(20,4)", [Decimal("1.5000"), None])
    snapshot = table.snapshot()
    found = [partition_bounds(snapshot, add) for add in snapshot.files.values()]
    assert sorted(found) == [(), (("p", Decimal("1.5")),)]
    assert all("p" not in json.loads(add["stats"])["nullCount"] for add in snapshot.files.values())
