"""One ingest at a time for a slot: an advisory lock at the source, which ends with the session that has it.

The slot itself has one reader at a time, but only while it is read; by SQL it is free between two passes. The
lock's key is made of the slot's name alone: a slot is of one database, and so is an advisory lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe
from pipeline.postgres.replication.slot_errors import busy_failure

#: A server that is not told of its client's end finds out by itself: after a minute, not after hours.
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_SET = f"SELECT {', '.join(f'pg_catalog.set_config({n!r}, {v!r}, false)' for n, v in _KEEPALIVES.items())}"
# A lock of one bigint is in pg_locks by its halves.
_HOLDER = (
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
    " AND ((classid::bigint << 32) | objid::bigint) = %s"
)


def lock_key(slot: str) -> int:
    """Return the key of a slot's advisory lock, a signed number of 64 bits."""
    return int.from_bytes(sha256(f"pgdelta ingest {slot}".encode()).digest()[:8], "big", signed=True)


def lock_slot(
    connection: Connection,
    slot: str,
    *,
    busy_timeout: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Take the slot's lock, for as long as the session lives.

    One that another session has is tried again for `busy_timeout` seconds, or until `should_stop`; then
    SlotBusyError names that session.
    """
    key = lock_key(slot)
    deadline = time.monotonic() + busy_timeout
    pause = 0.05
    try:
        connection.execute(_SET.encode())
        while not _is_true(connection, "SELECT pg_catalog.pg_try_advisory_lock(%s)", key):
            if should_stop() or time.monotonic() + pause > deadline:
                found = connection.execute(_HOLDER, (key,)).fetchone()
                holder = f"PID {found[0]}" if found else "a session that ended just now"
                raise busy_failure(slot, f"another ingest holds it by {holder}", busy_timeout)
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
    except psycopg.Error as error:
        raise SourceError(f"Cannot take the lock of the slot {slot}: {describe(error)}.") from None


def open_locked(conninfo: str, slot: str) -> Connection:
    """Open a session that has the slot's lock, in the place of one that was lost."""
    connection = connect(conninfo)
    try:
        lock_slot(connection, slot)
    except BaseException:
        connection.close()
        raise
    return connection


def _is_true(connection: Connection, query: str, key: int) -> bool:
    row = connection.execute(query.encode(), (key,)).fetchone()
    return bool(row and row[0])
