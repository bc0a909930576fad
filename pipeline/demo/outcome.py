"""What the demo did and found: as closing words, as data, and as an exit code."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.demo.compare import Comparison
from pipeline.demo.load import MINIMUM
from pipeline.demo.shop import SCHEMA_NAME, TABLES
from pipeline.operate.run import RunSummary
from pipeline.protocol.lsn import INVALID, LSN

_NAMES = {
    "inserts": "insert",
    "updates": "update",
    "deletes": "delete",
    "key_changes": "key change",
    "toast_updates": "TOAST update",
    "truncates": "truncate",
    "ddl": "DDL statement",
}


@dataclass(slots=True)
class Outcome:
    """What the demo did and found."""

    lake: Path
    config: Path
    counts: dict[str, int] = field(default_factory=dict)
    lsn: LSN = INVALID
    comparisons: list[Comparison] = field(default_factory=list)
    run: RunSummary | None = None
    is_stopped: bool = False
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Say whether every table was compared and is equal to its source."""
        return len(self.comparisons) == len(TABLES) and all(c.is_equal for c in self.comparisons)

    @property
    def exit_code(self) -> int:
        """Return 0 where all is equal and the load did what it should, which a stopped one need not."""
        is_whole = self.is_stopped or all(self.counts[kind] >= least for kind, least in MINIMUM.items())
        is_run = self.run is not None and self.run.exit_code(strict=True) == 0
        return 0 if self.is_equal and is_whole and is_run else 1

    @property
    def query(self) -> str:
        """Return a command that reads silver."""
        table = f"delta.`{self.lake}/silver/{SCHEMA_NAME}/orders`"
        code = (
            "from pipeline.delta.spark.session import start_session as s; "
            f's("query").sql("SELECT state, count(*), sum(total) FROM {table} GROUP BY state").show()'
        )
        return f"{shlex.quote(short_path(Path(sys.executable)))} -c {shlex.quote(code)}"

    def as_json(self) -> dict[str, Any]:
        """Return all of it as data."""
        return {
            "ok": self.exit_code == 0,
            "stopped": self.is_stopped,
            "seconds": round(self.seconds, 1),
            "lsn": str(self.lsn),
            "tables": [
                {
                    "schema": c.name[0],
                    "table": c.name[1],
                    "source_rows": c.source_rows,
                    "silver_rows": c.silver_rows,
                    "equal": c.is_equal,
                    "missing": c.missing,
                    "surplus": c.surplus,
                    "differing_columns": list(c.columns),
                }
                for c in self.comparisons
            ],
            "counts": self.counts,
            "run": None if self.run is None else self.run.as_json(),
            "lake": str(self.lake),
            "config": str(self.config),
            "query": self.query,
        }


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the closing words for people."""
    table = Table(title=f"silver and its source at {outcome.lsn}", title_justify="left")
    table.add_column("table")
    for name in ("rows in source", "rows in silver"):
        table.add_column(name, justify="right")
    table.add_column("equal")
    for c in outcome.comparisons:
        mark = "[green]✔[/]" if c.is_equal else "[red]✘[/] " + ", ".join(c.columns)
        table.add_row(str(c.name), f"{c.source_rows:,}", f"{c.silver_rows:,}", mark)
    if outcome.comparisons:
        console.print(table)
    else:
        print("silver had not caught up: nothing was compared")
    counts = ", ".join(
        f"{count:,} {_NAMES[kind]}{'' if count == 1 else 's'}" for kind, count in outcome.counts.items()
    )
    print(f"really ran: {counts}" + (" (stopped early)" if outcome.is_stopped else ""))
    for line in outcome.run.lines() if outcome.run else ():
        print(line)
    print(f"{'all tables are equal' if outcome.is_equal else 'NOT EQUAL'}, {outcome.seconds:.0f} s")
    print(
        f"\nlake:      {short_path(outcome.lake)}\npipeline:  {short_path(outcome.config)}\na query to try:\n"
    )
    print(f"  {outcome.query}", flush=True)


def short_path(path: Path) -> str:
    """Return the path as one would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
