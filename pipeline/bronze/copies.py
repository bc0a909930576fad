"""`{root}/bronze/copies`: what happened to the copy of each table; and `_pgdelta/requests` for copies.

A copy begins with the snapshot that it is read under and the chunks to read, in order. How many of these are
in bronze is recorded with their rows, as an offset of the copy's own in the log of `changes`. A run that
finds an incomplete copy resumes it under another snapshot; a copy of some keys begins again. Ingest writes
`copies`; and a complete copy is recorded again, with fewer rows, before `pgdelta maintain` removes some.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pipeline.bronze.copy_states import (
    ABANDONED,
    COMPARED,
    COMPLETE,
    DROPPED,
    GAP,
    MOVED,
    READING,
    Chunk,
    Comparison,
    CopyHistory,
    CopyRequest,
    CopyState,
    Gap,
    SnapshotChunks,
)
from pipeline.bronze.source_moves import MovedTable, SourceMoves
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.commit_files import Epoch, commit_files
from pipeline.delta.log_retention import short_log
from pipeline.delta.new_rows import NewRows, add_columns
from pipeline.delta.record_table import ddl_of, record_of, row_of
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import EPOCH, now
from pipeline.delta.table import Lake
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_KEY_RANGES = f"key_ranges ARRAY<STRUCT<{ddl_of(KeyRange, ':')}>>"
COPIES = (
    "copy_id BIGINT, schema_name STRING, table_name STRING, relation_id BIGINT, membership BIGINT, "
    "relation_version BIGINT, state STRING, lsn BIGINT, running ARRAY<BIGINT>, chunks_before BIGINT, "
    f"chunks ARRAY<STRUCT<{ddl_of(Chunk, ':')}>>, "
    "invisible_commits ARRAY<BIGINT>, from_lsn BIGINT, row_count BIGINT, requests ARRAY<STRING>, "
    f"sentence STRING, recorded_at TIMESTAMP, {_KEY_RANGES}"
)
REQUESTS = (
    "request_id STRING, schema_name STRING, table_name STRING, reason STRING, requested_at TIMESTAMP, "
    + _KEY_RANGES
)
_MICROSECOND = timedelta(microseconds=1)
CopyRow = dict[str, object]


# The rows of `copies`: one for each thing that happens to a copy.
def reading_row(state: CopyState, snapshot: SnapshotChunks) -> CopyRow:
    """Return the row of a copy that is read under a snapshot."""
    return {
        **_copy_key(state, READING),
        "relation_id": state.relation_id,
        "membership": state.membership,
        "relation_version": state.relation_version,
        "lsn": snapshot.lsn,
        "running": list(snapshot.running),
        "chunks_before": snapshot.chunks_before,
        "chunks": [row_of(chunk) for chunk in snapshot.chunks],
        "key_ranges": _key_range_rows(state.key_ranges),
        "requests": list(state.requests),
    }


def complete_row(state: CopyState, invisible_commits: Sequence[LSN]) -> CopyRow:
    """Return the row that records a copy as complete in bronze."""
    return {
        **_copy_key(state, COMPLETE),
        "invisible_commits": [int(lsn) for lsn in invisible_commits],
        "row_count": state.row_count,
        "requests": list(state.requests),
    }


def abandoned_row(state: CopyState, sentence: str) -> CopyRow:
    """Return the row of a copy whose rows do not count, and why."""
    return {**_copy_key(state, ABANDONED), "requests": list(state.requests), "sentence": sentence}


def dropped_row(history: CopyHistory, name: TableName, lsn: LSN, sentence: str) -> CopyRow:
    """Return the row of a table that is not published any more, and why; its requests end with it."""
    last = history.last(name)
    state = last if last is not None and last.state == READING else None
    return {
        **_copy_key(state or CopyState(history.next_id(), name, DROPPED), DROPPED),
        "lsn": lsn,
        "requests": [request.id for request in history.open_requests.get(name, [])],
        "sentence": sentence,
    }


def gap_row(start: LSN, end: LSN, sentence: str, *, is_fork: bool = False) -> CopyRow:
    """Return the row of a gap of the stream, from `start` (exclusive) to `end` (inclusive)."""
    row: CopyRow = {"copy_id": 0, "state": GAP, "from_lsn": start, "lsn": end, "sentence": sentence}
    return {**row, "membership": 1} if is_fork else row


def compared_row(name: TableName, comparison: Comparison) -> CopyRow:
    """Return the row of a table that was compared with the source after a gap."""
    return {
        "copy_id": 0,
        "schema_name": name.schema,
        "table_name": name.table,
        "state": COMPARED,
        "relation_id": comparison.relation_id,
        "membership": comparison.membership,
        "from_lsn": comparison.gap_end,
        "lsn": comparison.lsn,
        "requests": list(comparison.requests),
        "sentence": comparison.sentence,
    }


def moved_row(table: MovedTable) -> CopyRow:
    """Return the row of a table whose source moved to another server."""
    return {
        "copy_id": 0,
        "schema_name": table.name.schema,
        "table_name": table.name.table,
        "state": MOVED,
        "relation_id": table.relation_id,
        "membership": table.lake_id,
        "running": list(table.numbers),
        "invisible_commits": list(table.numbers.values()),
        "lsn": table.lsn,
    }


def _moves(rows: Sequence[Mapping[str, Any]]) -> SourceMoves:
    """Return the tables of all moves, each once: a run that was killed recorded them before."""
    found = {
        (row["schema_name"], row["table_name"], row["lsn"]): MovedTable(
            TableName(row["schema_name"], row["table_name"]),
            LSN(row["lsn"]),
            row["relation_id"],
            row["membership"],
            dict(zip(row["running"], row["invisible_commits"], strict=True)),
        )
        for row in rows
    }
    return SourceMoves(tuple(found.values()))


def _copy_key(state: CopyState, now: str) -> CopyRow:
    name = state.name
    return {"copy_id": state.id, "schema_name": name.schema, "table_name": name.table, "state": now}


def _key_range_rows(ranges: Sequence[KeyRange]) -> list[dict[str, Any]] | None:
    return [row_of(each) for each in ranges] or None


def _key_ranges(rows: Sequence[Mapping[str, Any]] | None) -> tuple[KeyRange, ...]:
    return tuple(record_of(KeyRange, row) for row in rows or ())


def _states(rows: Sequence[Mapping[str, Any]]) -> dict[TableName, list[CopyState]]:
    """Return the copies of each table, given all rows in the order in which they were recorded."""
    found: dict[TableName, dict[int, CopyState]] = {}
    for row in rows:
        name, copy_id = TableName(row["schema_name"], row["table_name"]), row["copy_id"]
        state = found.setdefault(name, {}).setdefault(copy_id, CopyState(copy_id, name, row["state"]))
        state.state = row["state"]
        state.requests = tuple(row["requests"] or state.requests)
        state.sentence = row["sentence"]
        if row["state"] == READING:
            state.relation_id, state.membership = row["relation_id"], row["membership"]
            state.relation_version = row["relation_version"]
            chunks = tuple(Chunk(**chunk) for chunk in row["chunks"])
            running, before = tuple(row["running"]), row["chunks_before"]
            lsn, recorded_at = LSN(row["lsn"]), row["recorded_at"]
            state.snapshots.append(SnapshotChunks(lsn, running, before, chunks, recorded_at))
            state.key_ranges = _key_ranges(row["key_ranges"])
        elif row["state"] == DROPPED:
            state.dropped_at = LSN(row["lsn"])
        elif row["state"] == COMPLETE:
            state.row_count = row["row_count"]
            state.invisible_commits = tuple(LSN(lsn) for lsn in row["invisible_commits"])
    return {name: [states[i] for i in sorted(states)] for name, states in found.items()}


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> dict[TableName, list[Comparison]]:
    """Return the comparisons of each table, oldest first."""
    found: dict[TableName, list[Comparison]] = {}
    for row in sorted(rows, key=lambda row: row["lsn"]):
        found.setdefault(TableName(row["schema_name"], row["table_name"]), []).append(
            Comparison(
                LSN(row["from_lsn"]),
                LSN(row["lsn"]),
                row["relation_id"],
                row["membership"],
                tuple(row["requests"]),
                row["sentence"],
            )
        )
    return found


def needed_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a history needs of all rows, in order.

    An ended copy is not resumed, so its chunks and the transactions that its snapshots did not see are left
    out. Of a table's abandoned copies only the newest one is kept.
    """
    last = {row["copy_id"]: row for row in rows}
    newest: dict[tuple[str, str], int] = {}
    for row in last.values():
        if row["state"] == ABANDONED:
            newest[row["schema_name"], row["table_name"]] = row["copy_id"]
    found = []
    for row in rows:
        end = last[row["copy_id"]]
        name = row["schema_name"], row["table_name"]
        if end["state"] == ABANDONED and newest[name] != row["copy_id"]:
            continue
        is_resumable = end["state"] == READING or row["state"] != READING
        found.append(row if is_resumable else {**row, "chunks": [], "running": []})
    return found


class Copies:
    """Reads and writes `bronze/copies` and `_pgdelta/requests`."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.table = lake.table("bronze", "copies")
        self._requests = lake.table("_pgdelta", "requests")
        self._history = CopyHistory()
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._new_rows = NewRows(self.table)
        self._recorded_at = EPOCH  # of the newest row
        self._requests_version = -1

    def read(self) -> CopyHistory:
        """Return what is recorded now; only rows of files that were not read yet are read."""
        with self._lock:
            return self._read()

    def _read(self) -> CopyHistory:
        requests_version, version = self._requests.version(), self.table.version()
        if (requests_version, version) == (self._requests_version, self._history.version):
            return self._history
        history = replace(self._history, version=version)
        if requests_version != self._requests_version:
            history = replace(history, requests=self._read_requests())
        if history.version != self._history.version:
            rows = self._read_rows()
            self._recorded_at = max((row["recorded_at"] for row in rows), default=EPOCH)
            rows = self._rows = needed_rows(rows)
            gaps = (
                Gap(LSN(row["from_lsn"]), LSN(row["lsn"]), row["sentence"], bool(row["membership"]))
                for row in rows
                if row["state"] == GAP
            )
            history = replace(
                history,
                states=_states([row for row in rows if row["state"] not in (GAP, COMPARED, MOVED)]),
                moves=_moves([row for row in rows if row["state"] == MOVED]),
                comparisons=_comparisons([row for row in rows if row["state"] == COMPARED]),
                gaps=tuple(sorted(gaps, key=lambda gap: gap.end)),
            )
        self._history, self._requests_version = history, requests_version
        return history

    def _read_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all copies, in order; those of files that were read before from memory."""
        rows, is_more = self._new_rows.read()
        if is_more:
            rows += self._rows
        return sorted(rows, key=lambda row: (row["copy_id"], row["recorded_at"]))

    def _read_requests(self) -> tuple[CopyRequest, ...]:
        rows = self._requests.rows().to_pylist()
        rows.sort(key=lambda row: row["requested_at"])
        return tuple(
            CopyRequest(
                row["request_id"],
                TableName(row["schema_name"], row["table_name"]),
                row["reason"],
                _key_ranges(row["key_ranges"]),
            )
            for row in rows
        )

    def version(self) -> int:
        """Return the version of `copies`, -1 if there is no such table."""
        return self.table.version()

    def record(self, rows: Sequence[Mapping[str, object]], epoch: Epoch | None = None) -> None:
        """Append rows in one commit; they are recorded later than all before, even if the clock went back."""
        if self.read().version < 0:
            self.table.ensure(COPIES, short_log())
        add_columns(self.table, COPIES)
        recorded_at = max(now(), self._recorded_at + _MICROSECOND)
        stamped = [dict(row) | {"recorded_at": recorded_at} for row in rows]
        with crash_step(CrashStep.RECORD_COPY):
            commit_files(self.table, [], rows=(stamped, COPIES), epoch=epoch)

    def request(self, requests: Sequence[CopyRequest]) -> None:
        """Request copies of tables."""
        if not requests:
            return
        self._requests.ensure(REQUESTS, short_log())
        add_columns(self._requests, REQUESTS)
        rows = [
            {
                "request_id": request.id,
                "schema_name": request.name.schema,
                "table_name": request.name.table,
                "reason": request.reason,
                "requested_at": now(),
                "key_ranges": _key_range_rows(request.key_ranges),
            }
            for request in requests
        ]
        retry_conflicts(lambda: self._requests.append_rows(rows, REQUESTS))
