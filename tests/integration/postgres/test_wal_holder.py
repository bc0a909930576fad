"""What keeps a slot's restart_lsn back: open and prepared transactions, and the slots of standbys."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pipeline.config.alerts import Alerting
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.replication import wal_holder
from pipeline.postgres.replication.slot_status import read_source_status
from pipeline.postgres.replication.wal_holder import WalHolder
from pipeline.report.alert_rules import find_alerts
from pipeline.report.alerts import read_facts
from pipeline.report.status import read_status
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, MakeServer, with_older

ALERTS = Alerting(on=("slot", "wal > 1 MB"))
FILL = "INSERT INTO item SELECT g, repeat('x', 500) FROM generate_series(1, 4000) g"


@pytest.fixture(params=with_older(10))
def shop(request: pytest.FixtureRequest, make_pipeline: MakePipeline, monkeypatch: Any) -> Pipeline:
    """Give a pipeline with a table, which names a transaction of any age."""
    monkeypatch.setattr(wal_holder, "SHORTEST_AGE", timedelta(0))
    database = request.getfixturevalue("old_database" if request.param == 10 else "database")
    shop = make_pipeline(database=database)
    shop = replace(shop, config=replace(shop.config, alerts=ALERTS))
    shop.ingest("CREATE TABLE item (id int, v text)", "CREATE TABLE other (id int)")
    return shop


def read_holder(shop: Pipeline) -> WalHolder | None:
    """Return what holds the WAL back once all of it has been read."""
    for _ in range(2):
        shop.ingest("CHECKPOINT")  # writes a record of running transactions
    return read_source_status(shop.config).holder


@contextmanager
def open_transaction(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO other VALUES (1)")
        yield session


@pytest.mark.promise("alerts")
def test_an_idle_transaction_that_holds_wal_is_named_everywhere(shop: Pipeline) -> None:
    with open_transaction(shop.database) as session:
        shop.run(FILL)
        holder = read_holder(shop)
        assert holder is not None
        assert (holder.pid, holder.gid) == (session.info.backend_pid, None)
        assert re.fullmatch(
            rf"The open transaction of PID {holder.pid} of user {session.info.user}, database"
            rf" {shop.database.name}, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, keeps the slot"
            rf" {shop.config.source.slot} at [0-9A-F]+/[0-9A-F]+: the server retains \d\.\d MiB of WAL for"
            rf" it\. End it, or run SELECT pg_terminate_backend\({holder.pid}\)\.",
            holder.sentence,
        )
        assert [(a.rule, a.kind) for a in find_alerts(read_facts(shop.config)).found] == [
            ("slot_held", "slot")
        ]
        shown = json.dumps(read_status(shop.config).as_json())
        assert f'"pid": {holder.pid}' in shown
        [check] = [each for each in run_checks(shop.config) if each.name == "held WAL"]
        assert not check.ok
        assert f"PID {holder.pid} " in check.sentence
    assert read_holder(shop) is None
    assert not find_alerts(read_facts(shop.config)).found


@pytest.mark.parametrize("shop", [18], indirect=True)
def test_a_prepared_transaction_that_holds_wal_is_named(shop: Pipeline) -> None:
    shop.prepare("it''s", "INSERT INTO other VALUES (1)")
    shop.run(FILL)
    holder = read_holder(shop)
    assert holder is not None
    assert (holder.pid, holder.gid, holder.since is not None) == (None, "it's", True)
    assert "Run COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'" in holder.sentence
    shop.run("ROLLBACK PREPARED 'it''s'")
    assert read_holder(shop) is None


@pytest.mark.parametrize("shop", [18], indirect=True)
def test_who_does_not_hold_the_slots_wal_is_not_named(shop: Pipeline) -> None:
    with open_transaction(shop.database):  # begun after what the reader has not acknowledged
        shop.run(FILL)
        assert (read_source_status(shop.config).retained_size or 0) > 1_000_000
        assert read_source_status(shop.config).holder is None
    shop.run("SELECT pg_create_physical_replication_slot('far_behind', true)", FILL)
    try:
        with shop.database.connect() as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT FROM other")
            assert read_holder(shop) is None
    finally:
        shop.run("SELECT pg_drop_replication_slot('far_behind')")


@pytest.mark.parametrize("is_young", [True, False])
def test_the_time_of_a_transaction_decides_unless_it_is_hidden(pipeline: Pipeline, is_young: bool) -> None:
    pipeline.run("CREATE TABLE item (id int, v text)", "CREATE TABLE other (id int)")
    config = replace(pipeline.config, alerts=ALERTS)
    if not is_young:
        role = f"{pipeline.database.name}_reader"
        pipeline.run(f"CREATE ROLE {role} LOGIN")
        hidden = pipeline.config.source.conninfo + f" user={role}"
        config = replace(config, source=replace(config.source, conninfo=hidden))
    pipeline.ingest()
    with open_transaction(pipeline.database):
        pipeline.ingest(FILL, "CHECKPOINT")
        holder = read_source_status(config).holder
        assert (holder is None) == is_young
        if holder is not None:
            assert "since a time that only pg_read_all_stats shows, keeps" in holder.sentence
    if not is_young:
        pipeline.run(f"DROP ROLE {role}")


def test_a_standbys_slot_that_holds_a_failover_slot_is_named(make_server: MakeServer) -> None:
    database = Database.of(make_server({"synchronized_standby_slots": "standby_1"}))
    config = replace(database.config(create_failover=True), alerts=ALERTS)
    database.run(
        "CREATE TABLE item (id int, v text)",
        f"CREATE PUBLICATION {config.source.publication} FOR TABLE item",
        f"SELECT pg_create_logical_replication_slot('{config.source.slot}', 'pgoutput', false, false, true)",
        "SELECT pg_create_physical_replication_slot('standby_1', true)",
        FILL,
    )
    holder = read_source_status(config).holder
    assert holder is not None
    assert holder.standby_slot == "standby_1"
    assert holder.sentence.startswith(
        "The standby's slot standby_1, named in synchronized_standby_slots, is at 0/"
    )
