"""The SQL route of `pgdelta tail`: read a slot with its SQL functions, and never move it.

`SqlFollow` polls with `sql_polling`, as `SqlStream` does for ingest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pipeline.postgres.replication.change_stream import refused_acknowledgement
from pipeline.postgres.replication.slot import require_slot, skipped_changes_error
from pipeline.postgres.replication.sql_polling import (
    IDLE_INTERVAL,
    Peek,
    SlotSessions,
    SqlPolling,
    open_sessions,
)
from pipeline.protocol.lsn import LSN

#: The limit of messages of the first poll; the server stops after the transaction that reaches it.
FIRST_POLL_MESSAGES = 20_000
_MAX_POLL_MESSAGES = 2**31 - 1  # the server's integer


def start_sql_follow(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    busy_timeout: float = 10.0,
    poll_messages: int = FIRST_POLL_MESSAGES,
    application_name: str = "pgdelta",
) -> SqlFollow:
    """Return the stream of the slot from its confirmed LSN; a slot in use is retried for `busy_timeout`."""
    return SqlFollow(
        open_sessions(conninfo, slot, publication, application_name=application_name),
        publication=publication,
        options=options,
        poll_messages=poll_messages,
        busy_timeout=busy_timeout,
    )


class SqlFollow(SqlPolling):
    """A slot that is read and never moved; a ChangeStream, started by `start_sql_follow`.

    Each poll starts at the slot's confirmed LSN and returns messages of earlier polls again, which the
    consumer recognizes by their LSNs. A poll that ends at its limit of messages is repeated with twice the
    limit. The pause between two polls is as long as the last poll, so that a server with much to decode is
    not kept busy. If the slot's own reader moves it beyond what was returned, the stream fails, because
    changes would be missing silently.
    """

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
        super().__init__(sessions, options=options, poll_messages=poll_messages, busy_timeout=busy_timeout)
        self._publication = publication
        self._started_at = 0.0

    def acknowledge(self, lsn: LSN) -> None:
        """Raise SourceError: nothing can be acknowledged."""
        raise refused_acknowledgement(self._slot, lsn, self._received_lsn)

    def confirm(self, timeout: float) -> bool:
        """Return True: there is no acknowledgement to wait for."""
        return True

    def _prepare_poll(self) -> None:
        confirmed_lsn = require_slot(self._control, self._slot, self._publication).confirmed_flush_lsn
        if confirmed_lsn > self._received_lsn:
            raise skipped_changes_error(self._slot, confirmed_lsn, self._received_lsn)
        self._started_at = time.monotonic()

    def _finish_poll(self, peek: Peek) -> None:
        now = time.monotonic()
        if peek.message_count >= peek.limit:
            self._limit = min(2 * peek.limit, _MAX_POLL_MESSAGES)
            return
        self._received_lsn = max(self._received_lsn, peek.end_lsn)
        self._next_poll = now + max(IDLE_INTERVAL, now - self._started_at)
