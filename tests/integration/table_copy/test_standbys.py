"""Standbys: rows are copied from one while the primary streams; a failover is followed, or refused."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pipeline.config.config import Config, Copying
from pipeline.errors import GapError
from pipeline.postgres.embedded import EmbeddedServer
from tests.support.copies import BAG, FILL, FILL_BAG, ORDERS, load
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.postgres.standbys import promote, standby_of, syncing_standby_of, wait_for_slot
from tests.support.servers import Database, MakeServer


def on(pipeline: Pipeline, server: EmbeddedServer) -> Pipeline:
    """Return the pipeline with another server for its source; its session stays where it is."""
    database = Database.of(server)
    config: Config = replace(
        pipeline.config, source=replace(pipeline.config.source, conninfo=server.conninfo)
    )
    return replace(pipeline, database=database, config=config, source=database.connect())


@contextmanager
def synced_standby_of(primary: Pipeline) -> Iterator[EmbeddedServer]:
    """Give a standby that has the slot of a pipeline, whose silver shows orders."""
    primary.catch_up("SELECT pg_create_physical_replication_slot('standby')", *ORDERS, FILL.format(100))
    with syncing_standby_of(primary.database.server) as standby:
        primary.catch_up("UPDATE orders SET n = -1 WHERE id < 9")
        wait_for_slot(standby, primary.config.source.slot, primary.source, primary.ingest)
        yield standby


@pytest.fixture
def primary(make_server: MakeServer, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline of a server of its own, whose slot outlives a failover."""
    database = Database.of(make_server({"hot_standby": "on"}))
    return make_pipeline(database=database, copy="initial", create_publication="all", create_failover=True)


@pytest.mark.spark
@pytest.mark.slow
def test_rows_are_copied_from_a_standby(primary: Pipeline) -> None:
    primary.run(*ORDERS, FILL.format(3000), *BAG, FILL_BAG)
    with standby_of(primary.database.server) as standby:
        source = replace(
            primary.config.source, copying=Copying(conninfo=standby.conninfo, range_size=64 << 10)
        )
        copying = replace(primary, config=replace(primary.config, source=source))
        with load(primary, 5):
            copying.ingest()
        copying.catch_up()
        primary.assert_equal("orders", "bag")
        [taken] = {row.lsn for row in primary.frame("bronze", "copies").where("state = 'reading'").collect()}
        assert taken


@pytest.mark.promise("failovers")
def test_capture_continues_after_a_failover(primary: Pipeline) -> None:
    old = primary.database.server
    with synced_standby_of(primary) as standby:
        primary.run("UPDATE orders SET n = -2 WHERE id < 9")  # captured after the failover
        time.sleep(2)
        old.stop()
        promote(standby)
        after = on(primary, standby)
        with after.source:
            after.catch_up("DELETE FROM orders WHERE id > 90")
            after.assert_equal("orders")


@pytest.mark.spark
@pytest.mark.promise("failovers")
@pytest.mark.slow
def test_what_the_promoted_server_never_had_is_refused(primary: Pipeline) -> None:
    old = primary.database.server
    with synced_standby_of(primary) as standby:
        standby.stop()
        primary.ingest("UPDATE orders SET n = -3 WHERE id < 9")
        old.stop()
        standby.start()
        promote(standby)
        after = on(primary, standby)
        with after.source:
            after.run("DELETE FROM orders WHERE id > 90")
            with pytest.raises(GapError, match=r"on timeline 2, and timeline 1 ended at .*never had"):
                after.ingest()
