"""`{root}/bronze/copies`: how far the copy of each table is; and what somebody asked to be copied anew.

A copy begins with the snapshot that it is read under and the ranges of pages to read, in order. How many of
these are in bronze is recorded with their rows, as a position of the copy's own in the log of `changes`. A
run that finds a copy begun and not complete goes on under another snapshot. Only ingest writes here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pipeline.lake.records import TableName, now
from pipeline.lake.tables import Lake, LakeTable, local_frame
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.copies import Copy

COPIES = (
    "copy_id BIGINT, schema_name STRING, table_name STRING, relation_id BIGINT, membership BIGINT, "
    "relation_version BIGINT, state STRING, lsn BIGINT, running ARRAY<BIGINT>, ranges_before BIGINT, "
    "ranges ARRAY<STRUCT<relation_id: BIGINT, filenode: BIGINT, first_page: BIGINT, end_page: BIGINT>>, "
    "late ARRAY<BIGINT>, from_lsn BIGINT, row_count BIGINT, requests ARRAY<STRING>, sentence STRING, "
    "recorded_at TIMESTAMP"
)
REQUESTS = "request_id STRING, schema_name STRING, table_name STRING, reason STRING, requested_at TIMESTAMP"
READING, COMPLETE, ABANDONED, GONE, GAP = "reading", "complete", "abandoned", "gone", "gap"


@dataclass(frozen=True, slots=True)
class Range:
    """Pages [first_page, end_page) of one leaf, and the file node that they were in."""

    relation_id: int
    filenode: int
    first_page: int
    end_page: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a copy reads under one snapshot; `ranges_before` were read under earlier ones."""

    lsn: LSN
    running: tuple[int, ...]
    ranges_before: int
    ranges: tuple[Range, ...]

    @property
    def range_count(self) -> int:
        """Return how many ranges there are up to this snapshot's last."""
        return self.ranges_before + len(self.ranges)


@dataclass(slots=True)
class CopyState:
    """The newest copy of a table: `readings` in order; what is complete is a `copy`."""

    id: int
    name: TableName
    state: str
    relation_id: int | None = None
    membership: int | None = None  # the entry of the publication that it belongs to
    relation_version: int | None = None
    readings: list[Reading] = field(default_factory=list)
    requests: tuple[str, ...] = ()
    row_count: int = 0
    late: tuple[LSN, ...] = ()
    sentence: str | None = None
    gone_at: LSN = INVALID

    @property
    def copy(self) -> Copy | None:
        """Return the copy that silver may begin with, None where it is not complete."""
        if self.state != COMPLETE or self.relation_version is None:
            return None
        lsns = tuple(reading.lsn for reading in self.readings)
        return Copy(self.id, self.relation_version, lsns, self.row_count, self.late)


@dataclass(frozen=True, slots=True)
class Gap:
    """What the stream lacks: everything that was committed behind `start` and up to `end`."""

    start: LSN
    end: LSN
    sentence: str


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody's, or a policy's, wish to have a table copied anew."""

    id: str
    name: TableName
    reason: str

    @classmethod
    def of(cls, name: TableName, reason: str) -> "Request":
        """Return a new request."""
        return cls(uuid4().hex, name, reason)


class Copies:
    """Reads and writes how far copies are."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.table = lake.table("bronze", "copies")
        self._requests = lake.table("_pgdelta", "requests")
        self._version = -1
        self._states: dict[TableName, list[CopyState]] = {}
        self._gaps: tuple[Gap, ...] = ()
        self._asked: list[Request] = []
        self._asked_version = -1

    def states(self) -> Mapping[TableName, Sequence[CopyState]]:
        """Return the copies of every table, oldest first."""
        version = self.table.version()
        if version != self._version:
            rows = self.table.frame().orderBy("copy_id", "recorded_at").collect()
            self._states = _states([row for row in rows if row.state != GAP])
            gaps = (Gap(LSN(r.from_lsn), LSN(r.lsn), r.sentence) for r in rows if r.state == GAP)
            self._gaps = tuple(sorted(gaps, key=lambda gap: gap.end))
            self._version = version
        return self._states

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps of the stream, in order."""
        self.states()
        return self._gaps

    def is_beyond_gaps(self, copy: Copy | None) -> bool:
        """Say whether the stream is whole from a copy on; without one, whether it is from its beginning."""
        gaps = self.gaps()
        return not gaps or (copy is not None and copy.lsns[0] + 1 >= gaps[-1].end)

    def version(self) -> int:
        """Return the version of the table, -1 where there is none."""
        return self.table.version()

    def last(self, name: TableName) -> CopyState | None:
        """Return the newest copy of a table, whatever became of it."""
        states = self.states().get(name)
        return states[-1] if states else None

    def is_gone(self, name: TableName) -> bool:
        """Say whether a table was not there any more when it was to be copied."""
        last = self.last(name)
        return last is not None and last.state == GONE

    def is_complete(self, name: TableName, relation_id: int, membership: int) -> bool:
        """Say whether a table as it is published now has been copied, and was published ever since."""
        last = self.last(name)
        return (
            last is not None
            and last.state == COMPLETE
            and self.is_beyond_gaps(last.copy)
            and (last.relation_id, last.membership) == (relation_id, membership)
        )

    def newest(self) -> dict[TableName, Copy]:
        """Return the newest complete copy of each table."""
        found = {}
        for name, states in self.states().items():
            complete = [copy for state in states if (copy := state.copy)]
            if complete:
                found[name] = complete[-1]
        return found

    def record(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, by one commit."""
        if not self.table.exists():
            self.table.ensure(COPIES)
        stamped = [dict(row) | {"recorded_at": now()} for row in rows]
        self.table.append(local_frame(self.lake.spark, stamped, COPIES))

    def record_gap(self, start: LSN, end: LSN, sentence: str) -> None:
        """Record that the stream lacks what lies between two positions."""
        self.record([{"copy_id": 0, "state": GAP, "from_lsn": start, "lsn": end, "sentence": sentence}])

    def next_id(self) -> int:
        """Return an id that no copy has, above all others."""
        ids = [state.id for states in self.states().values() for state in states]
        return max([time.time_ns() // 1000, *(i + 1 for i in ids)])

    def request(self, requests: Sequence[Request]) -> None:
        """Ask for tables to be copied anew."""
        if not requests:
            return
        self._requests.ensure(REQUESTS)
        rows = [
            {
                "request_id": request.id,
                "schema_name": request.name[0],
                "table_name": request.name[1],
                "reason": request.reason,
                "requested_at": now(),
            }
            for request in requests
        ]
        self._requests.append(local_frame(self.lake.spark, rows, REQUESTS))

    def open_requests(self) -> dict[TableName, list[Request]]:
        """Return what was asked for and has no copy yet that is complete or gone."""
        version = self._requests.version()
        if version != self._asked_version:
            rows = self._requests.frame().orderBy("requested_at").collect()
            self._asked = [Request(r.request_id, (r.schema_name, r.table_name), r.reason) for r in rows]
            self._asked_version = version
        answered = {
            request
            for states in self.states().values()
            for state in states
            if state.state in (COMPLETE, GONE)
            for request in state.requests
        }
        found: dict[TableName, list[Request]] = {}
        for request in self._asked:
            if request.id not in answered:
                found.setdefault(request.name, []).append(request)
        return found


def late_commits(
    changes: LakeTable, readings: Mapping[TableName, Sequence[Reading]]
) -> dict[TableName, tuple[LSN, ...]]:
    """Return the commits before a snapshot's position that it does not hold, by table.

    An xid is given anew after 2³² others: only those of the last days can be meant.
    """
    conditions = {
        f"commit_lsn <= {int(reading.lsn)} AND xid IN ({', '.join(map(str, reading.running))})"
        for found in readings.values()
        for reading in found
        if reading.running
    }
    if not conditions:
        return {}
    rows = (
        changes.frame()
        .where("op IN ('I', 'U', 'D', 'T') AND commit_time > current_timestamp() - INTERVAL 3 DAYS")
        .where(" OR ".join(f"({condition})" for condition in sorted(conditions)))
        .select("schema_name", "table_name", "commit_lsn", "xid")
        .distinct()
    )
    late: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in rows.collect():
        for reading in readings.get((schema, table), ()):
            if commit_lsn <= reading.lsn and xid in reading.running:
                late.setdefault((schema, table), set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in late.items()}


def _states(rows: Sequence[Any]) -> dict[TableName, list[CopyState]]:
    found: dict[TableName, dict[int, CopyState]] = {}
    for row in rows:
        name = (row.schema_name, row.table_name)
        state = found.setdefault(name, {}).setdefault(row.copy_id, CopyState(row.copy_id, name, row.state))
        state.state = row.state
        state.requests = tuple(row.requests or state.requests)
        state.sentence = row.sentence
        if row.state == READING:
            state.relation_id, state.membership = row.relation_id, row.membership
            state.relation_version = row.relation_version
            ranges = tuple(Range(r.relation_id, r.filenode, r.first_page, r.end_page) for r in row.ranges)
            reading = Reading(LSN(row.lsn), tuple(row.running), row.ranges_before, ranges)
            state.readings.append(reading)
        elif row.state == GONE:
            state.gone_at = LSN(row.lsn)
        elif row.state == COMPLETE:
            state.row_count = row.row_count
            state.late = tuple(LSN(lsn) for lsn in row.late)
    return {name: [states[i] for i in sorted(states)] for name, states in found.items()}
