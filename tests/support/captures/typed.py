"""Awkward values of every type that has a binary format, as SQL literals, and the types made for them.

`TYPES` needs `SETUP` run before. What some server lacks is left out there: values of `SINCE`, and the types
of `EXTENSIONS`, among which is xml, that a server may be built without.
"""

from typing import Any

import psycopg

SETUP = (
    "CREATE SCHEMA IF NOT EXISTS odd",
    "CREATE TYPE odd.\"Mood's\" AS ENUM ('calm', 'wild, \"x\"', 'NULL', '', 'grün')",
    "CREATE TYPE odd.pair AS (n int, t text)",
    'CREATE TYPE odd.nest AS (p odd.pair, ps odd.pair[], r int4range, m odd."Mood\'s", f float4, x text)',
    "CREATE DOMAIN odd.price AS numeric(12,2)",
    "CREATE DOMAIN odd.high_price AS odd.price CHECK (VALUE > 0)",
    "CREATE DOMAIN odd.prices AS odd.price[]",
    "CREATE DOMAIN odd.corner AS box",
    "CREATE DOMAIN odd.pairs AS odd.pair",
    'CREATE TYPE odd.textrange AS RANGE (subtype = text, collation = "C")',
    "CREATE TYPE odd.pricerange AS RANGE (subtype = odd.price)",
    "CREATE DOMAIN odd.span AS int4range",
)

SINCE = {"infinity": {"interval": 17}, "-infinity": {"interval": 17}, "2562047788:00:00": {"interval": 15}}

EXTENSIONS: dict[str, dict[str, list[str]]] = {
    "xml": {
        "xml": [
            "<a>x</a>",
            '<?xml version="1.0" encoding="UTF-8"?><a/>',
            '<?xml version="1.1" standalone="yes"?>\n<é/>',
        ],
    },
    "hstore": {
        "hstore": ["", "a=>1", 'a=>NULL, b=>"NULL", "c \\""=>"x\\"y\\\\z", "d,e"=>"é \n"', '""=>""'],
    },
    "citext": {"citext": ["", "Ab C", 'x"y', "NULL"]},
    "ltree": {
        "ltree": ["", "a", "a.b_1.C"],
        "lquery": ["*", "a.*{1,2}.b|c@*"],
        "ltxtquery": ["a & !b@* | c", "a"],
    },
    "vector": {
        "vector": ["[1,2,3]", "[0.1,-1e-10,3e+20]", "[1e15,123456,1234567]"],
        "halfvec": ["[1,2,3.14159]", "[65504,6e-8,-0.1]"],
        "sparsevec": ["{1:1,3:2.5}/5", "{}/7"],
    },
}

TYPES: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "int2": ["0", "-1", "32767", "-32768", "10"],
    "int4": ["0", "-1", "2147483647", "-2147483648", "1000", "9999", "10000"],
    "int8": ["0", "-1", "9223372036854775807", "-9223372036854775808", "99999999", "100000000"],
    "oid": ["0", "4294967295", "2147483648"],
    "xid": ["0", "4294967295", "3"],
    "cid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615", "4294967296"],
    "tid": ["(0,0)", "(4294967295,65535)", "(1,2)"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF", "1/A", "16/B374D848"],
    "float4": [
        *("0", "-0", "1", "-1.5", "0.1", "1e-45", "3.4028235e38", "-3.4028235e38", "16777217", "NaN"),
        *("Infinity", "-Infinity", "100000", "1000000", "999999", "1234567", "0.0001", "0.00001", "1e10"),
        *("9.8765e-5", "1.17549435e-38", "8388608", "1.4e-44", "33554432", "123456.7"),
    ],
    "float8": [
        *("0", "-0", "1", "-1.5", "0.1", "5e-324", "1.7976931348623157e308", "1e15", "123456789012345"),
        *("1234567890123456", "1e16", "1e14", "1e23", "9007199254740993", "0.0001", "0.00001", "NaN"),
        *("Infinity", "-Infinity", "2.2250738585072014e-308", "1.5e-7", "1e100", "-1e-100", "4.35"),
        *("123456789.123456", "1e22", "9.5367431640625e-07", "4503599627370496.5", "3.0000000000000004"),
    ],
    "numeric": [
        *("0", "0.000", "-0.00", "1", "-1", "1.0", "1.50", "12345.678900", "NaN", "Infinity", "-Infinity"),
        *("0.1", "0.0001", "0.00012", "0.00000001", "-0.0000000000001", "9999", "10000", "100000000"),
        *("9" * 20, "1" + "0" * 30, "-" + "12345678" * 5, "0." + "0" * 40 + "1", "1e100", "3.14e-50"),
        *("1234567890123456789012.123456789012345678901234", "10000.0001", "1000000000000000000000000"),
        "0." + "0" * 5000 + "7", "1e1000", "99999999999999999999.9999",
    ],
    "numeric(12,2)": ["0", "1.5", "-9999999999.99", "9999999999.99", "NaN"],
    "money": ["0", "-1234.50", "92233720368547758.07", "-92233720368547758.08", "0.01", "-0.01", "999.99"],
    "text": [
        *("", "a", "NULL", "null", 'quo"te', "back\\slash", "com,ma", "{brace}", "(paren)", "[x]", " space "),
        *("tab\there", "new\nline", "vertical\vtab", "form\ffeed", "naïve 日本 😀", "'", ";", "x" * 300),
    ],
    "varchar(20)": ["", "short", "NULL", "é" * 20],
    "char(6)": ["", "ab", "abcdef", "é"],
    '"char"': ["", "a", "~", "\\\\200", "\\\\377", '"'],
    "name": ["", "a name", "x" * 63],
    "json": ['{"b": 1, "a":  [1e400, null], "b": 2}', "null", '"x"', " [1 , 2] "],
    "jsonb": ['{"b": 1, "a":  [1.50, null], "b": 2}', "null", '"x\\n\\u00e9"', "[]", "{}"],
    "jsonpath": ["$", "$.a[*] ? (@.b > 1.50)", 'strict $."x y"'],
    "bytea": ["", "\\x00ff10", "\\xdeadbeef", "\\x" + "ab" * 200],
    "uuid": ["00000000-0000-0000-0000-000000000000", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"],
    "date": [
        "2000-01-01", "1999-12-31", "infinity", "-infinity", "0044-03-15 BC",
        "4714-11-24 BC", "5874897-12-31",
        "9999-12-31", "10000-01-01", "0001-01-01", "0001-12-31 BC", "2024-02-29",
        "1900-03-01", "2000-12-31",
    ],
    "timestamp": [
        "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "infinity",
        "-infinity", "2024-02-29 12:30:00.5",
        *("0044-03-15 10:00:00 BC", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "0001-01-01"),
        "9999-12-31 23:59:59.999999", "10000-01-01",
        "2024-06-01 00:00:00.000001", "2024-06-01 01:02:03.12",
        *("0001-12-31 23:59:59.9 BC", "2024-06-01 01:02:03.0001", "2024-06-01 01:02:03.00012"),
    ],
    "timestamptz": [
        *("2000-01-01 00:00:00+00", "1999-12-31 23:59:59.999999+14", "infinity", "-infinity"),
        *("0044-03-15 10:00:00.25+00 BC", "4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"),
        *("9999-12-31 23:59:59.99+00", "10000-01-01 00:00:00+00", "2024-06-01 00:00:00.000001-05:30"),
    ],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999", "12:00:00.1", "01:02:03"],
    "timetz": [
        "00:00:00+00", "24:00:00+15:59", "23:59:59.999999-15:59:59",
        "12:00:00.1-04:56:02", "01:02:03+05:30",
        *("24:00:00-15:59:59", "00:00:00+15:59:59", "12:00:00-03:30", "12:00:00-08"),
    ],
    "interval": [
        *("0", "1 year", "-1 year", "1 mon", "13 mons", "-13 mons", "1 day", "-1 day", "2 days", "00:00:01"),
        "-00:00:01.5", "1 year -2 mons 3 days -04:05:06.789", "-1 year 2 mons",
        "-1 day 02:03:04", "100:00:00",
        "178000000 years", "-178000000 years", "1 mon -1 day 00:00:00.000001",
        "-1 mon 1 day", "2562047788:00:00",
        *("infinity", "-infinity", "-00:30:00", "1 year 1 mon 1 day 1 sec"),
    ],
    "bit(5)": ["10101", "00000", "11111"],
    "varbit": ["", "1", "01", "10101010", "101010101", "0" * 40],
    "inet": [
        *("0.0.0.0/0", "192.168.1.1", "192.168.1.1/24", "255.255.255.255", "::", "::1", "fe80::1/64", "::/0"),
        *("::ffff:1.2.3.4", "::1.2.3.4", "1::", "1:0:0:2:0:0:0:3", "1:2:3:4:5:6:7:8", "2001:db8::/32"),
        "1:0:2:0:3:0:4:0", "::5", "::2:3", "::ffff:0:1.2.3.4", "0:0:0:0:0:1:2:3",
        "1:0:0:2::", "::ffff:1.2.3.4/96",
        *("::1:0:0", "0:0:1::", "::1.2.0.0/120"),
    ],
    "cidr": [
        "0.0.0.0/0", "192.168.1.1/32", "192.168.0.0/16", "10.0.0.0/8", "::/0", "::1/128", "2001:db8::/32",
    ],
    "macaddr": ["08:00:2b:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["08:00:2b:01:02:03:04:05", "ff:ff:ff:ff:ff:ff:ff:ff"],
    "point": ["(0,0)", "(-1.5,1e300)", "(NaN,Infinity)", "(0.1,-0)"],
    "lseg": ["[(0,0),(1,1)]", "[(-1.5,2),(1e15,1e16)]"],
    "line": ["{1,2,3}", "{-0.1,1e-5,0}"],
    "box": ["(1,1),(0,0)", "(2.5,1e20),(-1,-1)"],
    "path": ["[(0,0),(1,1),(2,0)]", "((0,0),(1,1),(2,0))", "((1,2))"],
    "polygon": ["((0,0),(1,1),(2,0))", "((1.5,2))"],
    "circle": ["<(0,0),1>", "<(-1.5,2),0.1>", "<(1,1),Infinity>"],
    "tsvector": [
        "", "'a':1 'b':2A,3B,4C 'c'", "'it''s' 'back\\\\slash':5",
        "'space here':16383 'x' ':y:':1D", "'é'",
    ],
    "tsquery": [
        *("", "'a'", "'a' & 'b' | 'c'", "('a' | 'b') & !'c'", "!('a' & 'b')", "'a' <-> 'b' <3> 'c'"),
        "'a' <-> ('b' <-> 'c')", "'a':*AB & 'it''s':D", "'x\\\\y' | !!'z'",
        "!('a' <-> 'b')", "('a'&'b') <-> 'c'",
        "'a' <2> ('b' | !'c')", "'a' & ('b' & ('c' & 'd'))",
        "'a' | 'b' | ('c' & 'd' | 'e')", "'a' <0> 'b'",
    ],
    "int2vector": ["", "1 2 -3"],
    "oidvector": ["", "1 4294967295"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "txid_snapshot": ["10:20:10,14,15"],
    "refcursor": ["", "a cursor"],
    "int4range": ["empty", "[1,5)", "(,5)", "[1,)", "(,)", "[-5,0]"],
    "int8range": ["empty", "[1,9223372036854775807)"],
    "numrange": ["[1.50,2.0]", "(1.0,NaN)", "(,1)", "empty", "[1,Infinity]"],
    "daterange": ["[2020-01-01,2021-01-01]", "(,infinity)", "[0044-03-15 BC,2000-01-01)"],
    "tsrange": ['["2020-01-01 00:00:00","2021-01-01 12:00:00.5"]', "(,infinity]", "empty"],
    "tstzrange": ['["2020-01-01 00:00:00+00",)', "[-infinity,infinity]"],
    "int4multirange": ["{}", "{[1,3),[5,7)}", "{(,1),[10,)}"],
    "nummultirange": ["{[1.50,2.0],(3,4)}"],
    "datemultirange": ["{[2020-01-01,2020-02-01)}"],
    "tsmultirange": ['{["2020-01-01 00:00:00","2020-01-02 00:00:00")}'],
    "tstzmultirange": ['{["2020-01-01 00:00:00+00",infinity)}'],
    "int8multirange": ["{[1,2)}"],
    'odd."Mood\'s"': ["calm", 'wild, "x"', "NULL", "", "grün"],
    "odd.pair": ["(1,a)", "(,)", '(2,"")', '(3,"a,""b\\\\")', '(4," x")', "(5,NULL)", "(6,{}[])", '(7,"\v")'],
    "odd.pairs": ["(1,a)", "(,)"],
    "odd.nest": [
        '("(1,""x y"")","{""(1,a)"",NULL,""(2,b)""}","[1,5)","wild, ""x""",1e10,"()")',
        "(,,,,,)",
        '("(,)",{},empty,,NaN,"")',
    ],
    "odd.price": ["0", "1.5", "-3.25"],
    "odd.high_price": ["0.01", "5"],
    "odd.prices": ["{}", "{1.5,NULL,-2}"],
    "odd.corner": ["(1,1),(0,0)"],
    "odd.textrange": [
        '["",a]', '["a,b","c""d"]', '["back\\\\slash","sp ace")', "[NULL,null]", "empty", '["[","]"]',
    ],
    "odd.pricerange": ["[1,2.5]", "(,0.10)"],
    "odd.span": ["[1,5)", "empty"],
}  # fmt: skip

ARRAYS: dict[str, list[str]] = {
    "int4[]": [
        "{}", "{1,NULL,-3}", "[0:1]={1,2}", "[-2:-1][5:6]={{1,2},{3,NULL}}", "{{{1,2},{3,4}},{{5,6},{7,8}}}",
    ],
    "text[]": [
        "{}",
        '{"",NULL,"NULL","null","a b","c,d","{e}","f\\"g","h\\\\i","tab\t","line\n","é",;}',
        "[2:3][1:1]={{a},{\"b c\"}}",
    ],
    "box[]": ["{(1,1),(0,0);(2,2),(0,0);NULL}"],
    "odd.corner[]": ["{(1,1),(0,0);(2,2),(0,0)}"],
    "timestamptz[]": ['{"2020-01-01 00:00:00+00",infinity,NULL}'],
    "bytea[]": ['{"\\\\x00ff",NULL,"\\\\x"}'],
    "odd.nest[]": ['{NULL,"(,,,,,)"}'],
    "point[]": ['{"(1,2)","(3,4)"}'],
    "odd.price[]": ["{1.5,NULL}"],
    "jsonb[]": ['{"{\\"a\\": [1, 2]}","null",NULL}'],
}  # fmt: skip


def install(connection: psycopg.Connection[Any]) -> frozenset[str]:
    """Create the types and the extensions that there are; return the latter."""
    installed = set()
    for extension in EXTENSIONS:
        statement = f"CREATE EXTENSION {extension} SCHEMA public"
        try:
            connection.execute(b"SELECT '<a/>'::xml" if extension == "xml" else statement.encode())
            installed.add(extension)
        except psycopg.Error:
            continue
    for statement in SETUP:
        connection.execute(statement.encode())
    return frozenset(installed)


def values_of(major: int, installed: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    """Return the literals of each type that a server of this major has, with these extensions."""
    types = {**TYPES, **ARRAYS}
    for extension in installed:
        types |= EXTENSIONS.get(extension, {})
    return {
        name: [v for v in literals if SINCE.get(v, {}).get(name, 0) <= major]
        for name, literals in types.items()
    }
