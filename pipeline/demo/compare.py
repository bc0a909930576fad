"""Compare a silver table with its source, as multisets of rows and column by column.

Both sides become PostgreSQL's text: the source sends its own, silver's values are formatted by their Delta
type as a server of version 12 or newer prints them. A row is the hash of its texts, so memory holds the
columns of one table and a number for each row. Values are never shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy
from pyspark.sql import types as T

from pipeline.delta.sql import quoted
from pipeline.delta.table import LakeTable
from pipeline.postgres.connection import Connection
from pipeline.table_name import TableName

Text = str | None
_COLUMNS = (
    "SELECT attname::text FROM pg_catalog.pg_attribute"
    " WHERE attrelid = %s::pg_catalog.regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
# what array_out quotes; the server's isspace is ASCII only
_QUOTED = frozenset('{}",\\ \t\n\r\v\f')


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one table: the row count of each side, and the rows that only one side has."""

    name: TableName
    source_rows: int
    silver_rows: int
    missing: int  # rows of the source that silver lacks
    surplus: int  # rows of silver that the source lacks
    columns: tuple[str, ...]  # those whose values differ, each column compared alone

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same multiset of rows."""
        return not self.missing and not self.surplus


def compare_table(connection: Connection, table: LakeTable, name: TableName) -> Comparison:
    """Compare the table with its source as the connection's transaction sees it.

    A column that silver lacks is NULL in every row; columns that the source lacks are left out.
    """
    relation = name.sql
    columns = [column for (column,) in connection.execute(_COLUMNS, [relation])]
    source = _source_texts(connection, relation, columns)
    silver = _silver_texts(table, columns) if table.exists() else [[] for _ in columns]
    ours, theirs = _fingerprints(silver), _fingerprints(source)
    differing = [
        column
        for column, one, other in zip(columns, silver, source, strict=True)
        if Counter(map(hash, one)) != Counter(map(hash, other))
    ]
    return Comparison(
        name, theirs.total(), ours.total(), (theirs - ours).total(), (ours - theirs).total(), tuple(differing)
    )


def _fingerprints(columns: Sequence[Sequence[Text]]) -> Counter[int]:
    # Python salts the hash of text in each process, so no data can be made to collide.
    return Counter(map(hash, zip(*columns, strict=True)))


def _source_texts(connection: Connection, relation: str, columns: Sequence[str]) -> list[list[Text]]:
    names = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
    result = connection.execute(f"SELECT {names} FROM ONLY {relation}".encode()).pgresult
    assert result is not None
    rows = range(result.ntuples)
    return [
        [None if (raw := result.get_value(row, at)) is None else _decoded(raw) for row in rows]
        for at in range(len(columns))
    ]


def _decoded(raw: bytes) -> str:
    return bytes(raw).decode("utf-8", "surrogateescape")


def _silver_texts(table: LakeTable, columns: Sequence[str]) -> list[list[Text]]:
    frame = table.frame()
    types = {field.name: field.dataType for field in frame.schema.fields}
    selected = [
        f"{_sql_text(quoted(column), types[column])} AS c{at}"
        if column in types
        else f"CAST(NULL AS STRING) AS c{at}"
        for at, column in enumerate(columns)
    ]
    found = frame.selectExpr(*selected).toArrow()
    finished = [_finisher(types.get(column, T.StringType())) for column in columns]
    return [
        values if finish is None else [None if value is None else finish(value) for value in values]
        for values, finish in zip((c.to_pylist() for c in found.columns), finished, strict=True)
    ]


def _sql_text(value: str, type_: T.DataType) -> str:
    """Return Spark SQL for PostgreSQL's text of a value; floats and arrays are left for `_finisher`."""
    match type_:
        case T.ArrayType():
            return f"transform({value}, e -> {_sql_text('e', type_.elementType)})"
        case T.FloatType() | T.DoubleType() | T.DecimalType():
            return value
        case T.BooleanType():
            return f"CASE WHEN {value} THEN 't' WHEN NOT {value} THEN 'f' END"
        case T.BinaryType():
            return rf"concat('\\x', lower(hex({value})))"
        case T.TimestampType():
            return f"concat(CAST({value} AS STRING), '+00')"
    return f"CAST({value} AS STRING)"


def _finisher(type_: T.DataType) -> Callable[[Any], str] | None:
    match type_:
        case T.ArrayType():
            element = _finisher(type_.elementType)
            return lambda items: _array_text(items, element)
        case T.FloatType():
            return lambda value: float_text(str(numpy.float32(value)), 6)
        case T.DoubleType():
            return lambda value: float_text(repr(value), 15)
        case T.DecimalType():
            return lambda value: format(value, "f")
    return None


def float_text(shortest: str, digits: int) -> str:
    """Return PostgreSQL's text of a float from Python's shortest; above `digits` digits with an exponent."""
    value = float(shortest)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    number = Decimal(shortest)
    if not number:
        return "-0" if number.is_signed() else "0"
    number = number.normalize()
    exponent = number.adjusted()
    if -4 <= exponent < digits:
        return format(number, "f")
    return f"{number.scaleb(-exponent).normalize():f}e{exponent:+03d}"


def _array_text(items: Sequence[Any], finish: Callable[[Any], str] | None) -> str:
    return "{" + ",".join(_element_text(item, finish) for item in items) + "}"


def _element_text(item: Any, finish: Callable[[Any], str] | None) -> str:
    if item is None:
        return "NULL"
    text: str = item if finish is None else finish(item)
    if text and text.upper() != "NULL" and not _QUOTED & set(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
