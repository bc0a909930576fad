"""Where the source's log ends, asked every few seconds beside a run, to say how far bronze is behind it.

What a walsender says unasked is no substitute: its keepalives tell how far it has decoded, and that is far
behind just where there is much to read. A source that does not answer ends no run: then it is not known.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import break_off, connect, read_flush_lsn
from pipeline.postgres.replication.slot_status import QUERY_SECONDS, bound_statements, hurried
from pipeline.protocol.lsn import LSN

INTERVAL = 10.0  # seconds
LONGEST_AGE = 60.0
_SESSION = "pgdelta log end"
_PATIENCE = 1.0


class LogEnd:
    """Asks in a session of its own, from when it is made until `close`."""

    def __init__(
        self, conninfo: str, *, interval: float = INTERVAL, longest_age: float = LONGEST_AGE
    ) -> None:
        self._conninfo = hurried(conninfo, QUERY_SECONDS)
        self._interval = interval
        self._longest_age = longest_age
        self._answer: tuple[float, LSN] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log end", daemon=True)
        self._thread.start()

    @property
    def lsn(self) -> LSN | None:
        """Return the newest answer, None where there was none for a while."""
        answer = self._answer
        return answer[1] if answer and time.monotonic() - answer[0] <= self._longest_age else None

    def close(self) -> None:
        """Ask no more, and wait for no answer."""
        self._is_closing.set()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            break_off(_SESSION)
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            with (
                suppress(SourceError, psycopg.Error),
                closing(connect(self._conninfo, application_name=_SESSION)) as connection,
            ):
                bound_statements(connection, QUERY_SECONDS)
                while not self._is_closing.is_set():
                    self._answer = time.monotonic(), read_flush_lsn(connection)
                    self._is_closing.wait(self._interval)
            self._is_closing.wait(self._interval)
