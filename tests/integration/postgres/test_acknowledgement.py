"""What may be acknowledged and what that does to the slot.

Only what was received whole, and never backwards; what was not acknowledged is sent again. `received_lsn` is
never ahead of the messages, and moves while the publication is idle.
"""

import threading
import time
from contextlib import closing

import pytest

from pipeline.errors import SourceError
from pipeline.protocol.lsn import LSN
from tests.support.postgres.streams import (
    both_routes,
    confirmed_lsn,
    end_lsns,
    kinds,
    prepare_items,
    read_all,
    read_through,
    start,
)
from tests.support.servers import Database
from tests.support.threads import in_threads


@pytest.mark.promise("acknowledged after bronze")
@both_routes
def test_what_was_not_acknowledged_is_sent_again(database: Database, route: str) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id) VALUES (2)")
    with closing(start(config, route)) as stream:
        first = stream.read(5.0)
        while len(end_lsns(first)) < 2:
            first += stream.read(5.0)
        stream.acknowledge(end_lsns(first)[0])
        assert stream.confirm(5.0)
    assert confirmed_lsn(database) == end_lsns(first)[0]
    with closing(start(config, route)) as stream:
        again = read_through(stream, end_lsns(first)[1])
    assert end_lsns(again) == end_lsns(first)[1:]


@both_routes
def test_acknowledging_beyond_what_was_received_is_refused(database: Database, route: str) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)")
    with closing(start(config, route)) as stream:
        before = confirmed_lsn(database)
        with pytest.raises(SourceError, match="Refused to acknowledge 100/0"):
            stream.acknowledge(LSN.parse("100/0"))
        with pytest.raises(SourceError, match="Refused"):
            stream.acknowledge(database.flush_lsn())
        assert stream.confirm(5.0)
        assert confirmed_lsn(database) == before
        # A refusal breaks nothing.
        assert "I" in kinds(read_through(stream, database.flush_lsn()))


@both_routes
def test_an_acknowledgement_never_goes_back(database: Database, route: str) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id) VALUES (2)")
    with closing(start(config, route)) as stream:
        messages: list[bytes] = []
        while len(end_lsns(messages)) < 2:
            messages += stream.read(5.0)
        first, second = end_lsns(messages)
        stream.acknowledge(second)
        stream.acknowledge(first)
        assert stream.confirm(5.0)
    assert confirmed_lsn(database) == second


@both_routes
def test_an_idle_publication_still_moves_received_lsn(database: Database, route: str) -> None:
    config = prepare_items(database)
    with closing(start(config, route)) as stream:
        database.run("CREATE TABLE other (n int)", "INSERT INTO other SELECT generate_series(1, 1000)")
        target = database.flush_lsn()
        messages = read_through(stream, target)
        assert "I" not in kinds(messages)
        stream.acknowledge(stream.received_lsn)
        assert stream.confirm(5.0)
    assert confirmed_lsn(database) >= target


@both_routes
def test_received_lsn_is_never_ahead_of_the_messages(database: Database, route: str) -> None:
    config = prepare_items(database)

    def write(stop: threading.Event) -> None:
        with database.connect() as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute("INSERT INTO item (id) VALUES (%s)", (number,))

    received: list[bytes] = []
    through = LSN(0)
    with in_threads(write), closing(start(config, route)) as stream:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            messages = stream.read(0.1)
            received += messages
            # What comes now must lie after what was said to be complete.
            assert all(lsn > through for lsn in end_lsns(messages))
            through = stream.received_lsn
            if stream.needs_acknowledgement:
                stream.acknowledge(through)
    commits = end_lsns(received)
    assert len(commits) > 100
    assert commits == sorted(set(commits))


def test_on_10_the_slot_moves_only_where_a_whole_pass_was_received(old_database: Database) -> None:
    config = prepare_items(old_database)
    before = confirmed_lsn(old_database)
    old_database.run(*(f"INSERT INTO item (id) VALUES ({n})" for n in range(5)))
    with closing(start(config, "sql")) as stream:
        messages: list[bytes] = []
        while not stream.needs_acknowledgement:
            messages += stream.read(5.0)
        assert len(end_lsns(messages)) == 5
        stream.acknowledge(end_lsns(messages)[2])
        assert confirmed_lsn(old_database) == before
        stream.acknowledge(stream.received_lsn)
        assert confirmed_lsn(old_database) >= end_lsns(messages)[-1]
    old_database.run("INSERT INTO item (id) VALUES (100)")
    assert kinds(read_all(old_database, config, "sql")).replace("BC", "") == "BRIC"
