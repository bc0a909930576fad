"""The status of a pipeline, as data and as a page in the terminal: positions, a row a table, and the slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from pipeline.delta.timestamps import utc_text
from pipeline.errors import one_line
from pipeline.metadata.status import FAILED
from pipeline.postgres.replication.slot_status import SourceStatus
from pipeline.protocol.lsn import LSN
from pipeline.report.lag import long_text, seconds_remaining, source_lines
from pipeline.report.progress import size_text
from pipeline.table_name import TableName


# Text in a table or line of the terminal: shown as it is, whatever a name of the source holds.
def escape(text: str) -> str:
    """Return a text that is neither markup nor a control of the terminal."""
    return escape_markup(one_line(text))


_COLOURS = {"current": "green", "behind": "yellow", "copying": "cyan", "left": "dim"}
HOLDING = ("held", "refused")
OPERATIONS = {"I": "inserts", "U": "updates", "D": "deletes", "T": "truncates"}


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: `state` is copying, current, behind, held, refused, failed or left; `sentence` says more.

    A table that is being copied for the first time has no version in silver (-1). Up to `verified` it was
    proven to equal its source. `commit_time` is that of the last transaction up to `applied`; `operations`
    counts what was committed within the last day, by the operation's letter.
    """

    name: TableName
    state: str
    applied: LSN
    version: int
    misfits: dict[str, int]
    sentence: str | None = None
    verified: LSN | None = None
    commit_time: datetime | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    operations: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the table as data."""
        return {
            "schema": self.name[0],
            "table": self.name[1],
            "state": self.state,
            "applied": str(self.applied),
            "version": self.version,
            "misfits": self.misfits,
            "sentence": self.sentence,
            "verified": None if self.verified is None else str(self.verified),
            "commit_time": utc_text(self.commit_time),
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "lag_bytes": self.lag_bytes,
            "last_day": {name: self.operations.get(op, 0) for op, name in OPERATIONS.items()},
        }


@dataclass(frozen=True, slots=True)
class Status:
    """The pipeline as of its newest manifest; `captured` is how far bronze is complete.

    Lags are measured against the end of the source's log where the source answered, else against `captured`;
    `unreachable` says why it did not. `rate` is the growth of that log, in bytes a second.
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

    @property
    def is_held(self) -> bool:
        """Say whether a table waits for somebody."""
        return any(table.state in (*HOLDING, FAILED) for table in self.tables)

    def as_json(self) -> dict[str, Any]:
        """Return the status as data."""
        return {
            "pipeline": self.pipeline,
            "captured": str(self.captured),
            "applied": str(self.applied),
            "commit_time": utc_text(self.commit_time),
            "lag_behind": "source" if self.source else "bronze",
            "tables": [table.as_json() for table in self.tables],
            "source": self._source_json(),
            "source_failure": self.unreachable,
        }

    def _source_json(self) -> dict[str, Any] | None:
        if self.source is None:
            return None
        slot = self.source.slot
        left = seconds_remaining(self.source, self.rate)
        return {
            "now": utc_text(self.source.now),
            "wal_end": str(self.source.wal_lsn),
            "wal_bytes_per_second": None if self.rate is None else round(self.rate, 1),
            "max_slot_wal_keep_bytes": self.source.keep_size,
            "seconds_until_limit": None if left is None else round(left, 1),
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
            },
        }

    def print(self, console: Console) -> None:
        """Print the pipeline's positions, one row a table, and how the slot stands."""
        title = f"{self.pipeline}: bronze is complete up to {self.captured}, silver up to {self.applied}"
        if self.commit_time:
            title += f", committed {self.commit_time:%Y-%m-%d %H:%M:%S}"
        shown = Table(title=escape(title), title_justify="left")
        behind = "source" if self.source else "bronze"
        headings = (
            "table",
            "state",
            "applied",
            f"behind {behind}",
            "last day",
            "verified",
            "misfits",
            "last event",
        )
        for heading in headings:
            shown.add_column(heading, overflow="fold")
        for table in self.tables:
            misfits = ", ".join(f"{count} {column}" for column, count in sorted(table.misfits.items()))
            shown.add_row(
                escape(str(table.name)),
                f"[{_COLOURS.get(table.state, 'red')}]{table.state}[/]",
                str(table.applied),
                _lag_text(table),
                ", ".join(f"{count} {op}" for op, count in table.operations.items() if count),
                str(table.verified or ""),
                escape(misfits),
                escape(table.sentence or ""),
            )
        console.print(shown)
        if self.source is not None:
            for line in source_lines(self.source, self.slot_name, self.rate):
                console.print(Text(line))
        elif self.unreachable:
            console.print(Text(f"the source was not asked: {self.unreachable}"))


def _lag_text(table: TableStatus) -> str:
    if table.lag_bytes is None:
        return ""
    if table.lag_bytes == 0:
        return "0"
    seconds = "" if table.lag_seconds is None else f"{long_text(table.lag_seconds)}, "
    return f"{seconds}{size_text(table.lag_bytes)}"
