"""The converter of a type: the function that turns its binary values into text.

The OIDs of built-in types never change; `_BUILT_IN` maps them. Any other type is read from the catalog:
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

#: What a converter raises for malformed bytes.
FAULTS: Final = (ValueError, struct.error, RecursionError)

_DOMAIN = "d"
_BOX, _CHAR, _INTERVAL = 603, 18, 1186


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

# From pg_type.dat: name, OID, OID of the array type.
_BUILT_IN: tuple[tuple[str, int, int, Converter], ...] = (
    ("bool", 16, 1000, txt.read_bool),
    ("bytea", 17, 1001, txt.read_bytea),
    ('"char"', _CHAR, 1002, txt.read_char),
    ("name", 19, 1003, txt.read_text),
    ("bigint", 20, 1016, num.read_int8),
    ("smallint", 21, 1005, num.read_int2),
    ("integer", 23, 1007, num.read_int4),
    ("text", 25, 1009, txt.read_text),
    ("oid", 26, 1028, num.read_uint4),
    ("tid", 27, 1010, num.read_tid),
    ("xid", 28, 1011, num.read_uint4),
    ("cid", 29, 1012, num.read_uint4),
    ("json", 114, 199, txt.read_text),
    ("xml", 142, 143, txt.read_text),
    ("point", 600, 1017, geo.read_point),
    ("lseg", 601, 1018, geo.read_lseg),
    ("path", 602, 1019, geo.read_path),
    ("box", _BOX, 1020, geo.read_box),
    ("polygon", 604, 1027, geo.read_polygon),
    ("line", 628, 629, geo.read_line),
    ("cidr", 650, 651, txt.read_cidr),
    ("real", 700, 1021, num.read_float4),
    ("double precision", 701, 1022, num.read_float8),
    ("circle", 718, 719, geo.read_circle),
    ("macaddr8", 774, 775, txt.read_macaddr8),
    ("money", 790, 791, num.read_money),
    ("macaddr", 829, 1040, txt.read_macaddr),
    ("inet", 869, 1041, txt.read_inet),
    ("character", 1042, 1014, txt.read_text),
    ("character varying", 1043, 1015, txt.read_text),
    ("date", 1082, 1182, tim.read_date),
    ("time without time zone", 1083, 1183, tim.read_time),
    ("timestamp without time zone", 1114, 1115, tim.read_timestamp),
    ("timestamp with time zone", 1184, 1185, tim.read_timestamptz),
    ("interval", _INTERVAL, 1187, tim.read_interval),
    ("time with time zone", 1266, 1270, tim.read_timetz),
    ("bit", 1560, 1561, txt.read_bits),
    ("bit varying", 1562, 1563, txt.read_bits),
    ("numeric", 1700, 1231, num.read_numeric),
    ("refcursor", 1790, 2201, txt.read_text),
    ("uuid", 2950, 2951, txt.read_uuid),
    ("txid_snapshot", 2970, 2949, txt.read_snapshot),
    ("pg_lsn", 3220, 3221, num.read_lsn),
    ("tsvector", 3614, 3643, ext.read_tsvector),
    ("tsquery", 3615, 3645, ext.read_tsquery),
    ("jsonb", 3802, 3807, txt.read_versioned),
    ("int4range", 3904, 3905, range_of(num.read_int4)),
    ("numrange", 3906, 3907, range_of(num.read_numeric)),
    ("tsrange", 3908, 3909, range_of(tim.read_timestamp)),
    ("tstzrange", 3910, 3911, range_of(tim.read_timestamptz)),
    ("daterange", 3912, 3913, range_of(tim.read_date)),
    ("int8range", 3926, 3927, range_of(num.read_int8)),
    ("jsonpath", 4072, 4073, txt.read_versioned),
    ("int4multirange", 4451, 6150, multirange_of(range_of(num.read_int4))),
    ("nummultirange", 4532, 6151, multirange_of(range_of(num.read_numeric))),
    ("tsmultirange", 4533, 6152, multirange_of(range_of(tim.read_timestamp))),
    ("tstzmultirange", 4534, 6153, multirange_of(range_of(tim.read_timestamptz))),
    ("datemultirange", 4535, 6155, multirange_of(range_of(tim.read_date))),
    ("int8multirange", 4536, 6157, multirange_of(range_of(num.read_int8))),
    ("pg_snapshot", 5038, 5039, txt.read_snapshot),
    ("xid8", 5069, 271, num.read_uint8),
)
_VECTORS = {22: "int2vector", 30: "oidvector"}

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
        self._names = dict(_VECTORS)
        self._converters: dict[int, Converter] = {}
        for name, oid, array_oid, converter in _BUILT_IN:
            if converter is num.read_money and not has_cents:
                continue
            self._names[oid], self._names[array_oid] = name, f"{name}[]"
            self._converters[oid] = converter
            self._converters[array_oid] = self._convert_array
        for oid in _VECTORS:
            self._converters[oid] = self._convert_vector
        if server_version < 160000:
            self._converters[_CHAR] = txt.read_raw_char
        if server_version < 170000:
            self._converters[_INTERVAL] = tim.read_finite_interval

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
            return b";" if oid == _BOX else b","
        return self._find_type(oid).delimiter.encode()
