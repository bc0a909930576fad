"""Sessions that take turns at random, so that their transactions interleave, stream and are prepared.

Rows, savepoints that are released or rolled back, ALTER TABLE, TRUNCATE, and COMMIT, ROLLBACK or PREPARE at
the end of each transaction. One with a TRUNCATE is committed once it is prepared: servers cannot decode it
where it is rolled back before it was read (test_rolled_back.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg

from tests.support.servers import Database

TABLES = ("a", "b", "c")


def create_tables(database: Database) -> None:
    """Create the tables, and let transactions of this database stream early where the server can."""
    columns = "(id bigint PRIMARY KEY, v text DEFAULT 'some text')"
    database.run(
        *(f"CREATE TABLE {table} {columns}" for table in TABLES),
        "CREATE TABLE filler (v text)",
        "ALTER TABLE filler ALTER v SET STORAGE PLAIN, REPLICA IDENTITY FULL",
    )
    if int(database.run("SHOW server_version_num")[0][0]) >= 140000:
        database.run(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")


class Sessions:
    """Sessions that take turns; one that would have to wait for another gives up that step."""

    def __init__(self, database: Database, random: Random, *, has_two_phase: bool) -> None:
        self.random = random
        self.has_two_phase = has_two_phase
        # 10 does not publish TRUNCATE
        self.has_truncate = int(database.run("SHOW server_version_num")[0][0]) >= 110000
        self.connections = [database.connect() for _ in range(4)]
        self.open = [False] * 4
        self.savepoints = [0] * 4
        self.truncates = [False] * 4
        self.gids: list[str] = []
        self.next_id = 0
        for connection in self.connections:
            connection.execute("SET lock_timeout = '20ms'")

    def step(self) -> None:
        """Let one session do one thing."""
        which = self.random.randrange(4)
        connection = self.connections[which]
        if not self.open[which]:
            self._decide_prepared(connection)
            connection.execute("BEGIN")
            self.open[which], self.savepoints[which], self.truncates[which] = True, 0, False
        connection.execute("SAVEPOINT step")
        try:
            self._act(connection, which)
        except psycopg.errors.LockNotAvailable:
            connection.execute("ROLLBACK TO step")

    def _decide_prepared(self, connection: psycopg.Connection[Any]) -> None:
        if self.gids and self.random.random() < 0.6:
            gid = self.gids.pop(self.random.randrange(len(self.gids)))
            verb = self.random.choice(["COMMIT", "ROLLBACK"])
            connection.execute(f"{'COMMIT' if gid.startswith('t') else verb} PREPARED '{gid}'".encode())

    def _act(self, connection: psycopg.Connection[Any], which: int) -> None:
        random, table = self.random, self.random.choice(TABLES)
        number = random.random()
        if number < 0.45:
            count = random.choice([1, 3, 20])
            ids = f"generate_series({self.next_id}, {self.next_id + count - 1})"
            self._run(connection, f"INSERT INTO {table} (id) SELECT g FROM {ids} g")
            self.next_id += count
            if random.random() < 0.4:
                self._run(
                    connection, "INSERT INTO filler SELECT repeat('x', 6800) FROM generate_series(1, 10)"
                )
        elif number < 0.6:
            ids = f"SELECT id FROM {table} ORDER BY id DESC LIMIT 5 FOR UPDATE SKIP LOCKED"
            verb = random.choice([f"UPDATE {table} SET id = id + 1000000", f"DELETE FROM {table}"])
            self._run(connection, f"{verb} WHERE id IN ({ids}) AND id < 1000000")
        elif number < 0.64:
            column = f"c{self.next_id}"
            self.next_id += 1
            self._run(connection, f"ALTER TABLE {table} ADD {column} int")
        elif number < 0.66 and self.has_truncate:
            self._run(connection, f"TRUNCATE {table}")
            self.truncates[which] = True
        elif number < 0.76:
            self.savepoints[which] += 1
            self._run(connection, f"SAVEPOINT s{self.savepoints[which]}")
        elif number < 0.88 and self.savepoints[which]:
            to = random.randint(1, self.savepoints[which])
            self._run(connection, f"{random.choice(['ROLLBACK TO', 'RELEASE'])} s{to}")
            self.savepoints[which] = to - 1
        elif number > 0.9:
            self._end(connection, which)

    def _run(self, connection: psycopg.Connection[Any], statement: str) -> None:
        connection.execute(statement.encode())

    def _end(self, connection: psycopg.Connection[Any], which: int) -> None:
        kind = self.random.choice(["COMMIT", "COMMIT", "ROLLBACK", "PREPARE"])
        if kind == "PREPARE" and self.has_two_phase and len(self.gids) < 4:
            self.next_id += 1
            self.gids.append(f"{'t' if self.truncates[which] else 'g'}{self.next_id}")
            connection.execute(f"PREPARE TRANSACTION '{self.gids[-1]}'".encode())
        else:
            connection.execute(b"ROLLBACK" if kind == "ROLLBACK" else b"COMMIT")
        self.open[which] = False

    def finish(self) -> None:
        """End what is open."""
        for which, connection in enumerate(self.connections):
            if self.open[which]:
                connection.execute(b"COMMIT" if which % 2 else b"ROLLBACK")
        for gid in self.gids:
            self.connections[0].execute(f"COMMIT PREPARED '{gid}'".encode())
        for connection in self.connections:
            connection.close()


@contextmanager
def opened(database: Database, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a session with a transaction that has run the statements and is on disk in full."""
    with database.connect() as connection:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement.encode())
        database.run("CHECKPOINT")
        try:
            yield connection
        finally:
            connection.rollback()
            # One that is left over keeps every new slot waiting.
            query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in connection.execute(query).fetchall():
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
