"""The status of a pipeline as data and as a page: totals, the slot, one line a table, and what to do.

Tables that need attention are listed first. Lags are bytes of WAL and seconds; None means unknown. The page
fits 80 columns without breaking a word, and shows more columns in a wider terminal. Control characters and
markup in names of the source are escaped. Nothing here does I/O. Runs need no page, and so no `rich`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.schedule import NO_SCHEDULE, Schedule, ScheduledInterval
from pipeline.delta.sql import utc_text
from pipeline.errors import one_line
from pipeline.metadata.catalog_entries import CatalogEntry
from pipeline.metadata.events import HOLDING, NEEDS_RESYNC, Event
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.reconciliations import ComparedAt, verified_json
from pipeline.metadata.status import FAILED
from pipeline.progress import lines_by_reason, name_tables
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from pipeline.units import (
    format_byte_rate,
    format_count,
    format_duration,
    format_nonzero,
    format_share,
    format_size,
    format_time,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from pipeline.bronze.activity import Mark
    from pipeline.postgres.replication.slot_status import SourceStatus
    from pipeline.silver.doubts import Doubt

BEHIND, COPYING, CURRENT, DETACHED = "behind", "copying", "current", "detached"
UNPUBLISHED, PAUSED, IN_DOUBT = "unpublished", "paused", "in doubt"
NEEDS_PERSON = (FAILED, *HOLDING, IN_DOUBT, UNPUBLISHED)
OPERATIONS = {"I": "inserts", "U": "updates", "D": "deletes", "T": "truncates"}
_STYLES = {
    FAILED: "red",
    "held": "red",
    "refused": "red",
    IN_DOUBT: "red",
    UNPUBLISHED: "red",
    PAUSED: "yellow",
    BEHIND: "yellow",
    COPYING: "cyan",
    DETACHED: "dim",
    CURRENT: "green",
}
STATES = tuple(_STYLES)
"""The states, in the order in which they need attention."""
_GAP = 2  # cells between columns
_SHORTEST_NAME = 20
_FIRST_TO_GO = ("last day", "misfits", "WAL lag", "lag")  # columns that a narrow terminal does not get
_SHORTEST_EVENT = 30  # cells of an event that are worth a column


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: `sentence` says why it is in its state.

    `state` is failed, held, refused, in doubt, unpublished, paused, behind, copying, detached or current. A
    table in doubt is current, but may differ from the source since `doubt`.
    `version` is -1 before the first copy is in silver. `commit_time` is that of the last transaction up to
    `applied`. `operations` counts what committed within the last day, by the operation's letter. `verified`
    is the newest comparison that found it equal, `copy_share` the part of a running copy that bronze holds;
    a table that `awaits_copy` gets one from the next ingest. `catalog` are its entries.
    """

    name: TableName
    state: str
    applied: LSN
    version: int
    misfits: dict[str, int]
    sentence: str | None = None
    verified: ComparedAt | None = None
    commit_time: datetime | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    operations: Mapping[str, int] = field(default_factory=dict)
    event: Event | None = None
    doubt: Doubt | None = None
    copy_share: float | None = None
    awaits_copy: bool = False
    catalog: tuple[CatalogEntry, ...] = ()
    partial: str | None = None  # which rows silver lacks, and why

    @property
    def attention(self) -> tuple[int, bool, int, TableName]:
        """The table's place on the page, by state, lag and name; the first needs attention most."""
        return STATES.index(self.state), not self.awaits_copy, -(self.lag_bytes or 0), self.name

    @property
    def style(self) -> str:
        """The style of its state in a terminal."""
        return _STYLES[self.state]

    @property
    def notice(self) -> str | None:
        """The sentence of a table that needs a person or a copy, None if there is nothing to do."""
        needs_person = self.state in (*NEEDS_PERSON, PAUSED, DETACHED)
        needs_copy = self.state == BEHIND and self.event is not None and self.event.kind in NEEDS_RESYNC
        is_first = self.state == BEHIND and self.version < 0
        return self.sentence if needs_person or needs_copy or is_first or self.awaits_copy else None

    def as_json(self) -> dict[str, Any]:
        return {
            **self.name._asdict(),
            "state": self.state,
            "applied": str(self.applied),
            "version": self.version,
            "misfits": self.misfits,
            "sentence": self.sentence,
            "in_doubt_since": self.doubt and utc_text(self.doubt.since),
            **verified_json(self.verified),
            "commit_time": utc_text(self.commit_time),
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "lag_bytes": self.lag_bytes,
            "copy_share": None if self.copy_share is None else round(self.copy_share, 3),
            "awaits_copy": self.awaits_copy,
            "partial": self.partial,
            "catalog": self.catalog[0].as_json() if self.catalog else None,
            "other_catalogs": [each.as_json() for each in self.catalog[1:]],
            "last_day": {name: self.operations.get(op, 0) for op, name in OPERATIONS.items()},
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The pipeline as of its newest manifest; bronze is complete up to `captured`.

    Lag counts to the end of the source's WAL if the source was read, else to `captured`; `unreachable` is
    the sentence of a source that could not be read. `rate` is the WAL that the source writes, in bytes/s.
    `maintenance` is the last one of each table by a job, with those of bronze and `_pgdelta`.
    """

    pipeline: str
    captured: LSN
    applied: LSN
    commit_time: datetime | None
    tables: tuple[TableStatus, ...]
    slot_name: str = ""
    source: SourceStatus | None = None
    unreachable: str | None = None
    rate: float | None = None
    maintenance: Mapping[str, Maintained] = field(default_factory=dict)
    schedule: Schedule = NO_SCHEDULE
    interval: ScheduledInterval | None = None

    @property
    def refusal(self) -> str | None:
        """Why ingest would not continue with the source: another one, or one that was restored."""
        return None if self.source is None else self.source.refusal

    @property
    def is_held(self) -> bool:
        """Whether a table is held, refused, in doubt, unpublished or failed."""
        return any(table.state in NEEDS_PERSON for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "captured": str(self.captured),
            "applied": str(self.applied),
            "commit_time": utc_text(self.commit_time),
            "lag_behind": "source" if self.source else "bronze",
            "tables": [table.as_json() for table in self.tables],
            "source": self._source_json(),
            "source_failure": self.unreachable or self.refusal,
            "maintenance": [maintained_json(self.maintenance[name]) for name in sorted(self.maintenance)],
            "schedule": self._schedule_json(),
        }

    def _schedule_json(self) -> dict[str, Any] | None:
        if self.interval is None or not self.schedule.windows:
            return None
        return {
            "time_zone": self.schedule.time_zone,
            "hours": self.interval.window and self.interval.window.hours,
            "min_interval": self.interval.min_interval,
            "until": utc_text(self.interval.until),
        }

    def _source_json(self) -> dict[str, Any] | None:
        if self.source is None:
            return None
        slot = self.source.slot
        seconds = seconds_until_limit(self.source, self.rate)
        return {
            "now": utc_text(self.source.now),
            "wal_end": str(self.source.wal_lsn),
            "wal_bytes_per_second": None if self.rate is None else round(self.rate, 1),
            "max_slot_wal_keep_bytes": self.source.keep_size,
            "seconds_until_limit": None if seconds is None else round(seconds, 1),
            "not_followed": {str(name): why for name, why in self.source.passed_over.items()},
            "idle_rules": list(self.source.idle_rules),
            "slot": slot
            and {
                "name": slot.name,
                "active": slot.is_active,
                "restart_lsn": str(slot.restart_lsn) if slot.restart_lsn else None,
                "confirmed_flush_lsn": str(slot.confirmed_flush_lsn) if slot.confirmed_flush_lsn else None,
                "wal_status": slot.wal_status,
                "invalidation_reason": slot.invalidation_reason,
                "retained_bytes": self.source.retained_size,
                "safe_wal_size": self.source.safe_size,
                "held_by": self.source.holder and self.source.holder.as_json(),
            },
        }

    def print(self, console: Console) -> None:
        """Print totals, offsets and the slot, one line a table, and the sentences of tables to act on."""
        from rich.text import Text

        from pipeline.terminal import plain, print_list, print_paragraph

        tables = sorted(self.tables, key=lambda table: table.attention)
        for line in self._head_lines(tables):
            print_paragraph(console, line)
        if tables:
            console.print()
            columns = _fit(console.width, tables)
            headings = [column.heading for column in columns]
            right = [column.heading for column in columns if column.is_right]
            print_list(
                console, headings, zip(*(column.cells for column in columns), strict=True), right=right
            )
            console.print()
        for notice in list_notices(tables):
            label = (f"{notice.label}: ", _STYLES[notice.state])
            print_paragraph(console, Text.assemble(label, plain(notice.text)))
        if tables:
            print_paragraph(
                console, "pgdelta status TABLE shows the columns, misfits and versions of a table."
            )

    def _head_lines(self, tables: Sequence[TableStatus]) -> Iterator[Text]:
        from rich.text import Text

        from pipeline.terminal import plain

        counts = Counter(table.state for table in tables)
        states = [Text(f"{counts[state]} {state}", _STYLES[state]) for state in STATES if counts[state]]
        total = format_count(len(tables), "table") + (": " if states else "")
        yield Text.assemble(plain(self.pipeline, "bold"), f": {total}", Text(", ").join(states))
        moment = f", committed {format_time(self.commit_time)}" if self.commit_time else ""
        offsets = f"bronze: {self.captured}; silver: {self.applied}{moment}"
        yield plain("bronze has nothing yet. Run pgdelta ingest." if self.captured == INVALID else offsets)
        if self.source is not None:
            yield from map(plain, slot_lines(self.source, self.slot_name, self.rate))
            yield from map(plain, lines_by_reason("not followed", self.source.passed_over))
            yield from map(plain, self.source.idle_rules)
            if self.refusal is not None:
                yield Text.assemble(("source: ", "red"), plain(self.refusal))
        else:
            yield plain(f"source: {self.unreachable or 'not read.'} Lag is measured against bronze.")
        if self.interval is not None and self.schedule.windows:
            yield plain(schedule_line(self.schedule, self.interval))
        if self.maintenance:
            yield plain(maintenance_line(list(self.maintenance.values())))


class _Column(NamedTuple):
    heading: str
    cells: Sequence[Text]
    is_right: bool = False

    @property
    def width(self) -> int:
        return max(len(self.heading), *(cell.cell_len for cell in self.cells))

    @property
    def has_content(self) -> bool:
        return any(cell.plain for cell in self.cells)


def _fit(width: int, tables: Sequence[TableStatus]) -> list[_Column]:
    """Return the columns of a page of this width: those that every page has, and further ones that fit."""
    from rich.text import Text

    from pipeline.terminal import plain, shorten

    def column(heading: str, cells: Iterator[str], is_right: bool = False) -> _Column:
        return _Column(heading, [plain(cell) for cell in cells], is_right)

    found = [
        column("table", (str(table.name) for table in tables)),
        _Column("state", [Text(state_text(table), table.style) for table in tables]),
        column("lag", (duration_text(table.lag_seconds) for table in tables), True),
        column("WAL lag", (size_text(table.lag_bytes) for table in tables), True),
        column("last day", (format_nonzero(sum(table.operations.values())) for table in tables), True),
        column("misfits", (format_nonzero(sum(table.misfits.values())) for table in tables), True),
    ]
    columns = {one.heading: one for one in found if one.has_content}
    for heading in _FIRST_TO_GO:
        others = [one for one in columns.values() if one.heading != "table"]
        if _width(others) + _GAP + _SHORTEST_NAME > width:
            columns.pop(heading, None)
    further = [
        column("applied", (str(table.applied) if table.applied else "" for table in tables)),
        column("verified", (str(table.verified.lsn) if table.verified else "" for table in tables)),
        column("last day", (_operations_text(table) for table in tables)),
        column("version", (str(table.version) if table.version >= 0 else "" for table in tables), True),
    ]
    for one in further:
        wider = columns | {one.heading: one}
        if one.has_content and _width(wider.values()) <= width:
            columns = wider
    if _width(columns.values()) + _GAP + _SHORTEST_EVENT <= width:
        events = (table.event.sentence if table.event else "" for table in tables)
        last = column("last event", events)
        columns |= {last.heading: last} if last.has_content else {}
    names, *others = columns.values()
    rest = max(width - _width(others) - _GAP, _SHORTEST_NAME)
    shortened = [plain(shorten(cell.plain, rest)) for cell in names.cells]
    return [names._replace(cells=shortened), *others]


def _width(columns: Collection[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


class Notice(NamedTuple):
    """A sentence about tables that need a person or a copy; `label` is their state or `awaits copy`."""

    label: str
    state: str
    text: str


def list_notices(tables: Sequence[TableStatus]) -> list[Notice]:
    """Return each sentence once, with the tables that it is about."""
    grouped: dict[tuple[str, str], list[TableStatus]] = {}
    for table in tables:
        if (notice := table.notice) is not None:
            is_waiting = table.awaits_copy and table.state not in (FAILED, *HOLDING)
            grouped.setdefault(("awaits copy" if is_waiting else table.state, notice), []).append(table)
        if table.partial is not None:
            grouped.setdefault(("partial", table.partial), []).append(table)
    notices = []
    for (label, notice), found in grouped.items():
        names = name_tables([table.name for table in found])
        is_named = len(found) == 1 and str(found[0].name) in notice
        notices.append(Notice(label, found[0].state, notice if is_named else f"{names}: {notice}"))
    return notices


def schedule_line(schedule: Schedule, interval: ScheduledInterval) -> str:
    """Return the line about the hours of the schedule."""
    hours = f"{interval.window.hours} {schedule.time_zone}" if interval.window else "outside of all windows"
    until = f"; next change at {interval.until:%Y-%m-%d %H:%M} UTC" if interval.until else ""
    least = f"{interval.min_interval} s" if interval.min_interval else "no time"
    return f"schedule: {hours}; at least {least} between two writes to a table{until}"


def maintenance_line(done: Sequence[Maintained]) -> str:
    """Return the line about the last maintenance of all tables."""
    newest = format_time(max(each.maintained_at for each in done))
    line = f"maintenance: {format_count(len(done), 'table')}, last at {newest}"
    failed = sorted((each for each in done if each.is_failed), key=lambda each: each.table_name)
    if not failed:
        return line
    return f"{line}; {len(failed)} failed. {failed[0].table_name}: {one_line(failed[0].sentence or '')}"


def maintained_json(done: Maintained) -> dict[str, Any]:
    """Return the last maintenance of a table as data."""
    return {
        "table": done.table_name,
        "maintained_at": utc_text(done.maintained_at),
        "version": done.version,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "bytes": done.bytes,
        "removed_files": done.removed_files,
        "removed_log_files": done.removed_log_files,
        "seconds": done.seconds,
        "failed": done.is_failed,
        "sentence": done.sentence,
    }


def state_text(table: TableStatus) -> str:
    """Return the state, with the part of its copy that is done."""
    return table.state if table.copy_share is None else f"{table.state} {format_share(table.copy_share)}"


def _operations_text(table: TableStatus) -> str:
    return ", ".join(f"{count:,} {op}" for op, count in table.operations.items() if count)


def duration_text(seconds: float | None) -> str:
    """Return a lag in time, empty if it is unknown."""
    return "" if seconds is None else format_duration(seconds) if seconds else "0"


def size_text(byte_count: int | None) -> str:
    """Return a lag in WAL, empty if it is unknown."""
    return "" if byte_count is None else format_size(byte_count) if byte_count else "0"


def lag_bytes(applied: LSN, end: LSN) -> int:
    """Return the bytes of WAL between a table's offset and an end."""
    return max(0, end - applied)


def lag_seconds(applied: LSN, end: LSN, commit_time: datetime | None, now: datetime) -> float | None:
    """Return the time since the newest applied transaction committed, 0 if nothing lies beyond it.

    It is never less than the true lag, and grows while the source writes WAL without committing changes.
    """
    if applied >= end:
        return 0.0
    return None if commit_time is None else max(0.0, (now - commit_time).total_seconds())


def wal_rate(since: Mark | None, source: SourceStatus) -> float | None:
    """Return the bytes of WAL that the source wrote per second since a mark."""
    if since is None:
        return None
    seconds = (source.now - since.time).total_seconds()
    return max(0, source.wal_lsn - since.lsn) / seconds if seconds >= 1.0 else None


def seconds_until_limit(source: SourceStatus, rate: float | None) -> float | None:
    """Return how long until the slot may lose WAL if no job reads it and the rate stays."""
    if source.keep_size is None or source.slot is None or source.safe_size is None or source.slot.is_lost:
        return None
    if source.safe_size <= 0:
        return 0.0
    return source.safe_size / rate if rate else None


def slot_lines(source: SourceStatus, slot_name: str, rate: float | None) -> list[str]:
    """Return the lines about the slot, the WAL retained for it, what holds that back, and its limit."""
    slot = source.slot
    if slot is None:
        return [f"slot {slot_name}: does not exist on the server, whose WAL ends at {source.wal_lsn}"]
    facts = [
        f"slot {slot_name}: {'active' if slot.is_active else 'not active'}",
        f"restart_lsn {slot.restart_lsn or 'not set'}",
        f"confirmed_flush_lsn {slot.confirmed_flush_lsn or 'not set'}",
    ]
    if slot.is_lost:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        return [
            ", ".join(facts),
            f"WAL ends at {source.wal_lsn}. The slot is lost{reason}, and the WAL it retained is gone. "
            "See source.lost_slot.",
        ]
    held = [f"held back: {source.holder.sentence}"] if source.holder else []
    return [
        ", ".join(facts),
        _wal_line(source, slot.wal_status, rate),
        *held,
        f"limit: {_limit(source, rate)}",
    ]


def _wal_line(source: SourceStatus, wal_status: str | None, rate: float | None) -> str:
    retained = "unknown" if source.retained_size is None else format_size(source.retained_size)
    status = f" ({wal_status})" if wal_status else ""
    written = "" if rate is None else f", {format_byte_rate(rate)}"
    return f"WAL: {retained} retained for the slot{status}, ends at {source.wal_lsn}{written}"


def _limit(source: SourceStatus, rate: float | None) -> str:
    if source.keep_size is None:
        return "max_slot_wal_keep_size is unlimited. A slot that no job reads fills the disk."
    limit = f"max_slot_wal_keep_size {format_size(source.keep_size)}"
    if source.safe_size is None:
        return f"{limit}; the server does not report how much is left"
    if source.safe_size <= 0:
        return f"{limit} is reached. The slot can be lost at the next checkpoint."
    forecast = "time remaining unknown (no recent WAL rate)" if rate is None else "no WAL is written"
    if (seconds := seconds_until_limit(source, rate)) is not None:
        forecast = f"{format_duration(seconds)} at this rate"
    return f"{limit}; {format_size(source.safe_size)} left; {forecast}"
