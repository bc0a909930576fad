"""The transactions that write to a table are found by their locks: in a leaf, prepared or not."""

from pipeline.postgres.connection import connect
from pipeline.postgres.open_transactions import read_writers, write_wal_past_now
from tests.support.servers import Database, MakeServer


def test_open_writers_are_listed_by_table(make_server: MakeServer) -> None:
    database = Database.of(make_server({"max_prepared_transactions": "2"}))
    database.run(
        "CREATE TABLE plain (id int)",
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
    )
    plain, root = (
        database.run(f"SELECT '{name}'::regclass::oid::bigint")[0][0] for name in ("plain", "root")
    )
    with connect(database.conninfo) as control, database.connect() as reads, database.connect() as writes:
        reads.execute("BEGIN")
        reads.execute("SELECT * FROM plain")
        assert not read_writers(control, [plain, root]).writers_of(plain)
        writes.execute("BEGIN")
        writes.execute("INSERT INTO leaf VALUES (1)")
        writers = read_writers(control, [plain, root])
        assert (len(writers.writers_of(plain)), len(writers.writers_of(root))) == (0, 1)
        database.run("BEGIN", "INSERT INTO plain VALUES (1)", "PREPARE TRANSACTION 'p'")
        before = read_writers(control, [plain, root]).writers_of(plain)
        assert len(before) == 1
        database.run("COMMIT PREPARED 'p'")
        writes.execute("COMMIT")
        after = read_writers(control, [plain, root])
        assert not after.still_open(before, plain)
        assert not after.writers_of(root)


def test_wal_is_written_past_what_has_ended(database: Database) -> None:
    database.run("CREATE TABLE t (id int)", "SET synchronous_commit = off", "INSERT INTO t VALUES (1)")
    end = database.run("SELECT pg_current_wal_insert_lsn()::text")[0][0]
    with connect(database.conninfo) as connection:
        lsn = write_wal_past_now(connection, lambda: False)
    assert database.run(f"SELECT '{end}'::pg_lsn <= '{lsn}'::pg_lsn, pg_current_wal_flush_lsn() > '{lsn}'")[
        0
    ] == (True, True)
