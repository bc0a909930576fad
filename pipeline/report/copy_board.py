"""Shows copies under way on stderr: bars in a terminal, now and then a line elsewhere; and lines of others.

What it cannot write is left out: no run ends because nobody reads its stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.report.copy_lines import board_rows, ended_lines, is_open, share_text, total_line

if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.report.summaries import CopyProgress, IngestSummary

LINE_SECONDS = 30.0
MOST_SHOWN = 8
_MOST_ENDED = 5  # at once in a terminal, with a line for each
_RATE_SECONDS = 30.0
_WIDE = 120  # columns that everything there is to say takes


class CopyBoard:
    """Takes what ingest reports; with `is_quiet` it shows nothing but in a terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._is_live = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
        self._is_silent = is_quiet and not self._is_live
        self._console = console
        self._live: Live | None = None
        self._summary: IngestSummary | None = None
        self._said: dict[tuple[str, str], CopyProgress | str] = {}
        self._said_failure: str | None = None
        self._line_at: float | None = None
        self._counts: deque[tuple[float, int]] = deque()

    def __enter__(self) -> CopyBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._summary is not None:
            self.take(self._summary)
        with contextlib.suppress(OSError, ValueError):
            self._end_live()

    def take(self, summary: IngestSummary) -> None:
        """Show what is new since the last time; the summary goes on changing."""
        self._summary = summary
        if self._is_silent:
            return
        with contextlib.suppress(OSError, ValueError):
            self._show(dict(summary.copies), summary.copy_failure)

    def say(self, line: str) -> None:
        """Say a line, above the bars where there are some; in whatever thread."""
        if not self._is_silent:
            with contextlib.suppress(OSError, ValueError):
                self._say(line)

    def _show(self, copies: dict[tuple[str, str], CopyProgress], failure: str | None) -> None:
        for line in ended_lines(self._ended(copies), _MOST_ENDED if self._is_live else None):
            self._say(line)
        if failure is not None and failure != self._said_failure:
            self._say(f"copy failed: {failure}")
            self._said_failure = failure
        if not any(is_open(copy) for copy in copies.values()):
            self._end_live()
            self._line_at = None
            self._counts.clear()
            return
        now = time.monotonic()
        rate = self._rate(now, sum(copy.rows for copy in copies.values()))
        if self._is_live:
            self._show_live(copies, rate)
        elif self._line_at is None:
            self._line_at = now
        elif now - self._line_at >= LINE_SECONDS:
            self._line_at = now
            self._say(total_line(copies, rate))

    def _ended(
        self, copies: dict[tuple[str, str], CopyProgress]
    ) -> list[tuple[tuple[str, str], CopyProgress]]:
        """Return the copies that ended since the last time; the same failure of a table once only."""
        ended = []
        for name, copy in copies.items():
            if not is_open(copy) and self._said.get(name) != (copy.failure or copy):
                self._said[name] = copy.failure or copy
                ended.append((name, copy))
        return ended

    def _rate(self, now: float, count: int) -> float:
        """Return the rows a second of late."""
        if self._counts and count < self._counts[-1][1]:
            self._counts.clear()  # a table begins anew
        self._counts.append((now, count))
        while len(self._counts) > 2 and now - self._counts[1][0] >= _RATE_SECONDS:
            self._counts.popleft()
        since, before = self._counts[0]
        return (count - before) / (now - since) if now > since else 0.0

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._console.print(Text(line), soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _show_live(self, copies: dict[tuple[str, str], CopyProgress], rate: float) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._live.start()
            # an end without a last word, by a second signal, must not leave the terminal without one
            self._console.show_cursor(True)
        self._live.update(self._table(copies, rate), refresh=True)

    def _table(self, copies: dict[tuple[str, str], CopyProgress], rate: float) -> Table:
        is_wide = self._console.width >= _WIDE
        table = Table.grid(padding=(0, 1))
        table.add_column()  # the one that gives way
        if is_wide:
            table.add_column(width=20)
        for row in board_rows(copies, rate, MOST_SHOWN):
            bar = [ProgressBar(total=1.0, completed=row.share)] if is_wide else []
            size = [row.size] if is_wide else []
            texts = (share_text(row.share), row.rows, *size, row.rate, row.left)
            table.add_row(
                Text(row.title, no_wrap=True, overflow="ellipsis"),
                *bar,
                *(Text(text, justify="right", no_wrap=True) for text in texts),
            )
        for column in table.columns[1:]:
            column.no_wrap = True
        return table

    def _end_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
