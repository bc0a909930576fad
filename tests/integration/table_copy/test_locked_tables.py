"""A table that another session has locked exclusively stops neither the stream nor the copies of others."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.config import Config
from pipeline.errors import TableLockedError
from pipeline.ingest.job import run_ingest
from pipeline.postgres.connection import connect
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import describe_published, list_published, read_publication
from pipeline.postgres.replica_identities import list_mismatched_leaves
from pipeline.postgres.snapshot.read_table import CopyReader
from pipeline.postgres.unpublished_tables import find_unpublished
from pipeline.postgres.watched_tables import list_with_pages, read_watched_tables
from pipeline.progress import IngestSummary
from pipeline.table_name import TableName
from tests.support.bronze.rows import bronze_rows
from tests.support.servers import Database

A, B = TableName("public", "a"), TableName("public", "b")
SENTENCE = "The table public.b is locked by another session. It is tried again."


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    """Give a pipeline of two tables with a row each, whose publication and slot exist."""
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    run_ingest(config)
    database.run("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    return config


@contextmanager
def locked(database: Database, table: str = "b") -> Iterator[None]:
    """Lock a table exclusively during the block."""
    with database.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


def rows_of(config: Config, op: str) -> list[str]:
    return sorted(row["table_name"] for row in bronze_rows(config, "changes") if row["op"] == op)


@pytest.mark.promise("locked tables")
def test_the_stream_of_all_tables_is_captured(database: Database, config: Config) -> None:
    with locked(database):
        run = threading.Thread(target=run_ingest, args=(config,), daemon=True)
        run.start()
        run.join(60)
        assert not run.is_alive()
    assert rows_of(config, "I") == ["a", "b"]


@pytest.mark.quick
@pytest.mark.promise("locked tables")
def test_the_others_are_copied(database: Database, config: Config) -> None:
    config = replace(config, source=replace(config.source, copy="initial"))
    with locked(database):
        summary = run_ingest(config)
        assert summary.copies[B].failure == SENTENCE
        assert summary.exit_code(strict=False) == 1
        assert rows_of(config, "R") == ["a"]
    run_ingest(config)
    assert rows_of(config, "R") == ["a", "b"]


def test_a_table_that_is_locked_before_it_is_read_is_copied_later(
    database: Database, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.table_copy.attempts.RETRY_SECONDS", 1.0)
    monkeypatch.setattr("pipeline.table_copy.coordinator.POLL_SECONDS", 0.5)
    config = replace(config, source=replace(config.source, copy="initial"))
    stop, read = threading.Event(), CopyReader.read
    failures: list[str] = []
    with database.connect() as other:

        def read_locked(self: CopyReader, snapshot: Any, table: Any, pages: Any) -> Any:
            if table.name == B and not failures:
                other.execute("BEGIN")  # a moment before the reader's first statement
                other.execute("LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
            return read(self, snapshot, table, pages)

        def watch(summary: IngestSummary) -> None:
            copy = summary.copies.get(B)
            if copy is not None and copy.failure and not failures:
                failures.append(copy.failure)
                other.execute("ROLLBACK")
            if copy is not None and copy.is_complete:
                stop.set()

        monkeypatch.setattr(CopyReader, "read", read_locked)
        timer = threading.Timer(60, stop.set)
        timer.start()
        run_ingest(config, trigger="continuous", stop=stop, progress=watch)
        timer.cancel()
    assert failures == [SENTENCE]
    assert rows_of(config, "R") == ["a", "b"]


def test_lists_of_tables_do_not_wait_and_one_table_waits_shortly(database: Database) -> None:
    database.run(
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {database.name} FOR TABLE b",
        "CREATE PUBLICATION rooted FOR TABLE root WITH (publish_via_partition_root = true)",
    )
    with closing(connect(database.conninfo)) as connection, locked(database, "leaf, b"):
        began = time.monotonic()
        assert list_published(connection, database.name).keys() == {B}
        config = database.config()
        publication = read_publication(connection, config.source.publication)
        found = find_unpublished(connection, config, publication, read_relations(connection, config))
        assert {name.table for name in found} == {"root", "leaf"}
        assert list_mismatched_leaves(connection) == []
        catalog = read_watched_tables(connection, "rooted")
        assert catalog is not None
        leaves = [each.relation_id for each in catalog.members if each.parent_id is not None]
        assert time.monotonic() - began < 2, "nothing waited"
        assert list_with_pages(connection, leaves) == set(leaves)
        with pytest.raises(TableLockedError, match=r"public\.b is locked by another session"):
            describe_published(connection, database.name, B)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
