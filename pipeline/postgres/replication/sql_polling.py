"""A slot read by SQL, pass by pass: what ingest's route and a look that moves nothing have in common.

A pass is one `Peek` up to the server's flush LSN; between two passes the slot is free. Two sessions, because
what is asked of the server meanwhile must not wait for the end of a pass.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import psycopg
from psycopg.errors import Diagnostic

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe, read_flush_lsn, use_raw_encoding
from pipeline.postgres.replication.change_stream import last_end_lsn
from pipeline.postgres.replication.slot import check_source
from pipeline.postgres.replication.slot_errors import busy_failure, left_out, lost_session, slot_failure
from pipeline.postgres.replication.sql_peek import Peek
from pipeline.protocol.lsn import LSN


@dataclass(frozen=True, slots=True)
class SlotSessions:
    """Two sessions for one slot, and where it stands; made by `open_sessions`."""

    control: Connection
    peeking: Connection
    slot: str
    confirmed_lsn: LSN


class SqlPolling:
    """The reading half of a ChangeStream by SQL."""

    def __init__(
        self,
        sessions: SlotSessions,
        *,
        options: Mapping[str, str],
        limit: int,
        busy_timeout: float,
        busy_interval: float,
        end_lsn: Callable[[], LSN] | None = None,
    ) -> None:
        """Begin before the first pass; `limit` is how many messages it shall have at the most."""
        self._control = sessions.control
        self._peeking = sessions.peeking
        self._slot = sessions.slot
        self._received_lsn = sessions.confirmed_lsn
        self._options = options
        self._limit = limit
        self._busy_timeout = busy_timeout
        self._busy_interval = busy_interval
        self._poll_end = end_lsn or (lambda: read_flush_lsn(self._control))
        self._lock = threading.RLock()
        self._failure: SourceError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._peeking.pgconn.socket, selectors.EVENT_READ)
        self._peeking.add_notice_handler(self._receive_notice)
        self._peek: Peek | None = None
        self._poll_count = 0
        self._next_poll = 0.0
        self._busy_since: float | None = None

    @property
    def received_lsn(self) -> LSN:
        """Everything committed at or before this LSN has been returned by read() already."""
        return self._received_lsn

    @property
    def session(self) -> int:
        """The number of the pass that the messages of the last read() came from: each decodes anew."""
        return self._poll_count

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none once `timeout` seconds passed or received_lsn moved."""
        deadline = time.monotonic() + timeout
        while True:
            position = self._received_lsn
            with self._lock:
                self._raise_failure()
                if self._peek is None and self._may_start():
                    self._peek = self._start()
                messages = self._pull(self._peek) if self._peek is not None else []
                is_peeking = self._peek is not None
            if messages or self._received_lsn > position:
                return messages
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return messages
            if is_peeking:
                self._selector.select(remaining)
            else:
                time.sleep(min(0.05, remaining))

    def ping(self) -> None:
        """Do nothing: a pass looks at the server's position itself."""

    def close(self) -> None:
        """End the sessions, and a pass under way; idempotent."""
        with self._lock:
            if self._peek is not None and not self._peeking.closed:
                # A backend that decodes would keep the slot until it next writes to its client.
                self._peeking.cancel_safe(timeout=5)
            self._failure = self._failure or SourceError(f"The stream of the slot {self._slot} is closed.")
            self._selector.close()
            self._control.close()
            self._peeking.close()

    def _may_start(self) -> bool:
        """Tell whether the next pass need not wait for somebody."""
        return True

    def _prepare_poll(self) -> None:
        """Make ready for the pass that begins now, or fail."""

    def _finish_poll(self, peek: Peek) -> None:
        """Draw the conclusions from a pass that the server has let be made."""
        raise NotImplementedError

    def _take(self, messages: list[bytes]) -> list[bytes]:
        """Return what of the messages is handed on, and note how far they reach."""
        self._received_lsn = max(self._received_lsn, last_end_lsn(messages))
        return messages

    def _start(self) -> Peek | None:
        if time.monotonic() < self._next_poll:
            return None
        try:
            upto_lsn = self._poll_end()
            if upto_lsn <= self._received_lsn:
                self._next_poll = time.monotonic() + 0.1
                return None
            self._prepare_poll()
            self._poll_count += 1
            return Peek(self._peeking, self._slot, upto_lsn, self._limit, self._options)
        except SourceError as error:
            self._fail(error)
        except psycopg.Error as error:
            self._fail(lost_session(self._slot, describe(error)))

    def _pull(self, peek: Peek) -> list[bytes]:
        try:
            messages = peek.pull()
        except psycopg.Error as error:
            self._fail(lost_session(self._slot, describe(error)))
        # A warning came in with these bytes: rows were left out, nothing after them may count.
        self._raise_failure()
        messages = self._take(messages)
        if peek.is_done:
            self._peek = None
            if peek.refusal is not None:
                self._wait_for_slot(peek, peek.refusal)
            else:
                self._busy_since = None
                self._finish_poll(peek)
        return messages

    def _wait_for_slot(self, peek: Peek, refusal: str) -> None:
        if not peek.is_busy:
            self._fail(slot_failure(self._slot, refusal, peek.diagnostic))
        now = time.monotonic()
        self._busy_since = now if self._busy_since is None else self._busy_since
        if now - self._busy_since >= self._busy_timeout:
            self._fail(busy_failure(self._slot, refusal, self._busy_timeout))
        self._next_poll = now + self._busy_interval

    def _receive_notice(self, diagnostic: Diagnostic) -> None:
        self._failure = left_out(self._slot, diagnostic) or self._failure

    def _fail(self, failure: SourceError) -> NoReturn:
        # After an error in decoding a session is not to be used again: drop it at once.
        self._failure = failure
        self._control.close()
        self._peeking.close()
        raise failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def open_sessions(
    conninfo: str, slot: str, publication: str, *, application_name: str = "pgdelta"
) -> SlotSessions:
    """Open the sessions for a slot; raise what is wrong with it or its publication."""
    control = connect(conninfo, application_name=application_name)
    try:
        confirmed_lsn = check_source(control, slot, publication).confirmed_flush_lsn
        peeking = connect(conninfo, application_name=application_name)
    except BaseException:
        control.close()
        raise
    use_raw_encoding(peeking)
    return SlotSessions(control, peeking, slot, confirmed_lsn)
