"""The types that PostgreSQL comes with: their OIDs never change (pg_type.dat). Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

Int4 = Annotated[int, "INT"]
"""A number of 32 bits, such as an attribute number or a type modifier."""


class PgType(IntEnum):
    """A built-in type; the value is its OID."""

    array: int
    """The OID of the type's array."""
    label: str
    """The name of the type in SQL."""

    def __new__(cls, oid: int, array: int, label: str) -> PgType:
        """Make a member."""
        member = int.__new__(cls, oid)
        member._value_, member.array, member.label = oid, array, label
        return member

    BOOL = 16, 1000, "bool"
    BYTEA = 17, 1001, "bytea"
    CHAR = 18, 1002, '"char"'
    NAME = 19, 1003, "name"
    INT8 = 20, 1016, "bigint"
    INT2 = 21, 1005, "smallint"
    INT2VECTOR = 22, 1006, "int2vector"
    INT4 = 23, 1007, "integer"
    TEXT = 25, 1009, "text"
    OID = 26, 1028, "oid"
    TID = 27, 1010, "tid"
    XID = 28, 1011, "xid"
    CID = 29, 1012, "cid"
    OIDVECTOR = 30, 1013, "oidvector"
    JSON = 114, 199, "json"
    XML = 142, 143, "xml"
    POINT = 600, 1017, "point"
    LSEG = 601, 1018, "lseg"
    PATH = 602, 1019, "path"
    BOX = 603, 1020, "box"
    POLYGON = 604, 1027, "polygon"
    LINE = 628, 629, "line"
    CIDR = 650, 651, "cidr"
    FLOAT4 = 700, 1021, "real"
    FLOAT8 = 701, 1022, "double precision"
    CIRCLE = 718, 719, "circle"
    MACADDR8 = 774, 775, "macaddr8"
    MONEY = 790, 791, "money"
    MACADDR = 829, 1040, "macaddr"
    INET = 869, 1041, "inet"
    ACLITEM = 1033, 1034, "aclitem"
    BPCHAR = 1042, 1014, "character"
    VARCHAR = 1043, 1015, "character varying"
    DATE = 1082, 1182, "date"
    TIME = 1083, 1183, "time without time zone"
    TIMESTAMP = 1114, 1115, "timestamp without time zone"
    TIMESTAMPTZ = 1184, 1185, "timestamp with time zone"
    INTERVAL = 1186, 1187, "interval"
    TIMETZ = 1266, 1270, "time with time zone"
    BIT = 1560, 1561, "bit"
    VARBIT = 1562, 1563, "bit varying"
    NUMERIC = 1700, 1231, "numeric"
    REFCURSOR = 1790, 2201, "refcursor"
    UUID = 2950, 2951, "uuid"
    TXID_SNAPSHOT = 2970, 2949, "txid_snapshot"
    PG_LSN = 3220, 3221, "pg_lsn"
    TSVECTOR = 3614, 3643, "tsvector"
    TSQUERY = 3615, 3645, "tsquery"
    JSONB = 3802, 3807, "jsonb"
    INT4RANGE = 3904, 3905, "int4range"
    NUMRANGE = 3906, 3907, "numrange"
    TSRANGE = 3908, 3909, "tsrange"
    TSTZRANGE = 3910, 3911, "tstzrange"
    DATERANGE = 3912, 3913, "daterange"
    INT8RANGE = 3926, 3927, "int8range"
    JSONPATH = 4072, 4073, "jsonpath"
    INT4MULTIRANGE = 4451, 6150, "int4multirange"
    NUMMULTIRANGE = 4532, 6151, "nummultirange"
    TSMULTIRANGE = 4533, 6152, "tsmultirange"
    TSTZMULTIRANGE = 4534, 6153, "tstzmultirange"
    DATEMULTIRANGE = 4535, 6155, "datemultirange"
    INT8MULTIRANGE = 4536, 6157, "int8multirange"
    PG_SNAPSHOT = 5038, 5039, "pg_snapshot"
    XID8 = 5069, 271, "xid8"


ELEMENTS = {kind.array: kind for kind in PgType}
"""The element type of each built-in array type, by its OID."""
