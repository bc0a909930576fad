"""What is shown of table copies in progress: rows of bars, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import one_line
from pipeline.progress import CopyProgress, copied_line, failed_copy_line
from pipeline.table_name import TableName
from pipeline.units import format_count, format_duration, format_row_rate, format_share, format_size

_MAX_NAMES = 3


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
