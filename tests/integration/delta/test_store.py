"""The requests that a lake makes of an object store, against a server with S3's protocol."""

from __future__ import annotations

import threading
from pathlib import Path

import obstore
import pytest

from pipeline.delta.store.store import Store, StoreError
from pipeline.errors import ConfigError
from tests.support.stores.s3 import BUCKET, S3Server, s3_server


@pytest.fixture
def store(s3: S3Server, request: pytest.FixtureRequest) -> Store:
    return Store(f"s3://{BUCKET}/{request.node.name}/lake", s3.options)


def test_an_object_is_created_once(store: Store) -> None:
    assert store.create("log/0.json", b"mine") is not None
    assert store.create("log/0.json", b"theirs") is None
    assert store.create("log/0.json", b"mine") == store.read("log/0.json")[1]
    assert store.read("log/0.json")[0] == b"mine"


def test_an_object_is_replaced_by_its_etag(store: Store) -> None:
    first = store.create("lease", b"1")
    assert first
    second = store.replace("lease", b"2", first)
    assert second not in (None, first)
    assert store.replace("lease", b"3", first) is None
    assert store.replace("other", b"3", first) is None
    assert store.read("lease") == (b"2", second)


def test_a_list_has_whole_segments_in_order_and_can_begin_after_a_name(store: Store) -> None:
    for name in ("log/1", "log/0", "log/2/3", "logs/0", "log"):
        store.write(name, name.encode())
    assert [each.name for each in store.list("log")] == ["log/0", "log/1", "log/2/3"]
    assert [each.name for each in store.list("log", after="log/0")] == ["log/1", "log/2/3"]
    assert [each.size for each in store.list("logs")] == [6]
    assert list(store.list("nothing")) == []


def test_a_list_begins_after_a_name_on_a_server_that_ignores_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("log/0", "log/1", "log/2"):
        store.write(name, name.encode())
    list_all = obstore.list
    monkeypatch.setattr(obstore, "list", lambda *place, offset, **options: list_all(*place, **options))
    assert [each.name for each in store.list("log", after="log/0")] == ["log/1", "log/2"]


def test_marks_of_folders_are_no_objects(store: Store, s3: S3Server) -> None:
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


def test_a_creation_whose_answer_is_lost_succeeds() -> None:
    with s3_server(loses=2) as server:
        store = Store(f"s3://{BUCKET}", server.options)
        for number in range(6):
            assert store.create(f"log/{number}", f"{number}".encode()) is not None
        assert server.lost == 5  # also of repeated requests


def test_a_missing_bucket_and_an_unknown_option_are_named(s3: S3Server) -> None:
    with pytest.raises(StoreError, match=r"There is no s3://elsewhere/lake\. Create the bucket"):
        Store("s3://elsewhere/lake", s3.options).create("a", b"")
    with pytest.raises(ConfigError, match=r"storage\.options do not fit s3://elsewhere .*'colour'"):
        Store("s3://elsewhere", {"colour": "red"})
