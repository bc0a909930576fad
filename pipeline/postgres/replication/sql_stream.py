"""The SQL route: the slot's functions over ordinary sessions, for places without replication connections.

A pass peeks at the changes up to the flush LSN and a count of messages (`passes`). What was acknowledged is
taken off the slot by pg_replication_slot_advance; peeking alone takes nothing off, and a session that dies
loses nothing.

PostgreSQL 10 has no advance: there pg_logical_slot_get_binary_changes discards up to the end of a commit that
was acknowledged, and only between passes, when everything that it can reach has been received. Where nothing
is committed the slot stays.

Between two passes the slot is free, and somebody else may move it, or make it anew. Nothing of a pass is
handed on before the slot was looked at: as it stood when the pass began, or further.
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
from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.replication.change_stream import last_end_lsn, refused_acknowledgement
from pipeline.postgres.replication.slot import read_slot
from pipeline.postgres.replication.slot_errors import (
    busy_failure,
    is_busy,
    lost_session,
    missing_slot,
    moved_on,
    moved_slot,
    slot_failure,
)
from pipeline.postgres.replication.sql_peek import Outside, Peek, literal_array
from pipeline.postgres.replication.sql_polling import SlotSessions, SqlPolling, open_sessions
from pipeline.protocol.lsn import INVALID, LSN

# Taking what was acknowledged off a slot by SQL; a slot that is busy is tried again for a while.
#: Seconds between two tries for a slot that another session holds.
BUSY_INTERVAL = 0.5


def advance(connection: Connection, slot: str, target: LSN, *, busy_timeout: float) -> None:
    """Move the slot to `target`, and make sure that it stands there."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            row = connection.execute(
                "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)",
                (slot, str(target)),
            ).fetchone()
            break
        except sqlstate.ObjectInUse as error:
            if time.monotonic() >= deadline:
                raise busy_failure(slot, describe(error), busy_timeout) from None
            time.sleep(BUSY_INTERVAL)
        except psycopg.Error as error:
            raise slot_failure(slot, error) from None
    if row is None or LSN.parse(row[0]) < target:
        raise SourceError(
            f"The slot {slot} was to advance to {target} and stands at {row and row[0]}: the server's WAL"
            " ends before it. Check that this is the server that was read before."
        )


def discard(
    connection: Connection, slot: str, target: LSN, options: Mapping[str, str], *, busy_timeout: float
) -> None:
    """Move the slot of a PostgreSQL 10 to `target`, over a session with the encoding that decoding needs."""
    query = sql.SQL(
        "SELECT pg_catalog.count(*) FROM"
        " pg_catalog.pg_logical_slot_get_binary_changes({}, {}, NULL, VARIADIC {})"
    ).format(sql.Literal(slot), sql.Literal(str(target)), literal_array(options))
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            result = connection.pgconn.exec_(query.as_bytes(connection))
        except psycopg.Error as error:
            raise slot_failure(slot, error) from None
        if result.status == ExecStatus.TUPLES_OK:
            return
        text = describe(result.get_error_message())
        if not is_busy(result):
            raise slot_failure(slot, text, Diagnostic(result))
        if time.monotonic() >= deadline:
            raise busy_failure(slot, text, busy_timeout)
        time.sleep(BUSY_INTERVAL)


#: A pass stops after the transaction in which it reaches so many messages.
POLL_MESSAGES = 200_000
#: Seconds between two passes when the first one found nothing.
IDLE_INTERVAL = 0.5

_ADVANCE_SINCE = 110000


class SqlStream(SqlPolling):
    """A slot read by its SQL functions; a ChangeStream. Made by `start_slot_sql`."""

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
            sessions,
            options=options,
            limit=poll_messages,
            busy_timeout=busy_timeout,
            busy_interval=BUSY_INTERVAL,
            end_lsn=end_lsn,
        )
        self._poll_messages = poll_messages
        self._has_advance = self._control.info.server_version >= _ADVANCE_SINCE
        # Taken off the slot; acknowledged by the caller; to be acknowledged before the next pass.
        self._moved = self._wanted = self._owed = sessions.confirmed_lsn
        self._is_for_bronze = start_lsn > INVALID
        self._held = max(start_lsn, sessions.confirmed_lsn)  # by the caller
        self._end_lsn = INVALID  # of the last transaction that ended in the pass
        self._ends: set[LSN] = set()  # of the batches read: where commits end that may be acknowledged
        self._ends_in_commit = False
        self._outside = Outside()

    @property
    def needs_acknowledgement(self) -> bool:
        """Nothing more comes until what the last pass read has been acknowledged (at most: received_lsn)."""
        return self._peek is None and self._moved < self._owed

    def acknowledge(self, lsn: LSN) -> None:
        """Take everything committed at or before `lsn` off the slot; refuse an LSN beyond received_lsn."""
        with self._lock:
            self._raise_failure()
            if lsn > self._received_lsn:
                raise refused_acknowledgement(self._slot, LSN(lsn), self._received_lsn)
            self._wanted = max(self._wanted, LSN(lsn))
            self._held = max(self._held, self._wanted)
            self._move_slot()

    def confirm(self, timeout: float) -> bool:
        """Return whether the slot stands at the last acknowledgement; there is nothing to wait for."""
        with self._lock:
            self._raise_failure()
            return self._moved >= self._wanted

    def _may_start(self) -> bool:
        return not self.needs_acknowledgement

    def _prepare_poll(self) -> None:
        self._end_lsn = INVALID
        self._ends_in_commit = False

    def _take(self, messages: list[bytes]) -> list[bytes]:
        peek = self._peek
        if peek is not None and peek.message_count == len(messages) and (messages or peek.is_done):
            self._check_slot()  # once a pass: the server has read the slot, and nothing was handed on
        if self._end_lsn == INVALID:
            messages = self._outside.take(messages)
        if messages:
            self._end_lsn = max(self._end_lsn, last_end_lsn(messages))
            self._ends.add(self._end_lsn)
            self._ends_in_commit = last_end_lsn(messages[-1:]) != INVALID
            self._received_lsn = max(self._received_lsn, self._end_lsn)
        return messages

    def _finish_poll(self, peek: Peek) -> None:
        if peek.message_count >= peek.limit and self._end_lsn == INVALID:
            # Nothing ended in the pass, so there is nothing yet to move the slot to: look again, and further.
            self._outside.start_over()
            self._limit = 2 * peek.limit
            return
        self._limit = self._poll_messages
        if peek.message_count < peek.limit:
            self._received_lsn = max(self._received_lsn, peek.end_lsn)
        if self._end_lsn != INVALID or self._outside.count:
            self._owed = self._end_lsn if self._ends_in_commit else self._received_lsn
        else:
            self._next_poll = time.monotonic() + IDLE_INTERVAL
        self._outside = Outside()
        self._move_slot()

    def _check_slot(self) -> None:
        """Fail where the slot is gone, or stands beyond what the caller holds."""
        try:
            slot = read_slot(self._control, self._slot)
        except SourceError as failure:
            is_lost = self._control.broken
            self._fail(lost_session(self._slot, "the server ended the session") if is_lost else failure)
        if slot is None:
            if self._is_for_bronze:
                self._fail(missing_slot(self._slot))
        elif slot.confirmed_flush_lsn > self._held:
            fail = moved_slot if self._is_for_bronze else moved_on
            self._fail(fail(self._slot, slot.confirmed_flush_lsn, self._held))

    def _move_slot(self) -> None:
        """Take what is acknowledged off the slot, as far as the server's version lets us."""
        target = self._target()
        if target <= self._moved:
            return
        self._check_slot()
        try:
            if self._has_advance:
                advance(self._control, self._slot, target, busy_timeout=self._busy_timeout)
            else:
                # On the peeking session: it is idle, and has the client encoding that decoding needs.
                wait = self._busy_timeout
                discard(self._peeking, self._slot, target, self._options, busy_timeout=wait)
        except SourceError as failure:
            self._fail(failure)
        self._moved = target
        self._ends = {end for end in self._ends if end > target}

    def _target(self) -> LSN:
        """Return how far the slot may be moved now."""
        if self._has_advance:
            return self._wanted
        # Without advance the slot goes to the end of the record that reaches the target: only where a commit
        # ends is that the target itself, and not a record further, past what bronze holds.
        target = max((end for end in self._ends if end <= self._wanted), default=INVALID)
        # Only what a whole pass has shown may be discarded.
        return INVALID if self._peek is not None or target < self._owed else target


def start_sql_stream(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    start_lsn: LSN = INVALID,
    end_lsn: Callable[[], LSN] | None = None,
    busy_timeout: float = 60.0,
    poll_messages: int = POLL_MESSAGES,
) -> SqlStream:
    """Return the stream of the slot from its confirmed position.

    A pass reads up to `upto_lsn()`, by default the server's flush LSN when the pass starts. A slot that
    another session reads is tried again for `busy_timeout` seconds. Where `start_lsn` is given, everything
    committed before it is in bronze: a slot that stands beyond, then or later, is a SlotGapError.
    """
    sessions = open_sessions(conninfo, slot, publication)
    if INVALID < start_lsn < sessions.confirmed_lsn:
        sessions.control.close()
        sessions.peeking.close()
        raise moved_slot(slot, sessions.confirmed_lsn, start_lsn)
    return SqlStream(
        sessions,
        start_lsn=start_lsn,
        options=options,
        end_lsn=end_lsn,
        busy_timeout=busy_timeout,
        poll_messages=poll_messages,
    )
