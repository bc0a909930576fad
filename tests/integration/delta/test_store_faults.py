"""Faults of an object store: what is repeated, for how long, and what ends with a sentence."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.store import StoreError
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

REQUESTS: dict[str, Callable[[ObjectStore, Path], object]] = {
    "read": lambda store, folder: store.read("there"),
    "list": lambda store, folder: list(store.list("")),
    "create": lambda store, folder: store.create("new", b"new"),
    "replace": lambda store, folder: store.replace("there", b"changed", store.read_tagged("there")[1] or ""),
    "write": lambda store, folder: store.write("there", b"over"),
    "upload": lambda store, folder: store.upload(folder / "large", "large"),
    "download": lambda store, folder: store.download("there", folder / "copy"),
    "copy": lambda store, folder: store.copy("there", "copy"),
    "delete": lambda store, folder: store.delete(["there", "nothing"]),
}
WITH_500 = [("500", name) for name in REQUESTS]
EACH = [
    *WITH_500,
    *((fault, name) for fault in ("503", "lost", "cut") for name in ("create", "replace", "upload")),
]
LARGE = bytes(range(256)) * 50_000  # two parts of an upload


class Faults:
    """Gives every request with a path its fault, a number of times."""

    def __init__(self, fault: str, count: int) -> None:
        self.seen = 0
        self._fault = fault
        self._count = count

    def __call__(self, request: dict[str, Any]) -> str | None:
        self.seen += 1
        return self._fault if self.seen <= self._count else None


@pytest.fixture(scope="module")
def started() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def server(started: S3Server) -> Iterator[S3Server]:
    """Give the server without faults, and with an empty bucket."""
    ObjectStore(f"s3://{BUCKET}", started.options).delete(
        [found.name for found in ObjectStore(f"s3://{BUCKET}", started.options).list()]
    )
    yield started
    started.fault = lambda request: None


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "large").write_bytes(LARGE)
    return tmp_path


def store_of(server: S3Server, patience: float) -> ObjectStore:
    found = ObjectStore(f"s3://{BUCKET}/lake", server.options, patience=patience)
    found.write("there", b"before")
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize(("fault", "name"), EACH)
def test_a_request_that_fails_twice_is_repeated(server: S3Server, files: Path, name: str, fault: str) -> None:
    store = store_of(server, 20)
    faults = server.fault = Faults(fault, 2)
    assert REQUESTS[name](store, files) is not None or name in ("delete", "copy")
    assert faults.seen > 2
    server.fault = lambda request: None
    if name == "create":
        assert store.read("new")[0] == b"new"
    if name == "replace":
        assert store.read("there")[0] == b"changed"
    if name == "upload":
        assert server.read("lake/large") == LARGE


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_without_an_answer_is_repeated(server: S3Server, files: Path, name: str) -> None:
    store = store_of(server, 1)
    server.fault = Faults("silent", 1)
    assert REQUESTS[name](store, files) is not None or name in ("delete", "copy")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("fault", "name"), [*WITH_500, ("503", "create"), ("silent", "create")])
def test_a_store_that_fails_always_ends_with_a_sentence_in_time(
    server: S3Server, files: Path, name: str, fault: str
) -> None:
    store = store_of(server, 0.5)
    server.fault = lambda request: fault
    began = time.monotonic()
    with pytest.raises(
        StoreError, match=r"^The store failed to \w+ s3://lake/lake.* \(.*\)\. Run again when"
    ):
        REQUESTS[name](store, files)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", REQUESTS)
def test_credentials_that_expire_end_a_request_at_once(server: S3Server, files: Path, name: str) -> None:
    store = store_of(server, 20)
    faults = server.fault = Faults("expired", 1000)
    with pytest.raises(StoreError, match=r"^The store refuses to .*\. The credentials have expired\. Renew"):
        REQUESTS[name](store, files)
    assert faults.seen < 4


def test_nothing_is_visible_of_an_upload_that_is_cut(server: S3Server, files: Path) -> None:
    store = store_of(server, 0.5)
    server.fault = lambda request: "cut" if "partNumber=2" in request["QUERY_STRING"] else None
    with pytest.raises(StoreError, match="failed to write s3://lake/lake/large"):
        store.upload(files / "large", "large")
    server.fault = lambda request: None
    assert [found.name for found in store.list()] == ["there"]
