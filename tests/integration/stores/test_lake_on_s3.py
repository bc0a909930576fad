"""Both jobs with a lake on an object store, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.postgres

COLUMNS = {
    "orders": ("id", "item", "note", "price"),
    "lines": ("order_id", "item", "count"),
    "log": ("line",),
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


@pytest.fixture
def pipeline(s3: S3Server, database: Database) -> Iterator[StorePipeline]:
    root = f"s3://{BUCKET}/{database.name}"
    config = database.config(root=root, options=s3.options, create_publication="all", copy="initial")
    with database.connect() as source:
        yield StorePipeline(config, source)


def assert_equal(pipeline: StorePipeline) -> None:
    for table, columns in COLUMNS.items():
        pipeline.assert_equal(table, *columns)


def test_copies_and_changes_are_equal(pipeline: StorePipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
    pipeline.catch_up()
    assert_equal(pipeline)
    pipeline.run(*CHANGE)
    pipeline.catch_up()
    assert_equal(pipeline)
    pipeline.run("TRUNCATE lines", "ALTER TABLE orders ADD COLUMN more int", "UPDATE orders SET more = 1")
    pipeline.catch_up()
    assert_equal(pipeline)
    pipeline.assert_equal("orders", "id", "more")
