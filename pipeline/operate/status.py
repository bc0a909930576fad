"""How a pipeline stands, as its lake says: how far each table is, why not further, and what did not fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.config import Config
from pipeline.lake.bronze import Bronze, TableName
from pipeline.lake.records import Event, Manifest, ManifestEntry, Records
from pipeline.lake.session import start_session
from pipeline.lake.tables import Lake
from pipeline.protocol.lsn import INVALID, LSN

HOLDING = ("held", "refused")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One silver table: `state` is current, behind, held or refused; `sentence` is its last event."""

    name: TableName
    state: str
    applied: LSN
    version: int
    misfits: dict[str, int]
    sentence: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The pipeline as of its newest manifest; `captured` is how far bronze is complete."""

    pipeline: str
    captured: LSN
    applied: LSN
    commit_time: datetime | None
    tables: tuple[TableStatus, ...]

    @property
    def is_held(self) -> bool:
        """Say whether a table waits for somebody."""
        return any(table.state in HOLDING for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return the status as data."""
        return {
            "pipeline": self.pipeline,
            "captured": str(self.captured),
            "applied": str(self.applied),
            "commit_time": self.commit_time and self.commit_time.isoformat(),
            "tables": [
                {
                    "schema": table.name[0],
                    "table": table.name[1],
                    "state": table.state,
                    "applied": str(table.applied),
                    "version": table.version,
                    "misfits": table.misfits,
                    "sentence": table.sentence,
                }
                for table in self.tables
            ],
        }

    def print(self, console: Console) -> None:
        """Print the pipeline's positions, and one row a table."""
        title = f"{self.pipeline}: bronze is complete up to {self.captured}, silver up to {self.applied}"
        if self.commit_time:
            title += f", committed {self.commit_time:%Y-%m-%d %H:%M:%S}"
        shown = Table(title=escape(title), title_justify="left")
        for heading in ("table", "state", "applied", "misfits", "last event"):
            shown.add_column(heading, overflow="fold")
        colours = {"current": "green", "behind": "yellow"}
        for table in self.tables:
            misfits = ", ".join(f"{count} {column}" for column, count in sorted(table.misfits.items()))
            state = f"[{colours.get(table.state, 'red')}]{table.state}[/]"
            name, event = escape(".".join(table.name)), escape(table.sentence or "")
            shown.add_row(name, state, str(table.applied), escape(misfits), event)
        console.print(shown)


def read_status(config: Config, *, spark: SparkSession | None = None) -> Status:
    """Read how the pipeline stands; nothing is changed, and the source is not asked."""
    lake = Lake(spark or start_session(f"pgdelta status {config.pipeline}"), config.storage.root)
    bronze, records = Bronze(lake, config.pipeline), Records(lake)
    point = bronze.point() if bronze.changes.exists() else None
    manifest = records.last_manifest() or Manifest(INVALID)
    misfits, events = records.misfit_counts(), records.last_events()
    tables = tuple(_table(entry, misfits, events) for entry in sorted(manifest.entries, key=_name))
    captured = point.lsn if point else INVALID
    return Status(config.pipeline, captured, manifest.lsn, manifest.commit_time, tables)


def _name(entry: ManifestEntry) -> TableName:
    return entry.schema_name, entry.table_name


def _table(
    entry: ManifestEntry, misfits: dict[TableName, dict[str, int]], events: dict[TableName, Event]
) -> TableStatus:
    name = _name(entry)
    event = events.get(name)
    state = "current"
    if entry.is_behind:
        state = event.kind if event and event.kind in HOLDING else "behind"
    sentence = event.sentence if event else None
    return TableStatus(name, state, entry.applied_lsn, entry.version, misfits.get(name, {}), sentence)
