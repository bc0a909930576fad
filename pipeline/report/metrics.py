"""What a run says of itself in numbers: positions in bytes, counts since its start, times in seconds.

Summaries are looked at when somebody asks; the threads of the run go on changing them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pipeline import __version__
from pipeline.table_name import TableName

# Prometheus' text format, version 0.0.4: families of samples as text. Pure.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value under its labels; `suffix` is what a summary appends to its name (`_sum`, `_count`)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name, of one kind and with one line of help."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    samples: tuple[Sample, ...]


def render(families: Iterable[Family]) -> str:
    """Return the families that have samples as text, each line ended."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escape(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += (_line(family.name, sample) for sample in family.samples)
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, sample: Sample) -> str:
    pairs = ",".join(f'{label}="{_quoted(value)}"' for label, value in sample.labels.items())
    labels = f"{{{pairs}}}" if pairs else ""
    return f"{name}{sample.suffix}{labels} {_number(sample.value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escape(text).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # an LSN prints as one otherwise
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


if TYPE_CHECKING:
    from pipeline.progress import ApplySummary, IngestSummary, TableState
    from pipeline.protocol.lsn import LSN

Kind = Literal["counter", "gauge"]


class RunMetrics:
    """The metrics of one run: of ingest, of apply or of both."""

    def __init__(self, pipeline: str) -> None:
        self._labels = {"pipeline": pipeline}
        self._started = time.time()
        self._ingest: IngestSummary | None = None
        self._apply: ApplySummary | None = None
        self._read_source: Callable[[], LSN | None] = lambda: None

    def on_ingest(self, summary: IngestSummary) -> None:
        """Remember a summary, which goes on changing."""
        self._ingest = summary

    def on_source(self, read: Callable[[], LSN | None]) -> None:
        """Remember what says where the source's log ends, None where that is not known."""
        self._read_source = read

    def on_apply(self, summary: ApplySummary) -> None:
        """Remember a summary, which goes on changing."""
        self._apply = summary

    def families(self) -> list[Family]:
        """Return all metrics as they are now."""
        info = {**self._labels, "version": __version__}
        found = [
            Family("pgdelta_info", "gauge", "The release that runs.", (Sample(1, info),)),
            self._one("run_start_timestamp_seconds", "When this run began.", self._started),
        ]
        if self._ingest is not None:
            found += self._of_ingest(self._ingest)
        if self._apply is not None:
            found += self._of_apply(self._apply)
        return found

    def _of_ingest(self, summary: IngestSummary) -> list[Family]:
        copies = dict(summary.copies)
        return [
            self._one("source_wal_lsn", "End of the source's log.", self._read_source()),
            self._one("captured_lsn", "Position up to which bronze is complete.", summary.captured_offset),
            self._one(
                "captured_commit_timestamp_seconds",
                "Commit time of the newest transaction that this run captured.",
                _seconds(summary.commit_time),
            ),
            self._one(
                "captured_transactions_total", "Captured transactions.", summary.transactions, "counter"
            ),
            self._one("captured_changes_total", "Captured row changes.", summary.changes, "counter"),
            self._one("bronze_commits_total", "Commits to bronze.", summary.commits, "counter"),
            self._tables(
                "copy_share", "Part of a table's copy that is in bronze, 0 to 1.", copies, lambda c: c.share
            ),
            self._one(
                "copies_failed",
                "1 where no table can be copied: the next try may.",
                int(summary.copy_failure is not None),
            ),
            self._tables(
                "copy_failed", "1 where a table's copy failed.", copies, lambda c: int(c.failure is not None)
            ),
        ]

    def _of_apply(self, summary: ApplySummary) -> list[Family]:
        tables = dict(summary.tables)
        entries = {entry.name: entry for entry in summary.entries}
        applied = {name: state.applied for name, state in tables.items() if name not in entries}
        applied |= {name: entry.applied_lsn for name, entry in entries.items()}

        def each(value: Callable[[TableState], int]) -> dict[TableName, int]:
            return {name: value(tables[name]) if name in tables else 0 for name in applied.keys() | tables}

        passes = (
            Sample(summary.total_batch_seconds, self._labels, "_sum"),
            Sample(summary.batches, self._labels, "_count"),
        )
        return [
            self._one("applied_lsn", "Position that silver as a whole shows.", summary.applied_offset),
            self._one(
                "applied_commit_timestamp_seconds",
                "Commit time of the newest transaction that silver shows.",
                _seconds(summary.commit_time),
            ),
            Family("pgdelta_apply_pass_seconds", "summary", "Time of passes that applied something.", passes),
            self._one("apply_last_pass_seconds", "Time of the last pass.", summary.batch_seconds or None),
            self._tables("table_applied_lsn", "Position up to which a table is applied.", applied),
            self._tables(
                "table_changes_total",
                "Changes applied to a table.",
                each(lambda s: s.changes),
                kind="counter",
            ),
            self._tables(
                "table_misfits_total", "Values that did not fit.", each(lambda s: s.misfits), kind="counter"
            ),
            self._tables(
                "table_held", "1 where a recorded policy holds a table.", each(lambda s: int(bool(s.held)))
            ),
            self._tables(
                "table_failed", "1 where a table could not be applied.", each(lambda s: int(bool(s.failure)))
            ),
            *self._of_stream(summary),
        ]

    def _of_stream(self, summary: ApplySummary) -> list[Family]:
        stream = summary.stream
        if stream is None:
            return []
        return [
            self._one("stream_batch_id", "Newest micro-batch of the streaming query.", stream.batch_id),
            self._one("stream_input_rows", "Rows of that micro-batch.", stream.rows),
            self._one("stream_input_rows_per_second", "Rows that came a second.", stream.input_rate),
            self._one("stream_processed_rows_per_second", "Rows done a second.", stream.processed_rate),
            self._one("stream_batch_seconds", "Time of that micro-batch.", stream.seconds),
        ]

    def _one(self, name: str, help: str, value: float | None, kind: Kind = "gauge") -> Family:
        samples = () if value is None else (Sample(value, self._labels),)
        return Family(f"pgdelta_{name}", kind, help, samples)

    def _tables(
        self,
        name: str,
        help: str,
        values: Mapping[TableName, object],
        value: Callable[..., float] = lambda found: found,
        kind: Kind = "gauge",
    ) -> Family:
        samples: Iterable[Sample] = (
            Sample(value(values[table]), {**self._labels, "schema": table[0], "table": table[1]})
            for table in sorted(values)
        )
        return Family(f"pgdelta_{name}", kind, help, tuple(samples))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
