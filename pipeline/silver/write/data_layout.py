"""Choice of the files that a merge reads, by their statistics, and sizes of files.

A merge rewrites whole files, so the size of files bounds what one changed row costs, however large the table
is. A reader opens at most about `_FILES` files of a table until they are as large as `FILE_SIZE`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

from pipeline.delta.partitions import partition_bounds
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import to_microseconds
from pipeline.delta.table_log import Snapshot
from pipeline.key_ranges import KeyRange
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.key_bounds import TIMES, has_sure_bounds
from pipeline.silver.fold.write import FOLDED

FILE_SIZE = 128 << 20  # bytes of a file at most
ADDED_FILE_IN_MEMORY = 256 << 20  # bytes of values of a file: a merge has them in memory
_MIN_FILE_SIZE = 8 << 20  # a changed row costs some 0.2 s of a processor
_FILES = 1000  # of a table, from where its files become larger

_MILLISECOND = 1000  # microseconds, by which Spark may cut off the bounds of times
_COMPARED_COLUMNS = 16  # whose statistics choose files if whole rows are compared
_CACHED_FILES = 1 << 15

PartitionBounds = tuple[tuple[str, Any], ...]
"""The values of a file's partition columns, as `partition_bounds` returns them."""


def file_size(table_bytes: int) -> int:
    """Return how many bytes a file of a table of this size should have."""
    return max(_MIN_FILE_SIZE, min(FILE_SIZE, table_bytes // _FILES))


def small_size(table_bytes: int) -> int:
    """Return below how many bytes a file should be compacted with others."""
    return file_size(table_bytes) // 4


class FileChoice:
    """Chooses files by their statistics: those that may have one of some values in every column.

    `values` are sorted distinct values by column, as `file_bounds` sorts them; `types` are their types.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], types: Mapping[str, str]) -> None:
        self._values = list(values.values())
        self._are_times = {name: types[name] in TIMES for name in values}

    @staticmethod
    def of_keys(session: DuckSql, fold: Fold, source: str = FOLDED) -> FileChoice:
        """Return what chooses the files that may have rows with the keys of a relation."""
        types = {fold.columns[i].name: fold.columns[i].type.ddl for i in fold.key}
        values = {
            column: _distinct(session, value, f"{source} WHERE {name} IS NOT NULL")
            for name, (column, ddl) in zip(fold.key_names, types.items(), strict=True)
            if (value := _value(name, ddl)) is not None
        }
        return FileChoice(values, types)

    @staticmethod
    def of_rows(session: DuckSql, fold: Fold, rows: str) -> FileChoice:
        """Return what chooses the files that may have rows equal to those of a query, texts x0….

        A column counts if none of its values is NULL, and all fit.
        """
        found = _typed_texts(session, fold)
        if not found:
            return FileChoice({}, {})
        tests = ", ".join(f"coalesce(bool_and({typed} IS NOT NULL), true)" for _, typed in found)
        are_sure = session.table(f"SELECT list_value({tests}) AS sure FROM ({rows}) AS r").column(0)[0]
        values = {
            column.name: _distinct(session, _value(typed, column.type.ddl), f"({rows}) AS r")
            for (column, typed), is_sure in zip(found, are_sure.as_py(), strict=True)
            if is_sure
        }
        return FileChoice(values, {column.name: column.type.ddl for column, _ in found})

    def candidates(self, files: Sequence[Mapping[str, Any]], snapshot: Snapshot) -> list[int]:
        """Return the numbers of the files, in the version of the table that has them."""
        names = TableSchema.of_json(snapshot.schema_string).physical_names
        columns = tuple((names.get(name, name), is_time) for name, is_time in self._are_times.items())
        found = []
        for number, file in enumerate(files):
            bounds = _bounds(file.get("stats") or "{}", columns, partition_bounds(snapshot, file))
            if all(any_between(values, *each) for values, each in zip(self._values, bounds, strict=True)):
                found.append(number)
        return found


def _typed_texts(session: DuckSql, fold: Fold) -> list[tuple[FoldColumn, str]]:
    """Return columns by whose statistics rows can be found, with SQL for the values of their texts."""
    found = [
        (column, f"({column.type.value(f'x{i}', session.engine)})")
        for i, column in enumerate(fold.columns)
        if column.indexes and has_sure_bounds(column.type.ddl)
    ]
    return found[:_COMPARED_COLUMNS]


def _distinct(session: DuckSql, value: str | None, source: str) -> list[Any]:
    found = session.table(f"SELECT DISTINCT {value} AS v FROM {source}")
    return sorted(found.column(0).to_pylist())


def column_bounds(
    session: DuckSql, fold: Fold, ranges: Sequence[KeyRange]
) -> dict[str, list[tuple[Any, Any]]]:
    """Return the bounds of ranges of keys in a column of all, by its name, as `may_have` compares them.

    None is no bound. Nothing is returned for a column whose statistics are not sure.
    """
    places = [[column.position for column in each.columns] or [0] for each in ranges]
    common = [place for place in places[0] if all(place in each for each in places)] if places else []
    if not common:
        return {}
    column, engine = fold.columns[fold.key[common[0]]], session.engine
    bounds = [
        _value(f"({column.type.value(name, engine)})", column.type.ddl) for name in ("r.first", "r.last")
    ]
    if None in bounds:
        return {}
    texts = (
        ", ".join(engine.null("STRING") if text is None else engine.literal(text) for text in ends)
        for ends in (_ends(each, common[0]) for each in ranges)
    )
    rows = ", ".join(f"({each})" for each in texts)
    found = session.table(
        f"SELECT {bounds[0]} AS first, {bounds[1]} AS last FROM (VALUES {rows}) AS r(first, last)"
    )
    return {column.name: list(zip(*(each.to_pylist() for each in found.columns), strict=True))}


def _ends(each: KeyRange, place: int) -> tuple[str | None, str | None]:
    """Return the texts of the bounds of a range in a column of the key."""
    for column in each.columns:
        if column.position == place:
            return column.first, column.last
    return each.first[0] if each.first else None, each.last[0] if each.last else None


def file_bounds(file: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[tuple[Any, Any], ...]:
    """Return the least and greatest value of columns, None if it is not known.

    `columns` are their types by physical name.

    Values are as they sort: times are microseconds since 1970, dates texts.
    """
    is_time = tuple((name, ddl in TIMES) for name, ddl in columns.items())
    return _bounds(file.get("stats") or "{}", is_time)


@lru_cache(_CACHED_FILES)
def may_have_null(stats: str, column: str) -> bool:
    """Return whether a file with these statistics may have a row without a value of a column."""
    found = (json.loads(stats).get("nullCount") or {}).get(column)
    return found is None or found > 0


def _value(name: str, ddl: str) -> str | None:
    """Return DuckDB's SQL for a value that sorts as the statistics do, None if these are not sure."""
    if ddl in TIMES:
        return f"epoch_us({name})"
    if ddl == "DATE":
        return f"CAST({name} AS VARCHAR)"
    return name if has_sure_bounds(ddl) else None


@lru_cache(_CACHED_FILES)
def _bounds(
    stats: str, columns: tuple[tuple[str, bool], ...], partition: PartitionBounds = ()
) -> tuple[tuple[Any, Any], ...]:
    """Return the least and greatest value of columns, None if not known; a column is a time or not."""
    found, values = json.loads(stats, parse_float=Decimal), dict(partition)
    least = (found.get("minValues") or {}) | values
    greatest = (found.get("maxValues") or {}) | values
    return tuple(
        (_moment(least.get(name), -_MILLISECOND), _moment(greatest.get(name), _MILLISECOND))
        if is_time
        else (least.get(name), greatest.get(name))
        for name, is_time in columns
    )


def _moment(text: str | None, slack: int) -> int | None:
    """Return a time of the statistics in microseconds since 1970, None if Python does not have it."""
    try:
        moment = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return to_microseconds(zoned) + slack


def may_have(
    file: Mapping[str, Any],
    values: Mapping[str, Sequence[tuple[Any, Any]]],
    times: Collection[str],
    partition: PartitionBounds = (),
) -> bool:
    """Return whether a file may have a row with values in all of the ranges, by its statistics.

    `values` are ranges by the name that a column has in the statistics, `times` the columns of TIMESTAMP. A
    range may lack a bound.
    """
    columns = tuple((name, name in times) for name in values)
    bounds = _bounds(file.get("stats") or "{}", columns, partition)
    return all(
        any(_overlap(first, last, least, greatest) for first, last in ranges)
        for ranges, (least, greatest) in zip(values.values(), bounds, strict=True)
    )


def _overlap(first: Any, last: Any, least: Any, greatest: Any) -> bool:
    is_before = last is not None and least is not None and last < least
    is_behind = first is not None and greatest is not None and first > greatest
    return not (is_before or is_behind)


def any_between(values: Sequence[Any], least: Any, greatest: Any) -> bool:
    """Return whether one of sorted values lies between two bounds; a bound may be missing."""
    if not values:
        return False
    start = 0 if least is None else bisect_left(values, least)
    return start < len(values) and (greatest is None or values[start] <= greatest)
