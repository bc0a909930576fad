"""Both routes deliver the same messages, acknowledge only what was received, and survive slow readers."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import psycopg
import pytest

from pipeline.errors import GapError, SourceError
from pipeline.postgres.connection import connect
from pipeline.postgres.slot import read_slot
from pipeline.postgres.slot_sql import start_slot_sql
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Begin, Commit, LogicalMessage
from tests.postgres.streams import (
    decode_all,
    end_lsns,
    kinds,
    prepare,
    read_all,
    read_for,
    read_through,
    start,
)
from tests.servers import Database, MakeServer

pytestmark = pytest.mark.postgres

both_routes = pytest.mark.parametrize("route", ["walsender", "sql"])

WORKLOAD = (
    "INSERT INTO item SELECT n, 'name ' || n, n * 1.5, now() FROM generate_series(1, 100) n",
    "UPDATE item SET id = id + 1000 WHERE id <= 10",
    "DELETE FROM item WHERE id > 1005",
    "ALTER TABLE item ADD COLUMN colour text",
    "INSERT INTO item VALUES (7777, repeat('long ', 2000), 1, NULL, 'red')",
    "UPDATE item SET colour = 'blue' WHERE id = 7777",
    "TRUNCATE item",
)


def make_items(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY, name text, price float8, made timestamptz)")


def confirmed_lsn(database: Database) -> LSN:
    with connect(database.conninfo) as connection:
        slot = read_slot(connection, database.name)
    assert slot is not None
    return slot.confirmed_flush_lsn


def test_both_routes_deliver_the_same_messages(database: Database) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run(
        "SELECT pg_copy_logical_replication_slot(current_database(), 'twin_of_' || current_database())"
    )
    database.run(*WORKLOAD, "SELECT pg_logical_emit_message(true, 'note', 'within')")
    by_walsender = read_all(database, config, "walsender")
    by_sql = read_all(database, database.config(slot=f"twin_of_{database.name}"), "sql")
    assert len(by_walsender) > 130
    assert by_walsender == by_sql


def test_both_routes_deliver_the_same_messages_on_10(old_database: Database) -> None:
    make_items(old_database)
    twin = old_database.config(slot=f"twin_{old_database.name}")
    config = old_database.config()
    prepare(config)
    prepare_slot = "SELECT pg_create_logical_replication_slot('twin_' || current_database(), 'pgoutput')"
    old_database.run(prepare_slot, *WORKLOAD)
    by_walsender = read_all(old_database, config, "walsender")
    by_sql = read_all(old_database, twin, "sql")
    # 10 publishes no TRUNCATE, and sends empty transactions.
    assert kinds(by_walsender).replace("BC", "").startswith("BR" + "I" * 100 + "C")
    assert by_walsender == by_sql


@both_routes
def test_messages_are_whole_transactions_in_commit_order(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    with database.connect() as first, database.connect() as second:
        first.autocommit = second.autocommit = False
        first.execute("INSERT INTO item (id) VALUES (1)")
        second.execute("INSERT INTO item (id) VALUES (2)")
        second.execute("INSERT INTO item (id) VALUES (3)")
        second.commit()
        first.commit()
    messages = read_all(database, config, route)
    assert kinds(messages) == "BRIICBIC"
    commits = [m.commit_lsn for m in decode_all(messages) if isinstance(m, Commit)]
    assert commits == sorted(commits)
    assert commits == [m.final_lsn for m in decode_all(messages) if isinstance(m, Begin)]


@both_routes
def test_what_was_not_acknowledged_is_sent_again(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id) VALUES (2)")
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
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
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
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id) VALUES (2)")
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
def test_an_idle_publication_still_moves_sent_through(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    with closing(start(config, route)) as stream:
        database.run("CREATE TABLE other (n int)", "INSERT INTO other SELECT generate_series(1, 1000)")
        target = database.flush_lsn()
        messages = read_through(stream, target)
        assert "I" not in kinds(messages)
        stream.acknowledge(stream.sent_through)
        assert stream.confirm(5.0)
    assert confirmed_lsn(database) >= target


@both_routes
def test_sent_through_is_never_ahead_of_the_messages(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute("INSERT INTO item (id) VALUES (%s)", (number,))

    writer = threading.Thread(target=write)
    writer.start()
    received: list[bytes] = []
    through = LSN(0)
    try:
        with closing(start(config, route)) as stream:
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                messages = stream.read(0.1)
                received += messages
                # What comes now must lie after what was said to be complete.
                assert all(lsn > through for lsn in end_lsns(messages))
                through = stream.sent_through
                if stream.needs_acknowledgement:
                    stream.acknowledge(through)
    finally:
        stop.set()
        writer.join()
    commits = end_lsns(received)
    assert len(commits) > 100
    assert commits == sorted(set(commits))


def test_sql_passes_are_bounded_by_a_count(database: Database) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run(*(f"INSERT INTO item (id) VALUES ({n})" for n in range(30)))
    with closing(start(config, "sql", pass_messages=10)) as stream:
        first: list[bytes] = []
        while not stream.needs_acknowledgement:
            first += stream.read(5.0)
        assert 10 <= len(first) <= 13
        assert stream.sent_through == end_lsns(first)[-1]
        assert stream.read(0.2) == []
        stream.acknowledge(stream.sent_through)
        rest = read_through(stream, database.flush_lsn())
    assert kinds(first + rest).count("I") == 30


def test_sql_passes_go_on_through_messages_outside_transactions(database: Database) -> None:
    config = database.config()
    make_items(database)
    prepare(config)
    database.run(
        "SELECT count(pg_logical_emit_message(false, 'beat', n::text)) FROM generate_series(1, 45) n",
        "INSERT INTO item (id) VALUES (1)",
    )
    messages = read_all(database, config, "sql", pass_messages=10)
    beats = [m.content for m in decode_all(messages) if isinstance(m, LogicalMessage)]
    assert beats == [str(n).encode() for n in range(1, 46)]
    assert kinds(messages).endswith("BRIC")


def test_on_10_the_slot_moves_only_where_a_whole_pass_was_received(old_database: Database) -> None:
    make_items(old_database)
    config = old_database.config()
    prepare(config)
    before = confirmed_lsn(old_database)
    old_database.run(*(f"INSERT INTO item (id) VALUES ({n})" for n in range(5)))
    with closing(start(config, "sql")) as stream:
        messages: list[bytes] = []
        while not stream.needs_acknowledgement:
            messages += stream.read(5.0)
        assert len(end_lsns(messages)) == 5
        stream.acknowledge(end_lsns(messages)[2])
        assert confirmed_lsn(old_database) == before
        stream.acknowledge(stream.sent_through)
        assert confirmed_lsn(old_database) >= end_lsns(messages)[-1]
    old_database.run("INSERT INTO item (id) VALUES (100)")
    assert kinds(read_all(old_database, config, "sql")).replace("BC", "") == "BRIC"


@pytest.mark.parametrize("rows", [400_000])
def test_the_session_outlives_a_reader_that_sleeps_in_a_transaction(
    make_server: MakeServer, rows: int
) -> None:
    server = make_server({"wal_sender_timeout": "2s"})
    database = Database(server, "postgres", server.conninfo)
    make_items(database)
    config = database.config()
    prepare(config)
    database.run(f"INSERT INTO item (id, name) SELECT n, repeat('x', 50) FROM generate_series(1, {rows}) n")
    with closing(start(config)) as stream:
        messages = stream.read(10.0)
        assert messages
        assert end_lsns(messages) == []
        time.sleep(8)
        messages += read_through(stream, database.flush_lsn(), 60)
        assert kinds(messages).count("I") == rows
        stream.acknowledge(stream.sent_through)
        time.sleep(4)
        assert stream.confirm(5.0)


@both_routes
def test_a_busy_slot_is_tried_again_and_then_named(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    with closing(start(config)):
        pid = database.run(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{database.name}'")
        with pytest.raises(SourceError, match=f"The slot {database.name} is busy.*PID {pid[0][0]}"):
            start(config, route, busy_timeout=1.0).read(10.0)


@both_routes
def test_a_busy_slot_is_read_once_it_is_free(database: Database, route: str) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    holder = start(config)
    timer = threading.Timer(1.5, holder.close)
    timer.start()
    with closing(start(config, route, busy_timeout=20.0)) as stream:
        assert kinds(read_through(stream, database.flush_lsn())) == "BRIC"
    timer.join()


@both_routes
def test_a_lost_connection_is_one_sentence_and_loses_nothing(make_server: MakeServer, route: str) -> None:
    server = make_server()
    database = Database(server, "postgres", server.conninfo)
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    stream = start(config, route)
    messages = read_through(stream, database.flush_lsn())
    server.kill_immediate()
    with pytest.raises(SourceError, match=r"Lost the .*run again"):
        read_for(stream, 10)
    with pytest.raises(SourceError):
        stream.acknowledge(stream.sent_through)
    stream.close()
    server.start()
    database.run("INSERT INTO item (id) VALUES (2)")
    assert kinds(messages + read_all(database, config, route)).count("I") >= 2


@both_routes
def test_a_slot_whose_wal_was_removed_is_a_gap(make_server: MakeServer, route: str) -> None:
    server = make_server({"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    database = Database(server, "postgres", server.conninfo)
    make_items(database)
    config = database.config()
    prepare(config)
    for _ in range(4):
        database.run(
            "INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n",
            "TRUNCATE item",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        )
    with pytest.raises(GapError, match=r"The slot postgres is lost.*max_slot_wal_keep_size"):
        start(config, route)


@both_routes
def test_a_slot_that_is_lost_while_it_is_read_is_named(make_server: MakeServer, route: str) -> None:
    server = make_server({"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    database = Database(server, "postgres", server.conninfo)
    make_items(database)
    config = database.config()
    prepare(config)
    with closing(start(config, route)) as stream:
        for _ in range(4):
            database.run(
                "INSERT INTO item SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n",
                "TRUNCATE item",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        with pytest.raises(SourceError, match=r"reads the slot postgres.*run again|slot postgres is lost"):
            read_for(stream, 40)
    with pytest.raises(GapError, match="The slot postgres is lost"):
        start(config, route)


@both_routes
def test_a_publication_made_after_the_slot_is_an_error(database: Database, route: str) -> None:
    make_items(database)
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    database.run("INSERT INTO item (id) VALUES (1)", f"CREATE PUBLICATION {database.name} FOR ALL TABLES")
    database.run("INSERT INTO item (id) VALUES (2)")
    with (
        closing(start(database.config(), route)) as stream,
        pytest.raises(SourceError, match="from before the publication existed"),
    ):
        read_for(stream, 10)


@both_routes
def test_a_missing_publication_is_named_at_the_start(database: Database, route: str) -> None:
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    with pytest.raises(SourceError, match=f"The publication {database.name} does not exist"):
        start(database.config(), route)


@both_routes
def test_names_that_need_quotes_reach_the_plugin(database: Database, route: str) -> None:
    make_items(database)
    config = database.config(publication="we,ird\"Pub's", slot=f"0{database.name}")
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    assert "I" in kinds(read_all(database, config, route))


@both_routes
def test_bytes_of_an_sql_ascii_database_come_as_they_are(database: Database, route: str) -> None:
    name = f"ascii_{database.name}"
    database.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    ascii_database = Database(database.server, name, database.server.conninfo_of(name))
    make_items(ascii_database)
    config = ascii_database.config()
    prepare(config)
    with psycopg.connect(ascii_database.conninfo, autocommit=True, client_encoding="SQL_ASCII") as connection:
        connection.execute(b"INSERT INTO item (id, name) VALUES (1, '\xe9t\xe9')")
    messages = read_all(ascii_database, config, route)
    assert b"\xe9t\xe9" in messages[-2]
    database.run(f"SELECT pg_drop_replication_slot('{name}')", f"DROP DATABASE {name} WITH (FORCE)")


@both_routes
def test_settings_of_the_role_do_not_shape_the_values(database: Database, route: str) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, made timestamptz, bits bytea, price float8, span interval)"
    )
    config = database.config()
    prepare(config)
    for setting in (
        "datestyle = 'German'",
        "timezone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
        "intervalstyle = 'iso_8601'",
    ):
        database.run(f"ALTER DATABASE {database.name} SET {setting}")
    database.run(
        r"INSERT INTO item VALUES (1, '2024-01-02 03:04:05+00', '\x00ff', 0.1::float8 + 0.2, '1 day 2 hours')"
    )
    row = read_all(database, config, route)[-2]
    for value in (b"2024-01-02 03:04:05+00", rb"\x00ff", b"0.30000000000000004", b"1 day 02:00:00"):
        assert value in row


def test_the_sql_stream_reads_up_to_the_position_it_is_given(database: Database) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    limit = database.flush_lsn()
    database.run("INSERT INTO item (id) VALUES (2)")
    options = {"proto_version": "1", "publication_names": database.name}
    source = config.source
    with closing(
        start_slot_sql(
            source.conninfo, source.slot, source.publication, options=options, upto_lsn=lambda: limit
        )
    ) as stream:
        assert kinds(read_through(stream, limit)) == "BRIC"
        assert stream.read(0.3) == []


def test_closing_a_stream_frees_its_slot_at_once(database: Database) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    for _ in range(5):
        stream = start(config, busy_timeout=5.0)
        stream.read(0.1)
        stream.close()
        stream.close()
        with pytest.raises(SourceError, match="is closed"):
            stream.read(0.1)
