"""The demo's live table: rows on both sides, changes applied, and the lag of each table.

It reads what the load counted, what ingest and apply reported, and the Delta logs of the silver tables. It
sends no query to the server or to Spark.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TxnId
from pipeline.demo.shop import SCHEMA_NAME, TABLES, Load
from pipeline.progress import ApplySummary, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from pipeline.units import format_count, format_size

_LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TableLag:
    """One table at one moment; `problem` is held, failed or empty."""

    table: str
    source_rows: int
    silver_rows: int
    changes: int
    lag_seconds: float
    lag_bytes: int
    problem: str


class Board:
    """Shows how far each table is: a live table in a terminal, elsewhere a line every 5 s."""

    def __init__(self, lake: Path, pipeline: str, load: Load, console: Console | None) -> None:
        self.ingested: IngestSummary | None = None
        self.applied: ApplySummary | None = None
        self.stage = "starting"
        self._load = load
        self._silver = {t: LakeTable(str(lake / "silver" / SCHEMA_NAME / t)) for t in TABLES}
        self._txn = str(TxnId(pipeline))
        self._console = console
        self._live: Live | None = None
        self._started = self._line_at = time.monotonic()

    def __enter__(self) -> Board:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_ingest(self, summary: IngestSummary) -> None:
        """Keep the summary, which continues to change."""
        self.ingested = summary

    def on_apply(self, summary: ApplySummary) -> None:
        """Keep the summary, which continues to change."""
        self.applied = summary

    def has_passed(self, lsn: LSN) -> bool:
        """Return whether bronze holds, and silver shows, everything up to an LSN."""
        ingested, applied = self.ingested, self.applied
        if ingested is None or applied is None:
            return False
        if min(ingested.captured_offset, applied.applied_offset) < lsn:
            return False
        # One that is being written is behind; one that fails or is held would be waited for in vain.
        behind = [applied.tables.get(entry.name) for entry in applied.entries if entry.is_behind]
        return all(state is not None and bool(state.failure or state.held) for state in behind)

    def table_lags(self) -> list[TableLag]:
        """Return how far each table is now."""
        lags = []
        entries = self.applied.entries if self.applied is not None else ()
        behind = {entry.name for entry in entries if entry.is_behind}
        for table, silver in self._silver.items():
            snapshot = silver.snapshot()
            offset, changes, problem = LSN(snapshot.offsets.get(self._txn, INVALID)), 0, ""
            if self.applied is not None:
                name = TableName(SCHEMA_NAME, table)
                state = self.applied.tables.get(name)
                if state is not None:
                    changes = state.changes
                    problem = "failed" if state.failure else "held" if state.held else ""
                if not problem and name not in behind:
                    # a table without new changes is complete up to the LSN that silver shows
                    offset = max(offset, self.applied.applied_offset)
            lag = self._load.lag_of(offset)
            rows = self._load.rows[table], snapshot.row_count or 0
            lags.append(TableLag(table, *rows, changes, *lag, problem))
        return lags

    def refresh(self) -> None:
        """Show how far each table is now."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self._console is not None and time.monotonic() - self._line_at >= _LINE_SECONDS:
            self._line_at = time.monotonic()
            self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)

    def _line(self) -> str:
        lags = self.table_lags()
        return (
            f"{self._elapsed():4.0f} s, {self.stage}: "
            f"{format_count(sum(lag.source_rows for lag in lags), 'row')} in source, "
            f"{sum(lag.silver_rows for lag in lags):,} in silver, "
            f"{format_count(sum(lag.changes for lag in lags), 'change')} applied, "
            f"lag {max(lag.lag_seconds for lag in lags):.1f} s, "
            f"{format_size(max(lag.lag_bytes for lag in lags))} of WAL"
        )

    def _table(self) -> Table:
        captured = 0 if self.ingested is None else self.ingested.changes
        made = format_count(self._load.counts.total(), "change")
        table = Table(
            title=f"{self._elapsed():.0f} s, {self.stage}",
            caption=f"{made} made, {captured:,} in bronze",
            title_justify="left",
            caption_justify="left",
            box=None,
            pad_edge=False,
        )
        table.add_column("table", no_wrap=True)
        for heading in ("source rows", "silver rows", "changes", "lag", "WAL"):
            table.add_column(heading, justify="right", no_wrap=True)
        for lag in self.table_lags():
            table.add_row(
                f"{SCHEMA_NAME}.{lag.table}" + (f" [red]{lag.problem}[/]" if lag.problem else ""),
                *(f"{count:,}" for count in (lag.source_rows, lag.silver_rows, lag.changes)),
                f"{lag.lag_seconds:.1f} s",
                format_size(lag.lag_bytes),
            )
        return table

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
