"""A link that breaks or stalls costs only time: the run ends with one error, and the next one continues."""

import functools
from dataclasses import replace

import pytest

from pipeline.errors import SourceError
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.table_copy import coordinator
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.proxy import Proxy
from tests.support.running import FILL, ITEMS, continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until


def through(pipeline: Pipeline, proxy: Proxy) -> Pipeline:
    """Return the same pipeline whose jobs reach the server by the proxy."""
    conninfo = proxy.conninfo(pipeline.database.conninfo)
    config = replace(pipeline.config, source=replace(pipeline.config.source, conninfo=conninfo))
    return replace(pipeline, config=config)


@pytest.mark.promise("cut links")
def test_a_link_that_is_cut_loses_and_repeats_nothing(pipeline: Pipeline) -> None:
    pipeline.ingest(ITEMS)
    with Proxy(pipeline.database.server.port) as proxy:
        pipeline.run(FILL.format(1, 60_000))
        with continuous(through(pipeline, proxy)) as running:
            wait_until(lambda: proxy.byte_count > 1_500_000)
            proxy.cut()  # in the midst of a transaction
            running.join()
        assert isinstance(running.error, SourceError)
        assert "Run again to continue" in str(running.error)
        assert pipeline.frame("bronze", "changes").count() == 0, "of a transaction all or nothing lands"
        with continuous(through(pipeline, proxy)) as running:
            wait_until(lambda: running.captured)
            pipeline.run("UPDATE items SET name = 'cut' WHERE id % 1000 = 0")
            proxy.cut()  # between transactions, or while one is acknowledged
            running.join()
        assert isinstance(running.error, SourceError)
    pipeline.catch_up("DELETE FROM items WHERE id % 100 = 0")
    pipeline.assert_equal("items")


@pytest.mark.promise("cut links")
def test_a_link_that_stalls_ends_the_run(
    make_server: MakeServer, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server({"wal_sender_timeout": "3s"})
    pipeline = make_pipeline(database=Database.of(server))
    pipeline.ingest(ITEMS)
    patient = functools.partial(start_walsender, idle_timeout=6.0)
    monkeypatch.setattr("pipeline.ingest.job.start_walsender", patient)
    monkeypatch.setattr(coordinator, "PATIENCE", 2.0)
    with Proxy(server.port) as proxy:
        with continuous(through(pipeline, proxy)) as running:
            pipeline.run(FILL.format(1, 1000))
            wait_until(lambda: running.captured)
            proxy.stall()
            pipeline.run(FILL.format(1001, 2000))
            running.join()
        assert isinstance(running.error, SourceError)
        assert "has not answered for 6 seconds" in str(running.error)
        proxy.flow()
        through(pipeline, proxy).catch_up()
    pipeline.assert_equal("items")


@pytest.mark.spark
@pytest.mark.promise("cut links")
@pytest.mark.slow
def test_a_copy_whose_link_is_cut_continues(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.run(ITEMS, FILL.format(1, 80_000))
    with Proxy(pipeline.database.server.port) as proxy:
        with continuous(through(pipeline, proxy)) as running:
            wait_until(lambda: proxy.byte_count > 1_000_000)
            pipeline.run("UPDATE items SET name = 'cut' WHERE id % 1000 = 0")
            proxy.cut()
            running.join()
        assert isinstance(running.error, SourceError)
        through(pipeline, proxy).catch_up()
    pipeline.assert_equal("items")
