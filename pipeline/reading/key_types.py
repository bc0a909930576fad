"""The types of keys that `pgdelta forget` and `history` find by their texts. Pure.

In bronze a value is the text that PostgreSQL prints under the settings of pgdelta's sessions. For the types
here, equal values have equal texts, or become equal by `same_spelling`. Types are in families: the columns of
a family may have had different types of it. `texts_of` returns the same texts for the values of a silver
column.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.source_relations import SourceColumn
from pipeline.protocol.pg_types import PgType


class KeyFamily(Enum):
    """Types whose values are compared by their texts in the same way; the value names the family."""

    NUMBER = "number"
    TEXT = "text"
    PADDED_TEXT = "padded text"
    UUID = "uuid"
    BOOLEAN = "boolean"
    BYTES = "bytea"
    DATE = "date"
    TIMESTAMP = "timestamp"
    INSTANT = "timestamp with time zone"


_FAMILIES = (
    (frozenset({PgType.INT8, PgType.INT2, PgType.INT4, PgType.OID, PgType.NUMERIC}), KeyFamily.NUMBER),
    (frozenset({PgType.UUID}), KeyFamily.UUID),
    (frozenset({PgType.NAME, PgType.TEXT, PgType.VARCHAR}), KeyFamily.TEXT),
    (frozenset({PgType.NAME, PgType.TEXT, PgType.VARCHAR, PgType.BPCHAR}), KeyFamily.PADDED_TEXT),
    (frozenset({PgType.BOOL}), KeyFamily.BOOLEAN),
    (frozenset({PgType.BYTEA}), KeyFamily.BYTES),
    (frozenset({PgType.DATE}), KeyFamily.DATE),
    (frozenset({PgType.TIMESTAMP}), KeyFamily.TIMESTAMP),
    (frozenset({PgType.TIMESTAMPTZ}), KeyFamily.INSTANT),
    # "char", cidr, macaddr, macaddr8, inet, time, bit, varbit, pg_lsn: each value has one text
    *(
        (frozenset({oid}), KeyFamily.TEXT)
        for oid in (
            PgType.CHAR,
            PgType.CIDR,
            PgType.MACADDR,
            PgType.MACADDR8,
            PgType.INET,
            PgType.TIME,
            PgType.BIT,
            PgType.VARBIT,
            PgType.PG_LSN,
        )
    ),
)
SUPPORTED = (
    "integers, numeric, text, varchar, char, name, uuid, boolean, bytea, date, timestamp with and without "
    "time zone, time without time zone, inet, cidr, macaddr, bit, varbit and pg_lsn"
)
_DATE, _TIME = r"\d{4,}-\d{2}-\d{2}", r" \d{2}:\d{2}:\d{2}(\.\d*[1-9])?"
_PRINTED = {
    KeyFamily.BOOLEAN: re.compile(r"[tf]"),
    KeyFamily.BYTES: re.compile(r"\\x([0-9a-f]{2})*"),
    KeyFamily.DATE: re.compile(rf"-?infinity|{_DATE}( BC)?"),
    KeyFamily.TIMESTAMP: re.compile(rf"-?infinity|{_DATE}{_TIME}( BC)?"),
    KeyFamily.INSTANT: re.compile(rf"-?infinity|{_DATE}{_TIME}\+00( BC)?"),
}
"""How PostgreSQL prints the values of these families."""
_WORDS = {"true": "t", "false": "f"}


def family_of(columns: Collection[SourceColumn]) -> KeyFamily | None:
    """Return the family of a key column, as each relation version has it; None if none has all its types."""
    oids = {column.base_oid for column in columns}
    return next((family for known, family in _FAMILIES if oids <= known), None)


def same_spelling(texts: Any, family: KeyFamily) -> Any:
    """Return an Arrow array of texts, as PostgreSQL prints them; equal values have equal texts."""
    if family is KeyFamily.NUMBER:
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+\.[0-9]*?)0+$", r"\1")
        return pc.replace_substring_regex(texts, r"\.$", "")
    return pc.utf8_rtrim(texts, " ") if family is KeyFamily.PADDED_TEXT else texts


def as_printed(text: str, family: KeyFamily) -> str:
    """Return a text in the form that PostgreSQL prints; raise ValueError if it has none."""
    if family is KeyFamily.UUID:
        return str(UUID(text.strip()))
    if family is KeyFamily.NUMBER:
        try:
            number = Decimal(text.strip())
        except InvalidOperation:
            raise ValueError("not a number") from None
        return format(number or Decimal(0), "f") if number.is_finite() else text.strip()
    if family is KeyFamily.BOOLEAN:
        text = _WORDS.get(text.strip().lower(), text)
    if family in _PRINTED and not _PRINTED[family].fullmatch(text):
        raise ValueError(f"not a {family.value} as PostgreSQL prints it")
    return text


def texts_of(column: Any, family: KeyFamily) -> Any | None:
    """Return the values of a silver column as PostgreSQL prints those of a family.

    None if the column's Arrow type is none that has such values.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    match family:
        case KeyFamily.NUMBER if pa.types.is_decimal(kind):  # Arrow writes small ones with an exponent
            return pa.array([None if d is None else format(d, "f") for d in column.to_pylist()], pa.string())
        case KeyFamily.NUMBER if pa.types.is_integer(kind):
            return column.cast(pa.string())
        case KeyFamily.BOOLEAN if pa.types.is_boolean(kind):
            return pc.if_else(column, "t", "f")
        case KeyFamily.BYTES if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.array([None if b is None else f"\\x{b.hex()}" for b in column.to_pylist()], pa.string())
        case KeyFamily.DATE if pa.types.is_date32(kind):
            return column.cast(pa.string())
        case KeyFamily.TIMESTAMP | KeyFamily.INSTANT if pa.types.is_timestamp(kind):
            is_instant = family is KeyFamily.INSTANT
            if (kind.tz is not None) is not is_instant:
                return None
            texts = _trimmed(column.cast(pa.timestamp("us")).cast(pa.string()))
            return pc.binary_join_element_wise(texts, "+00", "") if is_instant else texts
    return None


def _trimmed(texts: Any) -> Any:
    """Return timestamps without the zeros that end their fractions."""
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+$", r"\1"), r"\.$", "")
