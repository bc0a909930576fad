"""What runs report: closing lines for people, the same as data, and exit codes for schedulers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

NO_BRONZE = (
    "bronze holds nothing to apply yet: run pgdelta ingest, or see whether storage.root is as you mean it"
)


@dataclass(slots=True)
class CopyProgress:
    """How far the copy of one table is: `ranges` of pages, of which so many are in bronze; bytes of text.

    Time counts from when somebody began to read.
    """

    pages: int = 0
    ranges: int = 0
    ranges_read: int = 0
    ranges_landed: int = 0
    rows: int = 0
    rows_landed: int = 0
    bytes: int = 0
    is_complete: bool = False
    failure: str | None = None
    began: float | None = None
    seconds: float = 0.0

    def begin(self) -> None:
        """Note that a reader takes a range, in whatever thread."""
        if self.began is None:
            self.began = time.monotonic()

    def read(self, rows: int, byte_count: int) -> None:
        """Note rows that a reader has, in whatever thread."""
        self.rows += rows
        self.bytes += byte_count
        self._look_at_clock()

    def landed(self, ranges: int, rows: int) -> None:
        """Note what is in bronze."""
        self.ranges_landed, self.rows_landed = ranges, rows
        self._look_at_clock()

    def complete(self) -> None:
        """Note that silver may begin with it."""
        self.is_complete = True
        self._look_at_clock()

    @property
    def share(self) -> float:
        """Return which part of the ranges is in bronze."""
        return self.ranges_landed / self.ranges if self.ranges else 1.0

    def _look_at_clock(self) -> None:
        if self.began is not None:
            self.seconds = time.monotonic() - self.began


@dataclass(slots=True)
class IngestSummary:
    """What a run captured so far; `position` is what bronze holds and the slot was told."""

    pipeline: str
    slot: str
    captured_offset: LSN = INVALID
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    seconds: float = 0.0
    copies: dict[TableName, CopyProgress] = field(default_factory=dict)
    copy_failure: str | None = None  # of all tables that were to be copied
    commit_time: datetime | None = None  # of the newest transaction that was captured

    @property
    def has_copies(self) -> bool:
        """Say whether there is something to report of copies."""
        return bool(self.copies or self.copy_failure)

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        rate = self.changes / self.seconds if self.seconds else 0.0
        copied = []
        for name, copy in sorted(self.copies.items()):
            if copy.failure:
                copied.append(f"copy of {name} failed: {copy.failure}")
            elif copy.is_complete:
                copied.append(f"copied {name}: {copy.rows_landed} rows, {copy.seconds:.1f} s")
            else:
                share = f"{copy.rows_landed} rows, {copy.share:.0%}"
                copied.append(f"copy of {name}: {share}; the next run goes on")
        if self.copy_failure:
            copied.append(f"copy failed: {self.copy_failure}")
        return [
            *copied,
            f"ingest {self.pipeline}: {self.changes} changes of {self.transactions} transactions in "
            f"{self.commits} commits, {self.seconds:.1f} s ({rate:.0f} changes/s)",
            f"bronze is complete up to {self.captured_offset}, acknowledged to slot {self.slot}",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
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
                    "schema": name[0],
                    "table": name[1],
                    "rows": copy.rows_landed,
                    "share": round(copy.share, 3),
                    "complete": copy.is_complete,
                    "seconds": round(copy.seconds, 3),
                    "failure": copy.failure,
                }
                for name, copy in sorted(self.copies.items())
            ],
            "copy_failure": self.copy_failure,
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 where a table could not be copied; a capture that could not go on raises."""
        del strict
        return int(bool(self.copy_failure) or any(copy.failure for copy in self.copies.values()))


@dataclass(slots=True)
class TableState:
    """One silver table as apply left it."""

    applied: LSN = INVALID
    changes: int = 0
    misfits: int = 0
    held: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What Spark says of the newest micro-batch; None is what it does not say."""

    batch_id: int
    rows: int
    input_rate: float | None
    processed_rate: float | None
    seconds: float | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "StreamProgress":
        """Return what a StreamingQueryProgress has, given as Spark's JSON."""
        milliseconds = said.get("durationMs", {}).get("triggerExecution")
        return cls(
            said["batchId"],
            said.get("numInputRows", 0),
            said.get("inputRowsPerSecond"),
            said.get("processedRowsPerSecond"),
            None if milliseconds is None else milliseconds / 1000,
        )


@dataclass(slots=True)
class ApplySummary:
    """What a run applied so far, by table."""

    pipeline: str
    applied_offset: LSN = INVALID
    tables: dict[TableName, TableState] = field(default_factory=dict)
    commit_time: datetime | None = None  # of the newest transaction that silver shows
    entries: tuple[ManifestEntry, ...] = ()
    batches: int = 0
    passing_seconds: float = 0.0
    batch_seconds: float = 0.0  # of the last one
    stream: StreamProgress | None = None

    def show(self, manifest: Manifest) -> None:
        """Note how far silver is."""
        self.applied_offset, self.commit_time = manifest.lsn, manifest.commit_time
        self.entries = manifest.entries

    def count_batch(self, seconds: float) -> None:
        """Note a pass that applied something."""
        self.batches += 1
        self.passing_seconds += seconds
        self.batch_seconds = seconds

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        changes = sum(state.changes for state in self.tables.values())
        misfits = sum(state.misfits for state in self.tables.values())
        if self.applied_offset == INVALID and not self.tables:
            return [f"apply {self.pipeline}: {NO_BRONZE}"]
        lines = [
            f"apply {self.pipeline}: {changes} changes to {len(self.tables)} tables; "
            f"silver shows {self.applied_offset}"
        ]
        if misfits:
            lines.append(
                f"{misfits} values did not fit their silver type: _pgdelta/misfits has them, silver what the "
                "column's policy makes of them"
            )
        for name, state in sorted(self.tables.items()):
            if state.held:
                lines.append(f"held: {state.held}")
            if state.failure:
                lines.append(f"failed: {name}: {state.failure}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "position": str(self.applied_offset),
            "tables": [
                {
                    "schema": name[0],
                    "table": name[1],
                    "applied": str(state.applied),
                    "changes": state.changes,
                    "misfits": state.misfits,
                    "held": state.held,
                    "failure": state.failure,
                }
                for name, state in sorted(self.tables.items())
            ],
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 where a table failed, or under `strict` where one is held."""
        states = self.tables.values()
        return int(any(s.failure for s in states) or (strict and any(s.held for s in states)))


IngestProgress = Callable[[IngestSummary], None]
ApplyProgress = Callable[[ApplySummary], None]
