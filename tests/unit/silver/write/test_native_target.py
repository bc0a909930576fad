"""Which files a native write reads and replaces, and what it leaves as it is."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.delta import data_files
from pipeline.delta.data_files import TooLargeError
from pipeline.delta.retry import ConflictError
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.protocol.pg_types import PgType
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.row_changes import FileChanges, RowChanges, RowCommit
from pipeline.silver.fold.write import FOLDED, Write, WriteKind
from pipeline.silver.fold.write_plan import Identity, WriteStep
from pipeline.silver.types.text_parsers import INT, STRING
from pipeline.silver.write import data_layout, file_committer, native_files, native_reads
from pipeline.silver.write.file_committer import FileCommitter, compact_small_files
from pipeline.silver.write.native_files import NotNative
from pipeline.silver.write.native_target import NativeTarget
from pipeline.silver.write.table_version import TableVersion

TXN = TxnId("shop")
FOLD = Fold(
    (FoldColumn("id", INT, {1: 0}), FoldColumn("v", STRING, {1: 1}), FoldColumn("big", STRING, {1: 2}, True)),
    (0,),
    (1,),
)
SOURCE = "op STRING, k0 INT, c0 INT, c1 STRING, c2 STRING, s2 INT, commit_lsn BIGINT"
KEPT = None  # the state of a column that keeps silver's value


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    table = LakeTable(str(tmp_path / "t"))
    table.ensure("id INT, v STRING, big STRING")
    return table


def append(table: LakeTable, keys: Sequence[int]) -> None:
    """Append a file with these keys."""
    table.append_rows(
        [{"id": key, "v": "old", "big": f"big {key}"} for key in keys], "id INT, v STRING, big STRING"
    )


def target_of(session: DuckSql, table: LakeTable, max_bytes: int | None = None) -> NativeTarget:
    version = TableVersion(table, table.snapshot())
    return NativeTarget(session, version, FileCommitter(version), max_bytes)


def merge(
    session: DuckSql, table: LakeTable, rows: Sequence[Sequence[Any]], lsn: int, max_bytes: int | None = None
) -> None:
    """Merge rows of (op, key, v, big, state of big)."""
    query = ", ".join(
        "(" + ", ".join("NULL" if v is None else repr(v) for v in (op, key, key, v, big, state, lsn)) + ")"
        for op, key, v, big, state in rows
    )
    columns = ", ".join(column.split()[0] for column in SOURCE.split(", "))
    types = ", ".join(f"CAST({n} AS {ddl}) AS {n}" for n, ddl in (c.split() for c in SOURCE.split(", ")))
    session.clear()
    session.compute(FOLDED, f"SELECT {types} FROM (VALUES {query}) AS v({columns})")
    step = WriteStep(Identity.KEY, (1,), (0, 0), (lsn, 0), replaces=False, end_lsn=LSN(lsn))
    commit = TableCommit(TXN, LSN(lsn), {"table": ["public", "t"], "after": "0/0"})
    write = Write(step, WriteKind.MERGE, FOLD, commit, MetadataNames(None, None), table.identifier)
    target_of(session, table, max_bytes).commit_merge(write, FOLD, {})


def replace_keys(
    session: DuckSql, table: LakeTable, ranges: Sequence[KeyRange], keys: Sequence[int], lsn: int
) -> None:
    """Replace the rows with keys in ranges by rows with these keys."""
    values = ", ".join(f"('I', {key}, {key}, 'copied', 'sent', NULL, {lsn})" for key in keys)
    columns = ", ".join(column.split()[0] for column in SOURCE.split(", "))
    types = ", ".join(f"CAST({n} AS {ddl}) AS {n}" for n, ddl in (c.split() for c in SOURCE.split(", ")))
    session.clear()
    session.define(FOLDED, f"SELECT {types} FROM (VALUES {values}) AS v({columns})")
    step = WriteStep(
        Identity.KEY, (1,), (0, 0), (lsn, 0), replaces=False, end_lsn=LSN(lsn), key_ranges=tuple(ranges)
    )
    step = replace(step, copy_id=1, key_types=(PgType.INT4,))
    commit = TableCommit(TXN, LSN(lsn), {"table": ["public", "t"]})
    write = Write(step, WriteKind.REPLACE_KEYS, FOLD, commit, MetadataNames(None, None), table.identifier)
    target_of(session, table).commit_rows(write, FOLD)


def files(table: LakeTable) -> set[str]:
    return set(table.snapshot().files)


def rows(table: LakeTable) -> dict[int, tuple[str, str | None]]:
    found = table.rows().to_pylist()
    by_key = {row["id"]: (row["v"], row["big"]) for row in found}
    assert len(by_key) == len(found)
    return by_key


def test_only_files_with_changed_rows_are_replaced(session: DuckSql, table: LakeTable) -> None:
    for first in (0, 10, 20):
        append(table, range(first, first + 10))
    before = files(table)
    merge(
        session, table, [("U", 13, "new", None, KEPT), ("D", 17, None, None, 1), ("D", 99, None, None, 1)], 5
    )
    assert len(before & files(table)) == 2
    assert len(files(table)) == 3
    found = rows(table)
    assert found[13] == ("new", "big 13")
    assert found.keys() == {*range(30)} - {17}
    assert table.offset(TXN) == 5


def test_rows_stay_in_their_order(session: DuckSql, table: LakeTable) -> None:
    append(table, range(100))
    merge(session, table, [("U", 50, "new", "sent", 0), ("D", 3, None, None, 1), ("U", 200, "in", "x", 0)], 5)
    assert table.rows().column("id").to_pylist() == [*range(3), *range(4, 100), 200]
    assert rows(table)[50] == ("new", "sent")


@pytest.mark.parametrize(
    ("ranges", "gone", "rewritten"),
    [
        ([KeyRange(("13",), ("15",))], {13, 14, 15}, 1),
        ([KeyRange(("8",), ("11",)), KeyRange(("25",), ("25",))], {8, 9, 10, 11, 25}, 3),
        ([KeyRange((), ("-1",))], set(), 0),
        ([KeyRange(("28",), ())], {28, 29}, 1),
        ([KeyRange((), ("0",)), KeyRange(("100",), ("200",))], {0}, 1),
    ],
)
def test_rows_in_key_ranges_are_replaced(
    session: DuckSql, table: LakeTable, ranges: list[KeyRange], gone: set[int], rewritten: int
) -> None:
    for first in (0, 10, 20):
        append(table, range(first, first + 10))
    before = files(table)
    replace_keys(session, table, ranges, [1000, 1001], 5)
    assert len(before - files(table)) == rewritten
    found = rows(table)
    assert found.keys() == {*range(30), 1000, 1001} - gone
    assert found[1000] == ("copied", "sent")
    assert {value for key, value in found.items() if key < 1000} == {
        ("old", f"big {key}") for key in {*range(30)} - gone
    }
    assert table.offset(TXN) == 5


def test_a_cut_that_changes_no_row_records_its_offset(session: DuckSql, table: LakeTable) -> None:
    append(table, range(10))
    before = files(table)
    merge(session, table, [("D", 99, None, None, 1)], 7)
    assert files(table) == before
    assert table.offset(TXN) == 7


def test_a_file_whose_rows_are_all_deleted_is_only_removed(session: DuckSql, table: LakeTable) -> None:
    append(table, [1, 2])
    append(table, [3])
    merge(session, table, [("D", key, None, None, 1) for key in (1, 2)], 5)
    assert rows(table).keys() == {3}
    assert len(files(table)) == 1


def test_inserts_fill_up_a_rewritten_file_or_make_one(session: DuckSql, table: LakeTable) -> None:
    append(table, [1, 2])
    merge(session, table, [("U", 3, "a", "b", 0)], 5)
    assert len(files(table)) == 2
    merge(session, table, [("U", 1, "a", "b", 0), ("U", 4, "a", "b", 0)], 6)
    assert len(files(table)) == 2
    assert rows(table).keys() == {1, 2, 3, 4}


def test_more_bytes_than_allowed_are_left_to_spark(session: DuckSql, table: LakeTable) -> None:
    append(table, range(10))
    before = table.snapshot()
    with pytest.raises(NotNative):
        merge(session, table, [("U", 5, "new", "sent", 0)], 5, max_bytes=100)
    merge(session, table, [("U", 50, "new", "sent", 0)], 5, max_bytes=100)  # no file may have it
    assert table.version() == before.version + 1


@pytest.mark.parametrize("most", [10, 100])  # of the keys; of the file's values
def test_only_keys_that_need_too_much_memory_are_left_to_spark(
    session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    append(table, range(10))
    before = table.version()
    for module in (native_files, native_reads):
        monkeypatch.setattr(module, "MAX_BYTES_IN_MEMORY", most)
    with pytest.raises((NotNative, TooLargeError)) if most == 10 else nullcontext():
        merge(session, table, [("U", 5, "new", "sent", 0)], 5)
    assert table.version() == before + (most == 100)


@pytest.mark.parametrize("batch", [1, 7, 100, 16_384])
def test_a_file_is_rewritten_some_rows_at_a_time(
    session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    append(table, range(100))
    monkeypatch.setattr(data_files, "_BATCH_ROWS", batch)
    changes = [("D", 0, None, None, 0), ("U", 6, "new", "sent", 0), ("U", 7, "new", "not sent", KEPT)]
    merge(session, table, [*changes, ("D", 99, None, None, 0), ("U", 200, "in", "serted", 0)], 5)
    rows = [{"id": key, "v": "old", "big": f"big {key}"} for key in range(1, 99)]
    rows[5], rows[6] = {"id": 6, "v": "new", "big": "sent"}, {"id": 7, "v": "new", "big": "big 7"}
    assert table.rows().to_pylist() == [*rows, {"id": 200, "v": "in", "big": "serted"}]
    assert len(files(table)) == 1


def test_two_keys_that_are_one_in_silver_are_left_to_spark(session: DuckSql, table: LakeTable) -> None:
    append(table, [1])
    before = table.version()
    with pytest.raises(NotNative):
        merge(session, table, [("U", 1, "a", "b", 0), ("U", 1, "c", "d", 0)], 5)
    assert table.version() == before


def test_a_failed_commit_leaves_no_files(
    session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, [1])
    before = {*table.folder.glob("*.parquet")}

    def fail(*arguments: object) -> int:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", fail)
        with pytest.raises(OSError, match="full"):
            merge(session, table, [("U", 1, "a", "b", 0)], 5)
    assert {*table.folder.glob("*.parquet")} == before


def test_large_files_are_split(session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, range(1000))
    monkeypatch.setattr(file_committer, "FILE_SIZE", 2000)
    monkeypatch.setattr(data_files, "ROW_GROUP", 1000)
    merge(session, table, [("U", 1, "a", "b", 0)], 5)
    assert len(files(table)) > 2
    assert table.rows().column("id").to_pylist() == [*range(1000)]


def test_a_rewritten_file_is_split_only_if_it_is_much_too_large(
    session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, range(1000))
    [size] = [int(file["size"]) for file in table.snapshot().files.values()]
    monkeypatch.setattr(data_layout, "_MIN_FILE_SIZE", size * 3 // 4)
    merge(session, table, [("U", 1, "a", "b", 0)], 5)
    assert len(files(table)) == 1
    monkeypatch.setattr(data_layout, "_MIN_FILE_SIZE", size // 4)
    merge(session, table, [("U", 2, "a", "b", 0)], 6)
    assert len(files(table)) == 4
    before = files(table)
    merge(session, table, [("U", 3, "a", "b", 0)], 7)
    assert len(files(table)) == 4
    assert len(files(table) - before) == 1
    assert sorted(table.rows().column("id").to_pylist()) == [*range(1000)]


def test_inserts_fill_up_only_a_small_file(
    session: DuckSql, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, range(1000))
    [size] = [int(file["size"]) for file in table.snapshot().files.values()]
    changes = [("U", 1, "a", "b", 0), ("U", 2000, "a", "b", 0)]
    monkeypatch.setattr(data_layout, "_MIN_FILE_SIZE", 4 * size + 4)
    merge(session, table, changes, 5)
    assert len(files(table)) == 1
    monkeypatch.setattr(data_layout, "_MIN_FILE_SIZE", 4 * size)
    merge(session, table, [("U", 1, "a", "b", 0), ("U", 3000, "a", "b", 0)], 6)
    assert len(files(table)) == 2


def test_many_small_files_are_compacted_in_a_commit_that_changes_no_row(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(7):
        append(table, [key])
    monkeypatch.setattr(file_committer, "_MAX_SMALL_FILES", 8)
    compact_small_files(table)
    assert len(files(table)) == 7
    append(table, [7])
    before = rows(table)
    compact_small_files(table)
    assert len(files(table)) == 1
    assert rows(table) == before
    [(_, found)] = table.actions_after(table.version() - 1)
    actions = list(found)
    changes = [action.get("add") or action.get("remove") for action in actions[1:]]
    assert [change["dataChange"] for change in changes if change] == [False] * 9
    assert actions[0]["commitInfo"]["operation"] == "OPTIMIZE"


@pytest.mark.parametrize(
    ("values", "bounds", "is_chosen"),
    [
        ([5], (1, 9), True),
        ([0, 10], (1, 9), False),
        ([0, 10], (None, 9), True),
        ([0, 10], (1, None), True),
        ([0], (1, None), False),
        ([], (None, None), False),
        (["naïve"], ("n", "o"), True),
        (["z"], ("a", "é"), True),  # in the order of UTF-8
    ],
)
def test_statistics_choose_files(values: list[Any], bounds: tuple[Any, Any], is_chosen: bool) -> None:
    assert data_layout.any_between(sorted(values), *bounds) is is_chosen


def test_statistics_of_written_files_are_those_of_their_rows(session: DuckSql, table: LakeTable) -> None:
    merge(session, table, [("U", 1, "a", None, 0), ("U", 9, "z" * 40, None, 0)], 5)
    [add] = table.snapshot().files.values()
    assert json.loads(add["stats"]) == {
        "numRecords": 2,
        "minValues": {"id": 1, "v": "a"},
        "maxValues": {"id": 9, "v": "z" * 32 + "\U0010ffff"},
        "nullCount": {"id": 0, "v": 0, "big": 2},
    }


def test_lists_and_other_types_keep_their_values() -> None:
    kinds = {"l": pa.list_(pa.field("element", pa.string())), "b": pa.binary(), "t": pa.timestamp("us")}
    before = pa.table({"l": [["a"], None], "b": [b"x", None], "t": [1, None]}, schema=pa.schema(kinds))
    values = pa.table({"l": [["b", None]], "b": [b"y"], "t": [2]}, schema=pa.schema(kinds))
    changes = FileChanges(np.array([], int), np.array([1]), np.array([0]))
    kept = {"l": np.array([True]), "b": np.array([False])}
    after = RowChanges(values, {0: changes}, kept).applied(changes, before)
    assert after.schema == before.schema
    assert after.column("l").to_pylist() == [["a"], None]
    assert after.column("b").to_pylist() == [b"x", b"y"]


def last_commit(table: LakeTable) -> dict[str, Any]:
    """Return the `commitInfo` of the newest version."""
    log = table.folder / "_delta_log" / f"{table.snapshot().version:020}.json"
    found: dict[str, Any] = next(
        action["commitInfo"]
        for action in map(json.loads, log.read_text(encoding="utf-8").splitlines())
        if "commitInfo" in action
    )
    return found


def test_only_an_append_is_blind_to_rows_that_came_meanwhile(table: LakeTable) -> None:
    append(table, range(3))
    stale = TableVersion(table, table.snapshot())
    append(table, [7])
    changes = RowChanges(stale.columns.empty_table())
    merge_of = RowCommit(TableCommit(TXN, LSN(5), {}), "MERGE", {})
    with pytest.raises(ConflictError), FileCommitter(stale).committing(changes, merge_of):
        pass
    append_of = RowCommit(TableCommit(TXN, LSN(6), {}), "WRITE", {}, is_append=True)
    with FileCommitter(stale).committing(changes, append_of) as add:
        add(stale.complete(pa.table({"id": pa.array([9], pa.int32())})))
    assert rows(table).keys() == {0, 1, 2, 7, 9}
    assert last_commit(table)["isBlindAppend"] is True
    assert last_commit(table)["operationMetrics"].keys() == {"numFiles", "numOutputRows", "numOutputBytes"}


def test_the_history_counts_the_rows_of_a_merge(session: DuckSql, table: LakeTable) -> None:
    append(table, range(10))
    merge(session, table, [("U", 3, "n", None, KEPT), ("D", 4, None, None, 1), ("U", 20, "n", "b", 0)], 5)
    metrics = last_commit(table)["operationMetrics"]
    names = ("numSourceRows", "numTargetRowsUpdated", "numTargetRowsDeleted", "numTargetRowsInserted")
    assert [metrics[name] for name in names] == ["3", "1", "1", "1"]
    assert metrics["numTargetRowsCopied"] == "8"
    assert not last_commit(table)["isBlindAppend"]


@pytest.mark.parametrize(("kind", "mode"), [(WriteKind.APPEND, "Append"), (WriteKind.OVERWRITE, "Overwrite")])
def test_the_history_names_the_mode_of_a_write(
    session: DuckSql, table: LakeTable, kind: WriteKind, mode: str
) -> None:
    append(table, range(2))
    session.define(FOLDED, "SELECT 'I' AS op, 5 AS k0, 5 AS c0, 'v' AS c1, 'b' AS c2")
    step = WriteStep(Identity.KEY, (1,), (0, 0), (7, 0), replaces=False, end_lsn=LSN(7))
    commit = TableCommit(TXN, LSN(7), {"table": ["public", "t"]})
    write = Write(step, kind, FOLD, commit, MetadataNames(None, None), table.identifier)
    target_of(session, table).commit_rows(write, FOLD)
    found = last_commit(table)
    assert (found["operationParameters"]["mode"], found["isBlindAppend"]) == (mode, mode == "Append")
    assert rows(table).keys() == ({0, 1, 5} if mode == "Append" else {5})
