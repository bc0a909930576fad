"""A table joins the publication while transactions write to it: what these wrote before that comes too."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.table_copy import candidates, coordinator
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until


def added(pipeline: Pipeline, table: str) -> str:
    """Return what adds a table to the publication."""
    return f"ALTER PUBLICATION {pipeline.config.source.publication} ADD TABLE {table}"


@contextmanager
def ingesting(pipeline: Pipeline) -> Iterator[threading.Thread]:
    """Run ingest on a thread of its own; it has to end by itself."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(pipeline.ingest().exit_code(strict=False)))
    thread.start()
    yield thread
    thread.join(60)
    assert codes == [0]


@pytest.mark.promise("tables join and leave")
def test_what_was_open_when_a_table_joined_is_copied(life: Pipeline) -> None:
    life.run(TABLE.format("b"), FILL.format("b", 1, 20))
    with life.database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO b VALUES (100, 'before it joined')")
        life.run(added(life, "b"))
        writer.execute("UPDATE b SET v = 'since it joined' WHERE id = 2")
        with ingesting(life) as running:
            time.sleep(5)
            assert running.is_alive(), "it waits"
            life.run("INSERT INTO b VALUES (101, 'meanwhile')")
            writer.execute("COMMIT")
    life.apply()
    life.assert_equal("a", "b")


@pytest.mark.promise("tables join and leave")
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_run_waits_a_minute_for_an_open_transaction(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    publication = life.config.source.publication
    life.run(TABLE.format("b"), FILL.format("b", 1, 20))
    if comes_back:
        life.catch_up(added(life, "b"))
        life.run(f"ALTER PUBLICATION {publication} DROP TABLE b", "UPDATE b SET v = 'unseen' WHERE id = 1")
    monkeypatch.setattr(candidates, "RUN_PATIENCE", 1.0)
    with life.database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO b VALUES (100, 'open')")
        life.run(added(life, "b"), "INSERT INTO a VALUES (100, 'meanwhile')")
        assert life.ingest().exit_code(strict=False) == 1
        life.apply()
        life.assert_equal("a")
        kind, sentence = life.events("b")[-1]
        assert (kind, "pg_prepared_xacts" in sentence) == ("held", True)
        writer.execute("COMMIT")
    for _ in range(2):  # a table that comes back is compared once silver has what came before
        assert life.ingest().exit_code(strict=False) == 0
        life.apply()
    life.assert_equal("a", "b")


@pytest.mark.promise("tables join and leave")
def test_a_table_that_leaves_before_its_copy_begins_is_not_held(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.run(TABLE.format("b"), TABLE.format("c"), FILL.format("c", 1, 5), added(life, "b, c"))

    def after_drop(*arguments: Any, **options: Any) -> SnapshotKeeper:
        life.run("DROP TABLE IF EXISTS b")
        return SnapshotKeeper(*arguments, **options)

    monkeypatch.setattr(coordinator, "SnapshotKeeper", after_drop)
    assert life.ingest().exit_code(strict=True) == 0
    life.catch_up()
    life.assert_equal("a", "c")
    assert life.events("b") == []


@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
@pytest.mark.slow
def test_a_prepared_transaction_that_never_ends_holds_the_new_table(
    make_server: MakeServer, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.of(make_server({"max_prepared_transactions": "2"}))
    life = make_pipeline(copy="initial", create_publication="configured", database=database)
    life.catch_up(TABLE.format("a"), FILL.format("a", 1, 5))
    life.run(TABLE.format("b"), TABLE.format("c"), FILL.format("c", 1, 5))
    life.prepare("p", "INSERT INTO b VALUES (100, 'prepared before it joined')")
    life.run(added(life, "b, c"))
    monkeypatch.setattr(candidates, "RUN_PATIENCE", 3.0)
    assert life.ingest().exit_code(strict=False) == 1
    [(kind, sentence)] = life.events("b")
    assert kind == "held"
    assert "pg_prepared_xacts" in sentence
    life.catch_up("COMMIT PREPARED 'p'")
    life.assert_equal("a", "b", "c")


@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
@pytest.mark.slow
@pytest.mark.parametrize("major", [pytest.param(10, marks=pytest.mark.slow), None])
def test_a_session_that_knew_the_table_before_it_joined_sends_it(
    make_server: MakeServer, make_pipeline: MakePipeline, major: int | None
) -> None:
    database = Database.of(make_server(major=major))
    life = make_pipeline(copy="initial", create_publication="configured", database=database)
    life.run(TABLE.format("a"), FILL.format("a", 1, 5), TABLE.format("b"))
    life.run(f"CREATE PUBLICATION {life.config.source.publication} FOR TABLE a")
    with continuous(life) as running, life.database.connect() as writer:
        wait_until(lambda: ("public", "a") in running.copied)
        writer.execute("BEGIN")
        writer.execute("INSERT INTO b VALUES (100, 'before it joined')")
        life.run(added(life, "b"))
        writer.execute("INSERT INTO b VALUES (101, 'since it joined')")
        time.sleep(7)
        writer.execute("COMMIT")
        life.run("INSERT INTO b VALUES (102, 'afterwards')")
        wait_until(lambda: ("public", "b") in running.copied)
        life.run("INSERT INTO b VALUES (103, 'after its copy')", "UPDATE b SET v = '' WHERE id = 100")
    life.assert_follows("a", "b")
