"""`{root}/bronze/copies`: how far the copy of each table is; and what somebody asked to be copied anew.

A copy begins with the snapshot that it is read under and the ranges of pages to read, in order. How many of
these are in bronze is recorded with their rows, as a position of the copy's own in the log of `changes`. A
run that finds a copy begun and not complete goes on under another snapshot, but for a patch, a copy of some
keys, which begins anew. Only ingest writes here.
"""

import time
from collections.abc import Mapping, Sequence

from pyspark.sql import functions as F

from pipeline.lake.bronze.copy_states import (
    COMPLETE,
    GAP,
    GONE,
    READING,
    CopyState,
    Gap,
    Request,
    key_range_rows,
    key_ranges_of,
    states_of,
)
from pipeline.lake.instants import instant, now
from pipeline.lake.tables import Lake, local_frame
from pipeline.protocol.lsn import LSN
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


class Copies:
    """Reads and writes how far copies are."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.table = lake.table("bronze", "copies")
        self._requests = lake.table("_pgdelta", "requests")
        self._version = -1
        self._recorded_at = 0  # microseconds since 1970: of the newest row
        self._states: dict[TableName, list[CopyState]] = {}
        self._gaps: tuple[Gap, ...] = ()
        self._asked: list[Request] = []
        self._asked_version = -1

    def states(self) -> Mapping[TableName, Sequence[CopyState]]:
        """Return the copies of every table, and of keys of it, oldest first."""
        version = self.table.version()
        if version != self._version:
            micros = F.expr("unix_micros(recorded_at)").alias("micros")
            rows = self.table.frame().withColumn("micros", micros).orderBy("copy_id", "micros").collect()
            self._recorded_at = max((row.micros for row in rows), default=0)
            self._states = states_of([row for row in rows if row.state != GAP])
            gaps = (Gap(LSN(r.from_lsn), LSN(r.lsn), r.sentence) for r in rows if r.state == GAP)
            self._gaps = tuple(sorted(gaps, key=lambda gap: gap.end))
            self._version = version
        return self._states

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps of the stream, in order."""
        self.states()
        return self._gaps

    def last_gap(self, before: LSN) -> Gap | None:
        """Return the last gap that begins before an LSN, None where there is none."""
        return next((gap for gap in reversed(self.gaps()) if gap.start < before), None)

    def is_beyond_gaps(self, copy: Copy | None) -> bool:
        """Say whether the stream is whole from a copy on; without one, whether it is from its beginning."""
        gaps = self.gaps()
        return not gaps or (copy is not None and gaps[-1].is_before(copy.lsns[0]))

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

    def returning(self, newest: Mapping[TableName, Copy], upto: LSN) -> set[TableName]:
        """Return the tables that were gone before an LSN, are back, and of which no newest copy is newer."""
        found = set()
        for name, states in self.states().items():
            whole = [state for state in states if not state.key_ranges]
            gone = [s.id for s in whole if s.state == GONE and s.gone_at <= upto]
            is_back = bool(gone) and whole[-1].state != GONE
            if is_back and (name not in newest or newest[name].id < gone[-1]):
                found.add(name)
        return found

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

    def newest(self, before: LSN | None = None) -> dict[TableName, Copy]:
        """Return the newest complete copy of each table; before an LSN: of those that silver may show there.

        Such a one was read before that LSN, and behind the last gap before it.
        """
        gap = None if before is None else self.last_gap(before)
        return {
            name: copy
            for name, states in self.states().items()
            for state in states
            if (copy := state.copy)
            and not copy.key_ranges
            and (before is None or copy.through < before)
            and (gap is None or gap.is_before(copy.lsns[0]))
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
        """Append rows, by one commit; its time is later than all before, also where the clock went back."""
        if not self.table.exists():
            self.table.ensure(COPIES)
        self.states()
        recorded_at = max(now(), instant(self._recorded_at + 1))
        stamped = [dict(row) | {"recorded_at": recorded_at} for row in rows]
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
                Request(r.request_id, (r.schema_name, r.table_name), r.reason, key_ranges_of(r)) for r in rows
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
