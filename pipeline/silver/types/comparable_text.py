"""The text form in which PostgreSQL, Spark and DuckDB write a value, and the SQL of the engines for it.

A form belongs to a pair of types, the source's and silver's. `postgres.snapshot.comparable_forms` has the SQL
for PostgreSQL. Columns whose types have no form are not compared, and reported.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from pipeline.bronze.source_relations import SourceColumn
from pipeline.engine import SPARK, Engine
from pipeline.postgres.snapshot.comparable_forms import PARTITION_TEXT, PLAIN, TEXT, Form, HashedKind
from pipeline.protocol.pg_types import PgType
from pipeline.silver.types.types import holds, numeric, numeric_digits

_INTEGERS: Mapping[int, str] = {
    PgType.INT2: "SMALLINT",
    PgType.INT4: "INT",
    PgType.INT8: "BIGINT",
    PgType.OID: "BIGINT",
}
# (oid, silver's type)
_SAME: Mapping[tuple[int, str], Form] = {
    (PgType.BOOL, "BOOLEAN"): PLAIN,
    (PgType.BYTEA, "BINARY"): PLAIN,
    (PgType.FLOAT4, "FLOAT"): Form(HashedKind.REAL),
    (PgType.FLOAT8, "DOUBLE"): Form(HashedKind.DOUBLE),
}
_DATED: Mapping[tuple[int, str], HashedKind] = {
    (PgType.DATE, "DATE"): HashedKind.DATE,
    (PgType.TIMESTAMP, "TIMESTAMP_NTZ"): HashedKind.TIMESTAMP,
    (PgType.TIMESTAMPTZ, "TIMESTAMP"): HashedKind.TIMESTAMPTZ,
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_HEX = r"\x"  # before the digits of a bytea
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
    return form and replace(form, is_array=True)


def _scalar(column: SourceColumn, oid: int, ddl: str, clamps: bool) -> Form | None:
    if found := _SAME.get((oid, ddl)):
        return found
    if oid in _INTEGERS and ddl in _INTEGERS.values():
        return PLAIN
    if (column.output, ddl) == _HSTORE:
        return TEXT
    if kind := _DATED.get((oid, ddl)):
        return Form(kind, clamps=clamps)
    match = _DECIMAL.fullmatch(ddl)
    if match and (oid in _INTEGERS or oid == PgType.NUMERIC):
        precision, scale = map(int, match.groups())
        source = _INTEGERS.get(oid) or numeric(column.base_modifier).ddl
        fits = holds(ddl, source)
        digits = numeric_digits(column.base_modifier) if source.startswith("DECIMAL") else None
        is_exact = fits and digits is not None and digits[1] == scale
        return Form(HashedKind.DECIMAL, precision, scale, fits=fits, is_exact=is_exact, clamps=clamps)
    return None


def text_sql(ddl: str, value: str, delimiter: str = ",", engine: Engine = SPARK) -> str:
    """Return SQL for the text form of a silver value; `delimiter` is that of the source's array."""
    if ddl.startswith("ARRAY<"):
        inner = ddl[len("ARRAY<") : -1]
        return array_text(inner, text_sql(inner, "e", engine=engine), value, delimiter, engine)
    match ddl:
        case "STRING":
            return value
        case "BOOLEAN":
            return f"CASE WHEN {value} THEN 't' WHEN NOT {value} THEN 'f' END"
        case "BINARY":
            return f"({engine.literal(_HEX)} || lower(hex({value})))"
        case "FLOAT" | "DOUBLE":
            bits = engine.float_bits(value, ddl)
            return f"CASE WHEN isnan({value}) THEN 'NaN' WHEN {value} IS NOT NULL THEN {bits} END"
        case "TIMESTAMP":
            return engine.instant_text(value)
        case "MAP<STRING,STRING>":
            return _hstore(value, engine)
    return engine.number_text(value, ddl)


def array_text(ddl: str, text: str, value: str, delimiter: str = ",", engine: Engine = SPARK) -> str:
    """Return SQL for an array as array_out writes it; `text` is that of an element `e` of the type `ddl`."""
    element = f"coalesce({_element(ddl, text, delimiter, engine)}, 'NULL')"
    elements = engine.joined(engine.transform(value, element), delimiter)
    return f"CASE WHEN {value} IS NOT NULL THEN concat('{{', {elements}, '}}') END"


def _element(ddl: str, text: str, delimiter: str, engine: Engine) -> str:
    """Return SQL for an array element as array_out writes it: quoted if its text is ambiguous."""
    if ddl not in ("STRING", "BINARY", "MAP<STRING,STRING>"):
        return text
    special = engine.matches(text, rf'[{{}}"\\{re.escape(delimiter)} \t\n\r\x0B\f]')
    needs = f"({text} = '' OR upper({text}) = 'NULL' OR {special})"
    return f"CASE WHEN {needs} THEN {_quoted(text, engine)} ELSE {text} END"


def _quoted(text: str, engine: Engine) -> str:
    """Return SQL for a text in double quotes, with quotes and backslashes escaped; NULL is NULL."""
    one, two, quote = (engine.literal(each) for each in ("\\", "\\\\", '\\"'))
    return f"""('"' || replace(replace({text}, {one}, {two}), '"', {quote}) || '"')"""


def _hstore(value: str, engine: Engine) -> str:
    """Return SQL for a map as hstore_out writes it."""
    key, other = _quoted("p['key']", engine), _quoted("p['value']", engine)
    pair = f"concat({key}, '=>', coalesce({other}, 'NULL'))"
    pairs = engine.joined(engine.transform(f"map_entries({value})", pair, "p"), ", ")
    return f"CASE WHEN {value} IS NOT NULL THEN {pairs} END"
