"""Table copies in progress on stderr: bars in a terminal, elsewhere a line from time to time.

Reads the summary that ingest reports, from any thread. Each of the first copies is one line when it is
complete, and each that failed. Outside a terminal all copies together are one line every 30 s. A stderr that
cannot be written to ends no run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from pipeline.errors import one_line
from pipeline.progress import copied_line, failed_copy_line
from pipeline.table_name import TableName
from pipeline.terminal import is_same_output, print_error_line, print_paragraph
from pipeline.units import format_count, format_duration, format_row_rate, format_share, format_size

if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.progress import CopyProgress, IngestSummary

LINE_SECONDS = 30.0
MAX_BARS = 8
MAX_COPIED_LINES = 20
"""Tables with a line of their own when they are complete; the closing lines count all."""
_MAX_FAILED_LINES = 5  # at once in a terminal
_MAX_NAMES = 3
_RATE_SECONDS = 30.0
_WIDE = 120  # columns from which on bars and sizes fit, too


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: a table, or all tables; `share` is 0 to 1, the rest text."""

    title: str
    share: float
    rows: str
    size: str
    rate: str
    remaining: str


def list_running(copies: Mapping[TableName, CopyProgress]) -> list[tuple[TableName, CopyProgress]]:
    """Return the open copies that have begun; those that only have to land are last."""
    running = [(name, copy) for name, copy in copies.items() if copy.is_open and copy.began is not None]
    return sorted(running, key=lambda item: item[1].is_read)


def list_rows(copies: Mapping[TableName, CopyProgress], rate: float, most: int) -> list[Bar]:
    """Return a row for each running table, at most `most`, and one for all tables, read at `rate` rows/s."""
    running = list_running(copies)
    rows = [_table_row(name, copy) for name, copy in running[:most]]
    title = _count_text(copies)
    if len(running) > most:
        title += f", {len(running) - most} more run"
    size = format_size(sum(copy.bytes for copy in copies.values()))
    return [*rows, Bar(title, _share_of(copies), _total_rows(copies), size, format_row_rate(rate), "")]


def total_line(copies: Mapping[TableName, CopyProgress], rate: float) -> str:
    """Return one line about all copies, which names the first tables in progress."""
    running = list_running(copies)
    named = [f"{_name_text(name)} {format_share(copy.share)}" for name, copy in running[:_MAX_NAMES]]
    if len(running) > _MAX_NAMES:
        named.append(f"{len(running) - _MAX_NAMES} more under way")
    parts = [f"copying: {_count_text(copies)}", *named, _total_rows(copies), format_row_rate(rate)]
    return ", ".join(parts)


def ended_lines(ended: Sequence[tuple[TableName, CopyProgress]], most: int | None = None) -> list[str]:
    """Return a line for each copy that is complete or failed; more than `most` that failed share one line."""
    lines = [copied_line([item]) for item in ended if item[1].failure is None]
    failed = [(name, copy) for name, copy in ended if copy.failure is not None]
    if most is not None and len(failed) > most:
        first = failed[0][1].failure
        return [
            *lines,
            f"copy of {format_count(len(failed), 'table')} failed ({_names(failed)}); the first: {first}",
        ]
    return [*lines, *(failed_copy_line(name, copy.failure or "") for name, copy in failed)]


def _name_text(name: TableName) -> str:
    return one_line(str(name))


def _table_row(name: TableName, copy: CopyProgress) -> Bar:
    if copy.is_read:
        remaining = "waits for capture" if copy.share == 1.0 else "landing"
    else:
        left = copy.seconds_remaining
        remaining = "" if left is None else f"{format_duration(left)} left"
    rate = copy.rows / copy.seconds if copy.seconds else 0.0
    rows = format_count(max(copy.rows, copy.rows_landed), "row")
    size = format_size(copy.bytes)
    return Bar(_name_text(name), copy.share, rows, size, format_row_rate(rate), remaining)


def _count_text(copies: Mapping[TableName, CopyProgress]) -> str:
    complete = sum(copy.is_complete for copy in copies.values())
    failed = sum(copy.failure is not None for copy in copies.values())
    count = f"{complete} of {format_count(len(copies), 'table')} complete"
    return f"{count}, {failed} failed" if failed else count


def _share_of(copies: Mapping[TableName, CopyProgress]) -> float:
    pages = sum(copy.pages for copy in copies.values())
    return sum(copy.share * copy.pages for copy in copies.values()) / pages if pages else 1.0


def _total_rows(copies: Mapping[TableName, CopyProgress]) -> str:
    return format_count(sum(max(copy.rows, copy.rows_landed) for copy in copies.values()), "row")


def _names(copies: Sequence[tuple[TableName, CopyProgress]]) -> str:
    names = [_name_text(name) for name, _ in copies[:_MAX_NAMES]]
    return ", ".join(names) + (", …" if len(copies) > _MAX_NAMES else "")


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


class CopyBoard:
    """Shows the copies of an ingest; with `is_quiet` only in a terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._is_live = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
        self._is_silent = is_quiet and not self._is_live
        self._console = console
        self._bars: CopyBars | None = None
        self._summary: IngestSummary | None = None
        self._printed: dict[TableName, CopyProgress | str] = {}
        self._copied = 0
        self._printed_failure: str | None = None
        self._publication: list[str] = []  # its lines as they were last printed
        self._is_read_together = is_same_output()
        self._line_at: float | None = None
        self._counts: deque[tuple[float, int]] = deque()

    def __enter__(self) -> CopyBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._summary is not None:
            self.update(self._summary)
        with contextlib.suppress(OSError, ValueError):
            self._end_bars()

    def update(self, summary: IngestSummary) -> None:
        """Show what changed since the last call; the summary continues to change."""
        self._summary = summary
        if self._is_silent:
            return
        with contextlib.suppress(OSError, ValueError):
            self._show_publication(summary.publication_lines())
            self._show(dict(summary.copies), summary.copy_failure)

    def print(self, line: str) -> None:
        """Print a line, above the bars if there are any; safe to call from any thread."""
        if not self._is_silent:
            with contextlib.suppress(OSError, ValueError):
                self._print(line)

    def _show_publication(self, lines: list[str]) -> None:
        for line in lines:
            if line not in self._publication:
                self._print_news(one_line(line))
        self._publication = lines

    def _show(self, copies: dict[TableName, CopyProgress], failure: str | None) -> None:
        for line in ended_lines(self._ended(copies), _MAX_FAILED_LINES if self._is_live else None):
            self._print_news(line)
        if failure is not None and failure != self._printed_failure:
            self._print_news(f"copy failed: {failure}")
            self._printed_failure = failure
        if not any(copy.is_open for copy in copies.values()):
            self._end_bars()
            self._line_at = None
            self._counts.clear()
            return
        now = time.monotonic()
        rate = self._rate(now, sum(copy.rows for copy in copies.values()))
        if self._is_live:
            if self._bars is None:
                self._bars = CopyBars(self._console)
                self._bars.start()
            self._bars.update(list_rows(copies, rate, MAX_BARS))
        elif self._line_at is None:
            self._line_at = now
        elif now - self._line_at >= LINE_SECONDS:
            self._line_at = now
            self._print(total_line(copies, rate))

    def _ended(self, copies: dict[TableName, CopyProgress]) -> list[tuple[TableName, CopyProgress]]:
        """Return the copies to show that ended since the last call; a failure once for each sentence."""
        ended = []
        for name, copy in copies.items():
            if not copy.is_open and self._printed.get(name) != (copy.failure or copy):
                self._printed[name] = copy.failure or copy
                self._copied += copy.failure is None
                if copy.failure is not None or self._copied <= MAX_COPIED_LINES:
                    ended.append((name, copy))
        return ended

    def _rate(self, now: float, count: int) -> float:
        """Return the rows/s of the last half minute."""
        if self._counts and count < self._counts[-1][1]:
            self._counts.clear()  # a copy of a table started over
        self._counts.append((now, count))
        while len(self._counts) > 2 and now - self._counts[1][0] >= _RATE_SECONDS:
            self._counts.popleft()
        since, before = self._counts[0]
        return (count - before) / (now - since) if now > since else 0.0

    def _print_news(self, line: str) -> None:
        """Print a line that the closing lines would repeat; they do not where both are read together."""
        self._print(line)
        if self._is_read_together and self._summary is not None:
            self._summary.shown.add(one_line(line))

    def _print(self, line: str) -> None:
        if self._bars is not None:
            print_paragraph(self._console, line)
        else:
            print_error_line(line)

    def _end_bars(self) -> None:
        if self._bars is not None:
            bars, self._bars = self._bars, None
            bars.progress.stop()
