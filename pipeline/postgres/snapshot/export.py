"""A snapshot of the source that sessions share, and which transactions it holds.

A transaction is in a snapshot if it is neither listed as running nor later, whatever the order of their
commit records in the log. On a standby, which lists none, transactions become visible in the order of the
log, a little before the position that it says it has replayed: a moment is waited for in which all that it
has received is replayed, and nothing more comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe
from pipeline.protocol.lsn import INVALID, LSN

COPY_SESSIONS = "pgdelta copy"  # what all sessions that copy are called
_QUIET_SECONDS = 60.0
_PAUSE = 0.02
_XID_MASK = 0xFFFFFFFF
# Rows that a policy of the table hides would be missing without a word: that is an error then.
_SESSION = (
    "SET row_security = off",
    "SET idle_in_transaction_session_timeout = 0",
    "SET max_parallel_workers_per_gather = 0",
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Holds what was committed before `lsn`, but for the transactions with `running` xids (of 32 bits).

    `lsn` lies inside the last record before: no transaction has it for its own.
    """

    name: str
    lsn: LSN
    running: tuple[int, ...]
    taken_at: datetime


class SnapshotKeeper:
    """A session that keeps a snapshot for others; its own queries see it too.

    A lock that a query takes is held as long as the transaction, which is as long as the snapshot. What looks
    at tables or catalogs is therefore asked in a session of `reading`, and the keeper holds no lock on them.
    """

    def __init__(self, conninfo: str, after: LSN = INVALID, *, key: str = "source.conninfo") -> None:
        """Take a snapshot beyond an LSN; `key` is where the configuration has the conninfo."""
        self._conninfo, self._key = conninfo, key
        self.connection = connect_for_copy(conninfo, key)
        try:
            with connect(conninfo, application_name=COPY_SESSIONS) as beside:
                self.snapshot = _take(self.connection, beside, after)
        except psycopg.Error as error:
            self.connection.close()
            raise SourceError(f"Cannot take a snapshot of the source: {describe(error)}.") from None
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give another session under the snapshot, which ends with its locks long before the keeper does."""
        with closing(connect_for_copy(self._conninfo, self._key)) as connection:
            try:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                name = sql.Literal(self.snapshot.name)
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(name))
            except psycopg.Error as error:
                sentence = f"Cannot read under a snapshot of the source: {describe(error)}."
                raise SourceError(sentence) from None
            yield connection

    def close(self) -> None:
        """End the session, and the snapshot with it."""
        self.connection.close()


def connect_for_copy(conninfo: str, key: str = "source.conninfo") -> Connection:
    """Open a session that reads whole tables; `key` is where the configuration has the conninfo."""
    connection = connect(conninfo, application_name=COPY_SESSIONS, key=key)
    try:
        for statement in _SESSION:
            connection.execute(statement.encode())
    except psycopg.Error as error:
        connection.close()
        raise SourceError(f"The session settings were refused: {describe(error)}.") from None
    return connection


def _take(keeper: Connection, beside: Connection, after: LSN) -> Snapshot:
    row = beside.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None
    return _take_on_standby(keeper, beside, after) if row[0] else _take_on_primary(keeper, beside)


def _take_on_primary(keeper: Connection, beside: Connection) -> Snapshot:
    # A transaction of our own: its commit record brings the log beyond any earlier snapshot.
    beside.execute("SELECT pg_catalog.txid_current()")
    name, visible, lsn, taken_at = _export(keeper, "pg_current_wal_insert_lsn")
    # And it has the log flushed that far, of which the server sends nothing before.
    row = beside.execute("SELECT pg_catalog.txid_current()").fetchone()
    assert row is not None
    _, end, listed = visible.split(":")
    running = [int(xid) for xid in listed.split(",") if xid] + [*range(int(end), row[0])]
    return Snapshot(name, LSN(lsn - 1), tuple(xid & _XID_MASK for xid in running), taken_at)


def _take_on_standby(keeper: Connection, beside: Connection, after: LSN) -> Snapshot:
    deadline = time.monotonic() + _QUIET_SECONDS
    while True:
        row = beside.execute("SELECT pg_catalog.pg_last_wal_replay_lsn()::text").fetchone()
        assert row is not None
        before = LSN.parse(row[0])
        if before > after + 1:
            # Whatever the snapshot could see beyond the position would have been received by now.
            name, _, received, taken_at = _export(keeper, "pg_last_wal_receive_lsn")
            if (lsn := received) == before:
                return Snapshot(name, LSN(lsn - 1), (), taken_at)
            keeper.execute("ROLLBACK")
        if time.monotonic() > deadline:
            raise SourceError(
                "The standby that rows are copied from was never level with what it receives, stands still, "
                "or does not stream: copy from the primary, or when there is less load."
            )
        time.sleep(_PAUSE)


def _export(keeper: Connection, position: str) -> tuple[str, str, LSN, datetime]:
    keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = keeper.execute(
        "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.txid_current_snapshot()::text,"
        f" pg_catalog.{position}()::text, pg_catalog.clock_timestamp()".encode()
    ).fetchone()
    assert row is not None
    return row[0], row[1], LSN.parse(row[2] or "0/0"), row[3]
