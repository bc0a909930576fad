"""PostgreSQL's types to silver's: a column's Delta type, and the SQL that reads PostgreSQL's text into it.

Every parser is a Spark SQL expression over the value's text and returns NULL for a text that the type cannot
hold; the caller counts `text is not NULL but value is NULL` as a misfit. Nothing here rounds, clamps or
guesses: Spark's own casts accept more than PostgreSQL prints (`2024`, `now`, a BC date as AD), so dates and
numbers are guarded before they are cast. Types without a row in the table land as PostgreSQL's own text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.silver.relation import SourceColumn

Parser = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class SilverType:
    """A Delta type and how to get there; `is_total` where every text of the source type has a value."""

    ddl: str
    parse: Parser
    is_total: bool = False
    element: "SilverType | None" = None

    def value(self, text: str) -> str:
        """Return SQL for the value of a text, NULL where it does not fit."""
        return self.parse(text)

    def misfit(self, text: str, value: str) -> str | None:
        """Return SQL that is true where the text is not NULL and its value, or an element of it, is lost."""
        if self.is_total:
            return None
        lost = f"({text} IS NOT NULL AND {value} IS NULL)"
        if self.element is None or self.element.is_total:
            return lost
        sent_nulls = f"size(filter({_tokens(text)}, e -> e = 'NULL'))"
        kept_nulls = f"size(filter({value}, e -> e IS NULL))"
        return f"({lost} OR {sent_nulls} <> {kept_nulls})"

    def canonical(self, text: str) -> str:
        """Return SQL for a string that is equal for equal values of this type, and differs for -0 and 0."""
        return self.canonical_value(self.parse(text))

    def canonical_value(self, value: str) -> str:
        """Return the same SQL for a value instead of its text."""
        if self.ddl == "STRING":
            return value
        if self.ddl == "BINARY":
            return f"hex({value})"
        if self.element is None:
            return f"CAST({value} AS STRING)"
        # JSON would round timestamps to milliseconds; bytes it encodes.
        values = value if self.element.ddl == "BINARY" else f"CAST({value} AS ARRAY<STRING>)"
        return f"CASE WHEN {value} IS NOT NULL THEN to_json(array({values})) END"


def _cast(ddl: str) -> Parser:
    return lambda text: f"try_cast({text} AS {ddl})"


def _finite(ddl: str) -> Parser:
    """Guard a number that may be larger than the type: what overflows is not infinite."""
    return lambda text: (
        f"CASE WHEN abs(try_cast({text} AS {ddl})) < {ddl}('Infinity') OR {text} RLIKE '^(-?Infinity|NaN)$' "
        f"THEN try_cast({text} AS {ddl}) END"
    )


def _dated(ddl: str, guard: str) -> Parser:
    """Guard a date or timestamp: years 1 to 9999, no `infinity`, no BC; a date has no time behind it."""
    return lambda text: (
        f"CASE WHEN substr({text}, 5, 1) = '-' AND {guard.format(text)} THEN try_cast({text} AS {ddl}) END"
    )


STRING = SilverType("STRING", lambda text: text, is_total=True)
BOOLEAN = SilverType("BOOLEAN", lambda text: f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END")
BINARY = SilverType(
    "BINARY", lambda text: rf"CASE WHEN startswith({text}, r'\x') THEN unhex(substr({text}, 3)) END"
)
SMALLINT, INT, BIGINT = (SilverType(name, _cast(name)) for name in ("SMALLINT", "INT", "BIGINT"))
FLOAT, DOUBLE = (SilverType(name, _cast(name)) for name in ("FLOAT", "DOUBLE"))
DATE = SilverType("DATE", _dated("DATE", "length({}) = 10"))
TIMESTAMP, TIMESTAMP_NTZ = (
    SilverType(name, _dated(name, "NOT endswith({}, ' BC')")) for name in ("TIMESTAMP", "TIMESTAMP_NTZ")
)

# pg_type.dat: the oids of built-in types never change. A type that is not here is STRING.
_BUILT_IN = {
    16: BOOLEAN,
    17: BINARY,
    20: BIGINT,
    21: SMALLINT,
    23: INT,
    26: BIGINT,  # oid is unsigned
    700: FLOAT,
    701: DOUBLE,
    1082: DATE,
    1114: TIMESTAMP_NTZ,
    1184: TIMESTAMP,
}
_NUMERIC, _BOX = 1700, 603
# Arrays of built-in types → their element, for relations whose catalog facts are unknown.
_BUILT_IN_ARRAYS = {
    143: 142, 199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 791: 790, 1000: 16, 1001: 17,
    1002: 18, 1003: 19, 1005: 21, 1006: 22, 1007: 23, 1009: 25, 1010: 27, 1011: 28, 1012: 29, 1013: 30,
    1014: 1042, 1015: 1043, 1016: 20, 1017: 600, 1018: 601, 1019: 602, 1020: 603, 1021: 700, 1022: 701,
    1027: 604, 1028: 26, 1034: 1033, 1040: 829, 1041: 869, 1115: 1114, 1182: 1082, 1183: 1083, 1185: 1184,
    1187: 1186, 1231: 1700, 1270: 1266, 1561: 1560, 1563: 1562, 2951: 2950, 3643: 3614, 3645: 3615,
    3807: 3802, 3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072,
    6150: 4451, 6151: 4532, 6152: 4533, 6153: 4534, 6155: 4535, 6157: 4536,
}  # fmt: skip
_FIRST_USER_OID = 10_000  # FirstGenbkiObjectId: from here on an oid says nothing by itself


def decimal(precision: int, scale: int) -> SilverType:
    """Return DECIMAL(precision, scale); a text with digits beyond the scale does not fit: nothing rounds."""
    ddl = f"DECIMAL({precision},{scale})"
    exact = rf"^-?\d*(\.\d{{0,{scale}}}0*)?$"
    return SilverType(
        ddl, lambda text: f"CASE WHEN {text} RLIKE r'{exact}' THEN try_cast({text} AS {ddl}) END"
    )


def numeric(type_modifier: int) -> SilverType:
    """Return the DECIMAL that holds numeric(p,s), STRING where none of 38 digits does or p is not given."""
    if type_modifier < 4:
        return STRING
    packed = type_modifier - 4
    precision = (packed >> 16) & 0xFFFF
    scale = ((packed & 0x7FF) ^ 1024) - 1024  # 11 bits, signed
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return decimal(precision, scale) if precision <= 38 else STRING


def array_of(element: SilverType, delimiter: str = ",") -> SilverType:
    """Return ARRAY<element>: one dimension, bounds from 1; an element that does not fit is NULL there."""

    def parse(text: str) -> str:
        item = (
            r"CASE WHEN startswith(e, '\"') "
            r"THEN replace(replace(substr(e, 2, length(e) - 2), '\0q', '\"'), '\0b', r'\') "
            r"WHEN e = 'NULL' THEN NULL ELSE e END"
        )
        values = f"transform({_tokens(text, delimiter)}, e -> {item})"
        if not element.is_total:
            values = f"transform({values}, e -> {element.parse('e')})"
        return f"CASE WHEN startswith({text}, '{{') AND NOT startswith({text}, '{{{{') THEN {values} END"

    return SilverType(f"ARRAY<{element.ddl}>", parse, element=element)


def _tokens(text: str, delimiter: str = ",") -> str:
    """Return SQL for the elements of PostgreSQL's array text, quotes kept.

    PostgreSQL escapes only `\"` and `\\` in a quoted element, and text never holds NUL, so NUL can stand for
    the escape: what remains splits without a regular expression that recurses.
    """
    inner = f"substr({text}, 2, length({text}) - 2)"
    marked = rf"replace(replace({inner}, r'\\', '\0b'), r'\"', '\0q')"
    return rf"regexp_extract_all({marked}, r'\"[^\"]*\"|[^{delimiter}]+', 0)"


def silver_type(column: SourceColumn, override: str | None = None, held: str | None = None) -> SilverType:
    """Return the silver type of a source column, or of its configured override.

    `held` is what silver has: it stands where only the catalog could tell and did not.
    """
    if override:
        return overridden(override)
    if held is not None and column.attribute_number is None and column.type_oid >= _FIRST_USER_OID:
        return stored(held)
    element = column.element_base_oid or _BUILT_IN_ARRAYS.get(column.base_oid)
    if element is not None:
        return array_of(_scalar(element, column.base_modifier), ";" if element == _BOX else ",")
    return _scalar(column.base_oid, column.base_modifier)


def _scalar(oid: int, type_modifier: int) -> SilverType:
    return numeric(type_modifier) if oid == _NUMERIC else _BUILT_IN.get(oid, STRING)


_DIGITS = {"SMALLINT": 5, "INT": 10, "BIGINT": 20}  # as Delta counts them where it widens to DECIMAL
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def holds(wide: str, narrow: str) -> bool:
    """Say whether the type `wide` holds every value of `narrow` as PostgreSQL casts it, read from its text.

    FLOAT to DOUBLE is not among them: the text of the one is not the text of the other.
    """
    if wide == narrow:
        return True
    integers = list(_DIGITS)
    if narrow in _DIGITS and wide in _DIGITS:
        return integers.index(narrow) < integers.index(wide)
    if narrow in {"SMALLINT", "INT"} and wide == "DOUBLE":
        return True
    if (to := _DECIMAL.fullmatch(wide)) is None:
        return (narrow, wide) == ("DATE", "TIMESTAMP_NTZ")
    whole, scale = int(to[1]) - int(to[2]), int(to[2])
    if narrow in _DIGITS:
        return whole >= max(_DIGITS[narrow], 10)
    of = _DECIMAL.fullmatch(narrow)
    return of is not None and whole >= int(of[1]) - int(of[2]) and scale >= int(of[2])


def stored(ddl: str) -> SilverType:
    """Return the type of a column as the silver table has it; one that is not ours only takes NULL."""
    try:
        return overridden(ddl)
    except ValueError:
        return SilverType(ddl, lambda text: f"CAST(NULL AS {ddl})", is_total=True)


_OVERRIDES = {
    kind.ddl: kind
    for kind in (STRING, BOOLEAN, BINARY, SMALLINT, INT, BIGINT, DATE, TIMESTAMP, TIMESTAMP_NTZ)
} | {name: SilverType(name, _finite(name)) for name in ("FLOAT", "DOUBLE")}


def overridden(ddl: str) -> SilverType:
    """Return the type that a configuration names; raise ValueError where it names none."""
    name = re.sub(r"\s+", "", ddl).upper()
    if kind := _OVERRIDES.get(name):
        return kind
    if match := re.fullmatch(r"(?:DECIMAL|NUMERIC)\((\d{1,2})(?:,(\d{1,2}))?\)", name):
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return decimal(precision, scale)
    # One dimension: PostgreSQL's type does not say how many an array has.
    if (match := re.fullmatch(r"ARRAY<(.*)>", name)) and not match[1].startswith("ARRAY"):
        return array_of(overridden(match[1]))
    raise ValueError(f"{ddl} is not a silver type")
