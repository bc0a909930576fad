"""Relations of transactions that others cannot see yet: the catalog is read in time.

If it is read too early nothing is lost: the server describes a relation again in the transaction that follows
one that changed it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze import streamed_transactions
from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.spool import Spool
from pipeline.config.config import Config, Protocol
from pipeline.ingest import decoder
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.walsender import Walsender
from tests.support.bronze.events import rows_of
from tests.support.postgres.sessions import opened
from tests.support.postgres.streams import prepare, read_for, read_through, start
from tests.support.servers import Database, MakeServer
from tests.support.threads import in_threads, wait_until

MANY = "INSERT INTO {} SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"
Row = dict[str, Any]


class Ingest:
    """What a decoder makes of a stream, with the versions of its rows."""

    def __init__(self, config: Config, directory: Path) -> None:
        self._stream = start(config)
        assert isinstance(self._stream, Walsender)
        self._connection = connect(config.source.conninfo)
        self._spool = Spool(directory)
        self._decoder = Decoder(self._spool, self._connection, config.source.conninfo)
        self._versions: dict[int, RelationVersion] = {}

    def close(self) -> None:
        self._stream.close()
        self._connection.close()
        self._spool.discard()

    def read_open(self) -> None:
        """Decode what comes of transactions that are not committed."""
        messages: list[bytes] = []
        while not messages:
            messages = read_for(self._stream, 0.5)
        assert messages[0][:1] == b"S"
        self._decoder.decode(messages, self._stream.session)

    def read_streamed(self, database: Database, *statements: str) -> list[tuple[Row, RelationVersion]]:
        """Commit the statements in one transaction that is streamed in part before; return its rows."""
        with opened(database, *statements) as connection:
            self.read_open()
            connection.execute("COMMIT")
        return self.read(database)

    def read(self, database: Database) -> list[tuple[Row, RelationVersion]]:
        """Return the rows of all that is committed, each with its version."""
        self._decoder.decode(read_through(self._stream, database.flush_lsn()), self._stream.session)
        staged = self._spool.seal()
        assert staged is not None
        self._versions |= {version.id: version for version in staged.versions}
        return [(row, self._versions[row["relation_version"]]) for row in rows_of(staged)]


def make(database: Database) -> Config:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        "INSERT INTO item VALUES (0, 'old')",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    config = database.config(create_publication="all", protocol=Protocol(streaming="on"))
    prepare(config)
    return config


def facts(version: RelationVersion) -> list[tuple[str, int, str | None]] | None:
    """Return name, attribute number and fast default of each column, None where they are not known."""
    if version.catalog is None:
        return None
    columns = zip(version.relation.columns, version.catalog.columns, strict=True)
    return [(column.name, fact.attribute_number, fact.missing_value) for column, fact in columns]


@pytest.mark.promise("DDL with data")
@pytest.mark.parametrize("rows_in_memory", [None, 100], ids=["in memory", "on disk"])
def test_a_column_that_is_added_in_a_streamed_transaction(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_in_memory: int | None
) -> None:
    if rows_in_memory:
        monkeypatch.setattr(streamed_transactions, "STREAM_ROWS", rows_in_memory)
    config = make(database)
    statements = (
        MANY.format("item", 1, 1000),
        "ALTER TABLE item ADD COLUMN w int NOT NULL DEFAULT 7",
        MANY.format("item", 1001, 2000),
    )
    with closing(Ingest(config, tmp_path)) as ingest:
        rows = ingest.read_streamed(database, *statements)
        assert [len(row["new"]) for row, _ in rows] == [2] * 1000 + [3] * 1000
        assert [row["new"][0] for row, _ in rows] == [str(number) for number in range(1, 2001)]
        narrow, wide = rows[0][1], rows[-1][1]
        assert {version.id for _, version in rows} == {narrow.id, wide.id}
        assert facts(narrow) == [("id", 1, None), ("v", 2, None)]
        assert facts(wide) == [("id", 1, None), ("v", 2, None), ("w", 3, "7")]
        # It holds for the rest of the session, in and out of streams.
        database.run("INSERT INTO item VALUES (3000, 'x', 1)", MANY.format("item", 3001, 4000))
        assert {version.id for _, version in ingest.read(database)} == {wide.id}


@pytest.mark.promise("DDL with data")
def test_a_table_that_is_made_in_a_streamed_transaction(database: Database, tmp_path: Path) -> None:
    config = make(database)
    statements = ("CREATE TABLE made (id int PRIMARY KEY, v text DEFAULT 'd')", MANY.format("made", 1, 1000))
    with closing(Ingest(config, tmp_path)) as ingest:
        rows = ingest.read_streamed(database, *statements)
        assert len(rows) == 1000
        [version] = {version.id: version for _, version in rows}.values()
        assert facts(version) == [("id", 1, None), ("v", 2, None)]
        assert version.catalog is not None
        assert version.catalog.primary_key == ("id",)
        database.run("INSERT INTO made VALUES (2000, 'x')")
        [(_, after)] = ingest.read(database)
        assert after.id == version.id


def test_a_column_replaced_in_a_streamed_transaction_gets_no_wrong_number(
    database: Database, tmp_path: Path
) -> None:
    """The messages are all the same; where it is not known which column they mean, nothing is said of it."""
    config = make(database)
    statements = (
        MANY.format("item", 1, 1000),
        "ALTER TABLE item DROP COLUMN v",
        "ALTER TABLE item ADD COLUMN v text",
        MANY.format("item", 1001, 2000),
    )
    with closing(Ingest(config, tmp_path)) as ingest:
        rows = ingest.read_streamed(database, *statements)
        database.run("INSERT INTO item VALUES (3000, 'x')")
        rows += ingest.read(database)
    numbers = [[number for _, number, _ in facts(version) or ()] for _, version in rows]
    assert len(numbers) == 2001
    assert [1, 3] not in numbers[:1000]
    assert [1, 2] not in numbers[1000:]
    assert numbers[-1] == [1, 3]


def test_columns_of_a_new_table_stay_known_after_a_rollback_to_a_savepoint(
    database: Database, tmp_path: Path
) -> None:
    config = make(database)
    statements = (
        "CREATE TABLE made (id int PRIMARY KEY, v text)",
        MANY.format("made", 1, 1000),
        "SAVEPOINT s",
        MANY.format("made", 1001, 2000),
        "ROLLBACK TO s",
        MANY.format("made", 2001, 3000),
    )
    with closing(Ingest(config, tmp_path)) as ingest:
        rows = ingest.read_streamed(database, *statements)
    assert [row["new"][0] for row, _ in rows] == [str(n) for n in [*range(1, 1001), *range(2001, 3001)]]
    assert {str(facts(version)) for _, version in rows} == {"[('id', 1, None), ('v', 2, None)]"}


@pytest.fixture
def held(make_server: MakeServer) -> Iterator[Database]:
    """Give a database whose commits wait for a standby that is not there; its own sessions do not."""
    database = Database.of(make_server({"synchronous_standby_names": "away", "synchronous_commit": "local"}))
    yield database
    database.run("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")


@contextmanager
def committing(database: Database, *statements: str) -> Iterator[None]:
    """Run statements in one transaction whose commit is on disk and waits for the standby."""

    def run(stop: threading.Event) -> None:
        database.run("SET synchronous_commit = on", "BEGIN", *statements, "COMMIT")

    with in_threads(run), ExitStack() as stack:
        stack.callback(release, database)
        wait_until(lambda: database.run("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        yield


def release(database: Database) -> None:
    """Let all commits end."""
    database.run("ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")


ADD = ("ALTER TABLE item ADD COLUMN w int NOT NULL DEFAULT 7", "INSERT INTO item VALUES (1, 'x', 1)")
WIDE = [("id", 1, None), ("v", 2, None), ("w", 3, "7")]


@pytest.mark.promise("DDL with data")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["small", "streamed"])
def test_a_commit_that_waits_for_a_standby_is_seen_a_moment_later(
    held: Database, tmp_path: Path, is_streamed: bool
) -> None:
    config = make(held)
    statements = (*ADD, MANY.format("item (id, v)", 2, 1000)) if is_streamed else ADD
    with closing(Ingest(config, tmp_path)) as ingest, committing(held, *statements):
        timer = threading.Timer(0.5, release, (held,))
        timer.start()
        rows = ingest.read(held)
        timer.join()
    assert len(rows) == (1000 if is_streamed else 1)
    assert [facts(version) for _, version in rows] == [WIDE] * len(rows)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["small", "streamed"])
def test_a_commit_invisible_for_long_is_not_awaited_and_known_once_visible(
    held: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    monkeypatch.setattr(decoder, "VISIBLE_SECONDS", 0.3)
    config = make(held)
    statements = (*ADD, MANY.format("item (id, v)", 2, 1000)) if is_streamed else ADD
    with closing(Ingest(config, tmp_path)) as ingest:
        with committing(held, *statements):
            before = time.monotonic()
            rows = ingest.read(held)
            assert time.monotonic() - before < 10
            assert {str(facts(version)) for _, version in rows} == {"None"}
        time.sleep(decoder.VISIBLE_SECONDS)
        held.run("INSERT INTO item VALUES (3000, 'y', 2)")
        [(_, version)] = ingest.read(held)
        assert facts(version) == WIDE


def test_a_transaction_that_is_prepared_is_known_after_its_commit(database: Database, tmp_path: Path) -> None:
    config = make(database)
    two_phase = replace(config.source.protocol, two_phase=True)
    database.run(f"SELECT pg_drop_replication_slot('{config.source.slot}')")
    config = replace(config, source=replace(config.source, protocol=two_phase))
    prepare(config)
    with closing(Ingest(config, tmp_path)) as ingest:
        database.run("BEGIN", *ADD, "PREPARE TRANSACTION 'p'")
        ingest.read(database)
        database.run("COMMIT PREPARED 'p'", "INSERT INTO item VALUES (3000, 'y', 2)")
        rows = ingest.read(database)
    assert [facts(version) for _, version in rows] == [WIDE]
