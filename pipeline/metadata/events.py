"""`_pgdelta/events`: schema changes, and what silver could not follow exactly.

An event is recorded once, whichever process records it again: ingest and apply both write here.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pyspark.sql import functions as F

from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import now
from pipeline.delta.table import Lake, local_frame
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

EVENTS = (
    "schema_name STRING, table_name STRING, lsn BIGINT, kind STRING, sentence STRING, recorded_at TIMESTAMP"
)
NEEDS_RESYNC = ("resync", "diverged")
"""Kinds of events after which only a resync makes silver equal to the source."""

_IDENTITY = ["schema_name", "table_name", "lsn", "kind", "sentence"]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a table; `kind` is evolved, refused, held, resync or diverged."""

    schema_name: str
    table_name: str
    lsn: LSN
    kind: str
    sentence: str

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)


class EventLog:
    """Reads and writes `_pgdelta/events`; safe to use from several threads."""

    def __init__(self, lake: Lake) -> None:
        self._spark = lake.spark
        self._table = lake.table("_pgdelta", "events")
        self._lock = threading.Lock()
        self._recorded: set[Event] = set()  # by this process, or found recorded
        self._resyncs: dict[TableName, LSN] = {}
        self._has_read_resyncs = False

    def ensure(self) -> None:
        """Create the table unless it exists."""
        self._table.ensure_for_appends(EVENTS)

    def record(self, events: Sequence[Event]) -> None:
        """Append the events that are not recorded yet, in one commit."""
        with self._lock:
            for event in events:
                if event.kind in NEEDS_RESYNC:
                    self._resyncs[event.name] = max(event.lsn, self._resyncs.get(event.name, INVALID))
            new = [event for event in events if event not in self._recorded]
            if not new:
                return
            rows = [asdict(event) | {"recorded_at": now()} for event in new]
            frame = local_frame(self._spark, rows, EVENTS)

            def append() -> None:
                unrecorded = frame.join(self._table.frame(), _IDENTITY, "left_anti")
                self._table.append_small(unrecorded.select(frame.columns))

            retry_conflicts(append)  # ingest writes events too
            self._recorded.update(new)

    def resyncs(self) -> dict[TableName, LSN]:
        """Return the tables that need a resync, each with the LSN of its newest such event.

        The first call includes all recorded events, because an earlier run may have ended before it requested
        the copies. A table is returned until `forget_resyncs`.
        """
        with self._lock:
            if not self._has_read_resyncs and self._table.exists():
                frame = self._table.frame().where(F.col("kind").isin(*NEEDS_RESYNC))
                newest = frame.groupBy("schema_name", "table_name").agg(F.max("lsn").alias("lsn"))
                for row in newest.collect():
                    name = TableName(row.schema_name, row.table_name)
                    self._resyncs[name] = max(LSN(row.lsn), self._resyncs.get(name, INVALID))
            self._has_read_resyncs = True
            return dict(self._resyncs)

    def forget_resyncs(self, resyncs: Mapping[TableName, LSN]) -> None:
        """Remove tables from `resyncs`, except those with a newer event."""
        with self._lock:
            for name, lsn in resyncs.items():
                if self._resyncs.get(name) == lsn:
                    del self._resyncs[name]

    def newest(self) -> dict[TableName, Event]:
        """Return the newest event of each table."""
        if not self._table.exists():
            return {}
        newest = "max_by(struct(lsn, kind, sentence), struct(recorded_at, lsn)) AS event"
        rows = self._table.frame().groupBy("schema_name", "table_name").agg(F.expr(newest)).collect()
        return {
            TableName(schema, table): Event(schema, table, LSN(event.lsn), event.kind, event.sentence)
            for schema, table, event in rows
        }
