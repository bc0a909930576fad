"""Spark's SQL for the text that PostgreSQL sends of a value in the stream, from the columns of a Delta table.

A text need not be right: an adoption compares it with the source's own, and copies the rows that differ. So a
column is refused only if no value of its type could have the source's text.
"""

from __future__ import annotations

from pipeline.bronze.source_relations import SourceColumn
from pipeline.protocol.pg_types import PgType
from pipeline.silver.types.comparable_text import array_text, text_sql
from pipeline.silver.types.types import numeric_digits

_INTEGERS = frozenset({PgType.INT8, PgType.INT2, PgType.INT4, PgType.OID})
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_ZONE = "+00"  # sessions are in UTC, at the source and in Spark
_PLAIN: dict[int, str] = {PgType.BOOL: "BOOLEAN", PgType.BYTEA: "BINARY", PgType.DATE: "DATE"}


def stream_text(column: SourceColumn, ddl: str, value: str) -> str | None:
    """Return SQL for the source's text of a value of a type; None if the two types have none in common."""
    if ddl == "STRING":
        return value
    if ddl == "MAP<STRING,STRING>":
        return text_sql(ddl, value) if column.output == "hstore_out" else None
    element = column.element_base_oid
    if ddl.startswith("ARRAY<"):
        inner = ddl[len("ARRAY<") : -1]
        text = None if element is None else _scalar(element, column.base_modifier, inner, "e")
        return text and array_text("STRING", text, value, column.array_delimiter)  # quoted as texts
    return None if element is not None else _scalar(column.base_oid, column.base_modifier, ddl, value)


def _scalar(oid: int, modifier: int, ddl: str, value: str) -> str | None:
    if ddl == "STRING":
        return value
    if _PLAIN.get(oid) == ddl:
        return text_sql(ddl, value)
    if ddl in _WHOLE or ddl.startswith("DECIMAL("):
        scale = int(ddl.rpartition(",")[2].rstrip(")")) if ddl.startswith("DECIMAL(") else 0
        has_scale = scale == 0 if oid in _INTEGERS else oid == PgType.NUMERIC and scale == _scale(modifier)
        return f"CAST({value} AS STRING)" if has_scale else None
    if (oid, ddl) in ((PgType.FLOAT4, "FLOAT"), (PgType.FLOAT4, "DOUBLE"), (PgType.FLOAT8, "DOUBLE")):
        return float_text(value, is_single=oid == PgType.FLOAT4)
    if ddl in ("TIMESTAMP", "TIMESTAMP_NTZ") and oid in (PgType.TIMESTAMP, PgType.TIMESTAMPTZ):
        text = f"CAST({value} AS STRING)"
        return text if oid == PgType.TIMESTAMP else f"concat({text}, '{_ZONE}')"
    return None


def _scale(modifier: int) -> int:
    """Return the scale of numeric(p,s); without p, a whole number may have been written without digits."""
    return numeric_digits(modifier)[1] if modifier >= 4 else 0


def float_text(value: str, *, is_single: bool) -> str:
    """Return SQL for the text of a float as PostgreSQL 12 and newer write it, from Java's text.

    Java writes an exponent from 1e7 on and below 1e-3, PostgreSQL from 1e15 (float4: 1e6) on and below 1e-4.
    """
    kind, first = ("FLOAT", "1E6") if is_single else ("DOUBLE", "1E15")
    number = f"CAST({value} AS {kind})"
    java, size = f"CAST({number} AS STRING)", f"abs({number})"
    whole = f"regexp_replace({java}, r'\\.0(?=E|$)', '')"
    exponent = f"TRY_CAST(regexp_extract({java}, r'E(-?\\d+)$', 1) AS INT)"
    padded = f"concat(IF({exponent} < 0, '-', '+'), lpad(CAST(abs({exponent}) AS STRING), 2, '0'))"
    wide = f"IF(length(CAST(abs({exponent}) AS STRING)) > 2, {_signed(exponent)}, {padded})"
    scientific = f"concat(regexp_extract({whole}, r'^[^E]*', 0), 'e', {wide})"
    decimal = f"CAST(TRY_CAST({java} AS DECIMAL(38,21)) AS STRING)"
    plain = f"regexp_replace({decimal}, r'\\.?0+$', '')"
    # 1234567.0 in Java, where float4 has an exponent already
    digits = f"regexp_replace(abs(TRY_CAST({java} AS DECIMAL(38,21))) / 1000000, r'\\.?0+$', '')"
    millions = f"concat(IF({number} < 0, '-', ''), {digits}, 'e+06')"
    cases = [
        (f"{value} IS NULL", "NULL"),
        (f"isnan({number})", "'NaN'"),
        (f"{size} = DOUBLE('Infinity')", java),
        (f"{size} = 0", f"IF({java} LIKE '-%', '-0', '0')"),
    ]
    if is_single:
        cases.append((f"{size} >= 1E6D AND {size} < 1E7D", millions))
    cases.append((f"{size} >= {first}D OR {size} < 1E-4D", scientific))
    written = " ".join(f"WHEN {condition} THEN {text}" for condition, text in cases)
    return f"CASE {written} ELSE {plain} END"


def _signed(exponent: str) -> str:
    return f"concat(IF({exponent} < 0, '-', '+'), CAST(abs({exponent}) AS STRING))"
