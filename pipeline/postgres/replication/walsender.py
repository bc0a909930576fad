"""The walsender route: one replication session, its messages, keepalives and standby status updates.

`read` pulls CopyData from libpq in a tight loop; a thread of its own sends a status update every third of
wal_sender_timeout, so that neither a long commit nor a long decoding on the reader's side makes the server
give up. libpq is not thread-safe: every use of the connection holds one lock, and no wait happens under it.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, connect_replication, describe
from pipeline.postgres.replication.change_stream import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    last_end_lsn,
    refused_acknowledgement,
)
from pipeline.postgres.replication.copy_both import (
    XLOGDATA,
    XLOGDATA_HEADER_SIZE,
    read_keepalive,
    write_status,
)
from pipeline.postgres.replication.idle_timeout import IDLE_TIMEOUT, IdleTimeout
from pipeline.postgres.replication.options import start_command
from pipeline.postgres.replication.slot import check_source, read_slot, read_walsender_timeout
from pipeline.postgres.replication.slot_errors import (
    busy_failure,
    end_failure,
    is_busy,
    left_out,
    lost_session,
    moved_slot,
    slot_failure,
)
from pipeline.protocol.lsn import INVALID, LSN


# The walsender route begun: a slot that another session reads is tried again for some time.
def start_walsender(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    start_lsn: LSN = INVALID,
    busy_timeout: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    application_name: str = "pgdelta",
    idle_timeout: float = IDLE_TIMEOUT,
) -> Walsender:
    """Return the running stream of the slot, from its confirmed position or a later `start_lsn`.

    A slot that another session reads is tried again for `busy_timeout` seconds, or until `should_stop`. What
    lies between the slot and a later `start_lsn` is left out: it is in bronze already. A slot that stands
    beyond `start_lsn` is a SlotGapError: the server would begin there without a word. A server that was asked
    and says nothing for `longest_silence` seconds is lost.
    """
    command = start_command(slot, LSN(start_lsn), options)
    deadline = time.monotonic() + busy_timeout
    pause = 0.1
    while True:
        with connect(conninfo) as connection:
            check_source(connection, slot, publication)
        session = connect_replication(conninfo, application_name=application_name)
        with closed_on_failure(session, slot, conninfo):
            timeout = read_walsender_timeout(session)
            result = session.pgconn.exec_(command)
            if result.status == ExecStatus.COPY_BOTH:
                # From here on the slot is ours: while it was busy its reader may have moved it.
                with connect(conninfo) as connection:
                    confirmed_lsn = check_source(connection, slot, publication).confirmed_flush_lsn
                if INVALID < start_lsn < confirmed_lsn:
                    raise moved_slot(slot, confirmed_lsn, LSN(start_lsn))
                return Walsender(
                    session,
                    conninfo=conninfo,
                    slot=slot,
                    start_lsn=max(LSN(start_lsn), confirmed_lsn),
                    timeout=timeout,
                    idle_timeout=idle_timeout,
                )
        session.close()
        text = describe(result.get_error_message())
        if not is_busy(result):
            raise slot_failure(slot, text, Diagnostic(result))
        if should_stop() or time.monotonic() + pause > deadline:
            raise busy_failure(slot, text, busy_timeout)
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


_LONGEST_INTERVAL = 10.0
# The server sends each message by itself: a reader that takes each by itself slows down both.
_LINGER = 0.003
_PENDING_BYTES = 4 * BATCH_BYTES


class Walsender:
    """A running START_REPLICATION; a ChangeStream. Made by `start_walsender`."""

    session = 1  # there is but one

    def __init__(
        self,
        connection: Connection,
        *,
        conninfo: str,
        slot: str,
        start_lsn: LSN,
        timeout: float,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._conninfo = conninfo
        self._slot = slot
        self._received_lsn = self._acknowledged = start_lsn
        self._failure: SourceError | None = None
        self._lock = threading.Lock()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._interval = min(_LONGEST_INTERVAL, timeout / 3) if timeout else _LONGEST_INTERVAL
        self._status_due = time.monotonic() + self._interval
        self._idle = IdleTimeout(idle_timeout)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._is_closing = threading.Event()
        connection.add_notice_handler(self._receive_notice)
        self._thread = threading.Thread(target=self._keep_alive, name="standby status", daemon=True)
        self._thread.start()

    @property
    def received_lsn(self) -> LSN:
        """Everything committed at or before this LSN has been returned by read() already."""
        return self._received_lsn

    @property
    def needs_acknowledgement(self) -> bool:
        """Never: the server sends on."""
        return False

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none once `timeout` seconds passed or received_lsn moved.

        However fast they come, there are at most BATCH_MESSAGES of some BATCH_BYTES, and reading ends with
        the timeout.
        """
        deadline = time.monotonic() + timeout
        messages: list[bytes] = []
        byte_count = 0
        position = self._received_lsn
        while True:
            count = len(messages)
            with self._lock:
                self._raise_failure()
                byte_count, wal_end = self._pull(messages, byte_count)
                # A warning came in with these bytes: rows were left out, nothing after them may count.
                self._raise_failure()
                position = max(position, wal_end, last_end_lsn(messages[count:]))
                self._listen(has_heard=len(messages) > count or wal_end > INVALID)
                self._send_status_if_due()
            remaining = deadline - time.monotonic()
            is_idle = len(messages) == count
            is_full = len(messages) >= BATCH_MESSAGES or byte_count >= BATCH_BYTES
            if is_full or remaining <= 0 or (is_idle and (messages or position > self._received_lsn)):
                self._received_lsn = position
                return messages
            if is_idle:
                self._selector.select(remaining)
            else:
                time.sleep(min(_LINGER, remaining))

    def acknowledge(self, lsn: LSN) -> None:
        """Report everything committed at or before `lsn` as flushed; refuse an LSN beyond received_lsn.

        The server would take it, and never send what lies between.
        """
        with self._lock:
            self._raise_failure()
            if lsn > self._received_lsn:
                raise refused_acknowledgement(self._slot, LSN(lsn), self._received_lsn)
            if lsn > self._acknowledged:
                self._acknowledged = LSN(lsn)
                self._send_status(reply=False)

    def ping(self) -> None:
        """Ask for a keepalive, which says how far the server has read."""
        with self._lock:
            self._raise_failure()
            self._send_status(reply=True)

    def confirm(self, timeout: float) -> bool:
        """Wait until the slot stands at the last acknowledgement; False when `timeout` seconds passed.

        Messages that arrive meanwhile are kept for read(), up to a bound: a server that cannot send on
        reads the status updates instead.
        """
        deadline = time.monotonic() + timeout
        self.ping()
        with connect(self._conninfo, application_name="pgdelta confirm") as connection:
            while True:
                with self._lock:
                    self._raise_failure()
                    self._keep_pending()
                slot = read_slot(connection, self._slot)
                if slot is not None and slot.confirmed_flush_lsn >= self._acknowledged:
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                time.sleep(min(0.02, remaining))

    def close(self) -> None:
        """End the session; idempotent."""
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            self._failure = self._failure or SourceError(f"The stream of the slot {self._slot} is closed.")
            self._selector.close()
            self._connection.close()

    def _pull(self, messages: list[bytes], byte_count: int) -> tuple[int, LSN]:
        """Append payloads without waiting until the batch is full; return its bytes and a keepalive's LSN."""
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

    def _listen(self, *, has_heard: bool) -> None:
        if has_heard:
            self._idle.end()
        elif self._idle.is_too_long:
            self._fail(self._lost(f"the server has not answered for {self._idle.longest:g} seconds"))

    def _keep_pending(self) -> None:
        try:
            self._pgconn.consume_input()
            while self._pending_bytes < _PENDING_BYTES:
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
        keepalive = read_keepalive(data)
        if keepalive is None:
            self._fail(self._lost(f"the server sent {len(data)} bytes that are no replication message"))
        wal_end, wants_reply = keepalive
        if wants_reply:
            self._send_status(reply=False)
        return wal_end

    def _receive_end(self) -> NoReturn:
        """Fail with what the server said when it ended the stream."""
        self._fail(end_failure(self._slot, self._pgconn.get_result()))

    def _send_status_if_due(self) -> None:
        if time.monotonic() >= self._status_due:
            self._send_status(reply=False)

    def _send_status(self, *, reply: bool) -> None:
        """Send written, flushed and applied; the lock is held."""
        written = max(self._received_lsn, self._acknowledged)
        reply = self._idle.wants_answer() or reply
        status = write_status(written, self._acknowledged, reply=reply)
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.Error as error:
            self._fail(self._lost(error))
        self._status_due = time.monotonic() + self._interval

    def _keep_alive(self) -> None:
        while not self._is_closing.wait(max(0.05, self._status_due - time.monotonic())):
            with self._lock, suppress(SourceError):
                # A failure stays in _failure, and the reader raises it.
                self._raise_failure()
                self._send_status_if_due()
            if self._failure is not None:
                return

    def _receive_notice(self, diagnostic: Diagnostic) -> None:
        self._failure = left_out(self._slot, diagnostic) or self._failure

    def _lost(self, error: psycopg.Error | str) -> SourceError:
        return lost_session(self._slot, describe(error, self._conninfo))

    def _fail(self, failure: SourceError) -> NoReturn:
        # After an error in decoding a session is not to be used again: drop it at once.
        self._failure = failure
        self._connection.close()
        raise failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


@contextmanager
def closed_on_failure(session: Connection, slot: str, conninfo: str) -> Iterator[None]:
    """Close a session where what begins its stream fails; psycopg's errors come out as the slot's."""
    try:
        yield
    except psycopg.Error as error:
        session.close()
        raise slot_failure(slot, describe(error, conninfo)) from None
    except BaseException:
        session.close()
        raise
