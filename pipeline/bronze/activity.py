"""Recent activity: changes of the last day by table and operation, and the commit times of LSNs.

Bronze is read from the LSN of the newest manifest that is a day old: the rest is older.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.delta.sql import EPOCH, from_microseconds
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

WINDOW = timedelta(days=1)
RECENT = timedelta(hours=1)
_SLACK = timedelta(hours=1)  # by which the clocks of source and driver may differ
_SHORTEST = timedelta(minutes=1)  # over which a rate is measured


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


def read_activity(bronze: Bronze, captured: BronzeOffset, lsns: Collection[LSN], now: datetime) -> Activity:
    """Read what was committed within a day before `now`, and the commit times of LSNs."""
    requested = sorted({lsn for lsn in lsns if lsn > INVALID})
    manifests = _read_manifests(bronze.lake, requested, now - WINDOW - _SLACK)
    rows = bronze.changes.frame().where(
        f"op IN ('I', 'U', 'D', 'T') AND end_lsn > {int(manifests.start_lsn)} AND end_lsn <= "
        f"{int(captured.lsn)}"
    )
    mark = F.expr("struct(commit_lsn, unix_micros(commit_time) AS micros)")
    day, recent, settled = (_literal(now - age) for age in (WINDOW, RECENT, _SHORTEST))
    is_recent = F.expr(f"commit_time >= {recent} AND commit_time <= {settled}")
    found = (
        rows.groupBy("schema_name", "table_name")
        .agg(
            *(F.expr(f"count_if(op = '{op}' AND commit_time >= {day})").alias(op) for op in "IUDT"),
            F.min(F.when(is_recent, mark)).alias("recent"),
            F.max(F.when(F.expr(f"commit_time < {recent}"), mark)).alias("before"),
            F.array(*(_time_of(f"end_lsn <= {int(lsn)}") for lsn in requested)).alias("times"),
        )
        .collect()
    )
    operations = {
        TableName(row.schema_name, row.table_name): {op: row[op] for op in "IUDT"}
        for row in found
        if any(row[op] for op in "IUDT")
    }
    times = dict(manifests.times)
    for number, lsn in enumerate(requested):
        exact = [row.times[number] for row in found if row.times[number] is not None]
        if exact:
            times[lsn] = from_microseconds(max(exact))
    recent_marks = [row.recent for row in found if row.recent is not None]
    marks_before = [row.before for row in found if row.before is not None]
    since = manifests.newest
    if recent_marks or marks_before:
        mark_lsn, micros = min(recent_marks) if recent_marks else max(marks_before)
        since = Mark(LSN(mark_lsn), from_microseconds(micros))
    return Activity(operations, times, since)


def newest_commits(
    bronze: Bronze, after: LSN, end_lsn: LSN, copies: Collection[CompleteCopy]
) -> dict[TableName, datetime]:
    """Return when each table's newest change between two LSNs was committed, or its copy was read.

    The snapshot of a copy may hold anything that was committed before it.
    """
    copied = " OR ".join(f"(op = 'R' AND {copy.condition()})" for copy in copies) or "false"
    rows = bronze.changes.frame().where(
        f"(op IN ('I', 'U', 'D', 'T') AND end_lsn > {int(after)} AND end_lsn <= {int(end_lsn)}) OR {copied}"
    )
    newest = F.expr("max(unix_micros(commit_time))").alias("micros")
    found = rows.groupBy("schema_name", "table_name").agg(newest).collect()
    return {TableName(row.schema_name, row.table_name): from_microseconds(row.micros) for row in found}


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
    [row] = (
        table.frame()
        .agg(
            F.expr(f"max(lsn) FILTER (WHERE written_at < {_literal(before)})").alias("start_lsn"),
            F.expr("max(struct(lsn, unix_micros(written_at)))").alias("newest"),
            F.array(*(_time_of(f"lsn <= {int(lsn)}") for lsn in lsns)).alias("times"),
        )
        .collect()
    )
    times = {
        lsn: from_microseconds(micros)
        for lsn, micros in zip(lsns, row.times, strict=True)
        if micros is not None
    }
    newest = row.newest and Mark(LSN(row.newest[0]), from_microseconds(row.newest[1]))
    return _Manifests(LSN(row.start_lsn or 0), times, newest)


def _time_of(condition: str) -> Column:
    return F.expr(f"max(unix_micros(commit_time)) FILTER (WHERE {condition})")


def _literal(time: datetime) -> str:
    return f"TIMESTAMP '{time.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}+00:00'"
