"""A slot looked at again and again by SQL, and never moved: each look begins where the slot stands.

What earlier looks have shown comes again: the reader knows it by its position. A look that is too short is
made again, and further; a server with much behind its slot is left alone between two looks for as long as
the last one took. While no look is under way the slot is free. Where its own reader moves it on meanwhile,
past what was shown here, the looks end: the messages between would be missing without anybody noticing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pipeline.postgres.replication.change_stream import refused_acknowledgement
from pipeline.postgres.replication.slot import check_source
from pipeline.postgres.replication.slot_errors import moved_on
from pipeline.postgres.replication.sql_peek import Peek
from pipeline.postgres.replication.sql_polling import SlotSessions, SqlPolling, open_sessions
from pipeline.protocol.lsn import LSN

#: The first look stops after the transaction in which it reaches so many messages; others go further.
POLL_MESSAGES = 20_000
_IDLE_INTERVAL = 0.5
_BUSY_INTERVAL = 0.2
_MOST_MESSAGES = 2**31 - 1  # what an integer of the server holds


class SqlFollow(SqlPolling):
    """A slot read without moving it; a ChangeStream. Made by `start_looks`."""

    needs_acknowledgement = False

    def __init__(
        self,
        sessions: SlotSessions,
        *,
        publication: str,
        options: Mapping[str, str],
        poll_messages: int,
        busy_timeout: float,
    ) -> None:
        super().__init__(
            sessions,
            options=options,
            limit=poll_messages,
            busy_timeout=busy_timeout,
            busy_interval=_BUSY_INTERVAL,
        )
        self._publication = publication
        self._began = 0.0

    def acknowledge(self, lsn: LSN) -> None:
        """Refuse: who looks only acknowledges nothing."""
        raise refused_acknowledgement(self._slot, lsn, self._received_lsn)

    def confirm(self, timeout: float) -> bool:
        """Return True: nothing was acknowledged that the slot could not have heard of."""
        del timeout
        return True

    def _prepare_poll(self) -> None:
        confirmed_lsn = check_source(self._control, self._slot, self._publication).confirmed_flush_lsn
        if confirmed_lsn > self._received_lsn:
            raise moved_on(self._slot, confirmed_lsn, self._received_lsn)
        self._began = time.monotonic()

    def _finish_poll(self, peek: Peek) -> None:
        now = time.monotonic()
        if peek.message_count >= peek.limit:
            self._limit = min(2 * peek.limit, _MOST_MESSAGES)
            return
        self._received_lsn = max(self._received_lsn, peek.end_lsn)
        self._next_poll = now + max(_IDLE_INTERVAL, now - self._began)


def start_sql_follow(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    busy_timeout: float = 10.0,
    poll_messages: int = POLL_MESSAGES,
    application_name: str = "pgdelta",
) -> SqlFollow:
    """Return the looks at the slot from its confirmed position; a busy one is tried for `busy_timeout`."""
    return SqlFollow(
        open_sessions(conninfo, slot, publication, application_name=application_name),
        publication=publication,
        options=options,
        poll_messages=poll_messages,
        busy_timeout=busy_timeout,
    )
