"""`{root}/bronze/copies`: how far the copy of each table is; and what somebody asked to be copied anew.

A copy begins with the snapshot that it is read under and the ranges of pages to read, in order. How many of
these are in bronze is recorded with their rows, as a position of the copy's own in the log of `changes`. A
run that finds a copy begun and not complete goes on under another snapshot, but for a patch, a copy of some
keys, which begins anew. Only ingest writes here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pipeline.keys import KeyRange
from pipeline.lake.instants import now
from pipeline.lake.tables import Lake, local_frame
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.rules import TableName
from pipeline.silver.copies import Copy

_KEY_RANGES = "key_ranges ARRAY<STRUCT<first: ARRAY<STRING>, last: ARRAY<STRING>>>"
COPIES = (
    "copy_id BIGINT, schema_name STRING, table_name STRING, relation_id BIGINT, membership BIGINT, "
    "relation_version BIGINT, state STRING, lsn BIGINT, running ARRAY<BIGINT>, ranges_before BIGINT, "
    "ranges ARRAY<STRUCT<relation_id: BIGINT, filenode: BIGINT, first_page: BIGINT, end_page: BIGINT>>, "
    "late ARRAY<BIGINT>, from_lsn BIGINT, row_count BIGINT, requests ARRAY<STRING>, sentence STRING, "
    f"recorded_at TIMESTAMP, {_KEY_RANGES}"
)
REQUESTS = (
    "request_id STRING, schema_name STRING, table_name STRING, reason STRING, requested_at TIMESTAMP, "
    + _KEY_RANGES
)
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
    """One copy of a table, or of some of its keys: `readings` in order; what is complete is a `copy`."""

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
    key_ranges: tuple[KeyRange, ...] = ()

    @property
    def copy(self) -> Copy | None:
        """Return the copy that silver may begin with, None where it is not complete."""
        if self.state != COMPLETE or self.relation_version is None:
            return None
        lsns = tuple(reading.lsn for reading in self.readings)
        return Copy(self.id, self.relation_version, lsns, self.row_count, self.late, self.key_ranges)


@dataclass(frozen=True, slots=True)
class Gap:
    """What the stream lacks: everything that was committed behind `start` and up to `end`."""

    start: LSN
    end: LSN
    sentence: str

    @property
    def sentence_of_tables(self) -> str:
        """Say what becomes of a table that lacks what lies in it."""
        return (
            f"the stream has a gap from {self.start} to {self.end}: the table stays as of {self.start} until "
            "it is copied anew, which was asked for"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody's, or a policy's, wish to have a table copied anew, or the rows of some of its keys."""

    id: str
    name: TableName
    reason: str
    key_ranges: tuple[KeyRange, ...] = ()

    @classmethod
    def of(cls, name: TableName, reason: str, key_ranges: Sequence[KeyRange] = ()) -> "Request":
        """Return a new request."""
        return cls(uuid4().hex, name, reason, tuple(key_ranges))


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
        """Return the copies of every table, and of keys of it, oldest first."""
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
        """Return the newest copy of a whole table, whatever became of it."""
        states = [state for state in self.states().get(name, ()) if not state.key_ranges]
        return states[-1] if states else None

    def unfinished(self, name: TableName) -> list[CopyState]:
        """Return the copies of a table, or of keys of it, that a run began and did not bring to an end."""
        return [state for state in self.states().get(name, ()) if state.state == READING]

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

    def came_back(self, name: TableName, relation_id: int, membership: int) -> LSN | None:
        """Return as of when a table was copied whose entry in the publication is another one since."""
        last = self.last(name)
        if last is None or last.state != COMPLETE or last.relation_id != relation_id or not last.membership:
            return None  # copies of an older release do not know the entry of a schema
        return last.readings[0].lsn if last.membership != membership else None

    def newest(self) -> dict[TableName, Copy]:
        """Return the newest complete copy of each table."""
        return {
            name: copy
            for name, states in self.states().items()
            for state in states
            if (copy := state.copy) and not copy.key_ranges
        }

    def is_older(self, name: TableName, lsn: LSN) -> bool:
        """Say whether a table that is still there was copied before an LSN, or never."""
        copy = self.newest().get(name)
        return not self.is_gone(name) and (copy is None or copy.lsns[0] < lsn)

    def patches(self, name: TableName, after: Copy | None) -> list[Copy]:
        """Return the complete copies of keys of a table, in order, that came after a copy of it all."""
        found = (state.copy for state in self.states().get(name, ()) if state.key_ranges)
        return [copy for copy in found if copy and (after is None or copy.id > after.id)]

    def record(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, by one commit."""
        if not self.table.exists():
            self.table.ensure(COPIES)
        stamped = [dict(row) | {"recorded_at": now()} for row in rows]
        frame = local_frame(self.lake.spark, stamped, COPIES)
        self.table.append(frame, adds_columns=True)  # that of an older release has fewer

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
                "key_ranges": key_range_rows(request.key_ranges),
            }
            for request in requests
        ]
        self._requests.append(local_frame(self.lake.spark, rows, REQUESTS), adds_columns=True)

    def open_requests(self) -> dict[TableName, list[Request]]:
        """Return what was asked for and has no copy yet that is complete or gone."""
        version = self._requests.version()
        if version != self._asked_version:
            rows = self._requests.frame().orderBy("requested_at").collect()
            self._asked = [
                Request(r.request_id, (r.schema_name, r.table_name), r.reason, _key_ranges(r)) for r in rows
            ]
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


def key_range_rows(ranges: Sequence[KeyRange]) -> list[dict[str, list[str]]] | None:
    """Return ranges as a row has them."""
    return [{"first": list(each.first), "last": list(each.last)} for each in ranges] or None


def _key_ranges(row: Any) -> tuple[KeyRange, ...]:
    found = getattr(row, "key_ranges", None)  # a lake of an older release has none
    return tuple(KeyRange(tuple(each.first), tuple(each.last)) for each in found or ())


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
            state.key_ranges = _key_ranges(row)
        elif row.state == GONE:
            state.gone_at = LSN(row.lsn)
        elif row.state == COMPLETE:
            state.row_count = row.row_count
            state.late = tuple(LSN(lsn) for lsn in row.late)
    return {name: [states[i] for i in sorted(states)] for name, states in found.items()}
