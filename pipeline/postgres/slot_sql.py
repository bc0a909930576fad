"""The SQL route: the slot's functions over ordinary sessions, for places without replication connections.

A pass peeks at the changes up to the flush LSN and a count of messages (`peek`). What was acknowledged is
taken off the slot by pg_replication_slot_advance; peeking alone takes nothing off, and a session that dies
loses nothing. Two sessions, because an acknowledgement must not wait for the end of a pass.

PostgreSQL 10 has no advance: there pg_logical_slot_get_binary_changes discards up to the end of a commit that
was acknowledged, and only between passes, when everything that it can reach has been received. Where nothing
is committed the slot stays.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import psycopg
from psycopg.errors import Diagnostic

from pipeline.errors import SourceError
from pipeline.postgres.advance import BUSY_INTERVAL, advance, discard
from pipeline.postgres.connection import Connection, connect, describe, read_flush_lsn, use_raw_encoding
from pipeline.postgres.peek import Outside, Peek
from pipeline.postgres.slot import busy_failure, check_source, lost_session, slot_failure
from pipeline.postgres.stream import last_end_lsn, refused_acknowledgement
from pipeline.protocol.lsn import INVALID, LSN

#: A pass stops after the transaction in which it reaches so many messages.
PASS_MESSAGES = 200_000
#: Seconds between two passes when the first one found nothing.
IDLE_INTERVAL = 0.5

_ADVANCE_SINCE = 110000


class SlotSql:
    """A slot read by its SQL functions; a ChangeStream. Made by `start_slot_sql`."""

    def __init__(
        self,
        control: Connection,
        peeking: Connection,
        *,
        slot: str,
        confirmed_lsn: LSN,
        options: Mapping[str, str],
        upto_lsn: Callable[[], LSN],
        busy_timeout: float,
        pass_messages: int,
    ) -> None:
        self._control = control
        self._peeking = peeking
        self._slot = slot
        self._options = options
        self._upto_lsn = upto_lsn
        self._busy_timeout = busy_timeout
        self._pass_messages = pass_messages
        self._lock = threading.RLock()
        self._failure: SourceError | None = None
        # Received; taken off the slot; acknowledged by the caller; to be acknowledged before the next pass.
        self._sent_through = self._moved = self._wanted = self._owed = confirmed_lsn
        self._selector = selectors.DefaultSelector()
        self._selector.register(peeking.pgconn.socket, selectors.EVENT_READ)
        peeking.add_notice_handler(self._receive_notice)
        self._peek: Peek | None = None
        self._end_lsn = INVALID
        self._ends: set[LSN] = set()  # of the batches read: where commits end that may be acknowledged
        self._ends_in_commit = False
        self._limit = pass_messages
        self._pass_count = 0
        self._outside = Outside()
        self._next_pass = 0.0
        self._busy_since: float | None = None

    @property
    def sent_through(self) -> LSN:
        """Everything committed at or before this LSN has been returned by read() already."""
        return self._sent_through

    @property
    def needs_acknowledgement(self) -> bool:
        """Nothing more comes until what the last pass read has been acknowledged (at most: sent_through)."""
        return self._peek is None and self._moved < self._owed

    @property
    def session(self) -> int:
        """The number of the pass that the messages of the last read() came from: each decodes anew."""
        return self._pass_count

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none once `timeout` seconds passed or sent_through moved."""
        deadline = time.monotonic() + timeout
        while True:
            position = self._sent_through
            with self._lock:
                self._raise_failure()
                if self._peek is None and not self.needs_acknowledgement:
                    self._peek = self._start_pass()
                messages = self._pull(self._peek) if self._peek is not None else []
                is_peeking = self._peek is not None
            if messages or self._sent_through > position:
                return messages
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return messages
            if is_peeking:
                self._selector.select(remaining)
            else:
                time.sleep(min(0.05, remaining))

    def acknowledge(self, lsn: LSN) -> None:
        """Take everything committed at or before `lsn` off the slot; refuse an LSN beyond sent_through."""
        with self._lock:
            self._raise_failure()
            if lsn > self._sent_through:
                raise refused_acknowledgement(self._slot, LSN(lsn), self._sent_through)
            self._wanted = max(self._wanted, LSN(lsn))
            self._move_slot()

    def ping(self) -> None:
        """Do nothing: a pass looks at the server's position itself."""

    def confirm(self, timeout: float) -> bool:
        """Return whether the slot stands at the last acknowledgement; there is nothing to wait for."""
        with self._lock:
            self._raise_failure()
            return self._moved >= self._wanted

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

    def _start_pass(self) -> Peek | None:
        if time.monotonic() < self._next_pass:
            return None
        try:
            upto_lsn = self._upto_lsn()
            if upto_lsn <= self._sent_through:
                self._next_pass = time.monotonic() + 0.1
                return None
            self._end_lsn = INVALID
            self._ends_in_commit = False
            self._pass_count += 1
            return Peek(self._peeking, self._slot, upto_lsn, self._limit, self._options)
        except SourceError as error:
            self._fail(error)
        except psycopg.Error as error:
            self._fail(self._lost(error))

    def _pull(self, peek: Peek) -> list[bytes]:
        try:
            messages = peek.pull()
        except psycopg.Error as error:
            self._fail(self._lost(error))
        # A warning came in with these bytes: rows were left out, nothing after them may count.
        self._raise_failure()
        if self._end_lsn == INVALID:
            messages = self._outside.take(messages)
        if messages:
            self._end_lsn = max(self._end_lsn, last_end_lsn(messages))
            self._ends.add(self._end_lsn)
            self._ends_in_commit = last_end_lsn(messages[-1:]) != INVALID
            self._sent_through = max(self._sent_through, self._end_lsn)
        if peek.is_done:
            self._peek = None
            self._finish_pass(peek)
        return messages

    def _finish_pass(self, peek: Peek) -> None:
        if peek.refusal is not None:
            self._wait_for_slot(peek)
            return
        self._busy_since = None
        if peek.message_count >= peek.limit and self._end_lsn == INVALID:
            # Nothing ended in the pass, so there is nothing yet to move the slot to: look again, and further.
            self._outside.start_over()
            self._limit = 2 * peek.limit
            return
        self._limit = self._pass_messages
        if peek.message_count < peek.limit:
            self._sent_through = max(self._sent_through, peek.upto_lsn)
        if self._end_lsn != INVALID or self._outside.count:
            self._owed = self._end_lsn if self._ends_in_commit else self._sent_through
        else:
            self._next_pass = time.monotonic() + IDLE_INTERVAL
        self._outside = Outside()
        self._move_slot()

    def _wait_for_slot(self, peek: Peek) -> None:
        text = peek.refusal or ""
        if not peek.is_busy:
            self._fail(slot_failure(self._slot, text))
        now = time.monotonic()
        self._busy_since = now if self._busy_since is None else self._busy_since
        if now - self._busy_since >= self._busy_timeout:
            self._fail(busy_failure(self._slot, text, self._busy_timeout))
        self._next_pass = now + BUSY_INTERVAL

    def _move_slot(self) -> None:
        """Take what is acknowledged off the slot, as far as the server's version lets us."""
        has_advance = self._control.info.server_version >= _ADVANCE_SINCE
        # Without advance the slot goes to the end of the record that reaches the target: only where a commit
        # ends is that the target itself, and not a record further, past what bronze holds.
        ends = (end for end in self._ends if end <= self._wanted)
        target = self._wanted if has_advance else max(ends, default=INVALID)
        if target <= self._moved:
            return
        if not has_advance and (self._peek is not None or target < self._owed):
            # Only what a whole pass has shown may be discarded.
            return
        try:
            if has_advance:
                advance(self._control, self._slot, target, busy_timeout=self._busy_timeout)
            else:
                # On the peeking session: it is idle, and has the client encoding that decoding needs.
                wait = self._busy_timeout
                discard(self._peeking, self._slot, target, self._options, busy_timeout=wait)
        except SourceError as failure:
            self._fail(failure)
        self._moved = target
        self._ends = {end for end in self._ends if end > target}

    def _receive_notice(self, diagnostic: Diagnostic) -> None:
        text = diagnostic.message_primary or ""
        if "publication" in text:
            # From 18 on, rows of a publication that is not found are left out with a warning only.
            self._failure = slot_failure(self._slot, text)

    def _lost(self, error: psycopg.Error) -> SourceError:
        return lost_session(self._slot, describe(error))

    def _fail(self, failure: SourceError) -> NoReturn:
        # After an error in decoding a session is not to be used again: drop it at once.
        self._failure = failure
        self._control.close()
        self._peeking.close()
        raise failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def start_slot_sql(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    upto_lsn: Callable[[], LSN] | None = None,
    busy_timeout: float = 60.0,
    pass_messages: int = PASS_MESSAGES,
) -> SlotSql:
    """Return the stream of the slot from its confirmed position.

    A pass reads up to `upto_lsn()`, by default the server's flush LSN when the pass starts. A slot that
    another session reads is tried again for `busy_timeout` seconds.
    """
    control = connect(conninfo)
    try:
        confirmed_lsn = check_source(control, slot, publication).confirmed_flush_lsn
        peeking = connect(conninfo)
    except BaseException:
        control.close()
        raise
    use_raw_encoding(peeking)
    return SlotSql(
        control,
        peeking,
        slot=slot,
        confirmed_lsn=confirmed_lsn,
        options=options,
        upto_lsn=upto_lsn or (lambda: read_flush_lsn(control)),
        busy_timeout=busy_timeout,
        pass_messages=pass_messages,
    )
