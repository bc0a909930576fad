"""The converter of a type: the function that turns its binary values into text.

`_BUILT_IN` has those of built-in types. Any other type is read from the catalog:
`CatalogType` has its component types and the names of its send and output functions, which identify the base
types of extensions. A type without a converter is refused by name; nothing is guessed.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pipeline.protocol.binary import extensions as ext
from pipeline.protocol.binary import extensions as txt
from pipeline.protocol.binary import numbers as geo
from pipeline.protocol.binary import numbers as num
from pipeline.protocol.binary import times as tim
from pipeline.protocol.binary.nested import (
    Converter,
    multirange_of,
    range_of,
    read_array,
    read_record,
    read_vector,
)
from pipeline.protocol.pg_types import PgType

#: What a converter raises for malformed bytes.
FAULTS: Final = (ValueError, struct.error, RecursionError)

_DOMAIN = "d"


@dataclass(frozen=True, slots=True)
class CatalogType:
    """A row of pg_type: `kind` is typtype, `parts` are the OIDs of its component types.

    `send` and `output` are the names, in the server's source, of its send and output functions; `send` is
    empty if the type has no binary format, so that its values are sent as text.
    """

    oid: int
    name: str
    kind: str
    send: str
    output: str
    delimiter: str
    parts: tuple[int, ...]


ReadType: TypeAlias = Callable[[int], CatalogType | None]
"""Read a type from the catalog by its OID; None if the catalog does not have it."""

_BUILT_IN: dict[PgType, Converter] = {
    PgType.BOOL: txt.read_bool,
    PgType.BYTEA: txt.read_bytea,
    PgType.CHAR: txt.read_char,
    PgType.NAME: txt.read_text,
    PgType.INT8: num.read_int8,
    PgType.INT2: num.read_int2,
    PgType.INT4: num.read_int4,
    PgType.TEXT: txt.read_text,
    PgType.OID: num.read_uint4,
    PgType.TID: num.read_tid,
    PgType.XID: num.read_uint4,
    PgType.CID: num.read_uint4,
    PgType.JSON: txt.read_text,
    PgType.XML: txt.read_text,
    PgType.POINT: geo.read_point,
    PgType.LSEG: geo.read_lseg,
    PgType.PATH: geo.read_path,
    PgType.BOX: geo.read_box,
    PgType.POLYGON: geo.read_polygon,
    PgType.LINE: geo.read_line,
    PgType.CIDR: txt.read_cidr,
    PgType.FLOAT4: num.read_float4,
    PgType.FLOAT8: num.read_float8,
    PgType.CIRCLE: geo.read_circle,
    PgType.MACADDR8: txt.read_macaddr8,
    PgType.MONEY: num.read_money,
    PgType.MACADDR: txt.read_macaddr,
    PgType.INET: txt.read_inet,
    PgType.BPCHAR: txt.read_text,
    PgType.VARCHAR: txt.read_text,
    PgType.DATE: tim.read_date,
    PgType.TIME: tim.read_time,
    PgType.TIMESTAMP: tim.read_timestamp,
    PgType.TIMESTAMPTZ: tim.read_timestamptz,
    PgType.INTERVAL: tim.read_interval,
    PgType.TIMETZ: tim.read_timetz,
    PgType.BIT: txt.read_bits,
    PgType.VARBIT: txt.read_bits,
    PgType.NUMERIC: num.read_numeric,
    PgType.REFCURSOR: txt.read_text,
    PgType.UUID: txt.read_uuid,
    PgType.TXID_SNAPSHOT: txt.read_snapshot,
    PgType.PG_LSN: num.read_lsn,
    PgType.TSVECTOR: ext.read_tsvector,
    PgType.TSQUERY: ext.read_tsquery,
    PgType.JSONB: txt.read_versioned,
    PgType.INT4RANGE: range_of(num.read_int4),
    PgType.NUMRANGE: range_of(num.read_numeric),
    PgType.TSRANGE: range_of(tim.read_timestamp),
    PgType.TSTZRANGE: range_of(tim.read_timestamptz),
    PgType.DATERANGE: range_of(tim.read_date),
    PgType.INT8RANGE: range_of(num.read_int8),
    PgType.JSONPATH: txt.read_versioned,
    PgType.INT4MULTIRANGE: multirange_of(range_of(num.read_int4)),
    PgType.NUMMULTIRANGE: multirange_of(range_of(num.read_numeric)),
    PgType.TSMULTIRANGE: multirange_of(range_of(tim.read_timestamp)),
    PgType.TSTZMULTIRANGE: multirange_of(range_of(tim.read_timestamptz)),
    PgType.DATEMULTIRANGE: multirange_of(range_of(tim.read_date)),
    PgType.INT8MULTIRANGE: multirange_of(range_of(num.read_int8)),
    PgType.PG_SNAPSHOT: txt.read_snapshot,
    PgType.XID8: num.read_uint8,
}
_VECTORS = (PgType.INT2VECTOR, PgType.OIDVECTOR)

# Base types of extensions, by their send and output functions.
_BY_FUNCTIONS: dict[tuple[str, str], Converter] = {
    ("textsend", "textout"): txt.read_text,  # citext
    ("varcharsend", "varcharout"): txt.read_text,
    ("hstore_send", "hstore_out"): ext.read_hstore,
    ("ltree_send", "ltree_out"): txt.read_versioned,
    ("lquery_send", "lquery_out"): txt.read_versioned,
    ("ltxtq_send", "ltxtq_out"): txt.read_versioned,
    ("vector_send", "vector_out"): ext.read_vector,
    ("halfvec_send", "halfvec_out"): ext.read_halfvec,
    ("sparsevec_send", "sparsevec_out"): ext.read_sparsevec,
}


class UnknownType(Exception):
    """No converter for the type `name`; `reason` is the cause, as part of a sentence."""

    def __init__(self, name: str, *, is_missing: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self.reason = (
            f"the catalog has no type {name}"
            if is_missing
            else f"the binary format of the type {name} is not supported"
        )


class Types:
    """The converters of one database; a type is read from the catalog once, when first needed."""

    def __init__(
        self, server_version: int, read_type: ReadType | None = None, *, has_cents: bool = True
    ) -> None:
        """Convert for a server of libpq's version number; `read_type` reads types that are not built in.

        Money can be converted if `has_cents`: its amounts have two digits after the point.
        """
        self._read_type = read_type
        self._types: dict[int, CatalogType] = {}
        self._names: dict[int, str] = {kind: kind.label for kind in _VECTORS}
        self._converters: dict[int, Converter] = {}
        for kind, converter in _BUILT_IN.items():
            if kind is PgType.MONEY and not has_cents:
                continue
            self._names[kind], self._names[kind.array] = kind.label, f"{kind.label}[]"
            self._converters[kind] = converter
            self._converters[kind.array] = self._convert_array
        for oid in _VECTORS:
            self._converters[oid] = self._convert_vector
        if server_version < 160000:
            self._converters[PgType.CHAR] = txt.read_raw_char
        if server_version < 170000:
            self._converters[PgType.INTERVAL] = tim.read_finite_interval

    def find(self, oid: int) -> Converter:
        """Return the converter of a type; raise UnknownType if there is none."""
        converter = self._converters.get(oid)
        if converter is None:
            converter = self._converters[oid] = self._make_converter(oid)
        return converter

    def name_of(self, oid: int) -> str:
        """Return the name of a type, or `with oid N` if it is unknown."""
        type_ = self._types.get(oid)
        return type_.name if type_ else self._names.get(oid, f"with oid {oid}")

    def find_unreadable(self, oid: int) -> str | None:
        """Return the name of the first type within this one that has no converter; None if there is none.

        A type without a binary format is sent as text, except within another type: there the server fails.
        """
        return next(self._unreadable(oid, set(), is_component=False), None)

    def _unreadable(self, oid: int, seen: set[int], *, is_component: bool) -> Iterator[str]:
        if oid in seen or oid in self._names:
            return
        seen.add(oid)
        try:
            type_ = self._find_type(oid)
            if not type_.send:
                if is_component:
                    yield type_.name
                return
            self.find(oid)
        except UnknownType as unknown:
            yield unknown.name
            return
        for part in type_.parts:
            yield from self._unreadable(part, seen, is_component=is_component or type_.kind != _DOMAIN)

    def _find_type(self, oid: int) -> CatalogType:
        type_ = self._types.get(oid)
        if type_ is None:
            type_ = self._read_type(oid) if self._read_type else None
            if type_ is None:
                raise UnknownType(self.name_of(oid), is_missing=True)
            self._types[oid] = type_
        return type_

    def _make_converter(self, oid: int) -> Converter:
        type_ = self._find_type(oid)
        match type_.kind:
            case "d":
                return self.find(*type_.parts)
            case "e":
                return txt.read_text
            case "r":
                return range_of(self.find(*type_.parts))
            case "m":
                return multirange_of(self.find(*type_.parts))
            case "c":
                return partial(read_record, self.find)
        if (type_.send, type_.output) == ("array_send", "array_out"):
            return self._convert_array
        converter = _BY_FUNCTIONS.get((type_.send, type_.output))
        if converter is None:
            raise UnknownType(type_.name)
        return converter

    def _convert_array(self, value: bytes) -> bytes:
        return read_array(self.find, self._delimiter_of, value)

    def _convert_vector(self, value: bytes) -> bytes:
        return read_vector(self.find, value)

    def _delimiter_of(self, oid: int) -> bytes:
        if oid in self._names:
            return b";" if oid == PgType.BOX else b","
        return self._find_type(oid).delimiter.encode()
