"""A source table's columns and rows, read from the server and made comparable.

The text is the server's own (its output functions, as in the stream, not casts: `bool::text` says `true` and
`bpchar::text` drops the padding). Array literals are read element by element, whatever the elements are.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import psycopg

from pipeline.postgres.sql_text import quote_identifier

Value = Any  # None, text, or for an array a tuple of Values
Rows = Counter[tuple[Value, ...]]
Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the catalog sees it, its domains unrolled; `element` is the element type of an array."""

    name: str
    type: str
    modifier: int
    element: str | None


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
    return [SourceColumn(*row) for row in conn.execute(query, [quote_identifier(schema, table)])]


def source_rows(
    conn: Connection,
    schema: str,
    table: str,
    columns: Sequence[SourceColumn] | None = None,
    where: str = "true",
) -> Rows:
    """Return the multiset of the table's rows as comparable values; call it inside `snapshot`."""
    columns = source_columns(conn, schema, table) if columns is None else columns
    names = ", ".join(quote_identifier(column.name) for column in columns)
    target = quote_identifier(schema, table)
    partitioned = conn.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [target]
    ).fetchone()
    # A partitioned table has no rows of its own; a table that others inherit from answers for its own.
    only = "" if partitioned == (True,) else "ONLY "
    result = conn.execute(f"SELECT {names} FROM {only}{target} WHERE {where}").pgresult
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
