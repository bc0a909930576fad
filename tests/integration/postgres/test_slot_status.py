"""The status of the source: slot and kept WAL of old and new majors, limits, a silent server."""

import socket
import time
from contextlib import closing

import pytest

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.replication.slot_status import SourceStatus, SourceWal, WalEnd, read_source_status
from pipeline.report.status_page import seconds_until_limit, slot_lines
from tests.support.postgres.streams import make_items, prepare, prepare_items, start
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

pytestmark = pytest.mark.postgres


def slot_of(state: SourceStatus) -> Slot:
    assert state.slot is not None
    return state.slot


@pytest.mark.promise("slot status")
@pytest.mark.parametrize("major", [10, 18])
def test_a_slot_is_described_by_old_and_new_servers(major: int, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue("old_database" if major == 10 else "database")
    make_items(database)
    config = database.config()
    none = read_source_status(config)
    assert none.slot is None
    assert none.keep_size is None
    prepare(config)
    database.run("INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n")
    state = read_source_status(config)
    slot = slot_of(state)
    assert not slot.is_active
    assert none.wal_lsn - 8192 < slot.restart_lsn <= slot.confirmed_flush_lsn < state.wal_lsn
    assert state.retained_size == state.wal_lsn - slot.restart_lsn > 1_000_000
    assert slot.wal_status == (None if major == 10 else "reserved")
    assert (state.safe_size, slot.is_lost) == (None, False)
    assert abs(state.now.timestamp() - time.time()) < 60
    with closing(start(config, "walsender")):
        assert slot_of(read_source_status(config)).is_active


@pytest.mark.promise("slot status")
def test_the_limit_comes_nearer_and_then_the_slot_is_lost(make_server: MakeServer) -> None:
    database = Database.of(
        make_server({"max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    )
    config = prepare_items(database)
    fill = "INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n"
    before = read_source_status(config)
    assert before.keep_size == 64 << 20
    database.run(fill)
    after = read_source_status(config)
    written = after.wal_lsn - before.wal_lsn
    safe = after.safe_size
    assert safe is not None
    assert safe == pytest.approx((before.safe_size or 0) - written, abs=1 << 20)
    assert written > 15 << 20
    assert seconds_until_limit(after, 1000.0) == safe / 1000
    polled = polled_wal(config)
    assert polled.lsn >= after.wal_lsn
    assert polled.retained_size == pytest.approx(after.retained_size, abs=1 << 20)
    assert polled.safe_size == pytest.approx(safe, abs=1 << 20)
    for _ in range(8):  # segments of 16 MB
        database.run("INSERT INTO item VALUES (0)", "TRUNCATE item", "SELECT pg_switch_wal()", "CHECKPOINT")
    lost = read_source_status(config)
    assert slot_of(lost).is_lost
    assert lost.retained_size is None
    assert polled_wal(config).retained_size is None
    assert seconds_until_limit(lost, 1000.0) is None
    assert "The slot is lost" in slot_lines(lost, "postgres", 1000.0)[1]


def polled_wal(config: Config) -> SourceWal:
    """Return what a poll of the WAL finds of the configured slot."""
    with closing(WalEnd(config.source.conninfo, config.source.slot, interval=0.05)) as wal_end:
        wait_until(lambda: wal_end.wal is not None, 120)
        assert wal_end.wal is not None
        return wal_end.wal


def test_a_source_that_is_not_there_is_one_sentence_without_its_password(database: Database) -> None:
    for conninfo in (
        "host=127.0.0.1 port=1 dbname=shop password=geheim",
        "postgresql://me:geheim@127.0.0.1:1/shop",
        "host=127.0.0.1 port=x password=geheim",
    ):
        with pytest.raises(SourceError) as failed:
            read_source_status(database.config(conninfo=conninfo))
        assert "geheim" not in str(failed.value)
        assert "\n" not in str(failed.value)


@pytest.mark.promise("slot status")
def test_a_silent_source_is_not_waited_for(database: Database) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"did not answer|[Tt]imeout|timed out"):
            read_source_status(database.config(conninfo=f"host=127.0.0.1 port={port} dbname=shop"), 1.0)
        assert time.monotonic() - began < 5


def test_the_end_of_the_wal_is_polled_and_unknown_without_an_answer(
    make_server: MakeServer,
) -> None:
    server = make_server()
    database = Database.of(server)
    with closing(WalEnd(server.conninfo, interval=0.05, longest_age=1.0)) as wal_end:
        for _ in range(2):
            database.run("CREATE TABLE IF NOT EXISTS t ()", "SELECT pg_switch_wal()")
            end = database.flush_lsn()
            wait_until(lambda end=end: wal_end.lsn is not None and wal_end.lsn >= end)  # type: ignore[misc]
            database.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgdelta wal end'"
            )
        server.stop()
        wait_until(lambda: wal_end.lsn is None)
        server.start()
        wait_until(lambda: wal_end.lsn is not None)


def test_a_silent_source_does_not_delay_closing() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        wal_end = WalEnd(f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=shop")
        began = time.monotonic()
        assert wal_end.lsn is None
        wal_end.close()
    assert time.monotonic() - began < 5
