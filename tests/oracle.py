"""The judge: a silver table must hold, row for row and duplicates counted, what SELECT returns at the source.

Source rows are the server's own text (its output functions, as in the stream, not casts: `bool::text` says
`true` and `bpchar::text` drops the padding). Silver values are rendered back to that text by their Spark
type. Both sides then become comparable values: floats by `repr` (so -0 is not 0 and NaN is NaN), arrays as
tuples, everything else as text. Silver's types are held against the contract's table of types as well.
Timestamps leave Spark as integers or text, never as Python datetimes in somebody's time zone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy
import psycopg

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

Value = Any  # None, text, or for an array a tuple of Values
Rows = Counter[tuple[Value, ...]]
Connection = psycopg.Connection[Any]

METADATA = {"_commit_lsn": "bigint", "_commit_time": "timestamp"}
SHOWN = 5


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalog sees it, its domains unrolled; `element` is the element type of an array."""

    name: str
    type: str
    modifier: int
    element: str | None


# Source -----------------------------------------------------------------------------------------------------


@contextmanager
def snapshot(conn: Connection) -> Iterator[None]:
    """Run the block in one REPEATABLE READ transaction with the text formats of the stream."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for setting in (
            "datestyle = 'ISO, YMD'",
            "intervalstyle = postgres",
            "timezone = 'UTC'",
            "extra_float_digits = 3",
            "bytea_output = hex",
            "lc_monetary = 'C'",
        ):
            conn.execute(f"SET LOCAL {setting}")
        yield


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def source_columns(conn: Connection, schema: str, table: str) -> list[SourceColumn]:
    """Return the table's live columns in order, with the types that their domains stand for."""
    query = """
        WITH RECURSIVE steps AS (
            SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS modifier, 0 AS depth
            FROM pg_attribute a
            WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
            SELECT s.attnum, s.attname, t.typbasetype,
                   CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE s.modifier END, depth + 1
            FROM steps s JOIN pg_type t ON t.oid = s.type AND t.typtype = 'd'
        )
        SELECT DISTINCT ON (s.attnum) s.attname::text, t.typname::text, s.modifier,
               CASE WHEN t.typcategory = 'A' THEN e.typname::text END
        FROM steps s JOIN pg_type t ON t.oid = s.type LEFT JOIN pg_type e ON e.oid = t.typelem
        ORDER BY s.attnum, depth DESC"""
    return [SourceColumn(*row) for row in conn.execute(query, [f"{quote(schema)}.{quote(table)}"])]


def source_rows(
    conn: Connection, schema: str, table: str, columns: Sequence[SourceColumn] | None = None
) -> Rows:
    """Return the multiset of the table's rows as comparable values; call it inside `snapshot`."""
    columns = source_columns(conn, schema, table) if columns is None else columns
    names = ", ".join(quote(column.name) for column in columns)
    result = conn.execute(f"SELECT {names} FROM ONLY {quote(schema)}.{quote(table)}").pgresult
    assert result is not None
    readers = [value_reader(column) for column in columns]
    rows: Rows = Counter()
    for at in range(result.ntuples):
        raw = (result.get_value(at, position) for position in range(len(columns)))
        rows[
            tuple(
                None if text is None else read(bytes(text).decode("utf-8", "surrogateescape"))
                for read, text in zip(readers, raw, strict=True)
            )
        ] += 1
    return rows


def value_reader(column: SourceColumn) -> Callable[[str], Value]:
    """Return the function from PostgreSQL text to a comparable value for a column."""
    element = SCALARS.get(column.element or column.type, str)
    if column.element is None:
        return element
    return lambda text: mapped(element, parse_array(text))


def mapped(function: Callable[[str], Value], value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(mapped(function, item) for item in value)
    return None if value is None else function(value)


def real_text(text: str | float) -> str:
    return repr(float(numpy.float32(text)))


def double_text(text: str | float) -> str:
    return repr(float(text))


SCALARS: dict[str, Callable[[str], Value]] = {"float4": real_text, "float8": double_text}

# Only ASCII space may stand around an element: PostgreSQL leaves U+2028 and its like unquoted.
SPACE = " \t\n\r\v\f"
ARRAY_TOKEN = re.compile(
    rf'[{SPACE}]*(?:([{{}},])|"((?:[^"\\]|\\.)*)"|((?:[^"\\{{}},]|\\.)+))[{SPACE}]*', re.DOTALL
)


def parse_array(text: str) -> tuple[Value, ...]:
    """Return an array literal as nested tuples of text and None; raise ValueError when it is not one.

    Lower bounds before the braces (`[0:1]={…}`) are dropped. The delimiter is the comma.
    """
    position = re.match(r"(?:(?:\[[-+\d]+:[-+\d]+\])+=)?", text).end()  # type: ignore[union-attr]
    stack: list[list[Value]] = [[]]
    previous = ","
    while position < len(text):
        match = ARRAY_TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not an array literal at offset {position}")
        position = match.end()
        mark, quoted, bare = match.groups()
        token = mark or "value"
        if (previous, token) in ILLEGAL or (len(stack) == 1 and (token != "{" or stack[0])):
            raise ValueError(f"{token} after {previous} in an array literal before offset {position}")
        if mark == "{":
            stack.append([])
        elif mark == "}":
            inner = tuple(stack.pop())
            stack[-1].append(inner)
        elif quoted is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        elif bare is not None:
            bare = bare.rstrip(SPACE)
            stack[-1].append(
                None if bare.upper() == "NULL" else re.sub(r"\\(.)", r"\1", bare, flags=re.DOTALL)
            )
        previous = token
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError("an array literal that does not end")
    array: tuple[Value, ...] = stack[0][0]
    return array


ILLEGAL = {
    *((before, after) for before in ("value", "}") for after in ("value", "{")),
    *((before, after) for before in "{," for after in ","),
    (",", "}"),
}


# Silver -----------------------------------------------------------------------------------------------------


def silver_path(root: str, schema: str, table: str, target: str | None = None) -> str:
    """Return where a silver table lies; names here are valid path segments, which are used unchanged."""
    return f"{root}/silver/{target or f'{schema}/{table}'}"


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
    frame = spark.read.format("delta").load(silver_path(root, schema, table, target))
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
    from pyspark.sql.types import ArrayType

    if isinstance(type_, ArrayType):
        element = silver_reader(type_.elementType)
        return lambda items: tuple(None if item is None else element(item) for item in items)
    name = type_.typeName()
    readers: dict[str, Callable[[Any], Value]] = {
        "boolean": lambda value: "t" if value else "f",
        "float": real_text,
        "double": double_text,
        "decimal": decimal_text,
        "binary": lambda value: "\\x" + bytes(value).hex(),
        "timestamp": utc_text,
        "timestamp_ntz": lambda text: text,
    }
    return readers.get(name, str)


def decimal_text(value: Decimal) -> str:
    return format(value, "f")


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


# Judgement --------------------------------------------------------------------------------------------------


def assert_silver_equals_source(
    conn: Connection,
    spark: SparkSession,
    root: str,
    tables: Iterable[tuple[str, str]],
    *,
    targets: Mapping[tuple[str, str], str] | None = None,
    overrides: Mapping[str, str] | None = None,
    metadata_columns: bool = True,
    ignore_left_columns: bool = False,
) -> None:
    """Assert that every silver table equals its source in one snapshot; else name the first rows that differ.

    `targets` are configured silver paths. `overrides` are Spark types by column name, for columns with a
    configured type. With `ignore_left_columns` silver may keep columns that the source has dropped. A column
    that silver lacks is forgiven while it is NULL in every row of the source: no change has announced it yet.
    A source without rows may have no silver table.
    """
    faults: list[str] = []
    with snapshot(conn):
        for schema, table in tables:
            target = (targets or {}).get((schema, table))
            columns = source_columns(conn, schema, table)
            source = source_rows(conn, schema, table, columns)
            faults += [
                f"{schema}.{table}: {fault}"
                for fault in table_faults(
                    spark, root, schema, table, columns, source, target, dict(overrides or {}),
                    metadata_columns, ignore_left_columns,
                )
            ]  # fmt: skip
    assert not faults, "silver differs from the source\n" + "\n".join(faults)


def table_faults(
    spark: SparkSession,
    root: str,
    schema: str,
    table: str,
    columns: list[SourceColumn],
    source: Rows,
    target: str | None,
    overrides: dict[str, str],
    metadata_columns: bool,
    ignore_left_columns: bool,
) -> Iterator[str]:
    from delta.tables import DeltaTable

    path = silver_path(root, schema, table, target)
    if not DeltaTable.isDeltaTable(spark, path):
        if source:
            yield f"{source.total()} rows at the source and no silver table at {path}"
        return
    fields = spark.read.format("delta").load(path).schema.fields
    found = {field.name: field.dataType.simpleString() for field in fields}
    metadata = METADATA if metadata_columns else {}
    wanted = {column.name: overrides.get(column.name, silver_type(column)) for column in columns}
    shared = [column.name for column in columns if column.name in found]
    for position, column in enumerate(columns):
        if column.name not in found and any(row[position] is not None for row in source):
            yield f"silver lacks column {column.name}, which has values at the source"
    for name, type_ in (wanted | metadata).items():
        if name in found and found[name] != type_:
            yield f"column {name} is {found[name]}, should be {type_}"
    for name in metadata:
        if name not in found:
            yield f"silver lacks {name}"
    extra = [name for name in found if name not in wanted and name not in metadata]
    if extra and not ignore_left_columns:
        yield f"silver has columns that the source has not: {', '.join(extra)}"
    ours = [name for name in metadata if name in found]
    whole = silver_rows(spark, root, schema, table, [*shared, *ours], target=target)
    for position, name in enumerate(ours, len(shared)):
        if any(row[position] is None for row in whole):
            yield f"{name} is NULL in some rows"
    positions = [position for position, column in enumerate(columns) if column.name in found]
    yield from row_faults(shared, projected(source, positions), projected(whole, range(len(shared))))


def projected(rows: Rows, positions: Sequence[int]) -> Rows:
    """Return the multiset over some positions only."""
    left: Rows = Counter()
    for row, count in rows.items():
        left[tuple(row[position] for position in positions)] += count
    return left


def row_faults(names: Sequence[str], source: Rows, silver: Rows) -> Iterator[str]:
    """Yield a line for each side's rows that the other lacks, the first few in full but for long values."""
    for rows, verdict in ((source - silver, "missing from silver"), (silver - source, "too many in silver")):
        if rows:
            yield f"{rows.total()} rows {verdict} (source {source.total()}, silver {silver.total()})"
        for row, count in sorted(rows.items(), key=repr)[:SHOWN]:
            values = ", ".join(f"{name}={shortened(value)}" for name, value in zip(names, row, strict=True))
            yield f"  {count} × {values}"


def shortened(value: Value) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:40]}…{text[-8:]} ({len(text)} characters)"


def bronze_has_no_duplicates(spark: SparkSession, root: str) -> None:
    """Assert that bronze holds every transaction once and whole, as far as bronze alone can tell.

    Row changes of one commit are numbered 0 to n-1 without gap or repeat and agree on xid and end LSN;
    logical messages are numbered apart, each once.
    """
    from delta.tables import DeltaTable

    path = f"{root}/bronze/changes"
    if not DeltaTable.isDeltaTable(spark, path):
        return
    spark.read.format("delta").load(path).createOrReplaceTempView("oracle_bronze")
    # A message outside a transaction may stand at the LSN of a commit: hence `transactional` for M.
    faults = spark.sql("""
        SELECT commit_lsn, op = 'M' AS is_message, count(*) AS changes, count(DISTINCT ordinal) AS ordinals,
               min(ordinal) AS lowest, max(ordinal) AS highest, count(DISTINCT end_lsn) AS ends,
               count(DISTINCT xid) AS xids
        FROM oracle_bronze
        GROUP BY commit_lsn, op = 'M', CASE WHEN op = 'M' THEN transactional END
        HAVING changes <> ordinals OR ends <> 1 OR xids > 1
            OR NOT is_message AND (lowest <> 0 OR highest <> changes - 1)
        ORDER BY commit_lsn LIMIT 5""").collect()
    assert not faults, "bronze holds transactions twice or in part\n" + "\n".join(
        ", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in faults
    )
