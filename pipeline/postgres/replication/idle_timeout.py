"""How long a server may say nothing: it is asked halfway, and lost when nothing has come by the end.

TCP's keepalives end a link whose other end is gone. Behind something that goes on answering them, as a proxy
or a server that stands still, nothing else would ever end the wait.
"""

from __future__ import annotations

import time

IDLE_TIMEOUT = 300.0  # seconds; a server that decodes a long transaction answers all the while


class IdleTimeout:
    """Since when nothing came, and since when an answer is due; times are seconds of the monotonic clock."""

    def __init__(self, longest: float = IDLE_TIMEOUT) -> None:
        self.longest = longest
        self._heard = time.monotonic()
        self._asked: float | None = None

    def end(self) -> None:
        """Note that something came."""
        self._heard, self._asked = time.monotonic(), None

    def wants_answer(self) -> bool:
        """Say whether the server is to be asked for an answer, and count from now on where it is."""
        now = time.monotonic()
        if now - self._heard < self.longest / 2:
            return False
        self._asked = self._asked or now
        return True

    @property
    def is_too_long(self) -> bool:
        """Say whether no answer came; to be asked only when nothing waits to be read."""
        return self._asked is not None and time.monotonic() - self._asked > self.longest / 2
