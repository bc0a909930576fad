"""Silver live with a lake on an object store, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pipeline.operate.live import LiveReader
from pipeline.operate.query import silver_as_of, silver_live
from pipeline.silver.query_session import QuerySession
from pipeline.table_name import TableName
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

pytestmark = pytest.mark.postgres

COLUMNS = {
    "orders": ["id", "item", "note", "price"],
    "lines": ["order_id", "item", "count"],
    "log": ["line"],
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


def test_live_shows_the_source_and_what_apply_writes(pipeline: StorePipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
    pipeline.catch_up()
    pipeline.run(*CHANGE)
    pipeline.ingest()
    live = LiveReader(pipeline.config).read()
    assert not live.refused
    for table, columns in COLUMNS.items():
        rows = live[TableName("public", table)].to_table(columns=columns).to_pylist()
        query = f"SELECT {', '.join(columns)} FROM {table}"
        source = Counter(tuple(row) for row in pipeline.source.execute(query.encode()).fetchall())
        assert Counter(tuple(row.values()) for row in rows) == source, table
    counts = []
    for silver in (silver_live(pipeline.config), silver_as_of(pipeline.config, None)):
        session = QuerySession(silver.tables, silver.refused)
        try:
            [batch] = session.texts("SELECT count(*) FROM orders", 1)
            counts.append(int(batch.column(0)[0].as_py()))
        finally:
            session.close()
    [(now,)] = pipeline.source.execute("SELECT count(*) FROM orders").fetchall()
    assert counts[0] == now
    assert counts[1] == sum(pipeline.silver("orders", "id").values())
    pipeline.catch_up()
    assert not any(LiveReader(pipeline.config).read()[name].has_changes for name in live)
