"""Shows copies under way on stderr: bars in a terminal, now and then a line elsewhere; and lines of others.

What it cannot write is left out: no run ends because nobody reads its stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.errors import one_line
from pipeline.table_name import TableName

# Copies under way as text for people: a line of a table, a line of all, and what a board shows.
if TYPE_CHECKING:
    from pipeline.progress import CopyProgress


_NAMED_TABLES = 3
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a board; `share` is its bar."""

    title: str
    share: float
    rows: str
    size: str
    rate: str
    remaining: str


def is_open(copy: CopyProgress) -> bool:
    """Say whether there is still something to come of a copy."""
    return not copy.is_complete and copy.failure is None


def list_running(copies: Mapping[TableName, CopyProgress]) -> list[tuple[TableName, CopyProgress]]:
    """Return the copies that have begun and are not complete; those that are read to the end come last."""
    running = [(name, copy) for name, copy in copies.items() if is_open(copy) and copy.began is not None]
    return sorted(running, key=lambda item: _is_read(item[1]))


def board_rows(copies: Mapping[TableName, CopyProgress], rate: float, most: int) -> list[Row]:
    """Return a line for each running table, at most so many, and one of all."""
    running = list_running(copies)
    rows = [_table_row(name, copy) for name, copy in running[:most]]
    title = _count_text(copies)
    if len(running) > most:
        title += f", {len(running) - most} more under way"
    size = sum(copy.bytes for copy in copies.values())
    return [*rows, Row(title, _share_of(copies), _total_rows(copies), size_text(size), rate_text(rate), "")]


def total_line(copies: Mapping[TableName, CopyProgress], rate: float) -> str:
    """Return how far all copies are."""
    running = list_running(copies)
    named = [f"{name_text(name)} {share_text(copy.share)}" for name, copy in running[:_NAMED_TABLES]]
    if len(running) > _NAMED_TABLES:
        named.append(f"{len(running) - _NAMED_TABLES} more under way")
    parts = [f"copying: {_count_text(copies)}", *named, _total_rows(copies), rate_text(rate)]
    return ", ".join(parts)


def ended_lines(ended: Sequence[tuple[TableName, CopyProgress]], most: int | None = None) -> list[str]:
    """Return a line for each copy that is complete or failed; of more than `most` a kind, one for all."""
    complete = [(name, copy) for name, copy in ended if copy.failure is None]
    failed = [(name, copy) for name, copy in ended if copy.failure is not None]
    if most is not None and len(complete) > most:
        count = sum(copy.rows_landed for _, copy in complete)
        lines = [f"copied {len(complete)} tables ({_names(complete)}): {_rows_text(count)}"]
    else:
        lines = [
            f"copied {name_text(name)}: {_rows_text(copy.rows_landed)}, {size_text(copy.bytes)} of text, "
            f"{duration_text(copy.seconds)}"
            for name, copy in complete
        ]
    if most is not None and len(failed) > most:
        first = failed[0][1].failure
        return [*lines, f"copy of {len(failed)} tables failed ({_names(failed)}), of the first: {first}"]
    return [*lines, *(f"copy of {name_text(name)} failed: {copy.failure}" for name, copy in failed)]


def seconds_remaining(copy: CopyProgress) -> float | None:
    """Return how long the rest takes if it goes on like this, None where nobody knows yet."""
    return copy.seconds * (1 - copy.share) / copy.share if 0 < copy.share < 1 else None


def name_text(name: TableName) -> str:
    """Return a table's name in one line, whatever characters it has."""
    return one_line(str(name))


def share_text(share: float) -> str:
    """Return a share as a percentage; all of it only where nothing is missing."""
    return f"{int(share * 100)} %"


def rate_text(rate: float) -> str:
    """Return rows a second."""
    return f"{rate:,.0f} rows/s"


def size_text(count: int) -> str:
    """Return a count of bytes in a unit that fits."""
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{count / (1 << 10 * power):.{max(0, min(power - 1, 1))}f} {_UNITS[power]}"


def duration_text(seconds: float) -> str:
    """Return a time as seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _table_row(name: TableName, copy: CopyProgress) -> Row:
    left = seconds_remaining(copy)
    if _is_read(copy):
        note = "waits for capture" if copy.share == 1.0 else "lands"
    else:
        note = "" if left is None else f"{duration_text(left)} left"
    rate = copy.rows / copy.seconds if copy.seconds else 0.0
    return Row(
        name_text(name),
        copy.share,
        _rows_text(max(copy.rows, copy.rows_landed)),
        size_text(copy.bytes),
        rate_text(rate),
        note,
    )


def _is_read(copy: CopyProgress) -> bool:
    return copy.ranges_read >= copy.ranges


def _count_text(copies: Mapping[TableName, CopyProgress]) -> str:
    complete = sum(copy.is_complete for copy in copies.values())
    failed = sum(copy.failure is not None for copy in copies.values())
    return f"{complete} of {len(copies)} tables complete" + (f", {failed} failed" if failed else "")


def _share_of(copies: Mapping[TableName, CopyProgress]) -> float:
    pages = sum(copy.pages for copy in copies.values())
    return sum(copy.share * copy.pages for copy in copies.values()) / pages if pages else 1.0


def _total_rows(copies: Mapping[TableName, CopyProgress]) -> str:
    return _rows_text(sum(max(copy.rows, copy.rows_landed) for copy in copies.values()))


def _rows_text(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _names(copies: Sequence[tuple[TableName, CopyProgress]]) -> str:
    names = [name_text(name) for name, _ in copies[:_NAMED_TABLES]]
    return ", ".join(names) + (", …" if len(copies) > _NAMED_TABLES else "")


if TYPE_CHECKING:
    from types import TracebackType

    from pipeline.progress import CopyProgress, IngestSummary

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
        self._said: dict[TableName, CopyProgress | str] = {}
        self._said_failure: str | None = None
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
            self._end_live()

    def update(self, summary: IngestSummary) -> None:
        """Show what is new since the last time; the summary goes on changing."""
        self._summary = summary
        if self._is_silent:
            return
        with contextlib.suppress(OSError, ValueError):
            self._show(dict(summary.copies), summary.copy_failure)

    def print(self, line: str) -> None:
        """Say a line, above the bars where there are some; in whatever thread."""
        if not self._is_silent:
            with contextlib.suppress(OSError, ValueError):
                self._say(line)

    def _show(self, copies: dict[TableName, CopyProgress], failure: str | None) -> None:
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

    def _ended(self, copies: dict[TableName, CopyProgress]) -> list[tuple[TableName, CopyProgress]]:
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

    def _show_live(self, copies: dict[TableName, CopyProgress], rate: float) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._live.start()
            # an end without a last word, by a second signal, must not leave the terminal without one
            self._console.show_cursor(True)
        self._live.update(self._table(copies, rate), refresh=True)

    def _table(self, copies: dict[TableName, CopyProgress], rate: float) -> Table:
        is_wide = self._console.width >= _WIDE
        table = Table.grid(padding=(0, 1))
        table.add_column()  # the one that gives way
        if is_wide:
            table.add_column(width=20)
        for row in board_rows(copies, rate, MOST_SHOWN):
            bar = [ProgressBar(total=1.0, completed=row.share)] if is_wide else []
            size = [row.size] if is_wide else []
            texts = (share_text(row.share), row.rows, *size, row.rate, row.remaining)
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
