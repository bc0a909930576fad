"""The log of a table, written by the test itself."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.delta.checksum import write_checksum
from pipeline.delta.rows import read_rows
from pipeline.delta.table_log import TableLog, data_path
from pipeline.errors import LakeError

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
)


def start(table_id: str = "id", **configuration: str) -> list[dict[str, Any]]:
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": SCHEMA,
                "partitionColumns": [],
                "configuration": configuration,
            }
        },
    ]


def add(path: str) -> dict[str, Any]:
    return {
        "add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    }


def txn(app_id: str, version: int) -> dict[str, Any]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": 1}}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    folder = table / "_delta_log"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
    (folder / "x.tmp").write_text(text)
    os.replace(folder / "x.tmp", folder / f"{version:020d}.json")


def checkpoint(table: Path, version: int, actions: list[dict[str, Any]]) -> Path:
    names = ("add", "txn", "metaData", "protocol")
    columns = {name: [action.get(name) for action in actions] for name in names}
    for each in columns["metaData"]:
        if each is not None:
            each["configuration"] = list(each["configuration"].items())
    path = table / "_delta_log" / f"{version:020d}.checkpoint.parquet"
    kinds = {
        "add": pa.struct([("path", pa.string()), ("size", pa.int64())]),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", pa.map_(pa.string(), pa.string())),
            ]
        ),
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
    }
    pq.write_table(pa.table(columns, schema=pa.schema(list(kinds.items()))), path)
    return path


def test_a_log_is_followed(tmp_path: Path) -> None:
    log = TableLog.of(f"file:{tmp_path}")
    assert log is TableLog.of(str(tmp_path))
    assert (log.snapshot().version, log.snapshot().exists, dict(log.snapshot().files)) == (-1, False, {})
    commit(tmp_path, 0, *start(a="b"))
    empty = log.snapshot()
    assert (empty.version, empty.table_id, empty.configuration, empty.offsets) == (0, "id", {"a": "b"}, {})
    assert not empty.files
    commit(tmp_path, 1, {"commitInfo": {"inCommitTimestamp": 77}}, add("x"), txn("app", 7))
    commit(tmp_path, 2, add("y"), txn("app", 8), txn("other", 1))
    newest = log.snapshot()
    assert (newest.version, newest.offsets, set(newest.files)) == (2, {"app": 8, "other": 1}, {"x", "y"})
    assert not empty.files
    older = log.snapshot_at(1)
    assert (older.offsets, older.timestamp, set(older.files)) == ({"app": 7}, 77, {"x"})
    assert [v for v, _ in log.actions_after(0)] == [1, 2]
    assert list(log.actions_after(2)) == []
    commit(tmp_path, 3, {"remove": {"path": "x", "dataChange": True}})
    assert set(log.snapshot().files) == {"y"}
    assert set(newest.files) == {"x", "y"}
    assert log.snapshot().offsets == newest.offsets


def test_one_snapshot_of_a_known_log_lists_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 0, *start())
    log = TableLog.of(str(tmp_path))
    log.snapshot()
    monkeypatch.setattr(os, "listdir", None)
    assert log.snapshot().version == 0


def test_many_commits_without_interest_in_files_keep_no_files(tmp_path: Path) -> None:
    commit(tmp_path, 0, *start(), add("first"))
    log = TableLog.of(str(tmp_path))
    assert len(log.snapshot().files) == 1
    for version in range(1, 300):
        commit(tmp_path, version, add(f"f{version}"))
        log.snapshot()
    assert log._store is None
    assert len(log.snapshot().files) == 300
    assert log._store is not None


def test_versions_that_the_log_does_not_have(tmp_path: Path) -> None:
    log = TableLog.of(str(tmp_path))
    commit(tmp_path, 0, *start())
    for version in (1, 2, 3, 4):
        commit(tmp_path, version, add(str(version)))
    for version in (-1, 5):
        with pytest.raises(LakeError, match="does not have version"):
            log.snapshot_at(version)
    held = log.snapshot_at(2)
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(LakeError, match="does not have version 2 any more"):
        list(log.actions_after(0))
    with pytest.raises(LakeError, match="does not have version 2 any more"):
        _ = held.files
    assert [version for version, _ in log.actions_after(0, is_whole=False)] == [1, 3, 4]
    with pytest.raises(LakeError, match="is not complete"):
        TableLog(str(tmp_path)).snapshot()


def test_checkpoints(tmp_path: Path) -> None:
    commit(tmp_path, 0, *start(a="b"))
    commit(tmp_path, 1, add("x"), txn("app", 1))
    good = checkpoint(tmp_path, 1, [*start(a="b"), add("x"), txn("app", 1)])
    commit(tmp_path, 2, add("y"), txn("app", 2))
    bad = checkpoint(tmp_path, 2, [*start(a="b"), add("x"), add("y"), txn("app", 2)])
    (tmp_path / "_delta_log" / f"{2:020d}.checkpoint.0000000001.0000000002.parquet").touch()
    bad.write_bytes(bad.read_bytes()[:-7])
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    snapshot = TableLog(str(tmp_path)).snapshot()
    assert (snapshot.version, snapshot.offsets, set(snapshot.files)) == (2, {"app": 2}, {"x", "y"})
    assert snapshot.configuration == {"a": "b"}
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    bad.unlink()
    log = TableLog(str(tmp_path))
    only = log.snapshot()
    assert (only.version, only.offsets, set(only.files)) == (1, {"app": 1}, {"x"})
    assert log.snapshot().files == only.files
    good.unlink()
    assert not log.snapshot().exists


@pytest.mark.parametrize("txn_id", ["ours", "another", None])
def test_the_checksum_file_of_the_newest_commit_has_its_state(tmp_path: Path, txn_id: str | None) -> None:
    commit(tmp_path, 0, *start(a="b"))
    commit(tmp_path, 1, add("x"), txn("app", 1))
    commit(tmp_path, 2, {"commitInfo": {"txnId": "ours", "inCommitTimestamp": 77}}, txn("app", 2))
    actions = [*start(a="b"), txn("app", 2)]
    write_checksum(tmp_path / "_delta_log", 0, actions, txn_id or "")
    checksum = tmp_path / "_delta_log" / f"{2:020d}.crc"
    (tmp_path / "_delta_log" / f"{0:020d}.crc").rename(checksum)
    if txn_id is None:
        checksum.write_text(checksum.read_text()[:-1])
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text("not read\n")
    if txn_id != "ours":
        with pytest.raises(LakeError, match=r"Version 1 of the log .* is damaged"):
            TableLog(str(tmp_path)).snapshot()
        return
    log = TableLog(str(tmp_path))
    found = log.snapshot()
    assert (found.version, found.table_id, found.configuration) == (2, "id", {"a": "b"})
    assert (found.offsets, found.timestamp) == ({"app": 2}, 77)
    commit(tmp_path, 3, txn("other", 1))
    assert log.snapshot().offsets == {"app": 2, "other": 1}


def test_another_table_in_the_same_place(tmp_path: Path) -> None:
    table = tmp_path / "t"
    log = TableLog.of(str(table))
    for number in range(20):
        commit(table, 0, *start(f"id {number}"), txn("app", number))
        snapshot = log.snapshot()
        assert (snapshot.table_id, snapshot.offsets) == (f"id {number}", {"app": number})
        shutil.rmtree(table)
    assert not log.snapshot().exists
    with pytest.raises(LakeError):
        _ = snapshot.files


def test_a_damaged_commit_leaves_the_last_version(tmp_path: Path) -> None:
    commit(tmp_path, 0, *start())
    log = TableLog.of(str(tmp_path))
    log.snapshot()
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"txn":')
    for _ in range(2):
        with pytest.raises(LakeError, match=r"Version 1 .* is damaged"):
            log.snapshot()


def test_offsets_that_the_table_forgets(tmp_path: Path) -> None:
    commit(tmp_path, 0, *start(**{"delta.setTransactionRetentionDuration": "interval 1 week"}), txn("a", 1))
    now = {"txn": {"appId": "b", "version": 2, "lastUpdated": 9_999_999_999_999}}
    commit(tmp_path, 1, now)
    assert TableLog.of(str(tmp_path)).snapshot().offsets == {"b": 2}


def test_features_that_make_a_log_incomplete_are_refused(tmp_path: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}
    commit(tmp_path, 0, start()[1], {"protocol": protocol})
    with pytest.raises(LakeError, match="catalogManaged"):
        TableLog.of(str(tmp_path)).snapshot()


def test_threads_see_versions_that_exist(tmp_path: Path) -> None:
    commit(tmp_path, 0, *start())
    log = TableLog.of(str(tmp_path))
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                snapshot = log.snapshot()
                assert len(snapshot.files) == len(list(snapshot.files)) == snapshot.version
                assert snapshot.offsets.get("app", 0) == snapshot.version
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(1, 200):
        commit(tmp_path, version, add(str(version)), txn("app", version))
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_rows_of_files_that_lack_columns(tmp_path: Path) -> None:
    import pyarrow.compute as pc

    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32())}), tmp_path / "a b.parquet")
    pq.write_table(pa.table({"other": [1]}), tmp_path / "c.parquet")
    commit(tmp_path, 0, *start(), add("a%20b.parquet"), add("c.parquet"))
    snapshot = TableLog.of(str(tmp_path)).snapshot()
    assert read_rows(str(tmp_path), snapshot).to_pydict() == {"n": [1, 2, None]}
    assert read_rows(str(tmp_path), snapshot, where=pc.field("n") > 1).to_pydict() == {"n": [2]}
    assert read_rows(str(tmp_path), snapshot, columns=[]).num_columns == 0
    (tmp_path / "c.parquet").unlink()
    with pytest.raises(LakeError, match=r"c\.parquet .* is missing"):
        read_rows(str(tmp_path), snapshot)


def test_paths_of_data_files() -> None:
    assert data_path("/t", "a%20b/c%25.parquet") == "/t/a b/c%.parquet"
    assert data_path("/t", "file:/other/a%20b") == "/other/a b"
    assert data_path("/t", "/other/x") == "/other/x"
