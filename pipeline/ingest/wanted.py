"""Which tables need a copy now: what a look at the source's catalog says, and what somebody asked for.

Each look records what is gone from the source. Tables that the stream has under an old name, and those that
somebody was writing to when they joined, wait until a copy has all that the stream will not bring.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from pipeline.config import Config
from pipeline.ingest.copy_events import CopyEvents
from pipeline.ingest.copy_rows import gone_row
from pipeline.ingest.copy_starts import Want
from pipeline.ingest.joining import Joining, has_joined
from pipeline.ingest.streamed_names import StreamedNames
from pipeline.lake.bronze.copy_history import CopyHistory
from pipeline.lake.bronze.tables import Bronze
from pipeline.postgres.connection import Connection, connect, read_flush_lsn
from pipeline.postgres.published import Membership, list_published
from pipeline.postgres.rows.snapshot import COPY_SESSIONS
from pipeline.postgres.writers import keeps_stale_entries, log_beyond_now
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.summaries import CopyProgress, IngestSummary
from pipeline.rules import TableName


class WantedCopies:
    """Looks at the source, over a session of its own that is opened again where it was lost."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        summary: IngestSummary,
        events: CopyEvents,
        stop: threading.Event,
        *,
        is_continuous: bool,
        reach: Callable[[LSN], None],
        wait: Callable[[LSN], bool],
    ) -> None:
        """Take `reach`, which has capture go to a position, and `wait`, which waits for it to be beyond."""
        self._config = config
        self._bronze = bronze
        self._summary = summary
        self._events = events
        self._stop = stop
        self._is_continuous = is_continuous
        self._reach = reach
        self._await = wait
        self._control: Connection | None = None
        self._joining = Joining()
        self.names = StreamedNames()  # under which the stream has tables
        self.is_waiting = False  # for transactions that write to tables which joined
        self.beyond = INVALID  # the ends of all that were waited for

    def close(self) -> None:
        """End the session."""
        if self._control is not None:
            self._control.close()

    @property
    def has_lost_session(self) -> bool:
        """Say whether the session over which it looks was lost: the next look opens another."""
        return self._control is not None and self._control.closed

    def look(self) -> dict[TableName, Want]:
        """Return the tables that need a copy; what is gone from the source is recorded as that."""
        config = self._config
        # Before the publication is looked at: what joins meanwhile is not missing in it.
        names = self._bronze.table_names() | self._bronze.copies.read().states.keys()
        if self._control is None or self._control.closed:
            self._control = connect(config.source.conninfo, application_name=COPY_SESSIONS)
        published = list_published(self._control, config.source.publication)
        looked_at = read_flush_lsn(self._control)
        astray = self._put_right(published, looked_at)
        copies = self._bronze.copies.read()
        wanted: dict[TableName, Want] = {}
        missing: set[TableName] = set()
        if config.source.copy == "initial":
            for name, now in published.items():
                if name in astray or not copies.is_complete(name, now.relation_id, now.entry):
                    wanted[name] = Want()
                    self._events.note(name, now, copies)
            missing = {name for name in names - published.keys() if not copies.is_gone(name)}
        for name, requests in copies.open_requests().items():
            if name in published:
                wanted[name] = Want.of(requests, is_whole=name in wanted)
            else:
                missing.add(name)
        if missing:
            self._reach(looked_at)
            for name in missing:
                self._summary.copies.pop(name, None)
            self._bronze.copies.record([gone_row(copies, name, looked_at) for name in sorted(missing)])
        failed = {name for name, copy in self._summary.copies.items() if copy.failure}
        skipped = set() if self._is_continuous else failed
        wanted = {
            name: want
            for name, want in sorted(wanted.items())
            if config.rule_for(*name) is not None and name not in skipped
        }
        waiting = self._wait_for_writers(self._control, {n: published[n] for n in wanted}, copies)
        self.is_waiting = bool(waiting)
        return {name: want for name, want in wanted.items() if name not in waiting}

    def _wait_for_writers(
        self, control: Connection, published: Mapping[TableName, Membership], copies: CopyHistory
    ) -> set[TableName]:
        """Return the tables that were written to when they joined, and are still."""
        joined = {n: now for n, now in published.items() if has_joined(now, copies.states.get(n, ()))}
        found = self._joining.look(control, joined)
        waiting = {name for name, table in found.items() if table.is_waiting}
        for name in waiting:
            self._summary.copies[name] = CopyProgress(failure=found[name].sentence(time.monotonic()))
        if untold := [table for name, table in found.items() if name not in waiting and not table.is_told]:
            self.beyond = log_beyond_now(control, self._stop.is_set)
            self._reach(self.beyond)
            is_told = not keeps_stale_entries(control.info.server_version)
            if not is_told and not self.names.ask(self.beyond, self._stop):
                return set(published)
            for table in untold:
                table.is_told = True
        return waiting

    def _put_right(self, published: Mapping[TableName, Membership], looked_at: LSN) -> set[TableName]:
        """Return the tables that went on under an old name, once a new session of the stream has begun.

        What was committed under the old name is in no copy that was made before.
        """
        rules, before = self._config.rule_for, self.names.astray(published)
        if not any(rules(*name) for name in before):
            return set()
        self._reach(looked_at)
        self._await(LSN(looked_at - 1))  # the stream may have to read that it was renamed
        now = self.names.astray(published)
        astray = {
            name
            for name, streamed in before.items()
            if rules(*name)
            and now.get(name) == streamed
            and self.names.may_ask(published[name].relation_id, name, streamed)
        }
        return astray if astray and self.names.ask(looked_at, self._stop) else set()
