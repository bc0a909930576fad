"""The requests that a lake makes of a store, against a server with S3's protocol and HDFS."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import obstore
import pytest
from hdfs_native import Client, WriteOptions

from pipeline.delta.store import hdfs_store
from pipeline.delta.store.hdfs_client import HdfsClient
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.store import Store, StoreError
from pipeline.errors import ConfigError
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

if TYPE_CHECKING:
    from pipeline.delta.store.hdfs_store import HdfsEntry, HdfsStore


@pytest.fixture
def s3_store(s3: S3Server, request: pytest.FixtureRequest) -> ObjectStore:
    return ObjectStore(f"s3://{BUCKET}/{request.node.name}/lake", s3.options)


@pytest.fixture(params=["s3", pytest.param("hdfs", marks=pytest.mark.spark)])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "s3":
        found: Store = request.getfixturevalue("s3_store")
        return found
    hdfs: Hdfs = request.getfixturevalue("hdfs")
    return open_store(f"{hdfs.url}/{request.node.name}/odd %20 ü/lake")


def test_an_object_is_created_once(store: Store) -> None:
    assert store.create("log/0.json", b"mine") is not None
    assert store.create("log/0.json", b"theirs") is None
    assert store.create("log/0.json", b"mine") == store.read("log/0.json")[1]
    assert store.read("log/0.json")[0] == b"mine"


def test_an_entry_is_replaced_by_its_tag(store: Store) -> None:
    entry = store.entry("locks/lease")
    with pytest.raises(FileNotFoundError):
        entry.read()
    first = entry.create(b"1")
    assert first
    assert entry.create(b"2") is None
    assert entry.create(b"1") == first
    second = entry.replace(b"2", first)
    assert second not in (None, first)
    assert entry.replace(b"3", first) is None
    assert entry.replace(b"2", first) == second
    assert store.entry("locks/other").replace(b"3", first) is None
    assert entry.read() == (b"2", second)
    assert len(list(store.list("locks"))) == 1
    entry.remove()
    assert second is not None
    assert entry.replace(b"4", second) is None
    assert list(store.list("locks")) == []


def test_one_of_several_threads_replaces_an_entry(store: Store) -> None:
    entry, rounds = store.entry("lease"), 8
    tag = entry.create(b"begin")
    assert tag is not None
    winners: list[tuple[int, str]] = []
    together = threading.Barrier(4)

    def race(number: int) -> None:
        found = tag
        for turn in range(rounds):
            together.wait()
            assert found is not None
            mine = entry.replace(f"{turn} {number}".encode(), found)
            if mine is not None:
                winners.append((turn, mine))
            together.wait()
            found = entry.read()[1]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(4)))
    assert [turn for turn, _ in sorted(winners)] == list(range(rounds))
    assert entry.read()[1] == max(winners)[1]


@pytest.mark.spark
def test_a_late_process_that_creates_a_deleted_number_replaces_nothing(hdfs: Hdfs) -> None:
    store = open_store(f"{hdfs.url}/late")
    entry = store.entry("lease")
    tag = entry.create(b"0")
    for number in range(1, 5):
        assert tag is not None
        tag = entry.replace(f"{number}".encode(), tag)
    late = cast("HdfsEntry", entry)
    assert late._add(2, b"late") is None
    assert entry.read() == (b"4", tag)
    assert len(list(store.list("lease"))) == 1


@pytest.mark.spark
def test_a_rename_whose_answer_is_lost_was_made(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    store, rename = open_store(f"{hdfs.url}/lost"), HdfsClient.rename

    def rename_twice(client: HdfsClient, path: str, to: str, *, overwrites: bool) -> None:
        rename(client, path, to, overwrites=overwrites)
        rename(client, path, to, overwrites=overwrites)  # as a client does that got no answer

    store.write("folder", b"")
    monkeypatch.setattr(HdfsClient, "rename", rename_twice)
    assert store.create("0.json", b"mine") is not None
    assert store.create("0.json", b"theirs") is None
    assert store.read("0.json")[0] == b"mine"
    assert store.write("0.json", b"over") == store.read("0.json")[1]
    assert [each.name for each in store.list()] == ["0.json", "folder"]


@pytest.mark.spark
def test_files_of_dead_processes_are_removed(hdfs: Hdfs) -> None:
    url = f"{hdfs.url}/dead"
    client = Client(hdfs.url)
    for name, age in (("old", 90_000), ("young", 80_000)):
        with client.create(f"/dead/_pgdelta/uploads/{name}", WriteOptions()) as file:
            file.write(b"part")
        modified = int((time.time() - age) * 1000)
        client.set_times(f"/dead/_pgdelta/uploads/{name}", modified, modified)
    store = open_store(url)
    store.write("a", b"1")
    left = [each.path for each in client.list_status("/dead/_pgdelta/uploads")]
    assert left == ["/dead/_pgdelta/uploads/young"]
    assert [each.name for each in store.list()] == ["a"]
    store.remove_unfinished()
    assert [each.path for each in client.list_status("/dead/_pgdelta")] == []


@pytest.mark.spark
def test_snapshots_are_versions_that_are_kept(hdfs: Hdfs) -> None:
    store = open_store(f"{hdfs.url}/kept/lake")
    store.write("t/a", b"1")
    assert store.keeps_versions("t/a") is False
    hdfs.keep("kept")
    assert store.keeps_versions("t/a") is True


@pytest.mark.spark
def test_a_user_without_rights_and_a_server_that_is_not_there_are_named(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(f"{hdfs.url}/mine").write("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "guest")
    with pytest.raises(StoreError, match=r"HDFS refuses to write hdfs://.*/mine/a \(.*Check the user"):
        open_store(f"{hdfs.url}/mine").write("a", b"2")
    gone = open_store("hdfs://localhost:1/lake", patience=2)
    with pytest.raises(StoreError, match=r"HDFS failed to create hdfs://localhost:1/lake/a \(.*refused"):
        gone.create("a", b"1")
    hanging = open_store(f"{hdfs.url}/mine", patience=1)
    with hdfs.stopped(), pytest.raises(StoreError, match=r"HDFS failed to read .*no answer for 2.5 seconds"):
        hanging.read("a")
    assert hanging.read("a")[0] == b"1"
    with pytest.raises(ConfigError, match=r"The root hdfs:// cannot be used .*HADOOP_CONF_DIR"):
        open_store("hdfs:///lake")


def test_a_list_has_whole_segments_in_order_and_can_begin_after_a_name(store: Store) -> None:
    has_folders = not isinstance(store, ObjectStore)  # which are no files
    for name in ("log/1", "log/0", "log/2/3", "logs/0", *([] if has_folders else ["log"])):
        store.write(name, name.encode())
    assert [each.name for each in store.list("log")] == ["log/0", "log/1", "log/2/3"]
    assert [each.name for each in store.list("log", after="log/0")] == ["log/1", "log/2/3"]
    assert [each.size for each in store.list("logs")] == [6]
    assert list(store.list("nothing")) == []


def test_a_list_begins_after_a_name_on_a_server_that_ignores_it(
    s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_store
    for name in ("log/0", "log/1", "log/2"):
        store.write(name, name.encode())
    list_all = obstore.list
    monkeypatch.setattr(obstore, "list", lambda *place, offset, **options: list_all(*place, **options))
    assert [each.name for each in store.list("log", after="log/0")] == ["log/1", "log/2"]


def test_marks_of_folders_are_no_objects(s3_store: ObjectStore, s3: S3Server) -> None:
    store = s3_store
    store.write("t/_delta_log/0.json", b"{}")
    s3.request("PUT", f"{store.url.removeprefix('s3://')}/t/_delta_log/_staged_commits/")
    assert b"/t/_delta_log/_staged_commits/</" in s3.request("GET", BUCKET)
    assert [each.name for each in store.list("t")] == ["t/_delta_log/0.json"]


def test_large_files_are_written_and_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(range(256)) * 50_000)
    store.upload(tmp_path / "here", "data/file")
    store.copy("data/file", "data/copy")
    store.delete(["data/file", "data/nothing"])
    store.download("data/copy", tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert [each.name for each in store.list()] == ["data/copy"]
    with pytest.raises(FileNotFoundError):
        store.read("data/file")


def test_one_of_several_threads_creates_an_object(store: Store) -> None:
    winners: list[int] = []
    together = threading.Barrier(4)

    def race(number: int) -> None:
        for version in range(10):
            together.wait()
            if store.create(f"log/{version}", f"{number}".encode()) is not None:
                winners.append(version)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(10))


@pytest.mark.spark
@pytest.mark.promise("one winner of each version")
def test_a_file_of_the_same_moment_and_length_is_another_one(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cast("HdfsStore", open_store(f"{hdfs.url}/moment"))
    monkeypatch.setattr(hdfs_store, "_tag", lambda status: "one")
    rename = store._client.rename

    def rename_late(path: str, to: str, *, overwrites: bool) -> None:
        monkeypatch.setattr(store._client, "rename", rename)
        with pytest.raises(FileNotFoundError):
            rename(path, to, overwrites=overwrites)  # the folder is not there yet
        assert store.create("log/0", b"first") is not None
        raise FileNotFoundError(to)

    monkeypatch.setattr(store._client, "rename", rename_late)
    assert store.create("log/0", b"other") is None
    assert store.read("log/0")[0] == b"first"


def test_a_creation_whose_answer_is_lost_succeeds() -> None:
    with s3_server(loses=2) as server:
        store = ObjectStore(f"s3://{BUCKET}", server.options)
        for number in range(6):
            assert store.create(f"log/{number}", f"{number}".encode()) is not None
        assert server.lost == 5  # also of repeated requests


def test_a_missing_bucket_and_an_unknown_option_are_named(s3: S3Server) -> None:
    with pytest.raises(StoreError, match=r"There is no s3://elsewhere/lake\. Create the bucket"):
        ObjectStore("s3://elsewhere/lake", s3.options).create("a", b"")
    with pytest.raises(ConfigError, match=r"storage\.options do not fit s3://elsewhere .*'colour'"):
        ObjectStore("s3://elsewhere", {"colour": "red"})
