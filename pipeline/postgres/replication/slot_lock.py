"""Allow one ingest at a time for a slot, by an advisory lock at the source, held until its session ends.

The server lets only one session at a time read or advance a slot, but between two SQL polls the slot is free;
the lock covers that time too. Its key is a hash of the slot's name, because an advisory lock belongs to one
database, as a slot does. `retry_while_busy` repeats an attempt on a slot or lock that is in use, doubling the
pause, until it succeeds, a deadline has passed or the caller stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import psycopg
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from pipeline.errors import SlotBusyError, SlotWaitStopped, SourceError
from pipeline.postgres.connection import Connection, connect, describe
from pipeline.postgres.sql_text import THIS_DATABASE

BUSY_SECONDS = 60.0
_FIRST_PAUSE = 0.05  # seconds
_LONGEST_PAUSE = 2.0
_OBJECT_IN_USE = b"55006"

Result = TypeVar("Result")


#: With these, the server notices within a minute that its client is gone; by default, it takes hours.
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_SET_KEEPALIVES = (
    f"SELECT {', '.join(f'pg_catalog.set_config({n!r}, {v!r}, false)' for n, v in _KEEPALIVES.items())}"
)
# pg_locks has the key of a one-bigint lock in two halves.
_HOLDER = (
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    f" AND database = {THIS_DATABASE}"
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
    seconds, and SlotWaitStopped when `should_stop` returns true.
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


class SlotInUse(Exception):
    """Another session uses the slot; `str()` is the server's message, which names the session."""


def retry_while_busy(
    attempt: Callable[[], Result],
    slot: str,
    *,
    busy_timeout: float = BUSY_SECONDS,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Return the result of `attempt`, which raises SlotInUse as long as the slot is in use.

    Raises SlotBusyError once that lasted `busy_timeout` seconds, and SlotWaitStopped when `should_stop`
    returns true.
    """
    retry = BusyRetry(slot, busy_timeout, should_stop)
    while True:
        try:
            return attempt()
        except SlotInUse as busy:
            message = str(busy)
        time.sleep(retry.next_pause(message))


class BusyRetry:
    """The pauses between attempts, for a caller that does not block between them."""

    def __init__(
        self, slot: str, busy_timeout: float, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._slot = slot
        self._busy_timeout = busy_timeout
        self._should_stop = should_stop
        self.reset()

    def reset(self) -> None:
        """Start over: the slot was free."""
        self._deadline: float | None = None
        self._pause = _FIRST_PAUSE

    def next_pause(self, message: str) -> float:
        """Return the seconds to wait before the next attempt; raise SlotBusyError if there is to be none.

        `message` is what the server reported for the attempt that failed.
        """
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._busy_timeout
        if self._should_stop():
            raise SlotWaitStopped(
                f"Stopped while the slot {self._slot} was in use ({message}). Run again to continue."
            )
        if now >= self._deadline:
            busy = SlotBusyError(
                f"The slot {self._slot} is still busy after {self._busy_timeout:.0f} seconds ({message})."
                " Stop the other reader, or end its process with pg_terminate_backend."
            )
            busy.reason = message
            raise busy
        pause = min(self._pause, self._deadline - now)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return pause


def is_in_use(result: PGresult) -> bool:
    """Return whether the server refused a command because another session uses the slot."""
    return result.error_field(DiagnosticField.SQLSTATE) == _OBJECT_IN_USE
