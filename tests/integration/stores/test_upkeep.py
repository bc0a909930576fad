"""Maintenance, retention and archives of a lake on an object store, without Spark."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.jobs import BronzeLog
from pipeline.config.tables import TableRule
from pipeline.delta import checkpoints
from pipeline.delta.table import Lake
from pipeline.metadata.registry import Records
from pipeline.operate.maintain import run_maintenance
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from tests.support.pipelines import succeeded
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

HOUR, DAY = 3600, 86_400
TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, name text)"
COLUMNS = ("id", "n", "name")


@pytest.fixture
def pipeline(s3: S3Server, database: Database) -> Iterator[StorePipeline]:
    root = f"s3://{BUCKET}/{database.name}"
    config = database.config(root=root, options=s3.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(replace(config, bronze=BronzeLog(retention=HOUR)), source)


def test_a_lake_is_maintained_and_compacted(pipeline: StorePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_DEFAULT_INTERVAL", 3)
    monkeypatch.setattr(checkpoints, "_LEAST_SECONDS", 0.0)
    pipeline.catch_up(TABLE, "INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 50) g")
    for number in range(3):
        pipeline.catch_up(
            f"UPDATE t SET n = n + {number} WHERE id % 4 = {number % 4}", f"DELETE FROM t WHERE id = {number}"
        )
    lake = Lake(pipeline.config.storage)
    before = {each.name for each in pipeline.store.list()}
    later = time.time() + 40 * DAY
    summary = succeeded(run_maintenance(pipeline.config, clock=lambda: later))
    assert summary.compaction.removed_rows > 0
    after = {each.name for each in pipeline.store.list()}
    assert {name for name in before - after if name.endswith(".parquet")}
    assert {name for name in before - after if name.endswith(".json")}
    assert lake.table("bronze", "bases").rows().num_rows == 1
    pipeline.catch_up("INSERT INTO t VALUES (1000, 1, 'new')")
    pipeline.assert_equal("t", *COLUMNS)

    assert run_audit(pipeline.config).exit_code(strict=True) == 0


def is_request(request: dict[str, Any], kind: str) -> bool:
    """Return whether a request copies an object, or deletes several."""
    if kind == "copy":
        return "HTTP_X_AMZ_COPY_SOURCE" in request
    return request["REQUEST_METHOD"] == "POST" and "delete" in request["QUERY_STRING"]


@pytest.mark.promise("archived tables")
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("copy", 4),
        ("delete", 2),
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("copy", "delete")),
    ],
)
def test_a_move_to_the_archive_that_fails_anywhere_is_continued(
    pipeline: StorePipeline, s3: S3Server, kind: str, step: int
) -> None:
    """Let each request that a move makes fail once, in its own run; what the last run leaves is whole.

    By default it is not each one, but one in `step`.
    """
    rules = (TableRule("public.*", detached_tables="archive"),)
    moving = replace(pipeline, config=replace(pipeline.config, tables=rules))
    moving.run("CREATE TABLE followed (id int PRIMARY KEY)")
    moving.catch_up(TABLE, "INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 20) g")
    for number in range(3):
        moving.catch_up(f"UPDATE t SET n = {number} WHERE id = {number + 1}")
    lake = Lake(moving.config.storage)
    silver, archive = lake.table("silver", "public", "t"), f"{lake.path('archive', 'public')}/"
    expected = sorted(map(str, silver.rows().to_pylist()))
    moving.run("DROP TABLE t")
    failures = 0
    passed = 0

    def fail(request: dict[str, Any]) -> str | None:
        nonlocal passed
        if not is_request(request, kind):
            return None
        passed += 1
        return "denied" if passed > failures else None

    while failures < 40:
        passed = 0
        moving.ingest(f"INSERT INTO followed VALUES ({failures})")
        s3.fault = fail
        summary = moving.apply()
        s3.fault = lambda request: None
        moving.lose_machine()
        assert moving.silver("followed", "id") == {(number,): 1 for number in range(0, failures + 1, step)}
        failed = {name.table for name, state in summary.tables.items() if state.failure}
        if not failed:
            break
        assert failed == {"t"}
        failures += step
    print(f"{kind}: {failures} requests")
    assert 0 < failures < 40
    path = Records(lake).tables.read()[TableName("public", "t")].path
    assert path.startswith(archive)
    assert sorted(map(str, lake.table_at(path).rows().to_pylist())) == expected
    assert not list(moving.store.list("silver/public/t"))
    assert {each.name.split("/")[2] for each in moving.store.list("archive")} == {"t"}
