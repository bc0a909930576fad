"""Which type's binary values are read by which function.

The oids of built-in types never change and stand in one table. Any other type is asked for: `TypeFacts` say
what it is made of and which functions of the server write it; a type that two known functions write reads as
they do. What is not known is refused by name: nothing is guessed.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pipeline.protocol.binary import extensions as ext
from pipeline.protocol.binary import geometry as geo
from pipeline.protocol.binary import numbers as num
from pipeline.protocol.binary import texts as txt
from pipeline.protocol.binary import times as tim
from pipeline.protocol.binary.nested import (
    Converter,
    multirange_of,
    range_of,
    read_array,
    read_record,
    read_vector,
)

#: What a function raises for bytes that are no value of its type.
FAULTS: Final = (ValueError, struct.error, RecursionError)

_DOMAIN = "d"
_BOX, _CHAR, _INTERVAL = 603, 18, 1186


@dataclass(frozen=True, slots=True)
class CatalogType:
    """A row of pg_type: `parts` are the types that its values hold, `kind` is typtype.

    `send` and `output` are the names, in the server's source, of the functions that write its values; `send`
    is empty where there is no binary format, and values come as text.
    """

    oid: int
    name: str
    kind: str
    send: str
    output: str
    delimiter: str
    parts: tuple[int, ...]


LookUp: TypeAlias = Callable[[int], CatalogType | None]

# pg_type.dat: name, oid, oid of the array type.
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

# Base types of extensions: the functions for sending and for output.
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
    """No function turns the binary values of a type into text; `name` is the type's, `reason` says why."""

    def __init__(self, name: str, *, is_missing: bool = False) -> None:
        super().__init__(name)
        self.name = name
        self.reason = (
            f"the catalog has no type {name}"
            if is_missing
            else f"nothing is known of the binary format of the type {name}"
        )


class Types:
    """The types of one database, each asked for once, when a value or a check needs it."""

    def __init__(self, server_version: int, look_up: LookUp | None = None) -> None:
        """Read as a server of libpq's version number does; `look_up` tells of a type that is not built in."""
        self._look_up = look_up
        self._facts: dict[int, CatalogType] = {}
        self._names = dict(_VECTORS)
        self._converters: dict[int, Converter] = {}
        for name, oid, array_oid, converter in _BUILT_IN:
            self._names[oid], self._names[array_oid] = name, f"{name}[]"
            self._converters[oid] = converter
            self._converters[array_oid] = self._array
        for oid in _VECTORS:
            self._converters[oid] = self._vector
        if server_version < 160000:
            self._converters[_CHAR] = txt.read_raw_char
        if server_version < 170000:
            self._converters[_INTERVAL] = tim.read_finite_interval

    def find(self, oid: int) -> Converter:
        """Return the function for values of a type; UnknownType where there is none."""
        converter = self._converters.get(oid)
        if converter is None:
            converter = self._converters[oid] = self._make(oid)
        return converter

    def name_of(self, oid: int) -> str:
        """Return the type's name as far as it is known."""
        facts = self._facts.get(oid)
        return facts.name if facts else self._names.get(oid, f"with oid {oid}")

    def unreadable(self, oid: int) -> str | None:
        """Return the name of what cannot be read in values of this type, be it deep inside; None for nothing.

        A type without a binary format comes as text, but not within another: there the server fails.
        """
        return next(self._unreadable(oid, set(), is_inside=False), None)

    def _unreadable(self, oid: int, seen: set[int], *, is_inside: bool) -> Iterator[str]:
        if oid in seen or oid in self._names:
            return
        seen.add(oid)
        try:
            facts = self._facts_of(oid)
            if not facts.send:
                if is_inside:
                    yield facts.name
                return
            self.find(oid)
        except UnknownType as unknown:
            yield unknown.name
            return
        for part in facts.parts:
            yield from self._unreadable(part, seen, is_inside=is_inside or facts.kind != _DOMAIN)

    def _facts_of(self, oid: int) -> CatalogType:
        facts = self._facts.get(oid)
        if facts is None:
            facts = self._look_up(oid) if self._look_up else None
            if facts is None:
                raise UnknownType(self.name_of(oid), is_missing=True)
            self._facts[oid] = facts
        return facts

    def _make(self, oid: int) -> Converter:
        facts = self._facts_of(oid)
        match facts.kind:
            case "d":
                return self.find(*facts.parts)
            case "e":
                return txt.read_text
            case "r":
                return range_of(self.find(*facts.parts))
            case "m":
                return multirange_of(self.find(*facts.parts))
            case "c":
                return partial(read_record, self.find)
        if (facts.send, facts.output) == ("array_send", "array_out"):
            return self._array
        converter = _BY_FUNCTIONS.get((facts.send, facts.output))
        if converter is None:
            raise UnknownType(facts.name)
        return converter

    def _array(self, value: bytes) -> bytes:
        return read_array(self.find, self._delimiter_of, value)

    def _vector(self, value: bytes) -> bytes:
        return read_vector(self.find, value)

    def _delimiter_of(self, oid: int) -> bytes:
        if oid in self._names:
            return b";" if oid == _BOX else b","
        return self._facts_of(oid).delimiter.encode()
