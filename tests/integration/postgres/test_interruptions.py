"""A stream that cannot begin or go on says why in one sentence.

A missing publication, a busy slot, a lost connection and removed WAL are each named. A reader that sleeps
loses nothing, nor does one that has to wait or to connect again; a closed stream leaves its slot free.
"""

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline.errors import GapError, SourceError
from pipeline.ingest.continuity import first_slot
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.slot import describe_lost_slot
from tests.support.postgres.streams import (
    both_routes,
    end_lsns,
    kinds,
    make_items,
    prepare_items,
    read_all,
    read_for,
    read_through,
    start,
)
from tests.support.proxy import Proxy, frame
from tests.support.servers import LITTLE_WAL, Database, MakeServer

pytestmark = pytest.mark.postgres


def outgrow(database: Database) -> None:
    """Write so many segments that a server with little WAL removes what its slots have not read."""
    for _ in range(4):
        database.run("INSERT INTO item VALUES (1)", "TRUNCATE item", "SELECT pg_switch_wal()", "CHECKPOINT")


@both_routes
def test_a_missing_publication_is_named_at_the_start(database: Database, route: str) -> None:
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    with pytest.raises(SourceError, match=f"The publication {database.name} does not exist"):
        start(database.config(), route)


@both_routes
def test_a_publication_made_after_the_slot_is_an_error(database: Database, route: str) -> None:
    make_items(database)
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    database.run("INSERT INTO item (id) VALUES (1)", f"CREATE PUBLICATION {database.name} FOR ALL TABLES")
    database.run("INSERT INTO item (id) VALUES (2)")
    with (
        closing(start(database.config(), route)) as stream,
        pytest.raises(SourceError, match="of a time without the publication"),
    ):
        read_for(stream, 10)


def translated(kind: bytes, body: bytes) -> bytes:
    """Return what the server sends, with what it says to people in another language."""
    if kind not in (b"E", b"N"):
        return frame(kind, body)
    fields = [field for field in body.split(b"\0") if field and field[:1] not in b"SDH"]
    sentences = {
        b"M": b"M\xc3\xbcbersprungen",
        b"W": b'WSlot "s", Ausgabe-Plugin "pgoutput", im Callback change',
    }
    said = [sentences.get(field[:1], field) for field in fields]
    return frame(kind, b"\0".join([b"SSATZ", *said, b"", b""]))


@both_routes
@pytest.mark.parametrize("of", ["database", "old_database"])
def test_a_missing_publication_is_recognized_in_any_language(
    request: pytest.FixtureRequest, of: str, route: str
) -> None:
    database: Database = request.getfixturevalue(of)
    make_items(database)
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    database.run("INSERT INTO item (id) VALUES (1)", f"CREATE PUBLICATION {database.name} FOR ALL TABLES")
    with (
        Proxy(database.server.port, translated) as proxy,
        closing(start(database.config(conninfo=proxy.conninfo(database.conninfo)), route)) as stream,
        pytest.raises(SourceError, match=r"of a time without the publication .*übersprungen"),
    ):
        read_for(stream, 10)


@both_routes
def test_a_busy_slot_is_tried_again_and_then_named(database: Database, route: str) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)")
    with closing(start(config)):
        pid = database.run(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{database.name}'")
        with pytest.raises(SourceError, match=f"The slot {database.name} is still busy.*PID {pid[0][0]}"):
            start(config, route, busy_timeout=1.0).read(10.0)


@both_routes
def test_a_busy_slot_is_read_once_it_is_free(database: Database, route: str) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)")
    holder = start(config)
    timer = threading.Timer(1.5, holder.close)
    timer.start()
    with closing(start(config, route, busy_timeout=20.0)) as stream:
        assert kinds(read_through(stream, database.flush_lsn())) == "BRIC"
    timer.join()


@pytest.mark.parametrize("rows", [200_000])
def test_the_session_outlives_a_reader_that_sleeps_in_a_transaction(
    make_server: MakeServer, rows: int
) -> None:
    database = Database.of(make_server({"wal_sender_timeout": "2s"}))
    config = prepare_items(database)
    database.run(f"INSERT INTO item (id, name) SELECT n, repeat('x', 50) FROM generate_series(1, {rows}) n")
    with closing(start(config)) as stream:
        messages = stream.read(10.0)
        assert messages
        assert end_lsns(messages) == []
        time.sleep(5)
        messages += read_through(stream, database.flush_lsn(), 60)
        assert kinds(messages).count("I") == rows
        stream.acknowledge(stream.received_lsn)
        time.sleep(3)
        assert stream.confirm(5.0)


@both_routes
def test_a_lost_connection_is_one_sentence_and_loses_nothing(make_server: MakeServer, route: str) -> None:
    server = make_server()
    database = Database.of(server)
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)")
    stream = start(config, route)
    messages = read_through(stream, database.flush_lsn())
    server.stop(mode="immediate")
    with pytest.raises(SourceError, match=r"Lost the .*Run again"):
        read_for(stream, 10)
    with pytest.raises(SourceError):
        stream.acknowledge(stream.received_lsn)
    stream.close()
    server.start()
    database.run("INSERT INTO item (id) VALUES (2)")
    assert kinds(messages + read_all(database, config, route)).count("I") >= 2


@pytest.mark.promise("gaps are never silent")
@both_routes
def test_a_slot_whose_wal_was_removed_is_a_gap(make_server: MakeServer, route: str) -> None:
    database = Database.of(make_server(LITTLE_WAL))
    config = prepare_items(database)
    outgrow(database)
    with pytest.raises(GapError, match=r"The slot postgres is lost.*max_slot_wal_keep_size"):
        start(config, route)


def test_a_new_lake_names_how_to_drop_a_lost_slot_or_creates_it_again(make_server: MakeServer) -> None:
    database = Database(server := make_server(LITTLE_WAL), "postgres", server.conninfo)
    config = prepare_items(database)
    outgrow(database)
    resync = replace(config, source=replace(config.source, lost_slot="resync"))
    with connect(config.source.conninfo) as connection:
        with pytest.raises(GapError, match=r"pg_drop_replication_slot\('postgres'\)"):
            first_slot(connection, config)
        assert not first_slot(connection, resync).is_lost
        first_slot(connection, config)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("wal_removed", "max_slot_wal_keep_size"),
        ("idle_timeout", "idle_replication_slot_timeout"),
        ('This slot has been invalidated due to "rows_removed".', "hot_standby_feedback"),
        ("wal_level_insufficient", "wal_level = logical"),
        (None, "max_slot_wal_keep_size"),
    ],
)
def test_the_cause_of_a_lost_slot_is_named_with_the_way_to_prevent_it(
    reason: str | None, remedy: str
) -> None:
    assert remedy in describe_lost_slot("shop", reason)


@both_routes
def test_a_slot_that_is_lost_while_it_is_read_is_named(make_server: MakeServer, route: str) -> None:
    database = Database.of(make_server(LITTLE_WAL))
    config = prepare_items(database)
    with closing(start(config, route)) as stream:
        outgrow(database)
        with pytest.raises(SourceError, match=r"reads the slot postgres.*Run again|slot postgres is lost"):
            read_for(stream, 40)
    with pytest.raises(GapError, match="The slot postgres is lost"):
        start(config, route)


def test_closing_a_stream_frees_its_slot_at_once(database: Database) -> None:
    config = prepare_items(database)
    for _ in range(5):
        stream = start(config, busy_timeout=5.0)
        stream.read(0.1)
        stream.close()
        stream.close()
        with pytest.raises(SourceError, match="is closed"):
            stream.read(0.1)
