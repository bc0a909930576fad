"""Silver live with a lake on an object store, without Spark."""

from collections import Counter

import pytest

from pipeline.reading.live import LiveReader
from pipeline.reading.query import silver_as_of, silver_live
from pipeline.silver.read.query_session import QuerySession
from pipeline.table_name import TableName
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.stores.lakes import COLUMNS, StorePipeline

pytestmark = pytest.mark.slow


def test_live_shows_the_source_and_what_apply_writes(store_pipeline: StorePipeline) -> None:
    store_pipeline.catch_up(*ORDERS, *LINES, *LOG, *FILL)
    store_pipeline.ingest(*CHANGE)
    live = LiveReader(store_pipeline.config).read()
    assert not live.refused
    for table, columns in COLUMNS.items():
        rows = live[TableName("public", table)].to_table(columns=columns).to_pylist()
        query = f"SELECT {', '.join(columns)} FROM {table}"
        source = Counter(tuple(row) for row in store_pipeline.source.execute(query.encode()).fetchall())
        assert Counter(tuple(row.values()) for row in rows) == source, table
    counts = []
    for silver in (silver_live(store_pipeline.config), silver_as_of(store_pipeline.config, None)):
        session = QuerySession(silver.tables, silver.refused)
        try:
            [batch] = session.texts("SELECT count(*) FROM orders", 1)
            counts.append(int(batch.column(0)[0].as_py()))
        finally:
            session.close()
    [(now,)] = store_pipeline.source.execute("SELECT count(*) FROM orders").fetchall()
    assert counts[0] == now
    assert counts[1] == sum(store_pipeline.silver("orders", "id").values())
    store_pipeline.catch_up()
    assert not any(LiveReader(store_pipeline.config).read()[name].has_changes for name in live)
