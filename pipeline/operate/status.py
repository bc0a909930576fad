"""How a pipeline stands, as its lake says: how far each table is, why not further, and what did not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from pipeline.config import Config
from pipeline.lake.bronze import Bronze, TableName
from pipeline.lake.copies import GONE, READING
from pipeline.lake.reconciliations import Reconciliations
from pipeline.lake.records import Event, Manifest, ManifestEntry, Records
from pipeline.lake.session import start_session
from pipeline.lake.tables import Lake
from pipeline.operate.cells import escape
from pipeline.protocol.lsn import INVALID, LSN

HOLDING = ("held", "refused")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: `state` is copying, current, behind, held, refused or left; `sentence` says more.

    A table that is being copied for the first time has no version in silver (-1). Up to `verified` it was
    proven to equal its source.
    """

    name: TableName
    state: str
    applied: LSN
    version: int
    misfits: dict[str, int]
    sentence: str | None = None
    verified: LSN | None = None


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
                    "verified": None if table.verified is None else str(table.verified),
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
        for heading in ("table", "state", "applied", "verified", "misfits", "last event"):
            shown.add_column(heading, overflow="fold")
        colours = {"current": "green", "behind": "yellow", "copying": "cyan", "left": "dim"}
        for table in self.tables:
            misfits = ", ".join(f"{count} {column}" for column, count in sorted(table.misfits.items()))
            state = f"[{colours.get(table.state, 'red')}]{table.state}[/]"
            name, event = escape(".".join(table.name)), escape(table.sentence or "")
            verified = str(table.verified or "")
            shown.add_row(name, state, str(table.applied), verified, escape(misfits), event)
        console.print(shown)


def read_status(config: Config, *, spark: SparkSession | None = None) -> Status:
    """Read how the pipeline stands; nothing is changed, and the source is not asked."""
    lake = Lake(spark or start_session(f"pgdelta status {config.pipeline}"), config.storage.root)
    bronze, records = Bronze(lake, config.pipeline), Records(lake)
    point = bronze.point() if bronze.changes.exists() else None
    manifest = records.last_manifest() or Manifest(INVALID)
    misfits, events = records.misfit_counts(), records.last_events()
    found = {_name(entry): _table(entry, misfits, events) for entry in manifest.entries}
    for name in bronze.copies.states().keys() | bronze.copies.open_requests().keys():
        if config.rule_for(*name) is not None and (copying := _copying(bronze, name, found.get(name))):
            found[name] = copying
    for name, table in records.registered().items():
        if name not in found:
            sentence = events[name].sentence if name in events else f"it is kept in {table.path}"
            found[name] = TableStatus(name, "left", INVALID, -1, misfits.get(name, {}), sentence)
    verified = Reconciliations(lake).verified()
    tables = tuple(replace(found[name], verified=verified.get(name)) for name in sorted(found))
    captured = point.lsn if point else INVALID
    return Status(config.pipeline, captured, manifest.lsn, manifest.commit_time, tables)


def _copying(bronze: Bronze, name: TableName, shown: TableStatus | None) -> TableStatus | None:
    """Return what there is to say of a table's copy, None where silver shows the newest."""
    copies = bronze.copies
    last = copies.last(name)
    before = shown or TableStatus(name, "copying", INVALID, -1, {})
    if last is not None and last.state == GONE:
        return replace(shown, state="left", sentence=last.sentence) if shown else None
    if last is not None and last.state == READING:
        done = int(bronze.changes.position(bronze.copy_app_id(last.id)) or 0)
        share = f"{done} of {last.readings[-1].range_count} ranges of pages are copied"
        return replace(
            before, state=shown.state if shown and shown.state in HOLDING else "copying", sentence=share
        )
    if requests := copies.open_requests().get(name):
        is_whole = not all(request.key_ranges for request in requests)
        what = "the table is" if is_whole else "rows, for which it waits, are"
        return replace(before, sentence=f"{what} to be copied anew by the next ingest")
    return None


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
