"""Bars of table copies in a terminal; `rich` draws them, and is imported for a terminal only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from pipeline.report.copy_lines import Bar
from pipeline.terminal import print_paragraph
from pipeline.units import format_share

MAX_BARS = 8
_WIDE = 120  # columns from which on bars and sizes fit, too


def terminal_on_stderr() -> Console | None:
    """Return the terminal that stderr is, None if it is none or cannot show bars."""
    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None


class _TextColumn(ProgressColumn):
    """A field of a task, shown as it is: names of the source may hold markup."""

    def __init__(self, field: str, justify: Literal["left", "right"] = "right") -> None:
        is_title = field == "title"  # the only column that gives way
        super().__init__(Column(justify=justify, no_wrap=not is_title))
        self._field = field

    def render(self, task: Task) -> Text:
        """Return the field as one line."""
        return Text(task.fields[self._field], no_wrap=True, overflow="ellipsis")


class CopyBars:
    """A bar for each of the first running copies and one for all of them."""

    def __init__(self, console: Console) -> None:
        is_wide = console.width >= _WIDE
        columns: list[ProgressColumn] = [_TextColumn("title", "left")]
        columns += [BarColumn(bar_width=20)] if is_wide else []
        names = ("share", "rows", *(["size"] if is_wide else []), "rate", "remaining")
        columns += [_TextColumn(name) for name in names]
        self.progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        empty: dict[str, Any] = dict.fromkeys(("title", *names), "")
        self._tasks = [
            self.progress.add_task("", total=1.0, visible=False, **empty) for _ in range(MAX_BARS + 1)
        ]

    def start(self) -> None:
        """Show the bars from now on."""
        self.progress.start()
        # A run that a second signal ends at once must leave the terminal with a cursor.
        self.progress.console.show_cursor(True)

    def stop(self) -> None:
        """Remove the bars."""
        self.progress.stop()

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        print_paragraph(self.progress.console, line)

    def update(self, rows: Sequence[Bar]) -> None:
        """Show these rows and no other."""
        for task, row in zip_longest(self._tasks, rows):
            if row is None:
                self.progress.update(task, visible=False)
            else:
                share = format_share(row.share)
                self.progress.update(
                    task,
                    completed=row.share,
                    visible=True,
                    title=row.title,
                    share=share,
                    rows=row.rows,
                    size=row.size,
                    rate=row.rate,
                    remaining=row.remaining,
                )
        self.progress.refresh()
