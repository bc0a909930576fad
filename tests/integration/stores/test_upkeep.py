"""Maintenance, retention and archives of a lake on an object store, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.config.jobs import BronzeLog
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.operate.maintain import run_maintenance
from pipeline.verify.audit import run_audit
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

pytestmark = pytest.mark.postgres

HOUR, DAY = 3600, 86_400
TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int, name text)"
COLUMNS = ("id", "n", "name")


@pytest.fixture
def pipeline(s3: S3Server, database: Database) -> Iterator[StorePipeline]:
    root = f"s3://{BUCKET}/{database.name}"
    config = database.config(root=root, options=s3.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(replace(config, bronze=BronzeLog(retention=HOUR)), source)


def test_a_lake_is_maintained_and_compacted(pipeline: StorePipeline) -> None:
    pipeline.run(TABLE, "INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 50) g")
    pipeline.catch_up()
    for number in range(12):
        pipeline.run(
            f"UPDATE t SET n = n + {number} WHERE id % 4 = {number % 4}", f"DELETE FROM t WHERE id = {number}"
        )
        pipeline.catch_up()
    lake = Lake(pipeline.config.storage)
    before = {each.name for each in pipeline.store.list()}
    later = time.time() + 40 * DAY
    summary = run_maintenance(pipeline.config, clock=lambda: later)
    assert summary.exit_code(strict=True) == 0, summary
    assert summary.compaction.removed_rows > 0
    after = {each.name for each in pipeline.store.list()}
    assert {name for name in before - after if name.endswith(".parquet")}
    assert {name for name in before - after if name.endswith(".json")}
    assert lake.table("bronze", "bases").rows().num_rows == 1
    pipeline.run("INSERT INTO t VALUES (1000, 1, 'new')")
    pipeline.catch_up()
    pipeline.assert_equal("t", *COLUMNS)

    assert run_audit(pipeline.config).exit_code(strict=True) == 0


def test_a_detached_table_is_moved_to_the_archive(pipeline: StorePipeline) -> None:
    rules = (TableRule("public.*", detached_tables="archive"),)
    archiving = replace(pipeline, config=replace(pipeline.config, tables=rules))
    archiving.run(TABLE, "INSERT INTO t VALUES (1, 1, 'x')")
    archiving.catch_up()
    archiving.run("DROP TABLE t")
    archiving.ingest()
    archiving.apply()
    lake = Lake(archiving.config.storage)
    assert not lake.table("silver", "public", "t").exists()
    assert lake.table("archive", "public", "t").rows(["id"]).to_pylist() == [{"id": 1}]
