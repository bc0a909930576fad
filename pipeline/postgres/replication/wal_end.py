"""The end of the source's WAL, polled every few seconds next to a run, to report how far bronze is behind.

The keepalives of a walsender are no substitute: they name the LSN that the server has decoded to, which is
far behind when there is much to decode. A source that does not answer ends no run; the end is unknown then.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import (
    connect,
    limit_connect_time,
    limit_statement_time,
    read_flush_lsn,
    shut_down_sessions,
)
from pipeline.postgres.replication.slot_status import QUERY_SECONDS
from pipeline.protocol.lsn import LSN

POLL_INTERVAL = 10.0  # seconds
LONGEST_AGE = 60.0
_APPLICATION_NAME = "pgdelta wal end"
_CLOSE_SECONDS = 1.0


class WalEnd:
    """Poll the end of the WAL in a session and a thread of its own, until `close`."""

    def __init__(
        self, conninfo: str, *, interval: float = POLL_INTERVAL, longest_age: float = LONGEST_AGE
    ) -> None:
        self._conninfo = limit_connect_time(conninfo, QUERY_SECONDS)
        self._interval = interval
        self._longest_age = longest_age
        self._answer: tuple[float, LSN] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wal end", daemon=True)
        self._thread.start()

    @property
    def lsn(self) -> LSN | None:
        """The newest answer, None if it is older than `longest_age` seconds."""
        answer = self._answer
        return answer[1] if answer and time.monotonic() - answer[0] <= self._longest_age else None

    def close(self) -> None:
        """End the thread; a query that hangs is abandoned."""
        self._is_closing.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            shut_down_sessions(_APPLICATION_NAME)
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            with (
                suppress(SourceError, psycopg.Error),
                closing(connect(self._conninfo, application_name=_APPLICATION_NAME)) as connection,
            ):
                limit_statement_time(connection, QUERY_SECONDS)
                while not self._is_closing.is_set():
                    self._answer = time.monotonic(), read_flush_lsn(connection)
                    self._is_closing.wait(self._interval)
            self._is_closing.wait(self._interval)
