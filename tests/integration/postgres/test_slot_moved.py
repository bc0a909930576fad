"""A slot that another reader moves, drops or creates again is a gap that ends the stream; no row is missed.

It can happen before a stream begins, between two polls by SQL, and while a stream waits for a busy slot.
"""

from collections.abc import Callable
from concurrent import futures
from contextlib import closing
from typing import Any

import pytest

from pipeline.errors import GapError, SlotGapError
from pipeline.postgres.connection import Connection, connect_replication
from pipeline.postgres.replication.sql_polling import Peek
from pipeline.protocol.lsn import LSN
from tests.support.postgres.streams import (
    both_routes,
    confirmed_lsn,
    kinds,
    prepare,
    prepare_items,
    read_for,
    read_through,
    start,
)
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

AHEAD = r"^The slot \w+ is at [0-9A-F/]+, ahead of bronze at [0-9A-F/]+\. .* source\.lost_slot"


def insert(database: Database, row: int) -> None:
    database.run(f"INSERT INTO item (id) VALUES ({row})")


def move(database: Database) -> None:
    """Let the slot forget all there is, as another reader would."""
    database.run(f"SELECT pg_replication_slot_advance('{database.name}', pg_current_wal_flush_lsn())")


def drop(database: Database) -> None:
    database.run(f"SELECT pg_drop_replication_slot('{database.name}')")


def make_anew(database: Database) -> None:
    drop(database)
    prepare(database.config())


def make(database: Database) -> LSN:
    """Make a table, a publication and a slot, and a row; return the LSN that the slot confirmed before."""
    prepare_items(database)
    position = confirmed_lsn(database)
    insert(database, 1)
    return position


@both_routes
def test_a_slot_beyond_the_position_of_bronze_is_not_read(database: Database, route: str) -> None:
    position = make(database)
    move(database)
    with pytest.raises(SlotGapError, match=AHEAD):
        start(database.config(), route, start_lsn=position)
    with closing(start(database.config(), route)) as stream:
        assert stream.received_lsn > position


@pytest.mark.promise("gaps are never silent")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (move, AHEAD),
        (make_anew, AHEAD),
        (drop, r"^The slot \w+ does not exist any more, .* source\.lost_slot"),
    ],
)
def test_a_slot_that_is_changed_between_two_passes_ends_the_stream(
    database: Database, change: Callable[[Database], None], sentence: str
) -> None:
    position = make(database)
    with closing(start(database.config(), "sql", start_lsn=position)) as stream:
        assert kinds(read_through(stream, database.flush_lsn())) == "BRIC"
        through = stream.received_lsn
        insert(database, 2)
        change(database)
        insert(database, 3)
        with pytest.raises(SlotGapError, match=sentence):
            read_for(stream, 5)
        assert stream.received_lsn == through


def test_a_slot_that_is_moved_as_a_pass_begins_ends_the_stream(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = make(database)

    def peek(*arguments: Any) -> Peek:
        move(database)
        insert(database, 2)
        return Peek(*arguments)

    with closing(start(database.config(), "sql", start_lsn=position)) as stream:
        monkeypatch.setattr("pipeline.postgres.replication.sql_polling.Peek", peek)
        with pytest.raises(SlotGapError, match=AHEAD):
            read_for(stream, 5)
        assert stream.received_lsn == position


@pytest.mark.parametrize("fixture", ["database", "old_database"])
def test_a_slot_that_was_moved_is_not_acknowledged(fixture: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(fixture)
    position = make(database)
    with closing(start(database.config(), "sql", start_lsn=position)) as stream:
        while not stream.needs_acknowledgement:
            stream.read(1.0)
        insert(database, 2)
        take = f"pg_logical_slot_get_binary_changes('{database.name}', NULL, NULL, 'proto_version', '1',"
        database.run(f"SELECT count(*) FROM {take} 'publication_names', '{database.name}')")
        with pytest.raises(SlotGapError, match=AHEAD):
            stream.acknowledge(stream.received_lsn)


def test_a_stream_that_acknowledges_nothing_detects_another_reader(database: Database) -> None:
    make(database)
    with closing(start(database.config(), "sql")) as stream:
        read_through(stream, database.flush_lsn())
        insert(database, 2)
        move(database)
        insert(database, 3)
        with pytest.raises(GapError, match=r"^Another reader moved the slot \w+ to "):
            read_for(stream, 5)


@pytest.mark.promise("gaps are never silent")
def test_a_slot_whose_reader_moved_it_while_a_stream_waited_is_not_read(database: Database) -> None:
    position = make(database)
    with closing(start(database.config())) as other, futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(start, database.config(), start_lsn=position, busy_timeout=20.0)
        with pytest.raises(futures.TimeoutError):
            waiting.result(0.5)
        read_through(other, database.flush_lsn())
        other.acknowledge(other.received_lsn)
        assert other.confirm(5.0)
        other.close()
        with pytest.raises(SlotGapError, match=AHEAD):
            waiting.result(20)
    database.free_slot()
    start(database.config(), start_lsn=confirmed_lsn(database)).close()


def test_a_slot_that_is_moved_as_a_stream_begins_is_not_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = make(database)

    def connect(*arguments: Any, **options: Any) -> Connection:
        move(database)
        return connect_replication(*arguments, **options)

    monkeypatch.setattr("pipeline.postgres.replication.walsender.connect_replication", connect)
    with pytest.raises(SlotGapError, match=AHEAD):
        start(database.config(), start_lsn=position)
    with closing(start(database.config())) as stream:
        assert stream.received_lsn == confirmed_lsn(database) > position
