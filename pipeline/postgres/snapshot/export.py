"""Export a snapshot of the source for several sessions, with the transactions that it shows.

A transaction is visible in a snapshot if it is neither listed as running nor later, regardless of the order
of commit records in the WAL. A standby lists no running transactions: they become visible in WAL order,
shortly before the replay LSN reports it. There, the export waits for a moment in which everything received
has been replayed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.errors import SourceError, TableLockedError
from pipeline.postgres.connection import Connection, connect, describe, privilege_advice
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

COPY_SESSIONS = "pgdelta copy"  # application_name of all sessions that copy
_STANDBY_SECONDS = 60.0
_POLL_INTERVAL = 0.02
_XID_MASK = 0xFFFFFFFF
# row_security = off: rows that a policy hides are an error instead of missing silently.
_SESSION = (
    "SET row_security = off",
    "SET idle_in_transaction_session_timeout = 0",
    "SET max_parallel_workers_per_gather = 0",
    "SET constraint_exclusion = on",  # a leaf that cannot have a key of a copy is not read
)


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """Shows what was committed before `lsn`, except the transactions in `running` (32-bit xids).

    `lsn` is inside the last record before the snapshot, so that it is the LSN of no transaction.
    """

    name: str
    lsn: LSN
    running: tuple[int, ...]
    exported_at: datetime


class SnapshotLost(SourceError):
    """The snapshot ended, with its session or by a conflict: unread tables need another one."""


class RowsMoved(SourceError):
    """The table was altered or rewritten while it was read, so that its rows are inconsistent."""


class SnapshotKeeper:
    """A session that keeps a snapshot for others; its own queries see it, too.

    The locks of a query are held until the end of the transaction, which is that of the snapshot. Tables and
    catalogs are therefore read in a session of `reading`, so that the keeper holds no locks on them.
    """

    def __init__(self, conninfo: str, after_lsn: LSN = INVALID, *, key: str = "source.conninfo") -> None:
        """Export a snapshot later than `after_lsn`; `key` is the configuration's key of the conninfo."""
        self._conninfo, self._key = conninfo, key
        self.connection = connect_for_copy(conninfo, key)
        try:
            with connect(conninfo, application_name=COPY_SESSIONS) as control:
                self.snapshot = _export(self.connection, control, after_lsn)
        except psycopg.Error as error:
            self.connection.close()
            raise SourceError(f"Cannot export a snapshot of the source: {describe(error)}.") from None
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open another session that sees the snapshot; its locks end with the block."""
        with closing(connect_for_copy(self._conninfo, self._key)) as connection:
            try:
                begin_under(connection, self.snapshot)
            except psycopg.Error as error:
                raise SourceError(f"Cannot use a snapshot of the source: {describe(error)}.") from None
            yield connection

    def close(self) -> None:
        """End the session, and the snapshot with it."""
        self.connection.close()


def connect_for_copy(conninfo: str, key: str = "source.conninfo") -> Connection:
    """Open a session that reads all rows of tables; `key` is the configuration's key of the conninfo."""
    connection = connect(conninfo, application_name=COPY_SESSIONS, key=key)
    try:
        for statement in _SESSION:
            connection.execute(statement.encode())
    except psycopg.Error as error:
        connection.close()
        raise SourceError(f"Cannot set the session's settings: {describe(error)}.") from None
    return connection


def begin_under(connection: Connection, snapshot: SourceSnapshot) -> None:
    """Begin a read-only transaction that sees the snapshot; raise SnapshotLost if the snapshot has ended."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.name)))
    except (sqlstate.InvalidParameterValue, sqlstate.UndefinedObject, sqlstate.InvalidTextRepresentation):
        raise SnapshotLost("The snapshot that the tables are read under has ended.") from None


def reading_error(name: TableName, verb: str, error: psycopg.Error, user: str) -> SourceError:
    """Return the error for a table that could not be read to be `verb` ("copied", "compared")."""
    message = describe(error)
    match error:
        case sqlstate.UndefinedTable() | sqlstate.UndefinedColumn() | sqlstate.InvalidSchemaName():
            return RowsMoved(f"The table {name} was dropped or altered while it was {verb}.")
        case sqlstate.SerializationFailure() | sqlstate.QueryCanceled() | sqlstate.SnapshotTooOld():
            return SnapshotLost(f"Lost the snapshot of the table {name}: {message}.")
        case sqlstate.LockNotAvailable():
            return TableLockedError(name)
        case sqlstate.InsufficientPrivilege():
            advice = privilege_advice(message, user)
            return SourceError(f"The table {name} cannot be {verb}: {message}. {advice}")
    return SourceError(f"The table {name} cannot be {verb}: {message}.")


def _export(keeper: Connection, control: Connection, after_lsn: LSN) -> SourceSnapshot:
    row = control.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
    assert row is not None
    return _export_on_standby(keeper, control, after_lsn) if row[0] else _export_on_primary(keeper, control)


def _export_on_primary(keeper: Connection, control: Connection) -> SourceSnapshot:
    # This transaction's commit record writes WAL after any earlier snapshot.
    control.execute("SELECT pg_catalog.txid_current()")
    name, visible, lsn, exported_at = _begin_exported(keeper, "pg_current_wal_insert_lsn")
    # This one flushes the WAL to there; the server does not send it before.
    row = control.execute("SELECT pg_catalog.txid_current()").fetchone()
    assert row is not None
    _, end, listed = visible.split(":")
    running = [int(xid) for xid in listed.split(",") if xid] + [*range(int(end), row[0])]
    return SourceSnapshot(name, LSN(lsn - 1), tuple(xid & _XID_MASK for xid in running), exported_at)


def _export_on_standby(keeper: Connection, control: Connection, after_lsn: LSN) -> SourceSnapshot:
    deadline = time.monotonic() + _STANDBY_SECONDS
    while True:
        row = control.execute("SELECT pg_catalog.pg_last_wal_replay_lsn()::text").fetchone()
        assert row is not None
        replay_lsn = LSN.parse(row[0])
        if replay_lsn > after_lsn + 1:
            # Any later transaction that the snapshot shows would have been received by now.
            name, _, receive_lsn, exported_at = _begin_exported(keeper, "pg_last_wal_receive_lsn")
            if receive_lsn == replay_lsn:
                return SourceSnapshot(name, LSN(replay_lsn - 1), (), exported_at)
            keeper.execute("ROLLBACK")
        if time.monotonic() > deadline:
            raise SourceError(
                "The standby that rows are copied from does not stream, or never replayed everything that it"
                " had received. Copy from the primary, or when there is less load."
            )
        time.sleep(_POLL_INTERVAL)


def _begin_exported(keeper: Connection, lsn_function: str) -> tuple[str, str, LSN, datetime]:
    keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = keeper.execute(
        "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.txid_current_snapshot()::text,"
        f" pg_catalog.{lsn_function}()::text, pg_catalog.clock_timestamp()".encode()
    ).fetchone()
    assert row is not None
    return row[0], row[1], LSN.parse(row[2] or "0/0"), row[3]
