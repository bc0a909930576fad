"""The SQL route of ingest: read and move a slot with its SQL functions, over ordinary connections.

`SqlStream` polls with `sql_polling`: a poll peeks at complete transactions up to the flush LSN. Peeking moves
nothing, so changes that were not acknowledged are read again, also after a crash. Between polls the slot is
free, and another session may move it or create it again. If changes would then be missing, the stream fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import describe
from pipeline.postgres.replication.change_stream import last_end_lsn, refused_acknowledgement
from pipeline.postgres.replication.options import options_array
from pipeline.postgres.replication.slot import (
    lost_session_error,
    missing_slot_error,
    moved_slot_error,
    read_slot,
    skipped_changes_error,
    slot_error,
)
from pipeline.postgres.replication.slot_lock import BUSY_SECONDS, SlotInUse, is_in_use, retry_while_busy
from pipeline.postgres.replication.sql_polling import (
    IDLE_INTERVAL,
    Peek,
    SlotSessions,
    SqlPolling,
    open_sessions,
)
from pipeline.protocol.lsn import INVALID, LSN

#: A poll ends with the transaction in which it reaches this number of messages.
POLL_MESSAGES = 200_000

_ADVANCE_SINCE = 110000


def start_sql_stream(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    start_lsn: LSN = INVALID,
    end_lsn: Callable[[], LSN] | None = None,
    busy_timeout: float = BUSY_SECONDS,
    poll_messages: int = POLL_MESSAGES,
) -> SqlStream:
    """Return the stream of the slot from its confirmed LSN.

    A poll reads up to `end_lsn()` (inclusive), by default the server's flush LSN when the poll starts. A slot
    in use is retried for `busy_timeout` seconds. `start_lsn` is bronze's offset: everything committed up to
    it (inclusive) is in bronze, and a slot that is ahead of it, now or later, is a SlotGapError.
    """
    sessions = open_sessions(conninfo, slot, publication)
    if INVALID < start_lsn < sessions.confirmed_lsn:
        sessions.close()
        raise moved_slot_error(slot, sessions.confirmed_lsn, start_lsn)
    return SqlStream(
        sessions,
        start_lsn=start_lsn,
        options=options,
        end_lsn=end_lsn,
        busy_timeout=busy_timeout,
        poll_messages=poll_messages,
    )


class SqlStream(SqlPolling):
    """A slot that is read and moved by SQL; a ChangeStream, started by `start_sql_stream`.

    1. The next poll starts once everything that the last one returned is acknowledged.
    2. An acknowledgement moves the slot by pg_replication_slot_advance. PostgreSQL 10 does not have it:
       there, pg_logical_slot_get_binary_changes discards the changes up to an acknowledged commit, between
       polls only, when everything that it can discard has been returned. The slot does not move if nothing is
       committed.
    3. The slot is read again before the first messages of a poll are returned, and before it is moved. If it
       is ahead of what the caller has, the stream fails.
    """

    def __init__(
        self,
        sessions: SlotSessions,
        *,
        start_lsn: LSN,
        options: Mapping[str, str],
        end_lsn: Callable[[], LSN] | None,
        busy_timeout: float,
        poll_messages: int,
    ) -> None:
        super().__init__(
            sessions, options=options, poll_messages=poll_messages, busy_timeout=busy_timeout, end_lsn=end_lsn
        )
        self._poll_messages = poll_messages
        self._busy_timeout = busy_timeout
        self._has_advance = self._control.info.server_version >= _ADVANCE_SINCE
        self._is_for_bronze = start_lsn > INVALID
        self._slot_lsn = sessions.confirmed_lsn  # to which this stream moved the slot
        self._acknowledged_lsn = sessions.confirmed_lsn
        self._required_lsn = sessions.confirmed_lsn  # to be acknowledged before the next poll
        self._caller_lsn = max(start_lsn, sessions.confirmed_lsn)  # what the caller has
        self._end_lsn = INVALID  # of the last transaction that ended in this poll
        self._ends_in_commit = False
        self._end_lsns: set[LSN] = set()  # ends of returned batches, to which the slot may be moved
        self._outside = _MessagesOutsideTransactions()

    @property
    def needs_acknowledgement(self) -> bool:
        """Whether read() returns nothing more until what the last poll returned is acknowledged."""
        return self._peek is None and self._slot_lsn < self._required_lsn

    def acknowledge(self, lsn: LSN) -> None:
        """Move the slot to `lsn`; refuse an LSN not received yet."""
        with self._lock:
            self._raise_failure()
            if lsn > self._received_lsn:
                raise refused_acknowledgement(self._slot, LSN(lsn), self._received_lsn)
            self._acknowledged_lsn = max(self._acknowledged_lsn, LSN(lsn))
            self._caller_lsn = max(self._caller_lsn, self._acknowledged_lsn)
            self._move_slot()

    def confirm(self, timeout: float) -> bool:
        """Return whether the slot is at the last acknowledgement; there is nothing to wait for."""
        with self._lock:
            self._raise_failure()
            return self._slot_lsn >= self._acknowledged_lsn

    def _may_start_poll(self) -> bool:
        return not self.needs_acknowledgement

    def _prepare_poll(self) -> None:
        self._end_lsn = INVALID
        self._ends_in_commit = False

    def _receive(self, messages: list[bytes]) -> list[bytes]:
        peek = self._peek
        if peek is not None and peek.message_count == len(messages) and (messages or peek.is_done):
            # Once a poll: the server has now read the slot, and none of the messages has been returned.
            self._check_slot()
        if self._end_lsn == INVALID:
            messages = self._outside.remove_repeated(messages)
        if messages:
            self._end_lsn = max(self._end_lsn, last_end_lsn(messages))
            self._end_lsns.add(self._end_lsn)
            self._ends_in_commit = last_end_lsn(messages[-1:]) != INVALID
            self._received_lsn = max(self._received_lsn, self._end_lsn)
        return messages

    def _finish_poll(self, peek: Peek) -> None:
        if peek.message_count >= peek.limit and self._end_lsn == INVALID:
            # No transaction ended in the poll, so that the slot cannot be moved: repeat it with a higher
            # limit.
            self._outside.start_again()
            self._limit = 2 * peek.limit
            return
        self._limit = self._poll_messages
        if peek.message_count < peek.limit:
            self._received_lsn = max(self._received_lsn, peek.end_lsn)
        if self._end_lsn != INVALID or self._outside.count:
            self._required_lsn = self._end_lsn if self._ends_in_commit else self._received_lsn
        else:
            self._next_poll = time.monotonic() + IDLE_INTERVAL
        self._outside = _MessagesOutsideTransactions()
        self._move_slot()

    def _check_slot(self) -> None:
        """Fail if the slot does not exist any more, or is ahead of what the caller has."""
        try:
            slot = read_slot(self._control, self._slot)
        except SourceError as failure:
            is_lost = self._control.broken
            self._fail(lost_session_error(self._slot, "the server ended the session") if is_lost else failure)
        if slot is None:
            if self._is_for_bronze:
                self._fail(missing_slot_error(self._slot))
        elif slot.confirmed_flush_lsn > self._caller_lsn:
            error = moved_slot_error if self._is_for_bronze else skipped_changes_error
            self._fail(error(self._slot, slot.confirmed_flush_lsn, self._caller_lsn))

    def _move_slot(self) -> None:
        """Move the slot towards the acknowledged LSN, as far as the server's version allows."""
        target_lsn = self._find_target_lsn()
        if target_lsn <= self._slot_lsn:
            return
        self._check_slot()
        try:
            if self._has_advance:
                self._advance(target_lsn)
            else:
                self._discard(target_lsn)
        except SourceError as failure:
            self._fail(failure)
        self._slot_lsn = target_lsn
        self._end_lsns = {end_lsn for end_lsn in self._end_lsns if end_lsn > target_lsn}

    def _find_target_lsn(self) -> LSN:
        if self._has_advance:
            return self._acknowledged_lsn
        # Without advance, the server stops after the record that contains the target. Only at the end of a
        # commit is that the target itself, and not the end of a later record, ahead of bronze.
        end_lsns = (end_lsn for end_lsn in self._end_lsns if end_lsn <= self._acknowledged_lsn)
        target_lsn = max(end_lsns, default=INVALID)
        # Only a complete poll has returned everything that may be discarded.
        return INVALID if self._peek is not None or target_lsn < self._required_lsn else target_lsn

    def _advance(self, target_lsn: LSN) -> None:
        """Advance the slot, and check that it is at `target_lsn`."""

        def attempt() -> str | None:
            try:
                row = self._control.execute(
                    "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)",
                    (self._slot, str(target_lsn)),
                ).fetchone()
            except sqlstate.ObjectInUse as error:
                raise SlotInUse(describe(error)) from None
            except psycopg.Error as error:
                raise slot_error(self._slot, error) from None
            return None if row is None else row[0]

        end_lsn = retry_while_busy(attempt, self._slot, busy_timeout=self._busy_timeout)
        if end_lsn is None or LSN.parse(end_lsn) < target_lsn:
            raise SourceError(
                f"The slot {self._slot} was advanced to {target_lsn} but is at {end_lsn}: the server's WAL"
                " ends there. Check that this is the server from which the changes were read."
            )

    def _discard(self, target_lsn: LSN) -> None:
        """Move the slot of PostgreSQL 10, on the peeking connection: its client encoding allows decoding."""
        query = sql.SQL(
            "SELECT pg_catalog.count(*) FROM"
            " pg_catalog.pg_logical_slot_get_binary_changes({}, {}, NULL, VARIADIC {})"
        ).format(sql.Literal(self._slot), sql.Literal(str(target_lsn)), options_array(self._options))

        def attempt() -> None:
            try:
                result = self._peeking.pgconn.exec_(query.as_bytes(self._peeking))
            except psycopg.Error as error:
                raise slot_error(self._slot, error) from None
            if result.status == ExecStatus.TUPLES_OK:
                return
            message = describe(result.get_error_message())
            if is_in_use(result):
                raise SlotInUse(message)
            raise slot_error(self._slot, message, Diagnostic(result))

        retry_while_busy(attempt, self._slot, busy_timeout=self._busy_timeout)


_BEGINS = frozenset((b"B", b"b"))
_STREAM_SEGMENT = frozenset((b"S", b"E"))


class _MessagesOutsideTransactions:
    """The logical messages that precede the first transaction of a poll.

    Each is returned to the caller once: if the poll is repeated, those returned before are removed. The other
    messages there belong to streams, which each poll sends from their first segment on.
    """

    def __init__(self) -> None:
        self.count = 0
        self._skip_count = 0
        self._in_segment = self._has_begun = False

    def start_again(self) -> None:
        """Expect the same messages again."""
        self._skip_count, self.count = self.count, 0
        self._in_segment = self._has_begun = False

    def remove_repeated(self, messages: list[bytes]) -> list[bytes]:
        """Return the messages without those that were returned before."""
        kept: list[bytes] = []
        for index, message in enumerate(messages):
            kind = message[:1]
            self._has_begun = self._has_begun or kind in _BEGINS
            if self._has_begun:
                return kept + messages[index:]
            if kind in _STREAM_SEGMENT:
                self._in_segment = kind == b"S"
            elif kind == b"M" and not self._in_segment:
                self.count += 1
                if self.count <= self._skip_count:
                    continue
            kept.append(message)
        return kept
