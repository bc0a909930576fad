"""Bounds of the changed keys of a merge by Spark, by which Delta skips files that cannot have them. Pure.

The bounds are literals in the condition of the MERGE, at most `_MAX_RANGES` ranges for each column of the
key. If no file can have a changed key, the rows are appended instead. Columns of types whose order or
statistics are not the same everywhere have no bounds: BOOLEAN, BINARY, FLOAT and DOUBLE with NaN and -0,
arrays and maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from pipeline.delta.sql import from_microseconds, literal, quoted
from pipeline.silver.fold.fold import Fold

MAX_KEYS = 1000  # of changes whose keys are all looked at; of more, the least and the greatest one
_MAX_RANGES = 32
_MAX_TEXT = 200  # characters of a bound

_EPOCH = date(1970, 1, 1)

Ranges = Sequence[tuple[Any, Any]]  # the first and the last value of each


TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
_OTHERS = frozenset({"SMALLINT", "INT", "BIGINT", "STRING", "DATE"})
# other writers round the statistics of wider ones
_DECIMAL = re.compile(r"DECIMAL\((\d|1[0-5]),\d+\)")


def has_sure_bounds(ddl: str) -> bool:
    """Return whether the statistics of a column of this type show where a value is."""
    return ddl in TIMES or ddl in _OTHERS or _DECIMAL.fullmatch(ddl) is not None


def has_sure_column(fold: Fold) -> bool:
    """Return whether the statistics of a column show which files may have a row."""
    return any(column.indexes and has_sure_bounds(column.type.ddl) for column in fold.columns)


@dataclass(frozen=True, slots=True)
class _BoundedColumn:
    """A key column that has bounds; `key` is its name in `folded`."""

    key: str
    name: str
    ddl: str

    @property
    def value(self) -> str:
        """Spark SQL for a value that Python sorts as Spark does."""
        match self.ddl:
            case "DATE":
                return f"unix_date({self.key})"
            case "TIMESTAMP":
                return f"unix_micros({self.key})"
            case "TIMESTAMP_NTZ":
                return f"CAST({self.key} AS STRING)"
        return self.key

    def ranges(self, aggregates: Mapping[str, Sequence[Any]]) -> Ranges:
        """Return ranges that have all changed values, none if these are not known."""
        keys, ends = aggregates.get(f"keys_{self.key}"), aggregates.get(f"ends_{self.key}")
        if ends and None not in ends:
            return [(ends[0], ends[1])]
        return _ranges(sorted(set(keys))) if keys else []

    def literal(self, value: Any) -> str:
        """Return such a value as a literal of the column's type: Delta computes no casts when it skips."""
        match self.ddl:
            case "STRING":
                return literal(value)
            case "DATE":
                return f"DATE'{_EPOCH + timedelta(days=value)}'"
            case "TIMESTAMP":
                return f"TIMESTAMP_LTZ'{from_microseconds(value).isoformat(' ')}'"
            case "TIMESTAMP_NTZ":
                return f"TIMESTAMP_NTZ'{value}'"
            case "BIGINT":
                return f"{value}L"
            case "SMALLINT":
                return f"{value}S"
            case "INT":
                return str(value)
        return f"{value:f}BD"

    def statistic(self, value: Any) -> Any:
        """Return such a value as the statistics of files sort it, None if that is not sure."""
        if self.ddl == "DATE":
            return (_EPOCH + timedelta(days=value)).isoformat()
        return None if self.ddl == "TIMESTAMP_NTZ" else value

    def condition(self, ranges: Ranges) -> str | None:
        """Return SQL that is true for target rows in ranges of values, None if a bound has no literal."""
        texts = [value for ends in ranges for value in ends if isinstance(value, str)]
        if not ranges or any(len(text) > _MAX_TEXT for text in texts):
            return None
        try:
            bounds = [(self.literal(first), self.literal(last)) for first, last in ranges]
        except OverflowError:  # by its zone, a time can be in a year that Python does not have
            return None
        column = f"t.{quoted(self.name)}"
        conditions = (
            f"{column} = {first}" if first == last else f"{column} >= {first} AND {column} <= {last}"
            for first, last in bounds
        )
        return f"({' OR '.join(conditions)})"


def has_bounds(fold: Fold) -> bool:
    """Return whether a column of the key can have bounds."""
    return any(True for _ in _bounded(fold))


def key_aggregates(fold: Fold, changes: int) -> dict[str, str]:
    """Return SQL of aggregates over the folded rows by alias, from whose values `key_bounds` is made.

    `changes` is their number or more: of few, all distinct keys are collected.
    """
    if changes <= MAX_KEYS:
        return {f"keys_{each.key}": f"collect_set({each.value})" for each in _bounded(fold)}
    return {f"ends_{each.key}": f"array(min({each.value}), max({each.value}))" for each in _bounded(fold)}


def key_bounds(fold: Fold, aggregates: Mapping[str, Sequence[Any]]) -> str | None:
    """Return SQL that is true for all target rows with a changed key, None if nothing is known."""
    found = (each.condition(each.ranges(aggregates)) for each in _bounded(fold))
    return " AND ".join(condition for condition in found if condition is not None) or None


def changed_values(fold: Fold, aggregates: Mapping[str, Sequence[Any]]) -> dict[str, Ranges]:
    """Return ranges that have all changed values of each column of the key, as the statistics of files sort.

    A column is left out if nothing is known of it, or if its statistics have another form.
    """
    found = {}
    for each in _bounded(fold):
        with suppress(OverflowError):
            if ranges := [(each.statistic(a), each.statistic(b)) for a, b in each.ranges(aggregates)]:
                found[each.name] = ranges
    return {name: ranges for name, ranges in found.items() if (None, None) not in ranges}


def _bounded(fold: Fold) -> Iterator[_BoundedColumn]:
    for key, i in zip(fold.key_names, fold.key, strict=True):
        column = fold.columns[i]
        if has_sure_bounds(column.type.ddl):
            yield _BoundedColumn(key, column.name, column.type.ddl)


def _ranges(values: Sequence[Any]) -> Ranges:
    """Return few ranges that have all of the sorted distinct values, apart where these are far apart."""
    ends = [0, *sorted(_splits(values)), len(values)]
    return [(values[start], values[end - 1]) for start, end in pairwise(ends)]


def _splits(values: Sequence[Any]) -> list[int]:
    """Return the indexes of values that begin a further range."""
    if len(values) <= 1:
        return []
    if not isinstance(values[0], (int, Decimal)):  # texts have no distance
        size = -(-len(values) // _MAX_RANGES)
        return [*range(size, len(values), size)]
    gaps = ((values[i] - values[i - 1], i) for i in range(1, len(values)))
    widest = sorted((gap, i) for gap, i in gaps if gap != 1)[-(_MAX_RANGES - 1) :]
    return [i for _, i in widest]
