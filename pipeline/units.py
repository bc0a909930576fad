"""Text of quantities for people: bytes, times, durations, counts, rates, shares and names.

Every line, page and bar formats its numbers here, so that one quantity reads the same everywhere. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def format_size(byte_count: int) -> str:
    """Return a number of bytes in a binary unit: `1023 B`, `42 KiB`, `1.5 MiB`."""
    power = min(max(byte_count.bit_length() - 1, 0) // 10, len(_BYTE_UNITS) - 1)
    return f"{byte_count / (1 << 10 * power):.{max(0, min(power - 1, 1))}f} {_BYTE_UNITS[power]}"


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: `3.2 s`, `1 min 30 s`, `2 h 00 min`, `3.5 days`."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:,.1f} days"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02} min"


def format_about_size(byte_count: float) -> str:
    """Return an estimate in a binary unit, with two digits: `9.8 GiB`, `130 MiB`."""
    power = min(max(int(byte_count).bit_length() - 1, 0) // 10, len(_BYTE_UNITS) - 1)
    return f"{_two_digits(byte_count / (1 << 10 * power))} {_BYTE_UNITS[power]}"


def format_about_duration(seconds: float) -> str:
    """Return an estimate in one unit, with two digits: `less than a minute`, `13 min`, `2.5 h`, `4 days`."""
    if seconds < _MINUTE:
        return "less than a minute"
    if seconds < 2 * _HOUR:
        return f"{_two_digits(seconds / _MINUTE)} min"
    if seconds < 2 * _DAY:
        return f"{_two_digits(seconds / _HOUR)} h"
    return f"{_two_digits(seconds / _DAY)} days"


def _two_digits(value: float) -> str:
    if value < 10:
        return f"{value:.1f}".removesuffix(".0")
    power = 10 ** max(0, len(str(int(value))) - 2)
    return f"{round(value / power) * power:,}"


def format_count(count: int, noun: str, one: str = "", many: str = "") -> str:
    """Return a count with its noun, in the plural unless it is 1: `1 row`, `12,300 rows`.

    A verb of each number may follow: `1 row is`, `2 rows are`.
    """
    verb = one if count == 1 else many
    return f"{count:,} {noun}{'' if count == 1 else 's'}{verb and f' {verb}'}"


def format_nonzero(count: int) -> str:
    """Return a count for a cell of a table, which is empty instead of 0."""
    return f"{count:,}" if count else ""


def format_time(time: datetime) -> str:
    """Return a time to the second: `2026-03-01 12:30:00 UTC`."""
    return f"{time.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def format_names(names: Iterable[object], most: int = 5) -> str:
    """Return names after each other, of many only the first ones."""
    found = [str(name) for name in names]
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more:,} more" if more > 0 else "")


def format_row_rate(rows_per_second: float) -> str:
    """Return a rate of rows: `180,000 rows/s`."""
    return f"{rows_per_second:,.0f} rows/s"


def format_byte_rate(bytes_per_second: float) -> str:
    """Return a rate of bytes: `42 KiB/s`."""
    return f"{format_size(round(bytes_per_second))}/s"


def format_share(share: float) -> str:
    """Return a share from 0 to 1 as a percentage, rounded down: only 1 is `100%`."""
    return f"{int(share * 100)}%"
