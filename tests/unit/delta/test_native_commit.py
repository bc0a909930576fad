"""Commits without Spark: what they write, what conflicts, and that each is made once."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.delta.native_commit import (
    Operation,
    Reads,
    commit_version,
    read_commit,
    remove_action,
    remove_uncommitted,
    txn_actions,
    vector_file,
)
from pipeline.delta.retry import ConflictError, SameWriteError, is_conflict, is_same_write, retry_conflicts
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from tests.support.commits import do_before_commit, do_before_reading_back, fail_to_sync_logs

DDL = "id INT, tag STRING"
ONE, TWO = TxnId("one"), TxnId("two")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = Lake(str(tmp_path)).table("t")
    made.ensure(DDL)
    return made


def ids(table: LakeTable) -> list[int]:
    return sorted(table.rows(["id"])["id"].to_pylist())


def test_a_commit_records_what_spark_would(table: LakeTable) -> None:
    table.append_rows([{"id": 1, "tag": "a"}], DDL, TableCommit(ONE, LSN(5), {"gap": "none"}))
    created, written = (read_commit(table.folder / "_delta_log", version) for version in (0, 1))
    assert created is not None
    assert written is not None
    assert [[*action] for action in created] == [["commitInfo"], ["protocol"], ["metaData"]]
    assert [[*action] for action in written] == [["commitInfo"], ["txn"], ["add"]]
    information, txn, add = (next(iter(action.values())) for action in written)
    assert information["operation"] == "WRITE"
    assert information["operationParameters"] == {"mode": "Append", "partitionBy": "[]"}
    assert information["operationMetrics"]["numOutputRows"] == "1"
    assert (information["readVersion"], information["isBlindAppend"]) == (0, True)
    assert json.loads(information["userMetadata"]) == {
        "pgdelta": 1,
        "app_id": "pgdelta:one:1",
        "lsn": "0/5",
        "gap": "none",
    }
    assert (txn["appId"], txn["version"]) == ("pgdelta:one:1", 5)
    assert json.loads(add["stats"])["numRecords"] == 1
    assert add["size"] == (table.folder / add["path"]).stat().st_size


def test_an_offset_is_recorded_once(table: LakeTable) -> None:
    for lsn in (5, 5, 4):
        table.append_rows([{"id": lsn}], DDL, TableCommit(ONE, LSN(lsn)))
    assert (table.version(), table.offset(ONE), ids(table)) == (1, LSN(5), [5])


def test_of_two_writers_of_one_offset_the_second_is_refused(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = TableCommit(ONE, LSN(7))
    do_before_commit(monkeypatch, lambda: table.append_rows([{"id": 7}], DDL, theirs))
    with pytest.raises(SameWriteError) as refused:
        table.append_rows([{"id": 6}], DDL, TableCommit(ONE, LSN(6)))
    assert is_same_write(refused.value)
    assert not is_conflict(refused.value)
    assert ids(table) == [7]
    assert len(list(table.folder.glob("*.parquet"))) == 1, "the file of a refused commit is removed"


def test_an_append_takes_the_next_version(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def append_twice() -> None:
        for number in (1, 2):
            table.append_rows([{"id": number}], DDL, TableCommit(TWO, LSN(number)))

    do_before_commit(monkeypatch, append_twice)
    table.append_rows([{"id": 3}], DDL, TableCommit(ONE, LSN(3)))
    assert (table.version(), ids(table)) == (3, [1, 2, 3])


@pytest.mark.parametrize("change", ["append", "overwrite", "delete", "metadata"])
def test_what_depends_on_all_rows_conflicts_with_every_change(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    table.append_rows([{"id": 1}, {"id": 2}], DDL)

    def change_rows() -> None:
        if change == "append":
            table.append_rows([{"id": 3}], DDL)
        elif change == "overwrite":
            table.overwrite_rows([{"id": 4}], DDL)
        elif change == "delete":
            table.delete_rows(pc.field("id") == 1, "id = 1", ["id"])
        else:
            table.overwrite_rows([], "id BIGINT", replaces_schema=True)

    do_before_commit(monkeypatch, change_rows)
    with pytest.raises(ConflictError) as refused:
        table.delete_rows(pc.field("id") == 2, "id = 2", ["id"])
    assert is_conflict(refused.value)
    retry_conflicts(lambda: table.delete_rows(pc.field("id") == 2, "id = 2", ["id"]))
    assert 2 not in ids(table)


def test_a_table_may_lack_columns_without_values(table: LakeTable) -> None:
    table.append_rows([{"id": 1, "tag": "a", "later": None}], f"{DDL}, later STRING")
    assert table.rows().to_pylist() == [{"id": 1, "tag": "a"}]
    with pytest.raises(LakeError, match="has no column later"):
        table.append_rows([{"id": 2}, {"id": 3, "later": "x"}], f"{DDL}, later STRING")


def test_an_append_conflicts_with_other_columns(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    do_before_commit(monkeypatch, lambda: table.overwrite_rows([], "id BIGINT", replaces_schema=True))
    with pytest.raises(ConflictError):
        table.append_rows([{"id": 3}], DDL)


def test_a_compaction_does_not_conflict_with_an_append(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        table.append_rows([{"id": number}], DDL)
    do_before_commit(monkeypatch, lambda: table.append_rows([{"id": 3}], DDL))
    table.compact_rows()
    assert (ids(table), len(table.snapshot().files)) == ([0, 1, 2, 3], 2)
    last = list(table.operations_after(-1))[-1]
    assert last.operation == "OPTIMIZE"


def test_a_compaction_leaves_large_files_as_they_are(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        table.append_rows([{"id": number}], DDL)
    monkeypatch.setattr("pipeline.delta.data_files.ROW_GROUP", 8)
    before = {add["path"] for add in table.snapshot().files.values()}
    table.compact_rows()
    assert len(before) > 1
    [one] = table.snapshot().files.values()
    assert pq.ParquetFile(table.folder / one["path"]).num_row_groups > 1
    monkeypatch.setattr("pipeline.delta.native_write._LARGE_FILE", one["size"])
    table.append_rows([{"id": 7}], DDL)
    table.compact_rows()
    assert one["path"] in {add["path"] for add in table.snapshot().files.values()}


def test_a_compaction_conflicts_with_another_one(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        table.append_rows([{"id": number}], DDL)
    do_before_commit(monkeypatch, table.compact_rows)
    with pytest.raises(ConflictError):
        table.compact_rows()
    assert ids(table) == [0, 1, 2]


def test_a_table_that_was_removed_meanwhile_gets_no_commit(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append_rows([{"id": 1}], DDL)

    def replace_table() -> None:
        table.remove()
        table.ensure(DDL)

    do_before_commit(monkeypatch, replace_table)
    with pytest.raises(ConflictError, match="removed or replaced"):
        table.append_rows([{"id": 2}], DDL)
    assert (table.version(), ids(table)) == (0, [])


def test_a_commit_that_the_storage_lost_is_noticed(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(version: int) -> None:
        entry = table.folder / "_delta_log" / f"{version:020}.json"
        entry.write_text('{"commitInfo":{"txnId":"theirs","operation":"OPTIMIZE"}}\n')

    do_before_reading_back(monkeypatch, lose)
    with pytest.raises(LakeError, match="lost a commit: it confirmed version 1"):
        table.append_rows([{"id": 1}], DDL)
    assert list(table.folder.glob("*.parquet")), "the file may be named by a commit"


def test_a_commit_that_fails_once_it_is_made_keeps_its_files(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_to_sync_logs(patch)
        with pytest.raises(OSError, match="Input/output error"):
            table.append_rows([{"id": 1, "tag": "a"}], DDL)
    assert ids(table) == [1]


def test_files_of_a_commit_that_was_not_made_are_removed(table: LakeTable) -> None:
    table.append_rows([{"id": 1, "tag": "a"}], DDL)
    (committed,) = (path.name for path in table.folder.glob("*.parquet"))
    (table.folder / "other.parquet").touch()
    remove_uncommitted(table.folder, 0, [committed, "other.parquet", "never.parquet"], OSError())
    assert [path.name for path in table.folder.glob("*.parquet")] == [committed]


def test_files_stay_if_the_log_cannot_be_read(table: LakeTable) -> None:
    (table.folder / "_delta_log" / f"{1:020}.json").write_text("{")
    (table.folder / "other.parquet").touch()
    remove_uncommitted(table.folder, 0, ["other.parquet"], OSError())
    assert (table.folder / "other.parquet").exists()


def test_a_file_system_without_hard_links_is_refused(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(LakeError, match="has no hard links"):
        table.append_rows([{"id": 1}], DDL)
    assert not list((table.folder / "_delta_log").glob("*.tmp"))


def test_threads_commit_each_once(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("t")
    count, commits = 4, 25
    start = threading.Barrier(count)

    def append(thread: int) -> None:
        start.wait()
        table.ensure(DDL)
        for number in range(commits):
            commit = TableCommit(TxnId(f"p{thread}"), LSN(number + 1))
            table.append_rows([{"id": thread * commits + number}], DDL, commit)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(append, range(count)))
    assert (table.version(), ids(table)) == (count * commits, [*range(count * commits)])
    assert set(table.offsets().values()) == {LSN(commits)}
    assert not [path for path in (table.folder / "_delta_log").iterdir() if path.suffix == ".tmp"]


def test_a_new_table_is_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Lake(str(tmp_path)).table("t")
    do_before_commit(monkeypatch, lambda: table.ensure(DDL))
    table.ensure(DDL)
    assert table.version() == 0


def test_a_write_may_depend_on_ids_that_it_does_not_record(table: LakeTable) -> None:
    read = table.version()
    table.append_rows([], DDL, TableCommit(TWO, LSN(1)))
    actions = txn_actions({str(ONE): 1})
    with pytest.raises(SameWriteError, match=r"recorded pgdelta:two:1"):
        commit_version(table.folder, read, actions, Operation("WRITE"), Reads([str(TWO)]))


def test_a_removed_file_keeps_what_readers_need() -> None:
    add = {
        "path": "a",
        "partitionValues": {},
        "size": 5,
        "stats": "{}",
        "deletionVector": {"storageType": "u", "pathOrInlineDv": "x"},
    }
    removed = remove_action(add, data_change=False)["remove"]
    assert (removed["path"], removed["size"], removed["dataChange"]) == ("a", 5, False)
    assert removed["deletionVector"] == add["deletionVector"]
    assert "stats" not in removed


def test_deletion_vectors_have_the_names_of_the_protocol() -> None:
    # the protocol's own example
    assert (
        vector_file("ab^-aqEH.-t@S}K{vb[*k^") == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    )
