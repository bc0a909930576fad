"""Allow one ingest at a time for a slot: an advisory lock at the source, held until its session ends.

The slot itself has one reader at a time, but only while it is read; by SQL it is free between two polls. The
key of the lock is a hash of the slot's name. Both a slot and an advisory lock belong to one database.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe
from pipeline.postgres.replication.busy_slot import BUSY_SECONDS, SlotInUse, retry_while_busy

#: With these, the server notices within a minute that its client is gone; by default, it takes hours.
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_SET_KEEPALIVES = (
    f"SELECT {', '.join(f'pg_catalog.set_config({n!r}, {v!r}, false)' for n, v in _KEEPALIVES.items())}"
)
# pg_locks has the key of a one-bigint lock in two halves.
_HOLDER = (
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = %s"
)


def lock_slot(
    connection: Connection,
    slot: str,
    *,
    busy_timeout: float = BUSY_SECONDS,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Acquire the lock of the slot for the rest of the session.

    Raises SlotBusyError, naming the session that holds the lock, if that session keeps it for `busy_timeout`
    seconds, or when `should_stop` returns true.
    """
    key = lock_key(slot)

    def attempt() -> None:
        row = connection.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", (key,)).fetchone()
        if row is None or not row[0]:
            holder = connection.execute(_HOLDER, (key,)).fetchone()
            session = f"PID {holder[0]}" if holder else "a session that has just ended"
            raise SlotInUse(f"another ingest holds its lock: {session}")

    try:
        connection.execute(_SET_KEEPALIVES.encode())
        retry_while_busy(attempt, slot, busy_timeout=busy_timeout, should_stop=should_stop)
    except psycopg.Error as error:
        raise SourceError(f"Cannot acquire the lock of the slot {slot}: {describe(error)}.") from None


def connect_with_lock(conninfo: str, slot: str) -> Connection:
    """Open a session that holds the lock of the slot, to replace one that was lost."""
    connection = connect(conninfo)
    try:
        lock_slot(connection, slot)
    except BaseException:
        connection.close()
        raise
    return connection


def lock_key(slot: str) -> int:
    """Return the key of the slot's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(sha256(f"pgdelta ingest {slot}".encode()).digest()[:8], "big", signed=True)
