"""A silver table held against its source, as multisets of rows and column by column.

Both sides become PostgreSQL's text: the source sends its own, silver's values are rendered by their Delta
type as a server of version 12 or newer prints them in a session of ours. A row counts as the hash of its
texts, so that memory holds the columns of one table and a number for each row. Values are never shown.
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
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName

Text = str | None
_COLUMNS = (
    "SELECT attname::text FROM pg_catalog.pg_attribute"
    " WHERE attrelid = %s::pg_catalog.regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
# array_out's own rule; isspace is the server's: ASCII only
_QUOTED = frozenset('{}",\\ \t\n\r\v\f')


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of one table: rows on either side, and what only one of them has."""

    name: TableName
    source_rows: int
    silver_rows: int
    missing: int  # rows of the source that silver has not
    surplus: int  # rows of silver that the source has not
    columns: tuple[str, ...]  # those whose values differ, each column taken by itself

    @property
    def is_equal(self) -> bool:
        """Say whether both sides hold the same rows the same number of times."""
        return not self.missing and not self.surplus


def compare_table(connection: Connection, table: LakeTable, name: TableName) -> Comparison:
    """Compare the table with its source as the connection's transaction sees it.

    A column that silver lacks counts as NULL in every row; columns that the source has not are left out.
    """
    relation = quote_identifier(*name)
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
    # Python keys the hash of text anew in each process: no data can be made to collide.
    return Counter(map(hash, zip(*columns, strict=True)))


def _source_texts(connection: Connection, relation: str, columns: Sequence[str]) -> list[list[Text]]:
    names = ", ".join(map(quote_identifier, columns))
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
    """Return Spark SQL for PostgreSQL's text of a value; of floats and arrays for what `_finisher` takes."""
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
    """Return PostgreSQL's text of a float from Python's shortest one; beyond `digits` it has an exponent."""
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
