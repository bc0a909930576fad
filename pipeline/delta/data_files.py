"""Data files of a Delta table on a file system of this machine: Parquet, and what the log says of each.

Readers skip files by statistics, so none is wrong: NaN and infinity are left out, long texts are cut off and,
above, end with the last of all characters, times are rounded outwards to milliseconds. What can be given is
given: deltalake's `to_pyarrow_dataset` finds no row by a filter on a column whose bounds a file leaves out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.delta.native_commit import now_milliseconds

INDEXED_COLUMNS = 32  # Delta's default: the first columns have statistics
_TEXT_LENGTH = 32  # of a bound; a longer text is cut off
_LAST_CHARACTER = "\U0010ffff"  # behind a cut-off maximum, as Spark does
_BATCH_ROWS = 16_384  # that are read before their size is looked at
_MILLISECOND = timedelta(milliseconds=1)
_MOST_ROWS = 1 << 20  # in a row group
_ROW_GROUP = 16 << 20  # bytes in memory: a reader needs no more than one row group at a time


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the table's folder that no version contains yet; `stats` are JSON for the log."""

    name: str
    size: int  # bytes
    row_count: int
    stats: str

    def action(self, *, data_change: bool = True) -> dict[str, Any]:
        """Return the `add` action."""
        return {
            "add": {
                "path": quote(self.name),
                "partitionValues": {},
                "size": self.size,
                "modificationTime": now_milliseconds(),
                "dataChange": data_change,
                "stats": self.stats,
            }
        }


class TooLargeError(Exception):
    """The rows of a file need more memory than they may use."""


def read_data_file(path: str, columns: Sequence[str], most_bytes: int) -> pa.Table:
    """Return those of the columns that a Parquet file has; raise TooLargeError if they need more memory.

    A small file may have many equal values, of any length. Raises FileNotFoundError.
    """
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us", page_checksum_verification=True) as file:
        names = set(file.schema_arrow.names)
        schema = pa.schema([file.schema_arrow.field(name) for name in columns if name in names])
        if not schema.names:
            return pa.table({"": pa.nulls(file.metadata.num_rows)}).select([])
        size, batches = 0, []
        for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names):
            size += batch.nbytes
            if size > most_bytes:
                raise TooLargeError(f"{path} has more than {most_bytes} bytes of values")
            batches.append(batch)
        return pa.Table.from_batches(batches) if batches else schema.empty_table()


def write_data_file(folder: Path, rows: pa.Table) -> DataFile:
    """Write rows, with the columns of the table's files, to a new file in its folder."""
    name = f"part-{uuid4()}.snappy.parquet"
    path = folder / name
    try:
        pq.write_table(
            rows,
            path,
            row_group_size=min(_MOST_ROWS, max(1, rows.num_rows * _ROW_GROUP // max(1, rows.nbytes))),
            compression="snappy",
            write_page_checksum=True,
            store_schema=False,
            coerce_timestamps="us",
            store_decimal_as_integer=True,  # as Spark does
            write_statistics=_columns_with_statistics(rows.schema),
        )
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return DataFile(name, path.stat().st_size, rows.num_rows, statistics_of(rows))


def _columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns for which each row group has statistics.

    In those of FLOAT and DOUBLE, Arrow leaves out NaN, which is the greatest value for Spark and DuckDB.
    """
    fields = (field for field in schema if not pa.types.is_nested(field.type))
    return [field.name for field in fields if not pa.types.is_floating(field.type)]


def statistics_of(rows: pa.Table, indexed_columns: int = INDEXED_COLUMNS) -> str:
    """Return the statistics of a file with these rows as the log has them, keyed as the columns are."""
    least: dict[str, str] = {}
    greatest: dict[str, str] = {}
    nulls: dict[str, str] = {}
    for name in rows.column_names[:indexed_columns]:
        column = rows.column(name)
        if pa.types.is_struct(column.type):
            continue  # the protocol has an object of its fields there
        nulls[name] = str(column.null_count)
        low, high = _bounds(column)
        if low is not None:
            least[name] = low
        if high is not None:
            greatest[name] = high
    return (
        f'{{"numRecords":{rows.num_rows},"minValues":{_object(least)},"maxValues":{_object(greatest)},'
        f'"nullCount":{_object(nulls)}}}'
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


def _bounds(column: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """Return the least and the greatest value as JSON, None for what is left out."""
    kind = column.type
    if not _has_bounds(kind) or column.null_count == len(column):
        return None, None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None, None
    bounds = pc.min_max(column)
    try:
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
    except (OverflowError, ValueError):  # a date or a time that Python does not have
        return None, None
    return _bound(low, is_least=True), _bound(high, is_least=False)


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
