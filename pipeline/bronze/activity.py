"""Recent activity: changes of the last day by table and operation, and the commit times of LSNs.

Bronze is read from the LSN of the newest manifest that is a day old: the rest is older.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, pairwise

from pipeline.bronze.changes_scan import MAX_LSN
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.surveys import is_after, number_of_interval
from pipeline.delta.sql import EPOCH, from_microseconds, to_microseconds
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

WINDOW = timedelta(days=1)
RECENT = timedelta(hours=1)
_SLACK = timedelta(hours=1)  # by which the clocks of source and driver may differ
_SHORTEST = timedelta(minutes=1)  # over which a rate is measured
_COLUMNS = ("schema_name", "table_name", "op", "commit_lsn", "end_lsn", "commit_time")


@dataclass(frozen=True, slots=True)
class Mark:
    """A time at which the source's WAL had reached an LSN."""

    lsn: LSN
    time: datetime


@dataclass(frozen=True, slots=True)
class Activity:
    """Counts of changes committed within the last day, by the operation's letter, of tables that had any.

    `commit_times` has, for each requested LSN, the commit time of the last transaction up to it; `since` is a
    mark from which on the rate of the source's WAL is measured.
    """

    operations: Mapping[TableName, Mapping[str, int]] = field(default_factory=dict)
    commit_times: Mapping[LSN, datetime] = field(default_factory=dict)
    since: Mark | None = None


def longest_pause(bronze: Bronze) -> timedelta | None:
    """Return the longest time between two commits of bronze that the log still has, None if it has one."""
    times = [commit.get("timestamp") for commit in bronze.changes.newest_commits()]
    known = [time for time in times if time is not None]
    pauses = [later - earlier for later, earlier in pairwise(known)]
    return timedelta(milliseconds=max(pauses)) if pauses else None


def read_activity(bronze: Bronze, captured: BronzeOffset, lsns: Collection[LSN], now: datetime) -> Activity:
    """Read what was committed within a day before `now`, and the commit times of LSNs."""
    requested = sorted({lsn for lsn in lsns if lsn > INVALID})
    manifests = _read_manifests(bronze.lake, requested, now - WINDOW - _SLACK)
    day, recent, settled = (to_microseconds(now - age) for age in (WINDOW, RECENT, _SHORTEST))
    number = number_of_interval([INVALID, *requested]) if requested else "-1"
    is_recent, is_before = f"micros BETWEEN {recent} AND {settled}", f"micros < {recent}"
    counts = ", ".join(f"count_if(op = '{op}' AND micros >= {day})" for op in "IUDT")
    sql = f"""
        SELECT schema_name, table_name, number, {counts}, max(micros),
            min(commit_lsn) FILTER (WHERE {is_recent}), min_by(micros, commit_lsn) FILTER (WHERE {is_recent}),
            max(commit_lsn) FILTER (WHERE {is_before}), max_by(micros, commit_lsn) FILTER (WHERE {is_before})
        FROM (SELECT *, {number} AS number, unix_micros(commit_time) AS micros FROM {{changes}})
        GROUP BY schema_name, table_name, number
    """
    rows = bronze.select(sql, _COLUMNS, manifests.start_lsn, captured.lsn)
    operations: dict[TableName, dict[str, int]] = {}
    newest: dict[int, int] = {}  # by the number of the interval that ends at an LSN
    recent_marks, marks_before = [], []
    for schema, table, interval, inserts, updates, deletes, truncates, micros, *marks in rows:
        if any(found := (inserts, updates, deletes, truncates)):
            of_table = operations.setdefault(TableName(schema, table), dict.fromkeys("IUDT", 0))
            for op, count in zip("IUDT", found, strict=True):
                of_table[op] += count
        newest[interval] = max(micros, newest.get(interval, micros))
        if marks[0] is not None:
            recent_marks.append((marks[0], marks[1]))
        if marks[2] is not None:
            marks_before.append((marks[2], marks[3]))
    times = dict(manifests.times)
    last: int | None = None
    for position, lsn in enumerate(requested):
        last = max((each for each in (last, newest.get(position)) if each is not None), default=None)
        if last is not None:
            times[lsn] = from_microseconds(last)
    since = manifests.newest
    if recent_marks or marks_before:
        mark_lsn, micros = min(recent_marks) if recent_marks else max(marks_before)
        since = Mark(LSN(mark_lsn), from_microseconds(micros))
    return Activity(operations, times, since)


def newest_commit(
    bronze: Bronze, starts: Mapping[TableName, LSN], end_lsn: LSN, copies: Collection[CompleteCopy]
) -> datetime | None:
    """Return when the newest change of some tables was committed, or the newest of some copies was read.

    Of each table the changes after its own LSN count, up to the end. Returns None if there are none.
    """
    times: list[int] = []
    if starts:
        condition = is_after(MAX_LSN, starts)
        sql = f"SELECT max(unix_micros(commit_time)) FROM {{changes}} WHERE {condition}"
        times += _numbers(bronze.select(sql, _COLUMNS, min(starts.values()), end_lsn, offsets=starts))
    if copies:
        ids = ", ".join(str(copy.id) for copy in copies)
        lsns = {lsn for copy in copies for lsn in copy.lsns}
        sql = f"SELECT max(unix_micros(commit_time)) FROM {{changes}} WHERE copy_id IN ({ids})"
        times += _numbers(bronze.select_copied(sql, (*_COLUMNS, "copy_id"), lsns))
    return from_microseconds(max(times)) if times else None


def _numbers(rows: Sequence[Sequence[int | None]]) -> list[int]:
    return [row[0] for row in rows if row[0] is not None]


def commit_times_of(lake: Lake, lsns: Collection[LSN]) -> dict[LSN, datetime]:
    """Return the commit times of LSNs, or of the batches before them, from the manifests."""
    requested = sorted({lsn for lsn in lsns if lsn > INVALID})
    return dict(_read_manifests(lake, requested, EPOCH).times) if requested else {}


@dataclass(frozen=True, slots=True)
class _Manifests:
    start_lsn: LSN
    times: Mapping[LSN, datetime]
    newest: Mark | None


def _read_manifests(lake: Lake, lsns: Collection[LSN], before: datetime) -> _Manifests:
    table = lake.table("_pgdelta", "manifests")
    if not table.exists():
        return _Manifests(INVALID, {}, None)
    rows = table.rows(["lsn", "written_at", "commit_time"])
    lsn, written_at, committed = (rows.column(name).cast("int64").to_pylist() for name in rows.column_names)
    limit, marks = to_microseconds(before), list(zip(lsn, written_at, strict=True))
    start_lsn = max((each for each, written in marks if written < limit), default=0)
    newest = max(marks, default=None)
    times: dict[LSN, datetime] = {}
    if lsns:
        found = sorted((each, time) for each, time in zip(lsn, committed, strict=True) if time is not None)
        starts = [each for each, _ in found]
        latest = [*accumulate((time for _, time in found), max)]
        for requested in lsns:
            if (count := bisect_right(starts, requested)) > 0:
                times[requested] = from_microseconds(latest[count - 1])
    mark = None if newest is None else Mark(LSN(newest[0]), from_microseconds(newest[1]))
    return _Manifests(LSN(start_lsn), times, mark)
