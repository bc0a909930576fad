"""`{root}/bronze/copies`: how far the copy of each table is; and what somebody asked to be copied anew.

A copy begins with the snapshot that it is read under and the ranges of pages to read, in order. How many of
these are in bronze is recorded with their rows, as a position of the copy's own in the log of `changes`. A
run that finds a copy begun and not complete goes on under another snapshot, but for a patch, a copy of some
keys, which begins anew. Only ingest writes here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import functions as F

from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import GAP, CopyRequest, Gap, key_range_rows, key_ranges_of, states_of
from pipeline.delta.commit_files import Epoch, commit_files
from pipeline.delta.table import Lake, local_frame
from pipeline.delta.timestamps import from_microseconds, now
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

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
        self._history = CopyHistory()
        self._recorded_at = 0  # microseconds since 1970: of the newest row
        self._asked_version = -1
        self.epoch: Epoch | None = None

    def read(self) -> CopyHistory:
        """Return what is recorded now; rows are read only where a table has another version than before."""
        asked = self._requests.version()
        history = replace(self._history, version=self.table.version())
        if asked != self._asked_version:
            history = replace(history, requests=self._read_requests())
        if history.version != self._history.version:
            micros = F.expr("unix_micros(recorded_at)").alias("micros")
            rows = self.table.frame().withColumn("micros", micros).orderBy("copy_id", "micros").collect()
            self._recorded_at = max((row.micros for row in rows), default=0)
            gaps = (Gap(LSN(r.from_lsn), LSN(r.lsn), r.sentence) for r in rows if r.state == GAP)
            history = replace(
                history,
                states=states_of([row for row in rows if row.state != GAP]),
                gaps=tuple(sorted(gaps, key=lambda gap: gap.end)),
            )
        self._history, self._asked_version = history, asked
        return history

    def _read_requests(self) -> tuple[CopyRequest, ...]:
        rows = self._requests.frame().orderBy("requested_at").collect()
        return tuple(
            CopyRequest(r.request_id, TableName(r.schema_name, r.table_name), r.reason, key_ranges_of(r))
            for r in rows
        )

    def version(self) -> int:
        """Return the version of the table, -1 where there is none."""
        return self.table.version()

    def record(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, by one commit; its time is later than all before, also where the clock went back."""
        if self.read().version < 0:
            self.table.ensure(COPIES)
        recorded_at = max(now(), from_microseconds(self._recorded_at + 1))
        stamped = [dict(row) | {"recorded_at": recorded_at} for row in rows]
        frame = local_frame(self.lake.spark, stamped, COPIES)
        commit_files(self.table, [], rows=frame, epoch=self.epoch)

    def record_gap(self, start: LSN, end: LSN, sentence: str) -> None:
        """Record that the stream lacks what lies between two positions."""
        self.record([{"copy_id": 0, "state": GAP, "from_lsn": start, "lsn": end, "sentence": sentence}])

    def request(self, requests: Sequence[CopyRequest]) -> None:
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
