"""Read a slot by SQL, poll by poll: the part that `SqlStream` (ingest) and `SqlFollow` (tail) share.

A poll reads the changes up to an LSN, the server's flush LSN when it starts, or up to a number of messages:

1. `_may_start_poll` and the time of `_next_poll` decide whether a poll may start; `_prepare_poll` checks the
   slot.
2. A `Peek` runs pg_logical_slot_peek_binary_changes. `read` returns its messages as they arrive, after
   `_receive` has filtered and recorded them.
3. If the slot was in use, the poll is repeated after a pause; a slot that stays in use is a SlotBusyError.
4. Otherwise `_finish_poll` decides what was received and when the next poll starts.

Peeking moves nothing, so that a poll may be repeated; each one decodes the slot from the start, and counts as
a new session of the protocol. Between polls the slot is free. There are two connections, so that queries
about the server do not wait for the end of a poll. After any failure both are closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe, read_flush_lsn, use_raw_encoding
from pipeline.postgres.replication.change_stream import BATCH_BYTES, BATCH_MESSAGES, last_end_lsn
from pipeline.postgres.replication.options import options_array
from pipeline.postgres.replication.slot import lost_session_error, require_slot, slot_error
from pipeline.postgres.replication.slot_lock import BusyRetry, is_in_use
from pipeline.postgres.replication.slot_reader import SlotReader
from pipeline.protocol.lsn import LSN

IDLE_INTERVAL = 0.5
"""Seconds between two polls if the first one found nothing."""
_NO_CHANGES_INTERVAL = 0.1  # seconds between two readings of the flush LSN
_READ_INTERVAL = 0.05


@dataclass(frozen=True, slots=True)
class SlotSessions:
    """Two connections for one slot, and its confirmed LSN; opened by `open_sessions`."""

    control: Connection
    peeking: Connection
    slot: str
    confirmed_lsn: LSN

    def close(self) -> None:
        """Close both connections."""
        self.control.close()
        self.peeking.close()


def open_sessions(
    conninfo: str, slot: str, publication: str, *, application_name: str = "pgdelta"
) -> SlotSessions:
    """Open the connections for a slot; raise the reason if it or its publication cannot be read."""
    control = connect(conninfo, application_name=application_name)
    try:
        confirmed_lsn = require_slot(control, slot, publication).confirmed_flush_lsn
        peeking = connect(conninfo, application_name=application_name)
    except BaseException:
        control.close()
        raise
    use_raw_encoding(peeking)
    return SlotSessions(control, peeking, slot, confirmed_lsn)


class SqlPolling(SlotReader):
    """The reading half of a ChangeStream by SQL; subclasses decide what a poll means for the slot."""

    def __init__(
        self,
        sessions: SlotSessions,
        *,
        options: Mapping[str, str],
        poll_messages: int,
        busy_timeout: float,
        end_lsn: Callable[[], LSN] | None = None,
    ) -> None:
        """Prepare the first poll, of about `poll_messages` messages at most.

        `end_lsn` returns the LSN up to which a poll reads, by default the server's flush LSN.
        """
        super().__init__(sessions.peeking, sessions.slot, sessions.confirmed_lsn, sessions.close)
        self._control = sessions.control
        self._peeking = sessions.peeking
        self._options = options
        self._limit = poll_messages
        self._read_end_lsn = end_lsn or (lambda: read_flush_lsn(self._control))
        self._lock = threading.RLock()
        self._peek: Peek | None = None
        self._poll_count = 0
        self._next_poll = 0.0
        self._busy_retry = BusyRetry(sessions.slot, busy_timeout)

    @property
    def session(self) -> int:
        """The number of the poll that the messages of the last read() belong to."""
        return self._poll_count

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none if `timeout` seconds passed or only received_lsn moved."""
        deadline = time.monotonic() + timeout
        while True:
            received_lsn = self._received_lsn
            with self._lock:
                self._raise_failure()
                if self._peek is None and self._may_start_poll():
                    self._peek = self._start_poll()
                messages = self._continue_poll(self._peek) if self._peek is not None else []
                is_polling = self._peek is not None
            if messages or self._received_lsn > received_lsn:
                return messages
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return messages
            self._selector.select(remaining if is_polling else min(_READ_INTERVAL, remaining))
            if self._interrupt.clear() and not is_polling:
                self._next_poll = 0.0
                return messages

    def ping(self) -> None:
        """Do nothing: each poll reads the server's flush LSN itself."""

    def close(self) -> None:
        """Cancel a poll that is running and close the connections; idempotent."""
        with self._lock:
            if self._peek is not None and not self._peeking.closed:
                # A backend that decodes notices a closed connection only when it next sends data.
                self._peeking.cancel_safe(timeout=5)
            self._end()

    def _may_start_poll(self) -> bool:
        """Return whether the next poll may start."""
        return True

    def _prepare_poll(self) -> None:
        """Prepare for the poll that starts now; raise SourceError to end the stream."""

    def _receive(self, messages: list[bytes]) -> list[bytes]:
        """Return the messages that read() returns, and move received_lsn."""
        self._received_lsn = max(self._received_lsn, last_end_lsn(messages))
        return messages

    def _finish_poll(self, peek: Peek) -> None:
        """Handle the end of a poll that the server has run."""
        raise NotImplementedError

    def _start_poll(self) -> Peek | None:
        if time.monotonic() < self._next_poll:
            return None
        try:
            end_lsn = self._read_end_lsn()
            if end_lsn <= self._received_lsn:
                self._next_poll = time.monotonic() + _NO_CHANGES_INTERVAL
                return None
            self._prepare_poll()
            self._poll_count += 1
            return Peek(self._peeking, self._slot, end_lsn, self._limit, self._options)
        except SourceError as error:
            self._fail(error)
        except psycopg.Error as error:
            self._fail(lost_session_error(self._slot, describe(error)))

    def _continue_poll(self, peek: Peek) -> list[bytes]:
        try:
            messages = peek.pull()
        except psycopg.Error as error:
            self._fail(lost_session_error(self._slot, describe(error)))
        # A notice that arrived with these bytes may mean that rows were skipped: return none of them.
        self._raise_failure()
        messages = self._receive(messages)
        if peek.is_done:
            self._peek = None
            if peek.refusal is not None:
                self._handle_refusal(peek, peek.refusal)
            else:
                self._busy_retry.reset()
                self._finish_poll(peek)
        return messages

    def _handle_refusal(self, peek: Peek, message: str) -> None:
        if not peek.is_in_use:
            self._fail(slot_error(self._slot, message, peek.diagnostic))
        try:
            self._next_poll = time.monotonic() + self._busy_retry.next_pause(message)
        except SourceError as error:
            self._fail(error)


_HEADER_SIZE = 19  # signature 11, flags 4, length of the extension 4 bytes
_FIELD_HEADER_SIZE = 6  # number of fields 2, length of the field 4 bytes
_ROW_BYTE, _SIGNATURE_BYTE, _TRAILER_BYTE = 0x00, ord("P"), 0xFF


class Peek:
    """One pg_logical_slot_peek_binary_changes, which ends at `end_lsn` or after `limit` messages.

    It returns complete transactions. It is a COPY in binary format (page "COPY"), not a cursor: its rows are
    sent through libpq's buffer, and the server runs the function to its end before the first row, keeping the
    rows in temporary files, so that the slot is free while they are sent.

    `pull` raises psycopg.Error if the connection is lost. If the server refuses, `refusal` is its message and
    `diagnostic` has the fields.
    """

    def __init__(
        self, connection: Connection, slot: str, end_lsn: LSN, limit: int, options: Mapping[str, str]
    ) -> None:
        self.end_lsn = end_lsn
        self.limit = limit
        self.message_count = 0
        self.is_done = False
        self.is_in_use = False
        self.refusal: str | None = None
        self.diagnostic: Diagnostic | None = None
        self._pgconn = connection.pgconn
        self._is_copying = False
        query = sql.SQL(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}, {}, VARIADIC {}))"
            " TO STDOUT (FORMAT binary)"
        ).format(sql.Literal(slot), sql.Literal(str(end_lsn)), sql.Literal(limit), options_array(options))
        self._pgconn.send_query(query.as_bytes(connection))
        self._pgconn.flush()

    def pull(self) -> list[bytes]:
        """Return the messages that have arrived, without waiting; `is_done` is set after the last one."""
        messages: list[bytes] = []
        if not self._is_copying:
            self._pgconn.consume_input()
            if self._pgconn.is_busy():
                return messages
            result = self._pgconn.get_result()
            if result is None or result.status != ExecStatus.COPY_OUT:
                self._finish(result)
                return messages
            self._is_copying = True
        append = messages.append
        get_copy_data = self._pgconn.get_copy_data
        byte_count = 0
        has_consumed = False
        while len(messages) < BATCH_MESSAGES and byte_count < BATCH_BYTES:
            size, data = get_copy_data(1)
            if size > 0:
                if data[0] == _SIGNATURE_BYTE:
                    # The header is sent by itself or with the first row, depending on the major.
                    data = data[_HEADER_SIZE:]
                    if not data:
                        continue
                if data[0] == _ROW_BYTE:
                    append(bytes(data[_FIELD_HEADER_SIZE:]))
                    byte_count += size
                    has_consumed = False
                elif data[0] != _TRAILER_BYTE:
                    raise psycopg.DatabaseError("COPY data of an unknown format")
            elif size == 0:
                if has_consumed:
                    break
                self._pgconn.consume_input()
                has_consumed = True
            else:
                self._finish(self._pgconn.get_result())
                break
        self.message_count += len(messages)
        return messages

    def _finish(self, result: PGresult | None) -> None:
        while self._pgconn.get_result() is not None:
            pass
        self.is_done = True
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            self.refusal = describe(result.get_error_message())
            self.diagnostic = Diagnostic(result)
            self.is_in_use = is_in_use(result)
