"""Surveys of bronze by DuckDB and by Spark: the same answers, whatever rows and names there are."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.apply.table_renames import last_changes_under_other_name
from pipeline.bronze.activity import newest_commit, read_activity
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.table_input import InputStart
from pipeline.delta.data_files import DataFile
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from tests.support.native_lakes import START, NativeLake, change, write_file

A, B = TableName("public", "t0000"), TableName("public", "t0001")
ODD = [TableName("s'x", "a\\b{c}"), TableName("${env:HOME}", 'q"`%'), TableName("ü", "T 1"), A, B]
END = LSN(4008)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> NativeLake:
    found = NativeLake(tmp_path_factory.mktemp("surveys") / "lake [x]", 3)
    rng = random.Random(7)
    for number in range(20):
        end = 2000 + 100 * number + 8
        rows = []
        for ordinal in range(rng.randint(1, 40)):
            op = rng.choice("IIUUUDTM")
            unsent = rng.choice([None, [0], [1, 2]]) if op == "U" else None
            rows.append(
                change(
                    rng.choice(ODD),
                    rng.randint(1, 4),
                    ordinal,
                    end - 8,
                    op,
                    old_kind=rng.choice([None, "K", "O"]),
                    unsent=unsent,
                    relation_id=rng.randint(1, 3),
                    xid=rng.randint(1, 5),
                )
            )
        found.land(LSN(end), rows)
    return found


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.slow)])
def both(request: pytest.FixtureRequest, lake: NativeLake) -> Callable[[Callable[[Bronze], Any]], Any]:
    """Ask DuckDB, and Spark for what it answers too; return the answer, which is that of both."""
    native = Bronze(Lake(str(lake.root)), "p")
    remote: Bronze | None = None
    if request.param == "spark":
        remote = Bronze(Lake(str(lake.root), request.getfixturevalue("spark")), "p")
        remote.changes.local_path = None

    def ask(question: Callable[[Bronze], Any]) -> Any:
        answer = question(native)
        assert remote is None or answer == question(remote)
        assert native.lake.sessions._spark is None
        return answer

    return ask


by_both = pytest.mark.parametrize("both", ["duckdb", "spark"], indirect=True)


def time_of(lsn: int) -> datetime:
    return START + timedelta(milliseconds=lsn)


def _sorted(surveys: dict[TableName, list[Any]]) -> dict[TableName, list[Any]]:
    return {name: sorted(found, key=lambda s: s.survey.version) for name, found in surveys.items()}


def test_what_tables_have(lake: NativeLake, both: Any) -> None:
    end = BronzeOffset(lake.bronze.changes.version(), END)
    everything = both(lambda bronze: _sorted(bronze.survey(end, INVALID, {})))
    assert everything.keys() == {*ODD}
    assert sum(sum(s.counts.values()) for found in everything.values() for s in found) > 100
    offsets = {name: LSN(2500 + 300 * number) for number, name in enumerate(ODD)}
    some = both(lambda bronze: _sorted(bronze.survey(end, LSN(2200), offsets)))
    assert some != everything
    assert both(lambda bronze: bronze.survey(end, END, {})) == {}
    own = {A: LSN(2500), ODD[0]: LSN(3100), TableName("public", "none"): INVALID}
    apart = both(lambda bronze: _sorted(bronze.survey_tables(own, END)))
    for name, found in apart.items():
        assert found == _sorted(lake.bronze.survey(end, own[name], {}))[name]
    assert apart.keys() == {A, ODD[0]}
    for name in ODD:
        ranges = [InputStart(LSN(2700)), *([InputStart(), InputStart(END)] if name == A else [])]
        for start in ranges:
            both(
                lambda bronze, name=name, start=start: sorted(
                    bronze.survey_table(name, start, LSN(3208)), key=lambda s: s.version
                )
            )
        assert both(lambda bronze, name=name: bronze.count_of(name, END)) > 0
    assert both(lambda bronze: bronze.count_of(TableName("no", "such"), END)) == 0


@by_both
def test_runs_of_interleaved_versions(both: Any) -> None:
    signatures = {1: 0, 2: 1, 3: 0, 4: 1}
    runs = both(lambda bronze: bronze.exact_runs(ODD[0], InputStart(), END, signatures))
    assert len(runs) > 5
    assert both(lambda bronze: bronze.exact_runs(ODD[0], InputStart(LSN(3000)), END, signatures))


def test_the_input_after_a_copy(lake: NativeLake, both: Any) -> None:
    version = lake.versions[A].id
    copy = CompleteCopy(1, version, (LSN(1000),), 20, (LSN(2100), LSN(2300)))
    several = CompleteCopy(1, version, (LSN(1000), LSN(2500)), 20)
    for each in (copy, several):
        start = InputStart(copy=each)
        found = both(
            lambda bronze, start=start: sorted(
                bronze.survey_table(A, start, LSN(3008)), key=lambda s: s.version
            )
        )
        assert len(found) > 1
        signatures = {1: 0, 2: 1, 3: 0, 4: 1, version: 2}
        runs = both(
            lambda bronze, start=start, signatures=signatures: bronze.exact_runs(
                A, start, LSN(3008), signatures
            )
        )
        assert len(runs) > 2
        assert both(lambda bronze, each=each: newest_commit(bronze, {}, END, [each])) == time_of(1000)
    assert both(lambda bronze: newest_commit(bronze, {A: LSN(2600)}, END, [copy])) > time_of(2600)
    assert both(lambda bronze: newest_commit(bronze, {A: LSN(2600), B: INVALID}, LSN(3008), []))
    assert both(lambda bronze: newest_commit(bronze, {TableName("no", "such"): INVALID}, END, [])) is None
    for lsns in ([LSN(1000)], [LSN(900), LSN(1000)]):
        assert both(lambda bronze, lsns=lsns: bronze.copied_rows(A, 1, lsns)) == 20
    assert both(lambda bronze: bronze.copied_rows(B, 1, [LSN(1000)])) == 0


@by_both
def test_activity(lake: NativeLake, both: Any) -> None:
    captured = BronzeOffset(lake.bronze.changes.version(), END)
    lsns = [LSN(1008), LSN(2050), LSN(2808), LSN(9000)]
    for age in (timedelta(days=3), timedelta(hours=2), timedelta(minutes=30)):
        found = both(lambda bronze, age=age: read_activity(bronze, captured, lsns, START + age))
    assert found.operations
    assert {LSN(2808), LSN(9000)} <= found.commit_times.keys()


def test_changes_under_another_name(both: Any) -> None:
    for versions in ([1], [2, 3], [4]):
        for has_rows in (False, True):
            assert both(
                lambda bronze, versions=versions, has_rows=has_rows: last_changes_under_other_name(
                    bronze, versions, ODD[0], LSN(2000), END, has_rows=has_rows
                )
            )


def test_row_groups_and_files_that_do_not_matter_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = NativeLake(tmp_path / "lake", 2)
    folder = lake.bronze.changes.folder
    version = lake.versions[A].id
    many = [change(A, version, n, 2000, "R", copy_id=9) for n in range(50)]
    few = [change(A, version, n, 2000) for n in range(3)]
    later = [change(B, version, n, 3000) for n in range(3)]
    file: DataFile = write_file(folder, many, few, later)
    lake.writer.commit([file], lake.writer._offset_commit(lake.offset, LSN(3008)))
    read: list[int] = []
    import pyarrow.parquet as pq

    whole, in_batches = pq.ParquetFile.read_row_group, pq.ParquetFile.iter_batches

    def counting(self: Any, group: int, columns: list[str]) -> Any:
        read.append(len(columns))
        return whole(self, group, columns=columns)

    def counting_batches(self: Any, rows: int, row_groups: list[int], columns: list[str]) -> Any:
        read.append(len(columns))
        return in_batches(self, rows, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counting_batches)
    end = BronzeOffset(lake.bronze.changes.version(), LSN(2008))
    [found] = lake.bronze.survey(end, LSN(1008), {})[A]
    assert found.counts["I"] == 3
    assert read == [2, 2, 10], "op and end_lsn of two row groups, all columns of one"
