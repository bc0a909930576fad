"""What a comparison of silver with its source found: for people, as data, and as an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, Reconciliation
from pipeline.operate.run import RunSummary
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import escape
from pipeline.table_name import TableName

_COLOURS = {EQUAL: "green", DIFFERENT: "red"}


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The verdicts of a run, table by table; what is copied anew, and what a run made of that."""

    pipeline: str
    run_id: str
    verdicts: tuple[Reconciliation, ...]
    repairs: Mapping[TableName, str] = field(default_factory=dict)
    run: RunSummary | None = None

    @property
    def exit_code(self) -> int:
        """Return 0 where every table is proven to be equal, else 1, also where somebody stopped the run."""
        return int(any(verdict.verdict != EQUAL for verdict in self.verdicts))

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts as data."""
        return {
            "pipeline": self.pipeline,
            "run": self.run_id,
            "ok": self.exit_code == 0,
            "tables": [_json(verdict, self.repairs.get(verdict.name)) for verdict in self.verdicts],
            "run_of_repair": self.run and self.run.as_json(),
        }

    def print(self, console: Console) -> None:
        """Print one row a table, and what was not compared."""
        shown = Table(title=escape(f"{self.pipeline}: silver and its source"), title_justify="left")
        for heading in ("table", "verdict", "at"):
            shown.add_column(heading, overflow="fold")
        for heading in ("rows in source", "rows in silver"):
            shown.add_column(heading, justify="right")
        shown.add_column("what differs", overflow="fold")
        for found in self.verdicts:
            verdict = f"[{_COLOURS.get(found.verdict, 'yellow')}]{found.verdict}[/]"
            rows = (f"{found.source_rows:,}", f"{found.silver_rows:,}") if found.lsn else ("", "")
            cells = (str(found.lsn) if found.lsn else "", *rows, what_differs(found))
            shown.add_row(escape(str(found.name)), verdict, *map(escape, cells))
        console.print(shown)
        for found in self.verdicts:
            for column, reason in found.left_out.items():
                console.print(escape(f"not compared: {found.name}.{column}: {reason}"))
        for name, sentence in self.repairs.items():
            console.print(escape(f"{name}: {sentence}"))
        for line in self.run.lines() if self.run else ():
            console.print(escape(line))
        if any(verdict.rows for verdict in self.verdicts):
            console.print(f"the keys of differing rows are in _pgdelta/differences, run {self.run_id}")


def what_differs(found: Reconciliation) -> str:
    """Return in words what differs, or why nothing is proven."""
    if found.verdict != DIFFERENT:
        return found.sentence or ""
    counts = {"missing": found.missing, "too many": found.surplus, "with other values": found.changed}
    words = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    columns = f" ({', '.join(found.columns)})" if found.columns else ""
    return f"{'' if found.is_whole else 'at least '}{words}{columns}"


def _json(found: Reconciliation, repair: str | None) -> dict[str, Any]:
    return {
        "schema": found.name[0],
        "table": found.name[1],
        "verdict": found.verdict,
        "lsn": _lsn(found.lsn),
        "silver_version": found.silver_version,
        "applied": _lsn(found.applied_lsn),
        "pending": found.pending,
        "source_rows": found.source_rows,
        "silver_rows": found.silver_rows,
        "missing": found.missing,
        "surplus": found.surplus,
        "changed": found.changed,
        "is_whole": found.is_whole,
        "columns": list(found.columns),
        "not_compared": dict(found.left_out),
        "misfits": dict(found.misfits),
        "sentence": found.sentence,
        "repair": repair,
        "seconds": round(found.seconds, 3),
    }


def _lsn(lsn: LSN) -> str | None:
    return str(lsn) if lsn else None
