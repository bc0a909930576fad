"""Transactions of several sessions at once, recorded, so that the rows at each LSN are known without pgdelta.

Every statement returns the rows that it removed and added, which are recorded under the xid. A session waits
for the others that write the same row, so the records in the order of their commits give the tables. The
order and the LSNs of the commits come from a slot of their own. Needs PostgreSQL 18.
"""

import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from psycopg import errors, sql

from tests.support.servers import Database
from tests.support.threads import in_threads

TABLES = ("orders", "parts", "lines")
COLUMNS = ("id", "n", "body")
Row = tuple[Any, ...]
Tables = dict[str, Counter[Row]]
_CREATE = (
    "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)",
    "CREATE TABLE parts (id int, n int, body text, PRIMARY KEY (id, n))",
    "CREATE TABLE lines (id int, n int, body text)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    *(f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL" for table in TABLES),
)
_CHANGES = "RETURNING old.id, old.n, old.body, new.id, new.n, new.body"
_BUSY = (errors.UniqueViolation, errors.LockNotAvailable, errors.DeadlockDetected)
_KEYS = 80
_PAUSE = 0.02  # seconds between the statements of a transaction


@dataclass(slots=True)
class Effect:
    """What one statement did to a table; all earlier rows are removed if it truncates."""

    table: str
    removed: list[Row] = field(default_factory=list)
    added: list[Row] = field(default_factory=list)
    truncates: bool = False


class RecordedLoad:
    """The effects of committed transactions, and the rows that the tables have after a commit."""

    def __init__(self, database: Database, publication: str) -> None:
        """Create the tables, of a database whose publication has them all, and a slot for the commits."""
        self.database, self._publication = database, publication
        self._slot = f"{database.name}_commits"
        # streamed early by every slot
        database.run(*_CREATE, f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
        database.run(f"SELECT pg_create_logical_replication_slot('{self._slot}', 'pgoutput')")
        self.effects: dict[int, list[Effect]] = {}
        self.kinds: Counter[str] = Counter()
        self._rows: Tables = {table: Counter() for table in TABLES}
        self._commits: list[tuple[int, int]] = []  # (end LSN, xid) that the rows do not have yet
        self._xid = 0

    @contextmanager
    def running(self, seed: int, sessions: int = 3) -> Iterator[None]:
        """Commit transactions by sessions on threads until the end of the block; raise what goes wrong."""
        started = [_Session(self, Random(seed + number), number) for number in range(sessions)]
        with in_threads(*(session.run for session in started)):
            yield

    def rows_at(self, lsn: int) -> Tables:
        """Return the rows of the tables at an LSN, which is not below that of an earlier call."""
        query = sql.SQL(
            "SELECT data FROM pg_logical_slot_get_binary_changes({}, {}::pg_lsn, NULL,"
            " 'proto_version', '1', 'publication_names', {})"
        ).format(self._slot, f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", self._publication)
        with self.database.connect() as connection:
            for (data,) in connection.execute(query):
                if data[:1] == b"B":
                    self._xid = struct.unpack_from("!qqI", data, 1)[2]
                elif data[:1] == b"C":
                    self._commits.append((struct.unpack_from("!Bqq", data, 1)[2], self._xid))
        while self._commits and self._commits[0][0] <= lsn:
            for effect in self.effects.pop(self._commits.pop(0)[1]):
                rows = self._rows[effect.table]
                if effect.truncates:
                    rows.clear()
                rows.subtract(effect.removed)
                assert all(rows[row] >= 0 for row in effect.removed), "a row that is not there was removed"
                rows.update(effect.added)
                for row in effect.removed:
                    if not rows[row]:
                        del rows[row]
        return self._rows


class _Session:
    """A session that runs random transactions."""

    def __init__(self, load: RecordedLoad, random: Random, number: int) -> None:
        self.load, self.random, self.number = load, random, number
        self.prepared: list[tuple[str, int, list[Effect]]] = []
        self.transactions = 0

    def run(self, stop: threading.Event) -> None:
        with self.load.database.connect() as connection:
            connection.execute("SET lock_timeout = '100ms'")
            while not stop.is_set():
                self._transact(connection, stop)
                if len(self.prepared) > 1 or (self.prepared and self.random.random() < 0.4):
                    self._decide(connection)
            while self.prepared:
                self._decide(connection)

    def _transact(self, connection: psycopg.Connection[Any], stop: threading.Event) -> None:
        random, effects = self.random, list[Effect]()
        self.transactions += 1
        connection.execute("BEGIN")
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        truncates = False  # also in a savepoint that is rolled back
        for _ in range(random.randint(1, 5)):
            connection.execute("SAVEPOINT step")
            try:
                effect = self._statement(connection)
            except _BUSY:
                connection.execute("ROLLBACK TO step")
                truncates = True  # it may have, before it waited for the table of long values
                continue
            truncates = truncates or effect.truncates
            if random.random() < 0.1:
                connection.execute("ROLLBACK TO step")
            else:
                effects.append(effect)
            stop.wait(random.random() * _PAUSE)
        end = random.random()
        if end < 0.1:
            connection.execute("ROLLBACK")
        elif end < 0.3 and not truncates:  # none that truncates: see test_rolled_back.py
            gid = f"{self.number}_{self.transactions}"
            connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            self.prepared.append((gid, row[0], effects))
        else:
            self._record("committed", row[0], effects)
            connection.execute("COMMIT")

    def _decide(self, connection: psycopg.Connection[Any]) -> None:
        gid, xid, effects = self.prepared.pop(0)
        if self.random.random() < 0.25:
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        else:
            self._record("prepared", xid, effects)
            connection.execute(f"COMMIT PREPARED '{gid}'".encode())

    def _record(self, kind: str, xid: int, effects: list[Effect]) -> None:
        self.load.effects[xid] = effects  # before the commit, so that no one sees it earlier
        self.load.kinds[kind] += 1
        for effect in effects:
            self.load.kinds["truncated"] += effect.truncates
            self.load.kinds["large"] += len(effect.added) > 30

    def _statement(self, connection: psycopg.Connection[Any]) -> Effect:
        random, table = self.random, self.random.choice(TABLES)
        key, other, n = random.randrange(_KEYS), random.randrange(_KEYS), random.randrange(10**6)
        kind = random.random()
        if kind < 0.02:
            connection.execute(f"TRUNCATE {table}".encode())
            return Effect(table, truncates=True)
        body = f"repeat('{chr(97 + n % 26)}', {3000 if kind < 0.1 else random.choice([1, 3000])})"
        conflict = "" if table == "lines" else "ON CONFLICT DO NOTHING"
        if kind < 0.1:  # larger than logical_decoding_work_mem
            series = f"generate_series({key * 100}, {key * 100 + 39}) g"
            text = f"INSERT INTO {table} SELECT g, {n}, {body} FROM {series} {conflict}"
        elif kind < 0.35:
            text = f"INSERT INTO {table} VALUES ({key}, {n}, {body}) {conflict}"
        elif kind < 0.6:  # a large body stays in TOAST and is not sent
            text = f"UPDATE {table} SET n = {n} WHERE id = {key}"
        elif kind < 0.7:
            text = f"UPDATE {table} SET body = {body} WHERE id = {key}"
        elif kind < 0.85:
            text = f"UPDATE {table} SET id = {other}, n = {n} WHERE id = {key}"
        else:
            text = f"DELETE FROM {table} WHERE id = {key} OR id = {random.randrange(100 * _KEYS)}"
        found = connection.execute(f"{text} {_CHANGES}".encode()).fetchall()
        removed = [row[:3] for row in found if row[0] is not None]
        return Effect(table, removed, [row[3:] for row in found if row[3] is not None])
