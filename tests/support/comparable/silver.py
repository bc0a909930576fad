"""A silver table's rows, made comparable, and the types that its columns should have.

Values are rendered back to PostgreSQL's text by their Spark type. Timestamps leave Spark as integers or text,
never as Python datetimes in a local time zone. The types are those of the contract's table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.support.comparable.source import Rows, SourceColumn, Value, double_text, real_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


def silver_path(root: str, schema: str, table: str, target: str | None = None) -> str:
    """Return where a silver table lies: what a path segment cannot hold is percent-encoded in names."""
    return f"{root}/silver/{target or f'{_segment(schema)}/{_segment(table)}'}"


def _segment(name: str) -> str:
    if name in (".", ".."):
        return "%2E" * len(name)
    return "".join(f"%{ord(c):02X}" if c in "/\\%:*?[]{}" or ord(c) in (*range(32), 127) else c for c in name)


def silver_rows(
    spark: SparkSession,
    root: str,
    schema: str,
    table: str,
    columns: Sequence[str],
    *,
    target: str | None = None,
) -> Rows:
    """Return the multiset of a silver table's rows over `columns`, as comparable values."""
    return frame_rows(spark.read.format("delta").load(silver_path(root, schema, table, target)), columns)


def frame_rows(frame: DataFrame, columns: Sequence[str]) -> Rows:
    """Return the multiset of a frame's rows over `columns`, as comparable values."""
    types = {f.name: f.dataType for f in frame.schema.fields}
    selected = [
        collectable(frame[backticked(name)], types[name]).alias(f"c{i}") for i, name in enumerate(columns)
    ]
    readers = [silver_reader(types[name]) for name in columns]
    rows: Rows = Counter()
    for row in frame.select(*selected).collect():
        rows[tuple(None if v is None else read(v) for read, v in zip(readers, row, strict=True))] += 1
    return rows


def backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def collectable(column: Column, type_: DataType) -> Column:
    """Return an expression that collects without loss: times as text or microseconds, not as datetimes."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DateType, TimestampNTZType, TimestampType

    match type_:
        case TimestampType():
            return functions.unix_micros(column)
        case DateType() | TimestampNTZType():
            return column.cast("string")
        case ArrayType():
            return functions.transform(column, lambda item: collectable(item, type_.elementType))
    return column


def silver_reader(type_: DataType) -> Callable[[Any], Value]:
    """Return the function from a collected value of a Spark type to a comparable value."""
    from pyspark.sql.types import ArrayType, DecimalType

    if isinstance(type_, DecimalType):
        return lambda value: decimal_text(value, type_.scale)
    if isinstance(type_, ArrayType):
        element = silver_reader(type_.elementType)
        return lambda items: tuple(None if item is None else element(item) for item in items)
    name = type_.typeName()
    readers: dict[str, Callable[[Any], Value]] = {
        "boolean": lambda value: "t" if value else "f",
        "float": real_text,
        "double": double_text,
        "binary": lambda value: "\\x" + bytes(value).hex(),
        "timestamp": utc_text,
        "timestamp_ntz": lambda text: text,
    }
    return readers.get(name, str)


def decimal_text(value: Decimal, scale: int) -> str:
    """Return a decimal with the digits of its type: Spark hands on 1E-10 as 100E-12, two digits longer."""
    return format(value, f".{scale}f")


def utc_text(microseconds: int) -> str:
    """Return microseconds since 1970 as PostgreSQL prints them in UTC, or as they are beyond year 9999."""
    try:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} microseconds since 1970"
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%d %H:%M:%S}{fraction}+00"


# Types ------------------------------------------------------------------------------------------------------

SILVER_TYPES = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "oid": "bigint",
    "float4": "float", "float8": "double", "bytea": "binary", "date": "date",
    "timestamp": "timestamp_ntz", "timestamptz": "timestamp",
}  # fmt: skip


def silver_type(column: SourceColumn) -> str:
    """Return the Spark type, as `simpleString`, that the contract gives a column."""
    scalar = column.element or column.type
    name = SILVER_TYPES.get(scalar, numeric_type(column.modifier) if scalar == "numeric" else "string")
    return f"array<{name}>" if column.element else name


def numeric_type(modifier: int) -> str:
    if modifier < 0:
        return "string"
    precision = (modifier - 4) >> 16 & 0xFFFF
    scale = (modifier - 4 & 0x7FF ^ 1024) - 1024  # 11 bits, signed
    precision, scale = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    return f"decimal({precision},{scale})" if precision <= 38 else "string"
