"""Map PostgreSQL's types to silver's: the Delta type of each column (`text_parsers` reads texts into it).

Types that are not in the tables below are STRING, in PostgreSQL's text form.
"""

import re
from string import punctuation

import pyarrow as pa

from pipeline.bronze.source_relations import PostgresType, SourceColumn
from pipeline.config.tables import TableRule
from pipeline.protocol.pg_types import ELEMENTS, PgType
from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    HSTORE,
    INT,
    PARTITION_STRING,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VECTOR,
    WIDENED_FLOAT,
    SilverType,
    array_of,
    decimal,
    finite,
)

_BUILT_IN: dict[int, SilverType] = {
    PgType.BOOL: BOOLEAN,
    PgType.BYTEA: BINARY,
    PgType.INT8: BIGINT,
    PgType.INT2: SMALLINT,
    PgType.INT4: INT,
    PgType.OID: BIGINT,  # oid is unsigned
    PgType.FLOAT4: FLOAT,
    PgType.FLOAT8: DOUBLE,
    PgType.DATE: DATE,
    PgType.TIMESTAMP: TIMESTAMP_NTZ,
    PgType.TIMESTAMPTZ: TIMESTAMP,
}
# An array's text can be split at these: its elements are quoted if they contain one.
_SEPARATORS = frozenset(punctuation) - frozenset('"\\{}')
# Types of extensions by their output function; pgvector's are STRING unless overridden.
_BY_OUTPUT = {"hstore_out": HSTORE}
_VECTORS = frozenset({"vector_out", "halfvec_out"})


def numeric(type_modifier: int) -> SilverType:
    """Return the DECIMAL that holds numeric(p,s), STRING if none of 38 digits does or p is not given."""
    if type_modifier < 4:
        return STRING
    precision, scale = numeric_digits(type_modifier)
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return decimal(precision, scale) if precision <= 38 else STRING


def numeric_digits(type_modifier: int) -> tuple[int, int]:
    """Return the precision and the scale of numeric(p,s)."""
    return ((type_modifier - 4) >> 16) & 0xFFFF, _scale(type_modifier)


def _scale(type_modifier: int) -> int:
    return (((type_modifier - 4) & 0x7FF) ^ 1024) - 1024  # 11 bits, signed


def silver_type(column: SourceColumn, override: str | None = None, present: str | None = None) -> SilverType:
    """Return the silver type of a source column, or of its configured override.

    `present` is the type that silver has; it stays if the catalog, which alone has the type, did not give it.
    """
    # a relation that was not found in the catalog lacks the element type
    element = column.element_base_oid or ELEMENTS.get(column.base_oid)
    delimiter = column.array_delimiter
    if override:
        kind = overridden(override)
        if kind.ddl == VECTOR.ddl and column.output in _VECTORS:
            return VECTOR
        return array_of(kind.element, delimiter) if kind.element is not None else kind
    if present is not None and not column.is_type_known:
        return stored(present)
    if element is not None and delimiter in _SEPARATORS:
        return array_of(_scalar(element, column), delimiter)
    return _scalar(column.base_oid, column)


def column_type(column: SourceColumn, rule: TableRule, present: str | None = None) -> SilverType:
    """Return the silver type of a source column by the rule of its table; `present` as for `silver_type`."""
    kind = silver_type(column, rule.types.get(column.name), present)
    return of_partition(kind) if column.name in rule.partition_by else kind


def keeps_keys_apart(column: SourceColumn, ddl: str) -> bool:
    """Return whether no two keys of a source column become one in a column of silver's type.

    A number may have several texts, which are one key at the source, too.
    """
    own = silver_type(column).ddl
    if ddl in (STRING.ddl, own) or not column.is_type_known:
        return True
    if column.base_oid in _EXACT_NUMBERS:
        return ddl in _DIGITS or _DECIMAL.fullmatch(ddl) is not None
    return (own, ddl) in _ONE_TO_ONE


def of_partition(kind: SilverType) -> SilverType:
    """Return a type as a partition column has it."""
    return PARTITION_STRING if kind.ddl == PARTITION_STRING.ddl else kind


def is_widened_real(column: SourceColumn, ddl: str) -> bool:
    """Return whether the texts of a source column are those of a real, and silver has it as DOUBLE."""
    return column.base_oid == PgType.FLOAT4 and ddl == "DOUBLE"


def are_printed_for(column: SourceColumn, kind: SilverType, override: str | None) -> bool:
    """Return whether the texts of a source column are those that PostgreSQL prints for values of a type.

    Also if the type holds all values of the column's own, which ingest has them printed for.
    """
    if override or not column.is_type_known or is_widened_real(column, kind.ddl):
        return False
    own = silver_type(column)
    if kind.element is None or own.element is None:
        return holds(kind.ddl, own.ddl)
    return own.delimiter == kind.delimiter and holds(kind.element.ddl, own.element.ddl)


def widened_text(text: str) -> str:
    """Return the text of the double precision to which PostgreSQL casts a real with a text."""
    return repr(pa.scalar(text).cast(pa.float32()).as_py())


def reader_of(column: SourceColumn, kind: SilverType) -> SilverType:
    """Return the type that reads the texts of a source column into a type of silver."""
    return WIDENED_FLOAT if is_widened_real(column, kind.ddl) else kind


def _scalar(oid: int, column: SourceColumn) -> SilverType:
    if oid == PgType.NUMERIC:
        return numeric(column.base_modifier)
    return _BUILT_IN.get(oid) or _BY_OUTPUT.get(column.output or "", STRING)


_DIGITS = {"SMALLINT": 5, "INT": 10, "BIGINT": 20}  # as Delta counts them when it widens to DECIMAL
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def holds(wide: str, narrow: str) -> bool:
    """Return whether the type `wide` holds all values of `narrow` as PostgreSQL casts them.

    The text of a real is not that of the double precision that it is cast to: see `is_widened_real`.
    """
    if wide == narrow:
        return True
    integers = list(_DIGITS)
    if narrow in _DIGITS and wide in _DIGITS:
        return integers.index(narrow) < integers.index(wide)
    if narrow in {"SMALLINT", "INT", "FLOAT"} and wide == "DOUBLE":
        return True
    if not _DECIMAL.fullmatch(wide):
        return (narrow, wide) == ("DATE", "TIMESTAMP_NTZ")
    (whole, scale), (narrow_whole, narrow_scale) = _digits(wide), _digits(narrow)
    return whole >= narrow_whole and scale >= narrow_scale


def wide_enough(one: str, other: str) -> SilverType | None:
    """Return the DECIMAL that holds all values of two exact numeric types, None if there is none."""
    (whole, scale), (other_whole, other_scale) = _digits(one), _digits(other)
    whole, scale = max(whole, other_whole), max(scale, other_scale)
    return decimal(whole + scale, scale) if whole + scale <= 38 else None


def _digits(ddl: str) -> tuple[int, int]:
    """Return the digits before and after the decimal point; too many if the type is no exact number."""
    if ddl in _DIGITS:
        return max(_DIGITS[ddl], 10), 0
    match = _DECIMAL.fullmatch(ddl)
    return (int(match[1]) - int(match[2]), int(match[2])) if match else (39, 0)


_INTEGERS = frozenset({PgType.INT8, PgType.INT2, PgType.INT4})
_EXACT_NUMBERS = _INTEGERS | {PgType.NUMERIC}
_ONE_TO_ONE = {("FLOAT", "DOUBLE"), ("DATE", "TIMESTAMP_NTZ"), ("DATE", "TIMESTAMP")}
_ONE_TO_ONE |= {("TIMESTAMP_NTZ", "TIMESTAMP"), ("TIMESTAMP", "TIMESTAMP_NTZ")}
# any integer to any other; small ones to float8
_EXACT = {(a, b) for a in _INTEGERS for b in _INTEGERS}
_SPELLED_OTHERWISE = {(PgType.FLOAT4, PgType.FLOAT8), (PgType.DATE, PgType.TIMESTAMP)}
_EXACT |= {(PgType.INT2, PgType.FLOAT8), (PgType.INT4, PgType.FLOAT8), *_SPELLED_OTHERWISE}
_TEXTS = frozenset({PgType.TEXT, PgType.VARCHAR})
# a modifier limits a length or fraction
_LIMITED = frozenset(
    {PgType.VARCHAR, PgType.VARBIT, PgType.TIME, PgType.TIMETZ, PgType.TIMESTAMP, PgType.TIMESTAMPTZ}
)


def keeps_values(before: PostgresType, after: PostgresType) -> bool:
    """Return whether ALTER TYPE without USING changes no value: neither pads nor rounds."""
    (oid, modifier), (to, limit) = before, after
    if before == after or (oid, to) in _EXACT:
        return True
    if oid in _INTEGERS and to == PgType.NUMERIC:
        return limit == -1 or _scale(limit) >= 0
    if oid == to == PgType.NUMERIC:
        return limit == -1 or (modifier != -1 and _scale(limit) >= _scale(modifier))
    if (oid in _TEXTS and to in _TEXTS) or (oid == to and oid in _LIMITED):
        return limit == -1 or -1 < modifier <= limit
    return False


def keeps_texts(before: PostgresType, after: PostgresType) -> bool:
    """Return whether ALTER TYPE without USING leaves the texts of values as they are, too."""
    (oid, modifier), (to, limit) = before, after
    if not keeps_values(before, after) or (oid, to) in _SPELLED_OTHERWISE:
        return False
    if to != PgType.NUMERIC or limit == -1:
        return True
    return _scale(limit) == (0 if oid in _INTEGERS else _scale(modifier))


def stored(ddl: str) -> SilverType:
    """Return the type of a silver table's column; a type that pgdelta does not write only holds NULL."""
    try:
        return overridden(ddl)
    except ValueError:
        return SilverType(ddl, lambda engine, _: engine.null(ddl), is_total=True, is_native=False)


_SCALARS = (STRING, BOOLEAN, BINARY, SMALLINT, INT, BIGINT, DATE, TIMESTAMP, TIMESTAMP_NTZ, VARIANT)
_OVERRIDES = {kind.ddl: kind for kind in (*_SCALARS, HSTORE)} | {
    "FLOAT": finite("FLOAT", "3.4028235E38"),
    "DOUBLE": finite("DOUBLE", "1.7976931348623157E308"),
}


def overridden(ddl: str) -> SilverType:
    """Return the type that the configuration names; raise ValueError if it is none."""
    name = re.sub(r"\s+", "", ddl).upper()
    if kind := _OVERRIDES.get(name):
        return kind
    if match := re.fullmatch(r"(?:DECIMAL|NUMERIC)\((\d{1,2})(?:,(\d{1,2}))?\)", name):
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return decimal(precision, scale)
    # One dimension: PostgreSQL's array types do not have their number of dimensions.
    if (match := re.fullmatch(r"ARRAY<(.*)>", name)) and not match[1].startswith("ARRAY"):
        return array_of(overridden(match[1]))
    raise ValueError(f"{ddl} is not a silver type.")
