"""The statistics of a data file, by which readers skip files.

A bound never excludes a value: NaN and infinity are left out, texts are cut off after 32 characters (an upper
bound then ends with the last of all characters), and times are rounded outwards to milliseconds. Every column
that can have bounds has them: deltalake's `to_pyarrow_dataset` finds no row by a filter on a column whose
bounds a file leaves out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

INDEXED_COLUMNS = 32  # Delta's default: the first columns have statistics
_TEXT_LENGTH = 32  # of a bound; a longer text is cut off
_LAST_CHARACTER = "\U0010ffff"  # behind a cut-off maximum, as Spark does
_MILLISECOND = timedelta(milliseconds=1)


class Statistics:
    """The statistics of a file's rows, which are added in parts."""

    def __init__(self, names: Sequence[str]) -> None:
        self.row_count = 0
        self._names = list(names[:INDEXED_COLUMNS])
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded: set[str] = set()  # columns with a value that no bounds can include

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self.row_count += rows.num_rows
        for name in self._names:
            column = rows.column(name)
            if pa.types.is_struct(column.type):
                continue  # the protocol has an object of its fields there
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if name in self._unbounded or column.null_count == len(column) or not _has_bounds(column.type):
                continue
            bounds = _bounds(column)
            if bounds is None:
                self._unbounded.add(name)
            elif (before := self._bounds.get(name)) is not None:
                self._bounds[name] = (min(before[0], bounds[0]), max(before[1], bounds[1]))
            else:
                self._bounds[name] = bounds

    def json(self) -> str:
        """Return the statistics as the log has them."""
        least: dict[str, str] = {}
        greatest: dict[str, str] = {}
        for name in self._names:
            if name in self._unbounded or name not in self._bounds:
                continue
            low, high = self._bounds[name]
            if (text := _bound(low, is_least=True)) is not None:
                least[name] = text
            if (text := _bound(high, is_least=False)) is not None:
                greatest[name] = text
        nulls = {name: str(count) for name, count in self._nulls.items()}
        return (
            f'{{"numRecords":{self.row_count},"minValues":{_object(least)},'
            f'"maxValues":{_object(greatest)},"nullCount":{_object(nulls)}}}'
        )


def statistics_json(row_count: int, least: Mapping[str, Any], greatest: Mapping[str, Any]) -> str:
    """Return statistics of integers and short texts, as the log has them."""
    return json.dumps({"numRecords": row_count, "minValues": dict(least), "maxValues": dict(greatest)})


def _object(values: Mapping[str, str]) -> str:
    return (
        "{"
        + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in values.items())
        + "}"
    )


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, None if no bounds would include all values."""
    import pyarrow.compute as pc  # takes long, and only a write needs it

    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    bounds = pc.min_max(column)
    try:
        return bounds["min"].as_py(), bounds["max"].as_py()
    except (OverflowError, ValueError):  # a date or a time that Python does not have
        return None


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def _bound(value: Any, *, is_least: bool) -> str | None:
    if isinstance(value, str):
        text = value[:_TEXT_LENGTH] if is_least else _greatest_text(value)
        return None if text is None else json.dumps(text, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return _time_text(value, is_least=is_least)
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    return str(int(value))


def _greatest_text(text: str) -> str | None:
    """Return a text of limited length that is not less than another one, None if there is none."""
    if len(text) <= _TEXT_LENGTH:
        return text
    return None if text[_TEXT_LENGTH] == _LAST_CHARACTER else text[:_TEXT_LENGTH] + _LAST_CHARACTER


def _time_text(value: datetime, *, is_least: bool) -> str | None:
    """Return a time rounded outwards to milliseconds; in UTC unless it has no zone."""
    if value.tzinfo is not None:
        value = value.astimezone(timezone.utc)
    rounded = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if not is_least and rounded != value:
        try:
            rounded += _MILLISECOND
        except OverflowError:
            return None
    text = rounded.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f'"{text}Z"' if value.tzinfo is not None else f'"{text}"'
