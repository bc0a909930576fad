"""Polls of a slot by SQL: everything is shown, nothing is moved, and a slot moved by another is noticed."""

import time
from contextlib import closing
from typing import Any

import pytest

from pipeline.errors import GapError, SlotBusyError, SourceError
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot import read_slot
from pipeline.postgres.replication.sql_follow import SqlFollow, start_sql_follow
from pipeline.protocol.messages import Cell, Insert, LogicalMessage
from pipeline.tail.selection import TailMessage, TailReader
from tests.support.postgres.streams import prepare_items, start
from tests.support.servers import Database


def look(database: Database, **options: Any) -> SqlFollow:
    with connect(database.conninfo) as connection:
        version = connection.info.server_version
    protocol = database.config().source.protocol
    plugin = pgoutput_options(version, protocol, database.name, "sql")
    return start_sql_follow(database.conninfo, database.name, database.name, options=plugin, **options)


def read_all(looks: SqlFollow, database: Database, reading: TailReader) -> list[TailMessage]:
    """Read what is committed now, without what the reading has seen before."""
    found: list[TailMessage] = []
    target = database.flush_lsn()
    deadline = time.monotonic() + 120
    while looks.received_lsn < target:
        assert time.monotonic() < deadline
        found += [seen for data in looks.read(0.2) if (seen := reading.read(data, looks.session)) is not None]
    return found


def keys(seen: list[TailMessage]) -> list[Cell]:
    """Return the keys of inserted rows, and the contents of messages."""
    found: list[Cell] = []
    for one in seen:
        match one.message:
            case Insert() as message:
                found.append(message.new[0])
            case LogicalMessage() as message:
                found.append(message.content)
    return found


def insert(row: int) -> str:
    return f"INSERT INTO item (id) VALUES ({row})"


def emit(content: str) -> str:
    # It is on disk with the next commit.
    return f"SELECT pg_logical_emit_message(false, 'beat', '{content}')"


def test_polls_that_are_too_short_are_extended_until_all_is_shown_once(database: Database) -> None:
    prepare_items(database, *(statement for n in range(30) for statement in (emit(f"m{n}"), insert(n))))
    with connect(database.conninfo) as connection, closing(look(database, poll_messages=5)) as looks:
        reading = TailReader()
        shown = keys(read_all(looks, database, reading))
        assert shown == [key for n in range(30) for key in (b"m%d" % n, b"%d" % n)]
        assert looks.session > 2
        for number in (30, 31):
            database.run(emit(f"m{number}"), insert(number))
            assert keys(read_all(looks, database, reading)) == [b"m%d" % number, b"%d" % number]
        slot = read_slot(connection, database.name)
        assert slot is not None
        assert slot.active_pid is None
        again = look(database)
        assert again.received_lsn == slot.confirmed_flush_lsn
        with closing(again):
            assert len(keys(read_all(again, database, TailReader()))) == 64


def test_polls_end_if_another_reader_moves_the_slot_past_the_shown_changes(database: Database) -> None:
    prepare_items(database, insert(1))
    move = f"SELECT pg_replication_slot_advance('{database.name}', pg_current_wal_flush_lsn())"
    with closing(look(database)) as looks:
        reading = TailReader()
        assert keys(read_all(looks, database, reading)) == [b"1"]
        # What was shown may be forgotten.
        database.run(move, insert(2))
        assert keys(read_all(looks, database, reading)) == [b"2"]
        time.sleep(0.6)
        looks.read(0.1)
        database.run(insert(3), move, insert(4))
        with pytest.raises(
            GapError, match=r"^Another reader moved the slot .* the changes between them are missing"
        ):
            read_all(looks, database, reading)


def test_a_slot_that_stays_busy_ends_the_stream(database: Database) -> None:
    prepare_items(database, insert(1))
    with (
        closing(start(database.config())),
        closing(look(database, busy_timeout=0.5)) as looks,
        pytest.raises(SlotBusyError, match="is still busy"),
    ):
        read_all(looks, database, TailReader())
    with closing(look(database, busy_timeout=0.5)) as looks:
        assert keys(read_all(looks, database, TailReader())) == [b"1"]


def test_polls_acknowledge_nothing(database: Database) -> None:
    prepare_items(database, insert(1))
    with closing(look(database)) as looks:
        read_all(looks, database, TailReader())
        with pytest.raises(SourceError, match="Refused to acknowledge"):
            looks.acknowledge(looks.received_lsn)
