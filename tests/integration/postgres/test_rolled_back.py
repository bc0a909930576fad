"""A prepared transaction that was rolled back before it was read: the server cannot decode some of them.

The fault is the server's (15 to 18). The sentence says so, and what docs/operations/limits.md advises for 18
works.
"""

import psycopg
import pytest

from pipeline.config.config import Protocol
from pipeline.errors import SourceError
from tests.support.postgres.streams import both_routes, kinds, prepare, read_all
from tests.support.servers import Database, MakeServer

TWO_PHASE = Protocol(two_phase=True, written=frozenset({"two_phase"}))
FILL = "INSERT INTO items SELECT g, repeat('x', 6800) FROM generate_series(10, 40) g"


@both_routes
def test_what_the_sentence_advises_helps(make_server: MakeServer, route: str) -> None:
    server = make_server({"max_prepared_transactions": "5", "logical_decoding_work_mem": "64kB"})
    database = Database.of(server)
    database.run("CREATE TABLE items (id int PRIMARY KEY, v text)")
    config = database.config(protocol=TWO_PHASE)
    prepare(config)
    database.run(
        "BEGIN",
        "SAVEPOINT a",
        "CREATE TABLE fresh (id int PRIMARY KEY)",
        "SAVEPOINT b",
        "INSERT INTO fresh VALUES (1)",
        "SAVEPOINT c",
        FILL,
        "PREPARE TRANSACTION 'p'",
        "ROLLBACK PREPARED 'p'",
        "INSERT INTO items VALUES (1, 'kept')",
    )
    database.run("VACUUM pg_class")
    with pytest.raises(SourceError, match=r"could not map file.*two_phase"):
        read_all(database, config, route)
    with psycopg.connect(f"{server.conninfo} replication=database", autocommit=True) as session:
        session.execute("ALTER_REPLICATION_SLOT postgres (TWO_PHASE false)")
    assert kinds(read_all(database, database.config(), route)) == "BRIC"
