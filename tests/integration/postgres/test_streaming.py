"""Streamed and prepared transactions by both routes: when they come, and what comes again."""

from contextlib import closing
from typing import Literal

import pytest

from pipeline.config.config import Config, Protocol
from pipeline.protocol.events import Event, StreamCommitted, StreamedChange, StreamStarted
from pipeline.protocol.transactions import Assembler
from tests.support.postgres.sessions import opened
from tests.support.postgres.streams import Stream, kinds, prepare, read_all, read_for, read_through, start
from tests.support.servers import Database

ROWS = 1000
BIG = f"INSERT INTO item SELECT g, repeat('x', 100) FROM generate_series(1, {ROWS}) g"
Route = Literal["walsender", "sql"]
each_route = pytest.mark.parametrize("route", ["walsender", "sql"])


def make(database: Database, route: Route = "walsender", *, two_phase: bool = False) -> Config:
    """Return the configuration of a slot to which all but small transactions are streamed."""
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
    )
    config = database.config(route=route, protocol=Protocol(streaming="on", two_phase=two_phase))
    prepare(config)
    return config


def events_of(assembler: Assembler, messages: list[bytes]) -> list[Event]:
    """Return what the messages mean."""
    return [event for message in messages if (event := assembler.receive(message)) is not None]


@each_route
def test_a_large_transaction_comes_before_its_commit(database: Database, route: Route) -> None:
    config = make(database, route)
    with opened(database, BIG) as connection, closing(start(config, route)) as stream:
        assembler = Assembler()
        before = events_of(assembler, read_for(stream, 1.0))
        assert isinstance(before[0], StreamStarted)
        assert len(assembler.open_streams) == 1
        session = stream.session
        connection.execute("COMMIT")
        after = events_of(assembler, read_through(stream, database.flush_lsn()))
        assert isinstance(after[-1], StreamCommitted)
        assert stream.received_lsn >= after[-1].end_lsn
        whole = after if stream.session != session else before + after
        assert len([event for event in whole if isinstance(event, StreamedChange)]) == ROWS


@each_route
def test_an_open_transaction_is_streamed_from_its_start_in_each_session(
    database: Database, route: Route
) -> None:
    config = make(database, route)
    with opened(database, BIG) as connection:
        for _ in range(2):
            with closing(start(config, route)) as stream:
                first = read_for(stream, 1.0)
                assert first[0][:1] + first[0][5:] == b"S\1"
        connection.execute("COMMIT")
    changes = events_of(Assembler(), read_all(database, config, route))
    assert [type(event) for event in changes].count(StreamedChange) == ROWS


@each_route
def test_a_streamed_transaction_that_was_acknowledged_does_not_come_again(
    database: Database, route: Route
) -> None:
    config = make(database, route)
    database.run(BIG)
    with closing(start(config, route)) as stream:
        read_through(stream, database.flush_lsn())
        stream.acknowledge(stream.received_lsn)
        stream.confirm(5.0)
    database.run("INSERT INTO item VALUES (0)")
    assert kinds(read_all(database, config, route)) == "BRIC"


def test_an_open_transaction_holds_up_no_acknowledgement(database: Database) -> None:
    config = make(database)
    with opened(database, BIG) as connection:
        with closing(start(config)) as stream:
            database.run("INSERT INTO item VALUES (0)")
            read_through(stream, database.flush_lsn())
            stream.acknowledge(stream.received_lsn)
            stream.confirm(5.0)
        connection.execute("COMMIT")
    messages = read_all(database, config, "walsender")
    # What stands before the acknowledged position is not streamed again: the whole comes at its commit.
    assert kinds(messages) == f"BR{'I' * ROWS}C"


def test_a_poll_full_of_streams_is_repeated_and_repeats_no_other_message(database: Database) -> None:
    config = make(database, "sql")
    beat = "SELECT pg_logical_emit_message(false, 'beat', '{}')"
    with opened(database, beat.format(1), BIG, beat.format(2)) as connection:
        with closing(start(config, "sql", poll_messages=10)) as stream:
            messages: list[bytes] = []
            sessions = set()
            target = database.flush_lsn()
            while stream.received_lsn < target:
                messages += stream.read(0.2)
                sessions.add(stream.session)
            assert len(sessions) > 3
            assert [message[-1:] for message in messages if message[:1] == b"M"] == [b"1", b"2"]
            assembler = Assembler()
            events = events_of(assembler, messages)
            begins = [event for event in events if isinstance(event, StreamStarted) and event.is_first]
            assert len(begins) > 3
            last = events[len(events) - events[::-1].index(begins[-1]) :]
            assert len([event for event in last if isinstance(event, StreamedChange)]) > ROWS - 300
        connection.execute("COMMIT")


def test_the_walsender_has_one_session(database: Database) -> None:
    config = make(database)
    with closing(start(config)) as stream:
        database.run("INSERT INTO item VALUES (0)")
        read_through(stream, database.flush_lsn())
        assert stream.session == 1


def finish(stream: Stream) -> None:
    """Acknowledge all that was read."""
    stream.acknowledge(stream.received_lsn)
    assert stream.confirm(5.0)


@each_route
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("verb", "kind"), [("COMMIT", "K"), ("ROLLBACK", "r")])
def test_only_the_end_of_an_acknowledged_prepared_transaction_is_sent(
    database: Database, route: Route, is_streamed: bool, verb: str, kind: str
) -> None:
    config = make(database, route, two_phase=True)
    with opened(database, BIG if is_streamed else "INSERT INTO item VALUES (1)") as connection:
        connection.execute("PREPARE TRANSACTION 'gid'")
        with closing(start(config, route)) as stream:
            messages = kinds(read_through(stream, database.flush_lsn()))
            assert (messages[0], messages[-1]) == (("S", "p") if is_streamed else ("b", "P"))
            finish(stream)
        connection.execute(f"{verb} PREPARED 'gid'".encode())
    with closing(start(config, route)) as stream:
        assert kinds(read_through(stream, database.flush_lsn())) == kind
        finish(stream)
    assert read_all(database, config, route) == []
