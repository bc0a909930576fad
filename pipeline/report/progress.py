"""Table copies in progress on stderr: bars in a terminal, elsewhere a line from time to time.

Reads the summary that ingest reports, from any thread. Each of the first copies is one line when it is
complete, and each that failed. Outside a terminal all copies together are one line every 30 s. A stderr that
cannot be written to ends no run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from pipeline.errors import one_line
from pipeline.report.copy_lines import ended_lines, list_rows, total_line
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.progress import CopyProgress, IngestSummary
    from pipeline.report.copy_bars import CopyBars

LINE_SECONDS = 30.0
MAX_COPIED_LINES = 20
"""Tables with a line of their own when they are complete; the closing lines count all."""
_MAX_FAILED_LINES = 5  # at once in a terminal
_RATE_SECONDS = 30.0


def is_same_output() -> bool:
    """Return whether stdout and stderr are read together, as in a terminal or a log of both."""
    try:
        files = [os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr)]
    except (OSError, ValueError, AttributeError):  # a stream that is closed, or not a file
        return False
    return os.path.samestat(*files)


def _terminal() -> Console | None:
    if not sys.stderr.isatty():
        return None
    from pipeline.report.copy_bars import terminal_on_stderr

    return terminal_on_stderr()


class CopyBoard:
    """Shows the copies of an ingest; with `is_quiet` only in a terminal."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._terminal = _terminal()
        self._is_live = self._terminal is not None
        self._is_silent = is_quiet and not self._is_live
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

    def __exit__(self, *error: object) -> None:
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
        if self._terminal is not None:
            from pipeline.report.copy_bars import MAX_BARS, CopyBars

            if self._bars is None:
                self._bars = CopyBars(self._terminal)
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
            self._bars.print(line)
        elif sys.stderr.isatty():
            from pipeline.terminal import print_error_line  # needs rich, which a run without one does without

            print_error_line(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def _end_bars(self) -> None:
        if self._bars is not None:
            bars, self._bars = self._bars, None
            bars.stop()
