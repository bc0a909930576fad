"""The demo's live table: rows on both sides, changes applied, and how far silver is behind.

Everything it shows is at hand already: what the load counted, what apply reported, and the Delta logs of the
silver tables, of which each new commit is read once. It asks neither the server nor Spark for anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pipeline.delta.txn import TxnId
from pipeline.demo.load import Load
from pipeline.demo.shop import SCHEMA_NAME, TABLES
from pipeline.progress import ApplySummary, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from pipeline.units import format_size

if TYPE_CHECKING:
    from types import TracebackType

_LINE_SECONDS = 5.0


class SilverLog:
    """Rows and position of a local Delta table, as its log has them; statistics must be on."""

    def __init__(self, folder: Path, application: str) -> None:
        self.position = INVALID
        self._log = folder / "_delta_log"
        self._application = application
        self._version = -1
        self._files: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """Return the rows of the newest version that was read."""
        return sum(self._files.values())

    def refresh(self) -> None:
        """Read what was committed since."""
        while (path := self._log / f"{self._version + 1:020d}.json").exists():
            actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            # a file whose deletion vector changed is removed and added in one commit, in any order
            for removed in (action["remove"] for action in actions if "remove" in action):
                self._files.pop(removed["path"], None)
            for added in (action["add"] for action in actions if "add" in action):
                self._files[added["path"]] = _row_count(added)
            for recorded in (action["txn"] for action in actions if "txn" in action):
                if recorded["appId"] == self._application:
                    self.position = LSN(recorded["version"])
            self._version += 1


def _row_count(added: Mapping[str, Any]) -> int:
    deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
    return int(json.loads(added.get("stats") or "{}").get("numRecords", 0) - deleted)


@dataclass(frozen=True, slots=True)
class Standing:
    """One table at one moment."""

    table: str
    source_rows: int
    silver_rows: int
    changes: int
    lag_seconds: float
    lag_bytes: int
    note: str


class Board:
    """Shows where everything stands: a live table in a terminal, now and then a line elsewhere."""

    def __init__(self, lake: Path, pipeline: str, load: Load, console: Console | None) -> None:
        self.ingested: IngestSummary | None = None
        self.applied: ApplySummary | None = None
        self.stage = "starting"
        self._load = load
        self._logs = {t: SilverLog(lake / "silver" / SCHEMA_NAME / t, str(TxnId(pipeline))) for t in TABLES}
        self._console = console
        self._live: Live | None = None
        self._started = self._said = time.monotonic()

    def __enter__(self) -> Board:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_ingest(self, summary: IngestSummary) -> None:
        """Remember what ingest reports; the summary goes on changing."""
        self.ingested = summary

    def on_apply(self, summary: ApplySummary) -> None:
        """Remember what apply reports; the summary goes on changing."""
        self.applied = summary

    def has_passed(self, lsn: LSN) -> bool:
        """Say whether bronze holds, and silver shows, everything up to an LSN."""
        ingested, applied = self.ingested, self.applied
        if ingested is None or applied is None:
            return False
        return min(ingested.captured_offset, applied.applied_offset) >= lsn

    def standings(self) -> list[Standing]:
        """Return where each table stands now."""
        standings = []
        for table, log in self._logs.items():
            log.refresh()
            position, changes, note = log.position, 0, ""
            if self.applied is not None:
                state = self.applied.tables.get(TableName(SCHEMA_NAME, table))
                note = "" if state is None else "failed" if state.failure else "held" if state.held else ""
                changes = 0 if state is None else state.changes
                # a table without news is complete as far as silver as a whole is
                position = position if note else max(position, self.applied.applied_offset)
            lag = self._load.lag_of(position)
            standings.append(Standing(table, self._load.rows[table], log.rows, changes, *lag, note))
        return standings

    def refresh(self) -> None:
        """Show where everything stands now."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self._console is not None and time.monotonic() - self._said >= _LINE_SECONDS:
            self._said = time.monotonic()
            self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)

    def _line(self) -> str:
        standings = self.standings()
        source, silver = (
            sum(rows) for rows in zip(*((s.source_rows, s.silver_rows) for s in standings), strict=True)
        )
        return (
            f"{self._elapsed():4.0f} s, {self.stage}: {source} rows in source, {silver} in silver, "
            f"{sum(s.changes for s in standings)} changes applied, "
            f"lag {max(s.lag_seconds for s in standings):.1f} s, "
            f"{format_size(max(s.lag_bytes for s in standings))}"
        )

    def _table(self) -> Table:
        captured = 0 if self.ingested is None else self.ingested.changes
        table = Table(
            title=f"{self._elapsed():.0f} s, {self.stage}",
            caption=f"{self._load.counts.total()} changes made, {captured} in bronze",
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("table")
        for name in ("rows in source", "rows in silver", "changes applied", "lag s", "lag bytes"):
            table.add_column(name, justify="right")
        for s in self.standings():
            table.add_row(
                f"{SCHEMA_NAME}.{s.table}" + (f" [red]{s.note}[/]" if s.note else ""),
                *(f"{number:,}" for number in (s.source_rows, s.silver_rows, s.changes)),
                f"{s.lag_seconds:.1f}",
                format_size(s.lag_bytes),
            )
        return table

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
