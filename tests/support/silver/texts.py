"""Texts as PostgreSQL prints them (and as overrides may meet them), with the values that silver holds."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    HSTORE,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VECTOR,
    SilverType,
    array_of,
    decimal,
)
from pipeline.silver.types.types import overridden

NAN, INFINITY = float("nan"), float("inf")


class Texts(NamedTuple):
    """Texts of one type that have a value, and texts that do not fit."""

    kind: SilverType
    values: Mapping[str, Any]
    misfits: Sequence[str] = ()


def micros(*fields: int) -> int:
    """Return an instant as microseconds since 1970."""
    return (datetime(*fields) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # type: ignore[arg-type]


def same(*texts: str) -> dict[str, str]:
    """Return texts that are their own values."""
    return {text: text for text in texts}


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
NO_DATE = (
    *("infinity", "-infinity", "now", "", "2024", "2023-02-29", "10000-01-01", "0044-03-15 BC"),
    *("2024-1-1", "2024-1-1  ", "0000-01-01", "2024-01-01\n"),
)

TEXTS = (
    Texts(BOOLEAN, {"t": True, "f": False}, ("true", "")),
    Texts(SMALLINT, {"-32768": -32768, "32767": 32767}, ("32768", "1.5")),
    Texts(INT, {"-2147483648": -(2**31), "0": 0}, ("2147483648", "1.5", "abc", "")),
    Texts(
        BIGINT,
        {
            "-9223372036854775808": -(2**63),
            "9223372036854775807": 2**63 - 1,
            "4294967295": 2**32 - 1,
        },
        ("9223372036854775808", "1e3", ""),
    ),
    Texts(
        FLOAT,
        {
            "0": 0.0,
            "-0": -0.0,
            "NaN": NAN,
            "Infinity": INFINITY,
            "-Infinity": -INFINITY,
            "1.5": 1.5,
            "3.4028235e+38": 3.4028234663852886e38,
            "1e-45": 1.401298464324817e-45,
            "16777216": 16777216.0,
        },
        ("x", ""),
    ),
    Texts(
        DOUBLE,
        {
            "-0": -0.0,
            "NaN": NAN,
            "Infinity": INFINITY,
            "-Infinity": -INFINITY,
            "1.7976931348623157e+308": 1.7976931348623157e308,
            "5e-324": 5e-324,
            "0.1": 0.1,
            "123456789012345680": 123456789012345680.0,
            "1e400": INFINITY,
            "2e-324": 0.0,
            "2.4703282292062327208299439": 2.4703282292062327,
        },
        ("x", "", "0x1p3", "1_0", "NULL"),
    ),
    Texts(
        overridden("DOUBLE"),
        {"NaN": NAN, "-Infinity": -INFINITY, "12.5": 12.5},
        ("1" + "0" * 400, "-1e999", "x"),
    ),
    Texts(overridden("FLOAT"), {"Infinity": INFINITY, "1.25": 1.25}, ("1e39",)),
    Texts(
        decimal(5, 2),
        {
            "1.5": Decimal("1.50"),
            "-999.99": Decimal("-999.99"),
            "0.000": Decimal("0.00"),
            "1.2500000": Decimal("1.25"),
        },
        ("1000", "1.255", "", "1e2", "--1", *NOT_FINITE),
    ),
    Texts(decimal(5, 0), {"12300": Decimal(12300), "12300.0": Decimal(12300)}, ("0.5",)),
    Texts(decimal(5, 5), {"0.00123": Decimal("0.00123"), "-0.99999": Decimal("-0.99999")}, ("1",)),
    Texts(decimal(38, 38), {"0." + "9" * 38: Decimal("0." + "9" * 38)}, ("1", *NOT_FINITE)),
    Texts(decimal(38, 0), {"-" + "9" * 38: Decimal("-" + "9" * 38)}, ("9" * 39,)),
    Texts(
        STRING,
        same("", "ab  ", "a'b\"c\\d\n\te", "日本 \U0001f600 \u2028", "24:00:00", "NULL")
        | same("${env:HOME}", "$$\\u0041%s"),
    ),
    Texts(BINARY, {"\\x": b"", "\\x00ff5c": b"\0\xff\\"}, ("abc", "\\xzz")),
    Texts(
        DATE,
        {
            "0001-01-01": date(1, 1, 1),
            "1582-10-10": date(1582, 10, 10),
            "2024-02-29": date(2024, 2, 29),
            "9999-12-31": date(9999, 12, 31),
        },
        (*NO_DATE, "5874897-12-31", "2024-01-01 10:00:00"),
    ),
    Texts(
        TIMESTAMP_NTZ,
        {
            "0001-01-01 00:00:00": datetime(1, 1, 1),
            "1500-02-28 12:00:00": datetime(1500, 2, 28, 12),
            "2024-03-10 02:30:00.1": datetime(2024, 3, 10, 2, 30, 0, 100000),
            "2024-03-10": datetime(2024, 3, 10),
            "2024-03-10T02:30:00+05:30": datetime(2024, 3, 10, 2, 30),
            "9999-12-31 23:59:59.999999": datetime(9999, 12, 31, 23, 59, 59, 999999),
        },
        (
            *(
                "0001-12-31 00:00:00 BC",
                "10000-01-01 00:00:00",
                "294276-12-31 23:59:59.999999",
                "infinity",
                "now",
            ),
            *("2024-01-01 24:00:00", "2024-01-01 10:00:60", "0000-01-01 00:00:00", "2024-01-01 10:00:00 UTC"),
        ),
    ),
    Texts(
        TIMESTAMP,
        {
            "0001-01-01 00:00:00+00": micros(1, 1, 1),
            "1969-12-31 23:59:59+00": -1_000_000,
            "2024-03-10 02:30:00.000001+00": micros(2024, 3, 10, 2, 30, 0, 1),
            "2024-03-10T02:30:00.123456789Z": micros(2024, 3, 10, 2, 30, 0, 123456),
            "1800-01-01 00:00:00-00:43:08": micros(1800, 1, 1, 0, 43, 8),
            "9999-12-31 23:59:59.999999+00": micros(9999, 12, 31, 23, 59, 59, 999999),
        },
        (
            *("0001-01-01 00:00:00+00 BC", "10000-01-01 00:00:00+00", "infinity", "-infinity"),
            *("2024-01-01 10:00+02", "2024-01-01 10:00:00+16", "2024-01-01 10:00:00 Europe/Berlin"),
        ),
    ),
    Texts(
        array_of(STRING),
        {
            "{}": [],
            "{a,b}": ["a", "b"],
            '{NULL,"NULL","null"}': [None, "NULL", "null"],
            '{"",a}': ["", "a"],
            r'{"a\"b","c\\d","\\\"","\\\\","\\"}': ['a"b', "c\\d", '\\"', "\\\\", "\\"],
            '{"a,b","{x}","c d"," "}': ["a,b", "{x}", "c d", " "],
            '{"line\nbreak","tab\there",日本,\U0001f600}': ["line\nbreak", "tab\there", "日本", "\U0001f600"],
            '{"' + '\\"' * 10_000 + '",b}': ['"' * 10_000, "b"],
            "{" + ",".join(["x"] * 5000) + "}": ["x"] * 5000,
            "{${env:HOME},$1}": ["${env:HOME}", "$1"],
        },
        ("{{a,b},{c,d}}", "[0:1]={a,b}", "[-2:-1][5:6]={{a,b},{c,d}}"),
    ),
    Texts(array_of(STRING, ";"), {"{(1,1),(0,0);(2,2),(1,1)}": ["(1,1),(0,0)", "(2,2),(1,1)"], "{}": []}),
    *(
        Texts(array_of(STRING, mark), {f'{{a,;b{mark}NULL{mark}"c{mark}"}}': ["a,;b", None, f"c{mark}"]})
        for mark in ":'^-]&"
    ),
    Texts(array_of(INT), {"{1,-2,NULL}": [1, -2, None], "{}": []}, ("[2:3]={1,2}", "{{1},{2}}")),
    Texts(array_of(BOOLEAN), {"{t,f,NULL}": [True, False, None]}),
    Texts(array_of(BINARY), {r'{"\\x00ff","\\x",NULL}': [b"\0\xff", b"", None]}),
    Texts(array_of(DOUBLE), {"{-0,NaN,Infinity,1e-300}": [-0.0, NAN, INFINITY, 1e-300]}),
    Texts(array_of(decimal(4, 1)), {"{1.0,999.9,NULL}": [Decimal("1.0"), Decimal("999.9"), None]}),
    Texts(array_of(DATE), {"{0001-01-01,9999-12-31,NULL}": [date(1, 1, 1), date(9999, 12, 31), None]}),
    Texts(
        array_of(TIMESTAMP_NTZ),
        {'{"2024-01-01 00:00:00.000001",NULL}': [datetime(2024, 1, 1, 0, 0, 0, 1), None]},
    ),
    Texts(
        HSTORE,
        {
            "": {},
            '"a"=>"1", "b"=>NULL, "c"=>"NULL"': {"a": "1", "b": None, "c": "NULL"},
            '""=>""': {"": ""},
            r'"c \""=>"x\"y\\z", "d,e"=>"é \n"'.replace("\\n", "\n"): {'c "': 'x"y\\z', "d,e": "é \n"},
            '"v"=>"=>", "=>x"=>"\\"=>\\"", ", "=>", "': {"v": "=>", "=>x": '"=>"', ", ": ", "},
            '"' + '\\"' * 10_000 + '"=>"' + "x" * 20_000 + '"': {'"' * 10_000: "x" * 20_000},
            '"日本"=>"\U0001f600", "${HOME}"=>"$1"': {"日本": "\U0001f600", "${HOME}": "$1"},
        },
        ("a=>1", '"a"=>"1",', '"a"=>"1", "a"=>"2"', "{}", "NULL"),
    ),
    Texts(
        array_of(HSTORE),
        {r'{"\"a\"=>\"1\", \"b\"=>NULL",NULL,""}': [{"a": "1", "b": None}, None, {}]},
    ),
    Texts(VECTOR, {"[1,2.5,-3e-05]": [1.0, 2.5, -2.9999999242136255e-05]}, ("{1,2}", "[0:1]={1,2}", "1")),
    Texts(
        VARIANT,
        {
            '{"b": 1.50, "a": [null, true, "x"]}': '{"a":[null,true,"x"],"b":1.5}',
            '"日本 \\u2028"': '"日本 \u2028"',
            "null": "null",
            "1.5e-7": "1.5E-7",
            "9" * 38: "9" * 38,
            '"' + "9" * 50 + '"': '"' + "9" * 50 + '"',
            '{"a\\"": "\\\\", "b": 1}': '{"a\\"":"\\\\","b":1}',
        },
        ("9" * 39, "1." + "9" * 38, "1e400", "1234567890123456.5e1", '{"a": 1, "a": 2}', "{a:1}", ""),
    ),
)
