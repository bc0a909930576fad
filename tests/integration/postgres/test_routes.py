"""Both routes deliver the same messages, whole transactions in commit order.

Values are the server's own text whatever the role, the database or the encoding says, and names reach the
plugin as they are. Reading a slot by SQL polls it repeatedly, and ends at the requested LSN.
"""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import psycopg
import pytest

from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.protocol.messages import Begin, Commit, LogicalMessage
from tests.support.postgres.streams import (
    both_routes,
    decode_all,
    end_lsns,
    kinds,
    make_items,
    prepare,
    prepare_items,
    read_all,
    read_through,
    start,
)
from tests.support.servers import Database

WORKLOAD = (
    "INSERT INTO item SELECT n, 'name ' || n, n * 1.5, now() FROM generate_series(1, 100) n",
    "UPDATE item SET id = id + 1000 WHERE id <= 10",
    "DELETE FROM item WHERE id > 1005",
    "ALTER TABLE item ADD COLUMN colour text",
    "INSERT INTO item VALUES (7777, repeat('long ', 2000), 1, NULL, 'red')",
    "UPDATE item SET colour = 'blue' WHERE id = 7777",
    "TRUNCATE item",
)


@pytest.mark.quick
def test_both_routes_deliver_the_same_messages(database: Database) -> None:
    config = prepare_items(database)
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
    config = prepare_items(database)
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
def test_an_interrupt_ends_a_read_that_waits_or_begins_later(database: Database, route: str) -> None:
    config = prepare_items(database)
    with closing(start(config, route)) as stream, ThreadPoolExecutor(1) as pool:
        stream.interrupt()
        assert stream.read(600) == []
        reading = pool.submit(stream.read, 600)
        while not reading.done():  # what the server says by itself may have ended it, too
            stream.interrupt()
            wait([reading], 0.1)
        assert reading.result() == []
        database.run("INSERT INTO item (id) VALUES (1)")
        assert kinds(read_through(stream, database.flush_lsn())) == "BRIC"


def test_sql_passes_are_bounded_by_a_count(database: Database) -> None:
    config = prepare_items(database, *(f"INSERT INTO item (id) VALUES ({n})" for n in range(30)))
    with closing(start(config, "sql", poll_messages=10)) as stream:
        first: list[bytes] = []
        while not stream.needs_acknowledgement:
            first += stream.read(5.0)
        assert 10 <= len(first) <= 13
        assert stream.received_lsn == end_lsns(first)[-1]
        assert stream.read(0.2) == []
        stream.acknowledge(stream.received_lsn)
        rest = read_through(stream, database.flush_lsn())
    assert kinds(first + rest).count("I") == 30


def test_sql_polls_continue_through_messages_outside_transactions(database: Database) -> None:
    config = prepare_items(database)
    database.run(
        "SELECT count(pg_logical_emit_message(false, 'beat', n::text)) FROM generate_series(1, 45) n",
        "INSERT INTO item (id) VALUES (1)",
    )
    messages = read_all(database, config, "sql", poll_messages=10)
    beats = [m.content for m in decode_all(messages) if isinstance(m, LogicalMessage)]
    assert beats == [str(n).encode() for n in range(1, 46)]
    assert kinds(messages).endswith("BRIC")


def test_the_sql_stream_reads_up_to_the_position_it_is_given(database: Database) -> None:
    config = prepare_items(database, "INSERT INTO item (id) VALUES (1)")
    limit = database.flush_lsn()
    database.run("INSERT INTO item (id) VALUES (2)")
    options = {"proto_version": "1", "publication_names": database.name}
    source = config.source
    with closing(
        start_sql_stream(
            source.conninfo, source.slot, source.publication, options=options, end_lsn=lambda: limit
        )
    ) as stream:
        assert kinds(read_through(stream, limit)) == "BRIC"
        assert stream.read(0.3) == []


@both_routes
def test_names_that_need_quotes_reach_the_plugin(database: Database, route: str) -> None:
    config = prepare_items(database, publication="we,ird\"Pub's", slot=f"0{database.name}")
    database.run("INSERT INTO item (id) VALUES (1)")
    assert "I" in kinds(read_all(database, config, route))


@both_routes
def test_bytes_of_an_sql_ascii_database_come_as_they_are(database: Database, route: str) -> None:
    name = f"ascii_{database.name}"
    database.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    ascii_database = Database(database.server, name, database.server.conninfo_of(name))
    config = prepare_items(ascii_database)
    with psycopg.connect(ascii_database.conninfo, autocommit=True, client_encoding="SQL_ASCII") as connection:
        connection.execute(b"INSERT INTO item (id, name) VALUES (1, '\xe9t\xe9')")
    messages = read_all(ascii_database, config, route)
    assert b"\xe9t\xe9" in messages[-2]
    ascii_database.free_slot()
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
