"""The text form in which both PostgreSQL and Spark write a value, and Spark's SQL for it.

A form belongs to a pair of types, the source's and silver's. `postgres.snapshot.comparable_text` has the SQL
for PostgreSQL. Columns whose types have no form are not compared, and reported.
"""

import re
from collections.abc import Mapping

from pipeline.bronze.source_relations import SourceColumn
from pipeline.delta.sql import literal
from pipeline.postgres.snapshot.hashed_rows import PARTITION_TEXT, TEXT, Form, Kind
from pipeline.silver.types import holds, numeric

_NUMERIC = 1700
_INTEGERS: Mapping[int, str] = {21: "SMALLINT", 23: "INT", 20: "BIGINT", 26: "BIGINT"}
# (oid, silver's type)
_SAME = {
    (16, "BOOLEAN"): TEXT,
    (17, "BINARY"): TEXT,
    (700, "FLOAT"): Form(Kind.REAL),
    (701, "DOUBLE"): Form(Kind.DOUBLE),
}
_DATED = {
    (1082, "DATE"): Kind.DATE,
    (1114, "TIMESTAMP_NTZ"): Kind.TIMESTAMP,
    (1184, "TIMESTAMP"): Kind.TIMESTAMPTZ,
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_HSTORE = ("hstore_out", "MAP<STRING,STRING>")


def form_of(
    column: SourceColumn, ddl: str, *, clamps: bool = False, is_partition: bool = False
) -> Form | None:
    """Return the form in which both sides write a column's values, None if there is none."""
    if ddl == "STRING":
        return PARTITION_TEXT if is_partition else TEXT
    element = column.element_base_oid
    if element is None:
        return None if ddl.startswith("ARRAY<") else _scalar(column, column.base_oid, ddl, clamps)
    if not ddl.startswith("ARRAY<"):
        return None
    inner = ddl[len("ARRAY<") : -1]
    form = TEXT if inner == "STRING" else _scalar(column, element, inner, clamps)
    return form and Form(form.kind, form.precision, form.scale, form.fits, form.clamps, is_array=True)


def _scalar(column: SourceColumn, oid: int, ddl: str, clamps: bool) -> Form | None:
    if found := _SAME.get((oid, ddl)):
        return found
    if oid in _INTEGERS and ddl in _INTEGERS.values():
        return TEXT
    if (column.output, ddl) == _HSTORE:
        return TEXT
    if kind := _DATED.get((oid, ddl)):
        return Form(kind, clamps=clamps)
    match = _DECIMAL.fullmatch(ddl)
    if match and (oid in _INTEGERS or oid == _NUMERIC):
        source = _INTEGERS.get(oid) or numeric(column.base_modifier).ddl
        return Form(Kind.DECIMAL, int(match[1]), int(match[2]), fits=holds(ddl, source), clamps=clamps)
    return None


def text_sql(ddl: str, value: str, delimiter: str = ",") -> str:
    """Return SQL for the text form of a silver value; `delimiter` is that of the source's array."""
    if ddl.startswith("ARRAY<"):
        inner = ddl[len("ARRAY<") : -1]
        return array_text(inner, text_sql(inner, "e"), value, delimiter)
    match ddl:
        case "STRING":
            return value
        case "BOOLEAN":
            return f"CASE WHEN {value} THEN 't' WHEN NOT {value} THEN 'f' END"
        case "BINARY":
            return rf"concat(r'\x', lower(hex({value})))"
        case "FLOAT":
            return _bits(value, "java.lang.Float", "floatToIntBits", 8)
        case "DOUBLE":
            return _bits(value, "java.lang.Double", "doubleToLongBits", 16)
        case "TIMESTAMP":
            return f"concat(CAST({value} AS STRING), '+00')"
        case "MAP<STRING,STRING>":
            return _hstore(value)
    return f"CAST({value} AS STRING)"


def array_text(ddl: str, text: str, value: str, delimiter: str = ",") -> str:
    """Return SQL for an array as array_out writes it; `text` is that of an element `e` of the type `ddl`."""
    element = f"coalesce({_element(ddl, text, delimiter)}, 'NULL')"
    elements = f"array_join(transform({value}, e -> {element}), {literal(delimiter)})"
    return f"CASE WHEN {value} IS NOT NULL THEN concat('{{', {elements}, '}}') END"


def _bits(value: str, owner: str, method: str, digits: int) -> str:
    kind = "FLOAT" if digits == 8 else "DOUBLE"
    number = f"CAST(reflect('{owner}', '{method}', coalesce({value}, CAST(0 AS {kind}))) AS BIGINT)"
    bits = f"right(lpad(lower(hex({number})), 16, '0'), {digits})"
    return f"CASE WHEN isnan({value}) THEN 'NaN' WHEN {value} IS NOT NULL THEN {bits} END"


def _element(ddl: str, text: str, delimiter: str) -> str:
    """Return SQL for an array element as array_out writes it: quoted if its text is ambiguous."""
    if ddl not in ("STRING", "BINARY", "MAP<STRING,STRING>"):
        return text
    special = literal(rf'[{{}}"\\{re.escape(delimiter)} \t\n\r\x0B\f]')
    needs = f"({text} = '' OR upper({text}) = 'NULL' OR {text} RLIKE {special})"
    return f"CASE WHEN {needs} THEN {_quoted(text)} ELSE {text} END"


def _quoted(text: str) -> str:
    """Return SQL for a text in double quotes, with quotes and backslashes escaped."""
    return rf"""concat('"', replace(replace({text}, r'\', r'\\'), '"', r'\"'), '"')"""


def _hstore(value: str) -> str:
    """Return SQL for a map as hstore_out writes it."""
    pair = f"concat({_quoted('p.key')}, '=>', coalesce({_quoted('p.value')}, 'NULL'))"
    pairs = f"array_join(transform(map_entries({value}), p -> {pair}), ', ')"
    return f"CASE WHEN {value} IS NOT NULL THEN {pairs} END"
