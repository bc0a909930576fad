"""What `pgdelta check` tries on an object store: two writers of one object must exclude each other."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.config import Config, Storage
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.probe import probe
from pipeline.delta.store.store import Store
from pipeline.operate.machine_checks import check_machine
from pipeline.postgres.checks.table_checks import Check
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

ROOT = f"s3://{BUCKET}/lake"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


def store_of(server: S3Server, patience: float = 5.0) -> Store:
    return ObjectStore(ROOT, server.options, patience=patience)


def test_a_store_with_conditions_passes_and_nothing_is_left(server: S3Server) -> None:
    seen: list[tuple[str, str, str]] = []

    def see(request: dict[str, Any]) -> None:
        seen.append((request["REQUEST_METHOD"], request["PATH_INFO"], request["QUERY_STRING"]))

    server.fault = see
    store = store_of(server)
    assert probe(store) is None
    assert list(store.list()) == []
    for method, path, query in seen[:-1]:
        if path == f"/{BUCKET}":
            assert (method, "prefix=lake/_pgdelta/checks/" in query.replace("%2F", "/")) in (
                ("GET", True),
                ("POST", False),  # deletes several objects at once
            )
        else:
            assert path.startswith(f"/{BUCKET}/lake/_pgdelta/checks/")
            assert method in ("GET", "PUT", "HEAD", "DELETE")


def test_a_store_that_ignores_conditions_is_refused(server: S3Server) -> None:
    server.ignores_conditions = True
    found = probe(store_of(server))
    assert found is not None
    assert found[0] == (
        f"The store of {ROOT} creates an object that exists already although the request forbids it "
        "(If-None-Match), so two jobs could overwrite each other's commits."
    )
    assert "conditional writes" in found[1]
    assert list(store_of(server).list()) == []


def test_a_store_that_ignores_etags_is_refused(server: S3Server) -> None:
    def forget_the_etag(request: dict[str, Any]) -> None:
        request.pop("HTTP_IF_MATCH", None)

    server.fault = forget_the_etag
    found = probe(store_of(server))
    assert found is not None
    assert "replaces an object that has another etag although the request forbids it (If-Match)" in found[0]
    assert list(store_of(server).list()) == []


@pytest.mark.parametrize(("method", "verb"), [("PUT", "create"), ("GET", "(read|list)"), ("POST", "delete")])
def test_a_right_that_lacks_is_named(server: S3Server, method: str, verb: str) -> None:
    server.fault = lambda request: "denied" if request["REQUEST_METHOD"] == method else None
    found = probe(store_of(server))
    assert found is not None
    assert found[1] == "Check the credentials and their rights."
    assert re.match(f"The store refuses to {verb} {ROOT}.*\\.$", found[0]), found[0]


def test_a_store_that_does_not_answer_is_named(server: S3Server) -> None:
    server.fault = lambda request: "500"
    found = probe(store_of(server, 0.5))
    assert found is not None
    assert found[0].startswith(f"The store failed to create {ROOT}/_pgdelta/checks/")
    assert found[1] == "Run again when it answers."


def lake_check(root: str) -> Check:
    config = SimpleNamespace(storage=Storage(root))
    return next(check for check in check_machine(cast(Config, config)) if check.name == "lake")


def test_check_fails_if_two_jobs_could_overwrite_each_other(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in server.options.items():
        monkeypatch.setenv(name.upper(), value)
    check = lake_check(ROOT)
    assert check.ok, check
    assert check.sentence == f"The lake is at {ROOT}. Two writers of one object exclude each other there."
    server.ignores_conditions = True
    assert not lake_check(ROOT).ok
    missing = lake_check("s3://elsewhere/lake")
    assert (missing.ok, missing.fix) == (False, "Create the bucket, or correct storage.root.")
