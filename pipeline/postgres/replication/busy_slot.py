"""Retry an attempt on a slot while another session uses the slot.

Only one session at a time can read a slot, advance it or hold its lock. Whoever finds it in use waits, with
pauses that double, until it is free, a deadline has passed or the caller wants to stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from pipeline.errors import SlotBusyError

BUSY_SECONDS = 60.0
_FIRST_PAUSE = 0.05  # seconds
_LONGEST_PAUSE = 2.0
_OBJECT_IN_USE = b"55006"

Result = TypeVar("Result")


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

    Raises SlotBusyError once that lasted `busy_timeout` seconds, or when `should_stop` returns true.
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
        if self._should_stop() or now >= self._deadline:
            raise SlotBusyError(
                f"The slot {self._slot} is still busy after {self._busy_timeout:.0f} seconds ({message})."
                " Stop the other reader, or end its process with pg_terminate_backend."
            )
        pause = min(self._pause, self._deadline - now)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return pause


def is_in_use(result: PGresult) -> bool:
    """Return whether the server refused a command because another session uses the slot."""
    return result.error_field(DiagnosticField.SQLSTATE) == _OBJECT_IN_USE
