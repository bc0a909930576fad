"""A silver table's rows as Arrow reads them without Spark, made comparable as `silver` does."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.table import LakeTable
from tests.support.comparable.silver import decimal_text, utc_text
from tests.support.comparable.source import Rows, Value, double_text, real_text

_EPOCH = datetime(1970, 1, 1)


def arrow_rows(path: str, columns: Sequence[str], condition: pc.Expression | None = None) -> Rows:
    """Return the multiset of a table's rows over `columns`, as comparable values."""
    table = LakeTable(path).rows(columns if condition is None else None)
    if condition is not None:
        table = table.filter(condition).select(columns)
    return comparable_rows(table)


def comparable_rows(table: pa.Table) -> Rows:
    """Return the multiset of an Arrow table's rows, as comparable values."""
    readers = [reader(field.type) for field in table.schema]
    rows: Rows = Counter()
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        rows[tuple(None if v is None else read(v) for read, v in zip(readers, row, strict=True))] += 1
    return rows


def reader(kind: pa.DataType) -> Callable[[Any], Value]:
    """Return the function from a value of an Arrow type to a comparable value."""
    if pa.types.is_list(kind):
        element = reader(kind.value_type)
        return lambda items: tuple(None if item is None else element(item) for item in items)
    if pa.types.is_map(kind):
        return lambda items: str(dict(items))
    if pa.types.is_decimal(kind):
        return lambda value: decimal_text(value, kind.scale)
    if pa.types.is_timestamp(kind):
        return _zoned if kind.tz else lambda value: _zoned(value).removesuffix("+00")
    if pa.types.is_boolean(kind):
        return lambda value: "t" if value else "f"
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return lambda value: "\\x" + value.hex()
    if pa.types.is_float32(kind):
        return real_text
    return double_text if pa.types.is_float64(kind) else str


def _zoned(value: datetime) -> str:
    return utc_text((value.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1))
