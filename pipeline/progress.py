"""Summaries of runs: what ingest, its table copies and apply have done so far.

The jobs write them, observers read them from other threads while they change. At the end each gives closing
lines for people, the same as data, and an exit code for schedulers. Nothing here does I/O or holds a row's
values.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.errors import one_line
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.reconciliations import ComparedAt
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from pipeline.units import format_count, format_duration, format_names, format_share, format_size

NO_BRONZE = "bronze holds nothing to apply yet. Run pgdelta ingest first, or check storage.root."
_FEW = 5  # tables that a closing line names
_FEW_CHANGES = 1000  # their rate is left out


@dataclass(slots=True)
class CopyProgress:
    """How far the copy of one table is: the chunks read and landed in bronze, rows, and bytes of their text.

    `began` is the monotonic time at which its first chunk was read; `seconds` count from there.
    """

    pages: int = 0
    chunks: int = 0
    chunks_read: int = 0
    chunks_landed: int = 0
    rows: int = 0
    rows_landed: int = 0
    bytes: int = 0
    rows_adopted: int = 0  # that are not read from the source
    is_complete: bool = False
    failure: str | None = None
    began: float | None = None
    seconds: float = 0.0

    def begin(self) -> None:
        """Start the clock unless it runs; safe to call from any thread."""
        if self.began is None:
            self.began = time.monotonic()

    def read(self, rows: int, byte_count: int) -> None:
        """Count rows that a reader received; safe to call from any thread."""
        self.rows += rows
        self.bytes += byte_count
        self._update_seconds()

    def adopt(self, rows: int) -> None:
        """Count a chunk of rows that an adopted Delta table has; safe to call from any thread."""
        self.rows_adopted += rows
        self.chunks_read += 1
        self._update_seconds()

    def landed(self, chunks: int, rows: int) -> None:
        """Record how many chunks and rows bronze holds."""
        self.chunks_landed, self.rows_landed = chunks, rows
        self._update_seconds()

    def complete(self) -> None:
        """Record that the copy is complete in bronze, so that silver may start from it."""
        self.is_complete = True
        self._update_seconds()

    @property
    def share(self) -> float:
        """The part of the chunks that bronze holds, 0 to 1."""
        return self.chunks_landed / self.chunks if self.chunks else 1.0

    @property
    def is_open(self) -> bool:
        """Whether the copy has neither completed nor failed."""
        return not self.is_complete and self.failure is None

    @property
    def is_read(self) -> bool:
        """Whether every chunk was read from the source."""
        return self.chunks_read >= self.chunks

    @property
    def seconds_remaining(self) -> float | None:
        """How long the rest takes at the rate so far, None before the first chunk and after the last."""
        return self.seconds * (1 - self.share) / self.share if 0 < self.share < 1 else None

    def _update_seconds(self) -> None:
        if self.began is not None:
            self.seconds = time.monotonic() - self.began


@dataclass(slots=True)
class MaintenanceProgress:
    """What a run maintained so far; `failures` are sentences by table, until a table is maintained again."""

    tables: int = 0
    merged: int = 0  # files that the tables have fewer now
    removed_files: int = 0
    removed_log_files: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def count(self, done: Maintained) -> None:
        """Count a table that was maintained, or that failed to be."""
        if done.is_failed:
            self.failures[done.table_name] = done.sentence or ""
            return
        self.failures.pop(done.table_name, None)
        self.tables += 1
        self.merged += max(0, done.files_before - done.files_after)
        self.removed_files += done.removed_files
        self.removed_log_files += done.removed_log_files

    def lines(self) -> list[str]:
        lines = [f"maintenance of {name} failed: {text}" for name, text in sorted(self.failures.items())]
        removed = ((self.removed_files, "file"), (self.removed_log_files, "log file"))
        found = [format_count(count, what) for count, what in removed if count]
        done = [f"{format_count(self.merged, 'file')} fewer after merging"] if self.merged else []
        done += [f"{' and '.join(found)} removed"] if found else []
        if done:
            lines.append(f"maintained {format_count(self.tables, 'table')}: {', '.join(done)}")
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "tables": self.tables,
            "merged_files": self.merged,
            "removed_files": self.removed_files,
            "removed_log_files": self.removed_log_files,
            "failures": dict(sorted(self.failures.items())),
        }


@dataclass(slots=True)
class CatalogProgress:
    """What a run changed in a catalog; `failures` are sentences, each with its tables.

    `label` is the catalog's name, None for Spark's.
    """

    label: str | None = None
    registered: int = 0
    updated: int = 0
    removed: int = 0
    failures: dict[str, list[TableName]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        lines = [
            f"not in the catalog: {name_tables(names)}. {sentence}" if names else f"catalog: {sentence}"
            for sentence, names in self.failures.items()
        ]
        if self.registered or self.updated or self.removed:
            updated = f"{self.updated} updated, " if self.updated else ""
            lines.append(
                f"catalog{f' ({self.label})' if self.label else ''}: "
                f"{format_count(self.registered, 'table')} registered, {updated}{self.removed} removed"
            )
        return lines


@dataclass(slots=True)
class IngestSummary:
    """What a run captured so far; `captured_offset` is in bronze and acknowledged to the slot."""

    pipeline: str
    slot: str
    captured_offset: LSN = INVALID
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    seconds: float = 0.0
    copies: dict[TableName, CopyProgress] = field(default_factory=dict)
    compared: dict[TableName, str] = field(default_factory=dict)  # after a gap, each with the result
    copy_failure: str | None = None  # why none of the tables can be copied
    commit_time: datetime | None = None  # of the newest captured transaction
    maintenance: MaintenanceProgress = field(default_factory=MaintenanceProgress)
    published: list[TableName] = field(default_factory=list)  # tables that this run added to the publication
    unpublished: Mapping[TableName, str] | None = None  # matching ones that it lacks, and why; None: unknown
    unfollowed: Mapping[TableName, str] = field(default_factory=dict)  # that are no tables to follow, and why
    passed_over: Mapping[TableName, str] = field(default_factory=dict)  # of them those that no rule names
    partial: Mapping[TableName, str] = field(default_factory=dict)  # silver lacks rows, and why
    shown: set[str] = field(default_factory=set)  # closing lines that people have read during the run
    idle_rules: tuple[str, ...] = ()  # a sentence for each rule that no table follows
    names_next_step: bool = False  # whether the closing lines say what to run next

    @property
    def has_copies(self) -> bool:
        """Whether there is anything to report about table copies or the publication."""
        return bool(self.copies or self.copy_failure or self.publication_lines())

    def lines(self) -> list[str]:
        """Return the closing lines for people, without those that were shown during the run."""
        rate = self.changes / self.seconds if self.seconds else 0.0
        # The rate of a few changes only shows how long the start took.
        speed = f", {format_count(round(rate), 'change')}/s" if self.changes >= _FEW_CHANGES else ""
        copied = [f"compared {name}: {sentence}" for name, sentence in sorted(self.compared.items())]
        copies = sorted(self.copies.items())
        if complete := [(name, copy) for name, copy in copies if copy.is_complete and not copy.failure]:
            copied.append(copied_line(complete))
        for name, copy in copies:
            if copy.failure:
                copied.append(failed_copy_line(name, copy.failure))
            elif not copy.is_complete:
                share = f"{format_count(copy.rows_landed, 'row')}, {format_share(copy.share)}"
                copied.append(f"copy of {name}: {share}; the next run continues")
        if self.copy_failure:
            copied.append(f"copy failed: {self.copy_failure}")
        lines = [
            *copied,
            *self.publication_lines(),
            *self.maintenance.lines(),
            f"ingest {self.pipeline}: {format_count(self.changes, 'change')} of "
            f"{format_count(self.transactions, 'transaction')} in {format_count(self.commits, 'commit')}, "
            f"{format_duration(self.seconds)}{speed}",
        ]
        if self.captured_offset != INVALID:  # as it is if the run was stopped before it had the slot
            lines.append(f"bronze is complete up to {self.captured_offset}, acknowledged to slot {self.slot}")
        if self.names_next_step and any(copy.is_complete and not copy.failure for _, copy in copies):
            lines.append("pgdelta apply writes the copied rows to silver")
        return [line for line in lines if one_line(line) not in self.shown]

    def publication_lines(self) -> list[str]:
        """Return the lines about tables that this run published, and that are not published or followed."""
        lines = []
        if self.published:
            lines.append(f"added to the publication: {name_tables(sorted(self.published))}")
        return [
            *lines,
            *lines_by_reason("not published", self.unpublished or {}),
            *lines_by_reason("not followed", {**self.passed_over, **self.unfollowed}),
            *(f"{name}: {sentence}" for name, sentence in sorted(self.partial.items())),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "slot": self.slot,
            "position": str(self.captured_offset),
            "transactions": self.transactions,
            "changes": self.changes,
            "commits": self.commits,
            "seconds": round(self.seconds, 3),
            "copies": [
                {
                    **name._asdict(),
                    "rows": copy.rows_landed,
                    "bytes": copy.bytes,
                    "share": round(copy.share, 3),
                    "complete": copy.is_complete,
                    "seconds": round(copy.seconds, 3),
                    "failure": copy.failure,
                }
                for name, copy in sorted(self.copies.items())
            ],
            "compared": [
                {**name._asdict(), "sentence": sentence} for name, sentence in sorted(self.compared.items())
            ],
            "copy_failure": self.copy_failure,
            "published": [name._asdict() for name in sorted(self.published)],
            **{
                key: [{**name._asdict(), "sentence": each} for name, each in sorted(found)]
                for key, found in (
                    ("unpublished", (self.unpublished or {}).items()),
                    ("unfollowed", {**self.passed_over, **self.unfollowed}.items()),
                    ("partial", self.partial.items()),
                )
            },
            "idle_rules": list(self.idle_rules),
            "maintenance": self.maintenance.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table could not be copied, or under `strict` if a matching one is not followed.

        A capture that fails raises instead.
        """
        has_failed = bool(self.copy_failure) or any(copy.failure for copy in self.copies.values())
        return int(has_failed or (strict and bool(self.unpublished or self.unfollowed)))


def lines_by_reason(label: str, reasons: Mapping[TableName, str]) -> Iterator[str]:
    """Yield a line for each reason, with its tables."""
    grouped: dict[str, list[TableName]] = {}
    for name, reason in sorted(reasons.items()):
        grouped.setdefault(reason, []).append(name)
    for reason, names in grouped.items():
        yield f"{label}: {name_tables(names)}. {reason}"


def failed_copy_line(name: TableName, failure: str) -> str:
    """Return the line about a copy that failed."""
    return f"copy{name.introduce(f' failed: {failure}', f' of {one_line(str(name))}')}"


def copied_line(copies: Sequence[tuple[TableName, CopyProgress]]) -> str:
    """Return one line about copies that are complete, at least one."""
    rows = format_count(sum(copy.rows_landed for _, copy in copies), "row")
    size = f"{rows}, {format_size(sum(copy.bytes for _, copy in copies))} of text"
    if len(copies) == 1:
        [(name, copy)] = copies
        return f"copied {one_line(str(name))}: {size}, {format_duration(copy.seconds)}"
    return (
        f"copied {format_count(len(copies), 'table')} ({name_tables([name for name, _ in copies])}): {size}"
    )


def name_tables(names: Sequence[TableName]) -> str:
    """Return the names of the tables, of many only the first ones."""
    return one_line(format_names(names, _FEW))


@dataclass(slots=True)
class TableState:
    """One silver table as apply left it."""

    applied: LSN = INVALID
    changes: int = 0
    misfits: int = 0
    held: str | None = None
    failure: str | None = None
    waits: str | None = None  # for a copy, since a change that this run reached
    paused: str | None = None

    @property
    def is_behind(self) -> bool:
        """Whether it was applied only up to a change before the end."""
        return bool(self.held or self.waits or self.paused)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Spark's figures of the newest micro-batch; None if Spark reports none."""

    batch_id: int
    rows: int
    input_rate: float | None
    processed_rate: float | None
    seconds: float | None

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> "StreamProgress":
        """Return the figures of a StreamingQueryProgress, given as Spark's JSON."""
        milliseconds = progress.get("durationMs", {}).get("triggerExecution")
        return cls(
            progress["batchId"],
            progress.get("numInputRows", 0),
            progress.get("inputRowsPerSecond"),
            progress.get("processedRowsPerSecond"),
            None if milliseconds is None else milliseconds / 1000,
        )


@dataclass(slots=True)
class ApplySummary:
    """What a run applied so far, by table."""

    pipeline: str
    applied_offset: LSN = INVALID
    tables: dict[TableName, TableState] = field(default_factory=dict)
    commit_time: datetime | None = None  # of the newest transaction in silver
    entries: tuple[ManifestEntry, ...] = ()
    batches: int = 0
    total_batch_seconds: float = 0.0
    batch_seconds: float = 0.0  # of the last batch
    stream: StreamProgress | None = None
    maintenance: MaintenanceProgress = field(default_factory=MaintenanceProgress)
    catalogs: list[CatalogProgress] = field(default_factory=list)
    doubts: dict[TableName, str] = field(default_factory=dict)  # tables that may differ, with sentences
    verified: dict[TableName, ComparedAt] = field(default_factory=dict)  # the newest that found a table equal
    rebuilt: list[TableName] | None = None  # tables that `pgdelta rebuild` built again; None: another command

    def show(self, manifest: Manifest) -> None:
        """Record the manifest that silver shows now."""
        self.entries = manifest.entries  # first: other threads read them after the offset
        self.applied_offset, self.commit_time = manifest.lsn, manifest.commit_time

    def count_batch(self, seconds: float) -> None:
        """Count a batch that applied something."""
        self.batches += 1
        self.total_batch_seconds += seconds
        self.batch_seconds = seconds

    def lines(self) -> list[str]:
        changes = sum(state.changes for state in self.tables.values())
        misfits = sum(state.misfits for state in self.tables.values())
        if self.applied_offset == INVALID and not self.tables:
            return [f"apply {self.pipeline}: {NO_BRONZE}"]
        lines = [
            f"apply {self.pipeline}: {format_count(changes, 'change')} to "
            f"{format_count(len(self.tables), 'table')}; silver shows {self.applied_offset}"
        ]
        if self.rebuilt is not None:
            # What was pending is applied first; without any, that line says nothing.
            lines = [*(lines if changes else ()), self._rebuilt_line(self.rebuilt)]
        if misfits:
            lines.append(
                f"misfits: {format_count(misfits, 'value')} did not fit the silver type, or were not sent. "
                "Silver has what the column's policy makes of them, _pgdelta/misfits has the text."
            )
        for name, state in sorted(self.tables.items()):
            if state.held:
                lines.append(f"held: {state.held}")
            if state.waits:
                lines.append(f"waits: {state.waits}")
            if state.paused:
                lines.append(f"paused: {state.paused}")
            if state.failure:
                lines.append(f"failed: {name.introduce(state.failure, f'{name}: ')}")
        lines += [f"in doubt: {sentence}" for _, sentence in sorted(self.doubts.items())[:_FEW]]
        if len(self.doubts) > _FEW:
            more = format_count(len(self.doubts) - _FEW, "more table")
            lines.append(f"in doubt: {more}: run pgdelta status")
        catalogs = [line for each in self.catalogs for line in each.lines()]
        return [*lines, *catalogs, *self.maintenance.lines()]

    def _rebuilt_line(self, names: Sequence[TableName]) -> str:
        few = f": {', '.join(map(str, sorted(names)))}" if 0 < len(names) <= _FEW else ""
        return (
            f"rebuild {self.pipeline}: {format_count(len(names), 'table')} built again from bronze{few}; "
            f"silver shows {self.applied_offset}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "position": str(self.applied_offset),
            "tables": [
                {
                    **name._asdict(),
                    "applied": str(state.applied),
                    "changes": state.changes,
                    "misfits": state.misfits,
                    "held": state.held,
                    "failure": state.failure,
                    "waits": state.waits,
                    "paused": state.paused,
                }
                for name, state in sorted(self.tables.items())
            ],
            "in_doubt": [
                {**name._asdict(), "sentence": sentence} for name, sentence in sorted(self.doubts.items())
            ],
            "catalog": self._catalogs_json(),
            "maintenance": self.maintenance.as_json(),
        }

    def _catalogs_json(self) -> dict[str, Any]:
        return {
            "registered": sum(each.registered for each in self.catalogs),
            "updated": sum(each.updated for each in self.catalogs),
            "removed": sum(each.removed for each in self.catalogs),
            "failures": [
                {"sentence": sentence, "tables": [n._asdict() for n in names]}
                for each in self.catalogs
                for sentence, names in each.failures.items()
            ],
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table failed, or under `strict` if one is held, in doubt or not in the catalog."""
        states = self.tables.values()
        is_unnamed = any(each.failures for each in self.catalogs)
        has_stopped = any(s.held for s in states) or bool(self.doubts) or is_unnamed
        return int(any(s.failure for s in states) or (strict and has_stopped))


IngestProgress = Callable[[IngestSummary], None]
ApplyProgress = Callable[[ApplySummary], None]
