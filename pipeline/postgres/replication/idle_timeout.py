"""Detect a server that has stopped sending: a reply is requested halfway, and required by the end.

TCP keepalives end a connection whose peer is gone. Behind a peer that still answers them, such as a proxy or
a server that hangs, nothing else would ever end the wait.
"""

from __future__ import annotations

import time

IDLE_TIMEOUT = 300.0  # seconds; a server that decodes a long transaction still replies


class IdleTimeout:
    """The time since data was received, and since a reply was requested; by the monotonic clock."""

    def __init__(self, seconds: float = IDLE_TIMEOUT) -> None:
        self.seconds = seconds
        self._received_at = time.monotonic()
        self._requested_at: float | None = None

    def reset(self) -> None:
        """Record that data was received."""
        self._received_at, self._requested_at = time.monotonic(), None

    def needs_reply(self) -> bool:
        """Return whether to request a reply now; if so, the wait for the reply starts."""
        now = time.monotonic()
        if now - self._received_at < self.seconds / 2:
            return False
        self._requested_at = self._requested_at or now
        return True

    @property
    def is_over(self) -> bool:
        """Whether a requested reply is overdue; valid only after all received data was read."""
        return self._requested_at is not None and time.monotonic() - self._requested_at > self.seconds / 2
