"""The walsender route: one replication session, its messages, keepalives and standby status updates.

`read` pulls CopyData from libpq without waiting between messages. A thread sends a status update every third
of wal_sender_timeout, so that the server does not give up while the caller decodes or commits. libpq is not
thread-safe: the connection is used only under one lock, and nothing waits while it holds the lock. After any
failure the connection is closed, and every call raises the failure again.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, borrow, connect_replication, describe
from pipeline.postgres.replication.change_stream import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    IDLE_TIMEOUT,
    IdleTimeout,
    last_end_lsn,
    refused_acknowledgement,
)
from pipeline.postgres.replication.options import start_command
from pipeline.postgres.replication.slot import (
    lost_session_error,
    moved_slot_error,
    read_slot,
    require_slot,
    slot_error,
    stream_end_error,
)
from pipeline.postgres.replication.slot_lock import BUSY_SECONDS, SlotInUse, is_in_use, retry_while_busy
from pipeline.postgres.replication.slot_reader import SlotReader
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS
from pipeline.units import format_count

_MAX_STATUS_INTERVAL = 10.0  # seconds
# The server sends each message by itself; waiting a moment lets several arrive, which is faster on both
# sides.
_BATCH_DELAY = 0.003
_MAX_PENDING_BYTES = 4 * BATCH_BYTES
_CONFIRM_INTERVAL = 0.02


def start_walsender(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    start_lsn: LSN = INVALID,
    shared: Connection | None = None,
    busy_timeout: float = BUSY_SECONDS,
    should_stop: Callable[[], bool] = lambda: False,
    application_name: str = "pgdelta",
    idle_timeout: float = IDLE_TIMEOUT,
) -> Walsender:
    """Return the running stream of the slot, from its confirmed LSN or from a later `start_lsn`.

    `start_lsn` is bronze's offset. The server skips what was committed up to it; a slot that is ahead of it
    is a SlotGapError, because the server would start at the slot without an error. A slot in use is retried
    for `busy_timeout` seconds, or until `should_stop`. A server that sends nothing for `idle_timeout`
    seconds, although a reply was requested, is lost. The state of the slot is read in the ordinary session
    `shared` as long as that is usable, by the threads that start and confirm.
    """
    command = start_command(slot, LSN(start_lsn), options)

    def attempt() -> Walsender:
        with borrow(shared, conninfo) as connection:
            require_slot(connection, slot, publication)
        session = connect_replication(conninfo, application_name=application_name)
        with closed_on_failure(session, slot, conninfo):
            timeout = read_walsender_timeout(session)
            result = session.pgconn.exec_(command)
            if result.status != ExecStatus.COPY_BOTH:
                message = describe(result.get_error_message())
                if is_in_use(result):
                    raise SlotInUse(message)
                raise slot_error(slot, message, Diagnostic(result))
            # Read the slot again: its last reader may have moved it, which no other session can do from now
            # on.
            with borrow(shared, conninfo) as connection:
                confirmed_lsn = require_slot(connection, slot, publication).confirmed_flush_lsn
            if INVALID < start_lsn < confirmed_lsn:
                raise moved_slot_error(slot, confirmed_lsn, LSN(start_lsn))
            return Walsender(
                session,
                conninfo=conninfo,
                slot=slot,
                shared=shared,
                start_lsn=max(LSN(start_lsn), confirmed_lsn),
                timeout=timeout,
                idle_timeout=idle_timeout,
            )

    return retry_while_busy(attempt, slot, busy_timeout=busy_timeout, should_stop=should_stop)


@contextmanager
def closed_on_failure(session: Connection, slot: str, conninfo: str) -> Iterator[None]:
    """Close the session if the start of its stream fails; convert psycopg's errors to those of the slot."""
    try:
        yield
    except psycopg.Error as error:
        session.close()
        raise slot_error(slot, describe(error, conninfo)) from None
    except BaseException:
        session.close()
        raise


def read_walsender_timeout(session: Connection) -> float:
    """Return the wal_sender_timeout of a replication session in seconds, 0 if it is off."""
    # The cast, because text from an SQL_ASCII database is bytes.
    row = session.execute(
        "SELECT setting::integer FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    return row[0] / 1000 if row else 0.0


class Walsender(SlotReader):
    """A running START_REPLICATION; a ChangeStream, started by `start_walsender`."""

    session = 1  # there is only one

    def __init__(
        self,
        connection: Connection,
        *,
        conninfo: str,
        slot: str,
        start_lsn: LSN,
        timeout: float,
        shared: Connection | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        super().__init__(connection, slot, start_lsn, connection.close)
        self._pgconn = connection.pgconn
        self._conninfo = conninfo
        self._shared = shared
        self._acknowledged_lsn = start_lsn
        self._lock = threading.Lock()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._status_interval = min(_MAX_STATUS_INTERVAL, timeout / 3) if timeout else _MAX_STATUS_INTERVAL
        self._status_due = time.monotonic() + self._status_interval
        self._idle = IdleTimeout(idle_timeout)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._send_updates, name="standby status", daemon=True)
        self._thread.start()

    @property
    def needs_acknowledgement(self) -> bool:
        """Always False: the server does not wait for acknowledgements."""
        return False

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none if `timeout` seconds passed or only received_lsn moved.

        A batch has at most BATCH_MESSAGES messages, of about BATCH_BYTES, and ends with the timeout even if
        more messages are arriving.
        """
        deadline = time.monotonic() + timeout
        messages: list[bytes] = []
        byte_count = 0
        received_lsn = self._received_lsn
        has_arrived = False  # a part of a message, which may take long
        is_interrupted = False
        while True:
            count = len(messages)
            with self._lock:
                self._raise_failure()
                byte_count, wal_end = self._pull(messages, byte_count)
                # A notice that arrived with these bytes may mean that rows were skipped: return none of them.
                self._raise_failure()
                received_lsn = max(received_lsn, wal_end, last_end_lsn(messages[count:]))
                self._check_idle(has_received=has_arrived or len(messages) > count or wal_end > INVALID)
                self._send_status_if_due()
            remaining = deadline - time.monotonic()
            is_idle = len(messages) == count
            is_full = len(messages) >= BATCH_MESSAGES or byte_count >= BATCH_BYTES
            has_news = messages or is_interrupted or received_lsn > self._received_lsn
            if is_full or remaining <= 0 or (is_idle and has_news):
                self._received_lsn = received_lsn
                return messages
            if is_idle:
                ready = self._selector.select(remaining)
                is_interrupted = self._interrupt.clear()
                has_arrived = len(ready) > is_interrupted
            else:
                has_arrived = False
                time.sleep(min(_BATCH_DELAY, remaining))

    def acknowledge(self, lsn: LSN) -> None:
        """Report `lsn` as flushed; refuse an LSN not received yet."""
        with self._lock:
            self._raise_failure()
            if lsn > self._received_lsn:
                raise refused_acknowledgement(self._slot, LSN(lsn), self._received_lsn)
            if lsn > self._acknowledged_lsn:
                self._acknowledged_lsn = LSN(lsn)
                self._send_status(reply=False)

    def ping(self) -> None:
        """Request a keepalive with the LSN that the server has decoded to."""
        with self._lock:
            self._raise_failure()
            self._send_status(reply=True)

    def confirm(self, timeout: float) -> bool:
        """Wait until the slot is at the last acknowledgement; return False after `timeout` seconds.

        Messages that arrive in the meantime are kept for read(), up to a limit: a server that cannot send
        more messages still reads the status updates.
        """
        deadline = time.monotonic() + timeout
        self.ping()
        with borrow(self._shared, self._conninfo) as connection:
            while True:
                with self._lock:
                    self._raise_failure()
                    self._receive_pending()
                slot = read_slot(connection, self._slot)
                if slot is not None and slot.confirmed_flush_lsn >= self._acknowledged_lsn:
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                time.sleep(min(_CONFIRM_INTERVAL, remaining))

    def close(self) -> None:
        """End the session; idempotent."""
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            self._end()

    def _pull(self, messages: list[bytes], byte_count: int) -> tuple[int, LSN]:
        """Append payloads that have arrived, up to a full batch; return its bytes and the keepalive's LSN."""
        append = messages.append
        get_copy_data = self._pgconn.get_copy_data
        pending = self._pending
        wal_end = INVALID
        has_consumed = False
        try:
            while len(messages) < BATCH_MESSAGES and byte_count < BATCH_BYTES:
                if pending:
                    data = pending.popleft()
                    size = len(data)
                    self._pending_bytes -= size
                else:
                    size, data = get_copy_data(1)
                if size > 0:
                    if data[0] == XLOGDATA:
                        append(bytes(data[XLOGDATA_HEADER_SIZE:]))
                        byte_count += size
                        has_consumed = False
                    else:
                        wal_end = max(wal_end, self._receive_keepalive(data))
                elif size == 0:
                    if has_consumed:
                        break
                    self._pgconn.consume_input()
                    has_consumed = True
                else:
                    self._receive_end()
        except psycopg.Error as error:
            self._fail(self._lost(error))
        return byte_count, wal_end

    def _check_idle(self, *, has_received: bool) -> None:
        if has_received:
            self._idle.reset()
        elif self._idle.is_over:
            self._fail(self._lost(f"the server has not answered for {self._idle.seconds:g} seconds"))

    def _receive_pending(self) -> None:
        try:
            self._pgconn.consume_input()
            while self._pending_bytes < _MAX_PENDING_BYTES:
                size, data = self._pgconn.get_copy_data(1)
                if size == 0:
                    return
                if size < 0:
                    self._receive_end()
                self._pending.append(data)
                self._pending_bytes += size
        except psycopg.Error as error:
            self._fail(self._lost(error))

    def _receive_keepalive(self, data: memoryview) -> LSN:
        keepalive = decode_keepalive(data)
        if keepalive is None:
            self._fail(
                self._lost(
                    f"the server sent {format_count(len(data), 'byte')} that are not a replication message"
                )
            )
        wal_end, requests_reply = keepalive
        if requests_reply:
            self._send_status(reply=False)
        return wal_end

    def _receive_end(self) -> NoReturn:
        """Fail with the result by which the server ended the stream."""
        self._fail(stream_end_error(self._slot, self._pgconn.get_result()))

    def _send_status_if_due(self) -> None:
        if time.monotonic() >= self._status_due:
            self._send_status(reply=False)

    def _send_status(self, *, reply: bool) -> None:
        """Send a status update; the caller holds the lock."""
        written_lsn = max(self._received_lsn, self._acknowledged_lsn)
        reply = self._idle.needs_reply() or reply
        status = encode_status_update(written_lsn, self._acknowledged_lsn, reply=reply)
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.Error as error:
            self._fail(self._lost(error))
        self._status_due = time.monotonic() + self._status_interval

    def _send_updates(self) -> None:
        while not self._is_closing.wait(max(0.05, self._status_due - time.monotonic())):
            with self._lock, suppress(SourceError):
                # A failure is kept in _failure, for the reader to raise.
                self._raise_failure()
                self._send_status_if_due()
            if self._failure is not None:
                return

    def _lost(self, error: psycopg.Error | str) -> SourceError:
        return lost_session_error(self._slot, describe(error, self._conninfo))


# Layouts follow the page "Streaming Replication Protocol"; times are microseconds since 2000-01-01 UTC.
# `w`, start LSN, end LSN, send time, payload; the LSNs are not read, because they are 0 for some messages
XLOGDATA: Final = ord("w")
XLOGDATA_HEADER_SIZE: Final = 25

_KEEPALIVE = struct.Struct(">cQqB")  # `k`, end of WAL, send time, reply flag
# `r`, the LSNs written, flushed and applied, send time, reply flag
_STATUS_UPDATE = struct.Struct(">cQQQqB")


def decode_keepalive(data: memoryview) -> tuple[LSN, bool] | None:
    """Return the LSN that the server has decoded to, and whether it requests a reply; None for other data."""
    if len(data) != _KEEPALIVE.size or data[0] != ord("k"):
        return None
    _, wal_end, _, reply = _KEEPALIVE.unpack(data)
    return LSN(wal_end), bool(reply)


def encode_status_update(written: LSN, flushed: LSN, *, reply: bool) -> bytes:
    """Return a status update; only `flushed` moves the slot, and `reply` requests a keepalive at once."""
    now = time.time_ns() // 1000 - POSTGRES_EPOCH_MICROSECONDS
    return _STATUS_UPDATE.pack(b"r", written, flushed, flushed, now, reply)
