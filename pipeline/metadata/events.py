"""`_pgdelta/events`: schema changes, and what silver could not follow exactly.

An event is recorded once, whichever process records it again: ingest and apply both write here.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.delta.record_table import TableRecord, ddl_of, record_of, row_of
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.metadata.waiting import Waiting
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

NEEDS_RESYNC = ("resync", "diverged")
"""Kinds of events after which only a resync makes silver equal to the source."""
HOLDING = ("held", "refused")
"""Kinds of events before whose LSN a table stays."""
MAINTENANCE_FAILED = "maintenance"
"""The kind of the events that say nothing of a table's rows."""
CATALOG = "catalog"
"""The kind of the events about a table's name in Spark's catalog."""
PUBLISHED, UNPUBLISHED, DETACHED = "published", "unpublished", "detached"
"""Kinds of events about a table's membership in the publication, which say nothing of its rows either."""
PARTIAL, WHOLE = "partial", "whole"
"""Kinds of events about whether silver is to show all rows that SELECT on the source does."""
PAUSED, RESUMED = "paused", "resumed"
"""Kinds of events about what an operator lets apply write."""
INFO = "info"
"""The kind of the events that say what a policy kept as it was; nothing is to be done."""
_MEMBERSHIP = (PUBLISHED, UNPUBLISHED, DETACHED)
_ROWS = (PARTIAL, WHOLE)

_IDENTITY = ["schema_name", "table_name", "lsn", "kind", "sentence"]


@dataclass(frozen=True, slots=True)
class Event(TableRecord):
    """One event of a table; events are equal whenever they were recorded.

    `kind` is evolved, refused, held, resync, diverged, published, unpublished, detached, partial, whole,
    paused, resumed, maintenance, catalog or info.
    """

    lsn: LSN
    kind: str
    sentence: str
    recorded_at: datetime = field(default=EPOCH, compare=False)


EVENTS = ddl_of(Event)


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """The newest event of each table's rows or columns, and why tables are not published.

    `holds` are the newest that hold a table. `unpublished` has the tables that were not published when ingest
    last polled, each with the reason, and `partial` those whose rows silver shows in part.
    """

    tables: Mapping[TableName, Event]
    holds: Mapping[TableName, Event]
    unpublished: Mapping[TableName, str]
    partial: Mapping[TableName, str]


def newest_events(events: Sequence[Event]) -> NewestEvents:
    """Return the newest of the events of each table, which are in the order in which they were recorded."""
    membership = {event.name: event for event in events if event.kind in _MEMBERSHIP}
    rows = {event.name: event for event in events if event.kind in _ROWS}
    left_out = (MAINTENANCE_FAILED, CATALOG, PAUSED, RESUMED, *_MEMBERSHIP, *_ROWS)
    return NewestEvents(
        {event.name: event for event in events if event.kind not in left_out},
        {event.name: event for event in events if event.kind in HOLDING},
        {name: event.sentence for name, event in membership.items() if event.kind == UNPUBLISHED},
        {name: event.sentence for name, event in rows.items() if event.kind == PARTIAL},
    )


class EventLog:
    """Reads and writes `_pgdelta/events`; safe to use from several threads."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "events")
        self._lock = threading.Lock()
        self._recorded: set[Event] = set()  # by this process, or found recorded
        self._files: tuple[str, frozenset[str]] = ("", frozenset())  # the table's id, and what was read of it
        self._history: tuple[tuple[str, int], Sequence[Event]] = ("", -1), ()  # a version, and its events
        self._waiting: Waiting[Event, None] = Waiting()
        self._resyncs: dict[TableName, LSN] = {}
        self._has_read_resyncs = False

    def ensure(self) -> None:
        """Create the table unless it exists."""
        self._table.ensure_for_appends(EVENTS)

    def record(self, events: Sequence[Event]) -> None:
        """Append the events that are not recorded yet; one commit appends those of all threads that wait."""
        if events:
            self.defer(events)
            self.flush()

    def defer(self, events: Sequence[Event]) -> None:
        """Append the events with the next ones, or by `flush`."""
        self._waiting.put(dict.fromkeys(events))

    def flush(self) -> None:
        """Append the events that wait."""
        with self._lock, self._waiting.taken() as waiting:
            self._note_resyncs(waiting)
            new = [event for event in waiting if event not in self._recorded]
            if not new:
                return

            def append() -> None:
                before = self._table.version()
                self._read()
                events = [replace(each, recorded_at=now()) for each in new if each not in self._recorded]
                if events:
                    self._table.append_rows(list(map(row_of, events)), EVENTS, compacts=True)
                    self._skip_own(before)

            retry_conflicts(append)  # ingest writes events too
            self._recorded.update(new)

    def _skip_own(self, before: int) -> None:
        """Do not read the events of our own commit, if there was no other since a version."""
        if self._table.local_path is not None:
            snapshot = self._table.snapshot()
            if snapshot.version == before + 1 and snapshot.table_id == self._files[0]:
                self._files = (snapshot.table_id, frozenset(snapshot.files))

    def _note_resyncs(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind in NEEDS_RESYNC:
                self._resyncs[event.name] = max(event.lsn, self._resyncs.get(event.name, INVALID))

    def resyncs(self) -> dict[TableName, LSN]:
        """Return the tables that need a resync, each with the LSN of its newest such event.

        The first call includes all recorded events, because an earlier run may have ended before it requested
        the copies. A table is returned until `forget_resyncs`.
        """
        with self._lock:
            if not self._has_read_resyncs:
                self._read()
                self._note_resyncs(self._recorded)
            self._has_read_resyncs = True
            return dict(self._resyncs)

    def forget_resyncs(self, resyncs: Mapping[TableName, LSN]) -> None:
        """Remove tables from `resyncs`, except those with a newer event."""
        with self._lock:
            for name, lsn in resyncs.items():
                if self._resyncs.get(name) == lsn:
                    del self._resyncs[name]

    def newest(self) -> NewestEvents:
        """Return the newest events of each table, by one read."""
        return newest_events(self.history())

    def history(self) -> Sequence[Event]:
        """Return all events, in the order in which they were recorded; only a new version is read."""
        snapshot = self._table.snapshot()
        version = snapshot.table_id, snapshot.version
        if version != self._history[0]:
            rows = self._table.rows(snapshot=snapshot).to_pylist() if snapshot.exists else ()
            events = (record_of(Event, row) for row in rows)
            self._history = version, sorted(events, key=lambda event: (event.recorded_at, event.lsn))
        return self._history[1]

    def _read(self) -> None:
        """Read the events that are recorded, on this machine only from files that were not read yet."""
        if not self._table.exists():
            return
        if self._table.local_path is None:
            rows = self._table.rows(_IDENTITY)
        else:
            snapshot = self._table.snapshot()
            table_id, read = self._files
            if table_id != snapshot.table_id:
                read = frozenset()
            new = {path: add for path, add in snapshot.files.items() if path not in read}
            rows = self._table.rows(_IDENTITY, snapshot=snapshot.with_files(new))
            self._files = (snapshot.table_id, frozenset(snapshot.files))
        self._recorded.update(record_of(Event, row) for row in rows.to_pylist())
