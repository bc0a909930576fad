"""Merged files of `bronze/changes`: the same rows, in order, with the statistics of ingest."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bronze import merge as merge_of_changes
from pipeline.bronze.changes_scan import ChangesScan
from pipeline.bronze.log import Bronze
from pipeline.bronze.merge import changes_layout, plan_changes
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.delta import merge
from pipeline.delta.commit_files import commit_files
from pipeline.delta.data_files import DataFile
from pipeline.delta.merge import MergeCount, merge_groups
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.parquet_files import open_data_file
from pipeline.delta.retry import ConflictError
from pipeline.delta.table import Lake
from pipeline.delta.table_log import data_path
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

TXN = TxnId("shop")
LIMITS = MergeLimits(few_files=2)
LONG = "t" * 63  # longer than a bound in the log that is cut off
Change = tuple[int, int, str, str]  # commit LSN, ordinal, operation, table


def bronze_in(folder: Path) -> Bronze:
    bronze = Bronze(Lake(str(folder)), "shop")
    bronze.ensure()
    return bronze


def rows_of(changes: Sequence[Change]) -> pa.Table:
    rows = [
        {
            "commit_lsn": lsn,
            "end_lsn": lsn if op == "R" else lsn + 1,
            "ordinal": ordinal,
            "op": op,
            "schema_name": None if op == "M" else "public",
            "table_name": None if op == "M" else table,
            "new": [str(lsn), None],
        }
        for lsn, ordinal, op, table in changes
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES)


def land(bronze: Bronze, *changes: Change) -> None:
    """Commit a file of changes as ingest does."""
    writer = StagedFileWriter(bronze.changes.folder)
    writer.write(rows_of(changes))
    lsn = max(bronze.changes.offset(TXN) or 0, *(each[0] + 1 for each in changes)) + 1
    commit_files(bronze.changes, [writer.close().data], TableCommit(TXN, LSN(lsn)))


def merge_all(bronze: Bronze, limits: MergeLimits = LIMITS) -> MergeCount:
    snapshot = bronze.changes.snapshot()
    path = bronze.changes.local_path
    assert path is not None
    return merge_groups(bronze.changes, snapshot, plan_changes(path, snapshot, limits), changes_layout())


def all_rows(bronze: Bronze) -> list[str]:
    rows = bronze.changes.rows().to_pylist()
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def tables_of_files(bronze: Bronze) -> list[pa.Table]:
    path = bronze.changes.local_path
    assert path is not None
    adds = bronze.changes.snapshot().files.values()
    return [pq.read_table(data_path(path, add["path"])) for add in adds]


def test_copied_rows_are_not_read_to_see_what_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze, read = bronze_in(tmp_path), list[str]()
    for number in range(9):
        land(bronze, (100, number, "R", f"t{number}"))
    for lsn in (200, 300):
        land(bronze, (lsn, 0, "I", "t1"))

    def opened(path: str) -> Any:
        read.append(path)
        return open_data_file(path)

    monkeypatch.setattr(merge_of_changes, "open_data_file", opened)
    assert merge_all(bronze).removed == 2
    assert len(read) == 2
    land(bronze, (100, 9, "R", "t3"))
    assert merge_all(bronze).removed == 2


@st.composite
def files_of_changes(draw: st.DrawFn) -> list[list[Change]]:
    """Draw what ingest commits: whole transactions in order, copied rows in files of their own."""
    files: list[list[Change]] = []
    lsn = 100
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            table = draw(st.sampled_from(["a", LONG]))
            files.append([(lsn, n, "R", table) for n in range(draw(st.integers(1, 3)))])
            continue
        changes: list[Change] = []
        for _ in range(draw(st.integers(1, 3))):
            lsn += draw(st.integers(1, 5))
            ops = draw(st.lists(st.sampled_from("IUDTM"), min_size=1, max_size=4))
            changes += [(lsn, n, op, draw(st.sampled_from(["a", "b", LONG]))) for n, op in enumerate(ops)]
        files.append(changes)
    return files


@pytest.mark.costly
@pytest.mark.promise("merged files")
@settings(max_examples=12, deadline=None)
@given(files_of_changes(), st.integers(2, 5))
def test_a_merge_keeps_rows_order_statistics_and_offsets(files: list[list[Change]], few: int) -> None:
    with TemporaryDirectory() as folder:
        bronze = bronze_in(Path(folder))
        for changes in files:
            land(bronze, *changes)
        before, offsets = all_rows(bronze), dict(bronze.changes.snapshot().offsets)
        streams = sum(all(change[2] != "R" for change in changes) for changes in files)
        count = merge_all(bronze, MergeLimits(few_files=few))
        assert all_rows(bronze) == before
        assert dict(bronze.changes.snapshot().offsets) == offsets
        found = tables_of_files(bronze)
        for add, rows in zip(bronze.changes.snapshot().files.values(), found, strict=True):
            keys = list(zip(rows["commit_lsn"].to_pylist(), rows["ordinal"].to_pylist(), strict=True))
            assert keys == sorted(keys)
            ops = set(rows["op"].to_pylist())
            assert "R" not in ops or (ops == {"R"} and len(set(rows["table_name"].to_pylist())) == 1)
            statistics = json.loads(add["stats"])
            assert statistics["numRecords"] == rows.num_rows
            for name in ("commit_lsn", "end_lsn", "ordinal", "schema_name", "table_name"):
                least = pc.min_max(rows[name])
                assert statistics["minValues"].get(name) == least["min"].as_py()
                assert statistics["maxValues"].get(name) == least["max"].as_py()
        if len(files) >= few and streams >= few:
            assert count.removed >= streams
            assert sum("R" not in rows["op"].to_pylist() for rows in found) == 1
        if count.removed:
            read = DeltaTable(str(bronze.changes.folder)).to_pyarrow_table()
            assert read.num_rows == len(before)


def test_readers_find_a_range_and_a_table_in_merged_files(tmp_path: Path) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 20):
        land(bronze, (lsn, 0, "I", "a"), (lsn, 1, "U", "b"))
    merge_all(bronze)
    assert bronze.changes.snapshot().file_count == 1
    path = bronze.changes.local_path
    assert path is not None
    scan = ChangesScan(path, bronze.changes.snapshot(), start_lsn=LSN(13), end_lsn=LSN(15))
    found = [row for chunk in scan.chunks(["commit_lsn"], 100, 1 << 20) for row in chunk.to_pylist()]
    assert sorted(row["commit_lsn"] for row in found) == [13, 13, 14, 14]
    none = ChangesScan(path, bronze.changes.snapshot(), name=TableName("public", "z"))
    assert none.is_empty()


def test_appends_continue_during_a_merge_and_a_second_merge_conflicts(tmp_path: Path) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 14):
        land(bronze, (lsn, 0, "I", "a"))
    snapshot = bronze.changes.snapshot()
    path = bronze.changes.local_path
    assert path is not None
    groups = plan_changes(path, snapshot, LIMITS)
    land(bronze, (30, 0, "I", "a"))
    old = bronze.changes.snapshot()
    before = all_rows(bronze)
    assert merge_groups(bronze.changes, snapshot, groups, changes_layout()).removed == 4
    assert all_rows(bronze) == before
    assert bronze.changes.rows(snapshot=old).num_rows == len(before), "an earlier version can still be read"
    parquet = len(list(bronze.changes.folder.glob("*.parquet")))
    with pytest.raises(ConflictError):
        merge_groups(bronze.changes, snapshot, groups, changes_layout())
    assert len(list(bronze.changes.folder.glob("*.parquet"))) == parquet, "its file is removed"
    assert all_rows(bronze) == before


def test_memory_holds_a_row_group_of_files_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 18):
        land(bronze, (lsn, 0, "I", "a"), (lsn, 1, "I", "a"))
    before = all_rows(bronze)
    size = merge.conform(rows_of([(1, 0, "I", "a"), (1, 1, "I", "a")]), CHANGES, "").nbytes
    monkeypatch.setattr(merge, "ROW_GROUP", 2 * size)
    count = merge_all(bronze)
    assert (count.removed, count.added) == (8, 1)
    [file] = bronze.changes.snapshot().files
    with pq.ParquetFile(bronze.changes.folder / file) as parquet:
        groups = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
    assert max(groups) <= 6
    assert sum(groups) == 16
    assert all_rows(bronze) == before


def test_memory_holds_a_part_of_a_group_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 18):
        land(bronze, (lsn, 0, "I", "a"), (lsn + 40, 1, "I", "a"))
    land(bronze, *((30, ordinal, "I", "a") for ordinal in range(200)))
    before = all_rows(bronze)
    size = merge.conform(rows_of([(1, 0, "I", "a"), (1, 1, "I", "a")]), CHANGES, "").nbytes
    monkeypatch.setattr(merge_of_changes, "_MAX_BYTES", 4 * size)
    count = merge_all(bronze)
    assert count.removed == 8, "a file that is too large stays as it is"
    assert 2 <= count.added <= 4
    assert all_rows(bronze) == before


def test_a_merge_that_fails_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 14):
        land(bronze, (lsn, 0, "I", "a"))
    before, version = all_rows(bronze), bronze.changes.version()
    files = set(bronze.changes.folder.glob("*.parquet"))

    def full(self: StagedFileWriter) -> DataFile:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(StagedFileWriter, "close", full)
        with pytest.raises(OSError, match="no space"):
            merge_all(bronze)
    assert (all_rows(bronze), bronze.changes.version()) == (before, version)
    assert set(bronze.changes.folder.glob("*.parquet")) == files
    next(iter(files)).unlink()
    with pytest.raises(LakeError, match="is missing"):
        merge_all(bronze)


def test_a_stop_ends_between_groups(tmp_path: Path) -> None:
    bronze = bronze_in(tmp_path)
    for lsn in range(10, 20):
        land(bronze, (lsn, 0, "I", "a"))
    path = bronze.changes.local_path
    assert path is not None
    snapshot = bronze.changes.snapshot()
    size = max(int(add["size"]) for add in snapshot.files.values())
    groups = plan_changes(path, snapshot, MergeLimits(2, 16 << 20, 3 * size))
    assert len(groups) == 3
    answers = iter([False, True])
    stopped: Any = merge_groups(
        bronze.changes, snapshot, groups, changes_layout(), should_stop=lambda: next(answers)
    )
    assert (stopped.removed, stopped.added) == (3, 1)
    assert bronze.changes.rows().num_rows == 10
