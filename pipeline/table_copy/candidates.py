"""Which tables need a copy now: what a look at the source's catalog says, and what somebody asked for.

Each look records what is gone from the source. Tables that the stream has under an old name, and those that
somebody was writing to when they joined, wait until a copy has all that the stream will not bring.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.metadata.events import Event
from pipeline.metadata.records import Records
from pipeline.postgres.connection import Connection, connect, read_flush_lsn
from pipeline.postgres.open_transactions import keeps_stale_entries, write_wal_past_now
from pipeline.postgres.published_tables import Membership, list_published
from pipeline.postgres.snapshot.export import COPY_SESSIONS
from pipeline.progress import CopyProgress, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.new_tables import NewTables, is_new
from pipeline.table_copy.planner import Candidate
from pipeline.table_copy.reader_pool import dropped_row
from pipeline.table_copy.streamed_names import StreamedNames
from pipeline.table_name import TableName

# What becomes known of tables while they are copied, as events: they came back, or cannot be copied.
_CAME_BACK = (
    "the table left the publication and came back, or its row filter changed: what happened meanwhile is "
    "missing until it is copied anew, which goes on by itself"
)


class CopyEvents:
    """Records, once for each table and sentence, what an operator has to know of its copy."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._returned: set[TableName] = set()
        self._failed: dict[TableName, str] = {}

    def record(self, name: TableName, now: Membership, copies: CopyHistory) -> None:
        """Record an event where silver shows a table whose entry in the publication is another one now."""
        copied_at = copies.came_back(name, now.relation_id, now.entry)
        if copied_at is not None and name not in self._returned:
            records = Records(self._bronze.lake)
            if name in records.tables.read():
                records.events.record([Event(*name, copied_at, "resync", _CAME_BACK)])
            self._returned.add(name)

    def record_failures(self, failures: Mapping[TableName, str], lsn: LSN) -> None:
        """Record why tables cannot be copied, unless that is the last that is known of them."""
        new = {name: sentence for name, sentence in failures.items() if self._failed.get(name) != sentence}
        self._failed = dict(failures)
        if not new:
            return
        records = Records(self._bronze.lake)
        records.ensure()
        known = records.events.newest()
        events = [Event(*name, lsn, "held", f"it cannot be copied: {why}") for name, why in new.items()]
        told = {name: known[name].sentence for name in new if name in known}
        records.events.record(
            [e for e in events if told.get(TableName(e.schema_name, e.table_name)) != e.sentence]
        )


class CopyCandidates:
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
        self._new_tables = NewTables()
        self.names = StreamedNames()  # under which the stream has tables
        self.is_waiting = False  # for transactions that write to tables which joined
        self.waited_for = INVALID  # the ends of all that were waited for

    def close(self) -> None:
        """End the session."""
        if self._control is not None:
            self._control.close()

    @property
    def has_lost_session(self) -> bool:
        """Say whether the session over which it looks was lost: the next look opens another."""
        return self._control is not None and self._control.closed

    def poll(self) -> dict[TableName, Candidate]:
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
        wanted: dict[TableName, Candidate] = {}
        missing: set[TableName] = set()
        if config.source.copy == "initial":
            for name, now in published.items():
                if name in astray or not copies.is_complete(name, now.relation_id, now.entry):
                    wanted[name] = Candidate()
                    self._events.record(name, now, copies)
            missing = {name for name in names - published.keys() if not copies.is_dropped(name)}
        for name, requests in copies.open_requests().items():
            if name in published:
                wanted[name] = Candidate.of(requests, is_whole=name in wanted)
            else:
                missing.add(name)
        if missing:
            self._reach(looked_at)
            for name in missing:
                self._summary.copies.pop(name, None)
            self._bronze.copies.record([dropped_row(copies, name, looked_at) for name in sorted(missing)])
        failed = {name for name, copy in self._summary.copies.items() if copy.failure}
        skipped = set() if self._is_continuous else failed
        wanted = {
            name: want
            for name, want in sorted(wanted.items())
            if config.rule_for(name) is not None and name not in skipped
        }
        waiting = self._wait_for_writers(self._control, {n: published[n] for n in wanted}, copies)
        self.is_waiting = bool(waiting)
        return {name: want for name, want in wanted.items() if name not in waiting}

    def _wait_for_writers(
        self, control: Connection, published: Mapping[TableName, Membership], copies: CopyHistory
    ) -> set[TableName]:
        """Return the tables that were written to when they joined, and are still."""
        joined = {n: now for n, now in published.items() if is_new(now, copies.states.get(n, ()))}
        found = self._new_tables.poll(control, joined)
        waiting = {name for name, table in found.items() if table.is_waiting}
        for name in waiting:
            self._summary.copies[name] = CopyProgress(failure=found[name].sentence(time.monotonic()))
        if untold := [table for name, table in found.items() if name not in waiting and not table.is_told]:
            self.waited_for = write_wal_past_now(control, self._stop.is_set)
            self._reach(self.waited_for)
            is_told = not keeps_stale_entries(control.info.server_version)
            if not is_told and not self.names.request_session(self.waited_for, self._stop):
                return set(published)
            for table in untold:
                table.is_told = True
        return waiting

    def _put_right(self, published: Mapping[TableName, Membership], looked_at: LSN) -> set[TableName]:
        """Return the tables that went on under an old name, once a new session of the stream has begun.

        What was committed under the old name is in no copy that was made before.
        """
        rules, before = self._config.rule_for, self.names.renamed(published)
        if not any(rules(name) for name in before):
            return set()
        self._reach(looked_at)
        self._await(LSN(looked_at - 1))  # the stream may have to read that it was renamed
        now = self.names.renamed(published)
        astray = {
            name
            for name, streamed in before.items()
            if rules(name)
            and now.get(name) == streamed
            and self.names.may_request_session(published[name].relation_id, name, streamed)
        }
        return astray if astray and self.names.request_session(looked_at, self._stop) else set()
