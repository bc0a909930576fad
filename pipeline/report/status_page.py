"""The status of a pipeline as a page in the terminal: positions, one row a table, and the slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.report.cells import escape
from pipeline.report.copy_lines import size_text
from pipeline.report.lag import long_text, source_lines

if TYPE_CHECKING:
    from pipeline.report.status import Status, TableStatus

_COLOURS = {"current": "green", "behind": "yellow", "copying": "cyan", "left": "dim"}


def show(status: Status, console: Console) -> None:
    """Print a status."""
    title = f"{status.pipeline}: bronze is complete up to {status.captured}, silver up to {status.applied}"
    if status.commit_time:
        title += f", committed {status.commit_time:%Y-%m-%d %H:%M:%S}"
    shown = Table(title=escape(title), title_justify="left")
    behind = "source" if status.source else "bronze"
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
    for table in status.tables:
        misfits = ", ".join(f"{count} {column}" for column, count in sorted(table.misfits.items()))
        shown.add_row(
            escape(".".join(table.name)),
            f"[{_COLOURS.get(table.state, 'red')}]{table.state}[/]",
            str(table.applied),
            _lag_text(table),
            ", ".join(f"{count} {op}" for op, count in table.operations.items() if count),
            str(table.verified or ""),
            escape(misfits),
            escape(table.sentence or ""),
        )
    console.print(shown)
    if status.source is not None:
        for line in source_lines(status.source, status.slot_name, status.rate):
            console.print(Text(line))
    elif status.unreachable:
        console.print(Text(f"the source was not asked: {status.unreachable}"))


def _lag_text(table: TableStatus) -> str:
    if table.lag_bytes is None:
        return ""
    if table.lag_bytes == 0:
        return "0"
    seconds = "" if table.lag_seconds is None else f"{long_text(table.lag_seconds)}, "
    return f"{seconds}{size_text(table.lag_bytes)}"
