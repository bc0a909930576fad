"""The outcome of the demo: closing lines for people, the same as data, and an exit code."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.demo.shop import MINIMUM, SCHEMA_NAME, TABLES
from pipeline.metadata.reconciliations import EQUAL, Reconciliation
from pipeline.operate.run import RunSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.terminal import plain, print_lines, print_list, print_pairs, print_paragraph
from pipeline.units import format_count, format_duration
from pipeline.verify.reconcile_report import what_differs

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
class DemoResult:
    """What the demo did, and how its tables compare with their source."""

    lake: Path
    config: Path
    counts: dict[str, int] = field(default_factory=dict)
    lsn: LSN = INVALID
    comparisons: list[Reconciliation] = field(default_factory=list)
    run: RunSummary | None = None
    is_stopped: bool = False
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether every table was compared and is equal to its source."""
        return len(self.comparisons) == len(TABLES) and all(map(_is_equal, self.comparisons))

    @property
    def exit_code(self) -> int:
        """0 if every table is equal and the load did its minimum, which a stopped load need not."""
        is_whole = self.is_stopped or all(self.counts[kind] >= least for kind, least in MINIMUM.items())
        is_run = self.run is not None and self.run.exit_code(strict=True) == 0
        return 0 if self.is_equal and is_whole and is_run else 1

    @property
    def query(self) -> str:
        """A shell command that reads silver."""
        command = short_path(Path(sys.executable).with_name("pgdelta"))
        sql = f"SELECT state, count(*), sum(total) FROM {SCHEMA_NAME}.orders GROUP BY state"
        return shlex.join([command, "query", "--config", short_path(self.config), sql])

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            "stopped": self.is_stopped,
            "seconds": round(self.seconds, 1),
            "lsn": str(self.lsn),
            "tables": [
                {
                    **c.name._asdict(),
                    "source_rows": c.source_rows,
                    "silver_rows": c.silver_rows,
                    "equal": _is_equal(c),
                    "missing": c.missing,
                    "surplus": c.surplus,
                    "changed": c.changed,
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


def print_outcome(console: Console, outcome: DemoResult) -> None:
    """Print the comparison, one line a table, and the closing lines."""
    if outcome.comparisons:
        print_paragraph(console, f"silver and its source at {outcome.lsn}")
        rows = [
            (str(c.name), f"{c.source_rows:,}", f"{c.silver_rows:,}", _verdict(c))
            for c in outcome.comparisons
        ]
        headings = ("table", "source rows", "silver rows", "equal")
        print_list(console, headings, rows, right=headings[1:3])
    else:
        print_paragraph(console, "Silver did not catch up, so nothing was compared.")
    counts = ", ".join(format_count(count, _NAMES[kind]) for kind, count in outcome.counts.items())
    print_paragraph(console, f"load: {counts}" + (" (stopped early)" if outcome.is_stopped else ""))
    print_lines(console, outcome.run.lines() if outcome.run else ())
    verdict = "all tables are equal" if outcome.is_equal else "NOT EQUAL"
    print_paragraph(console, f"{verdict}, {format_duration(outcome.seconds)}")
    console.print()
    pairs = (("lake", short_path(outcome.lake)), ("pipeline", short_path(outcome.config)))
    print_pairs(console, pairs)
    print_paragraph(console, "Try a query:")
    # always one line, so that it can be copied into a shell
    print(f"\n  {outcome.query}", flush=True)


def _is_equal(comparison: Reconciliation) -> bool:
    """Whether all rows are equal in all columns."""
    return comparison.verdict == EQUAL and not comparison.left_out


def _verdict(comparison: Reconciliation) -> Text:
    if _is_equal(comparison):
        return Text("✔", "green")
    skipped = ", ".join(comparison.left_out)
    words = what_differs(comparison) or f"not compared: {skipped}"
    return Text.assemble(("✘ ", "red"), plain(words))


def short_path(path: Path) -> str:
    """Return the path relative to the working directory if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
