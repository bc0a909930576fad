"""Random values in PostgreSQL's text form, by type: ordinary ones, edges, and text that is hard to quote.

Only what silver can hold is produced: years 1 to 9999, numerics within their precision, arrays of one
dimension. An unconstrained numeric lands as text, so it may be NaN or have more digits than any DECIMAL.
"""

import json
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from random import Random
from uuid import UUID

LARGE = 2050
"""Bytes from which a value in a column of EXTERNAL storage is always kept out of line."""

TEXTS = (
    "", " ", "NULL", "null", "{}", "it's", '"quoted"', "back\\slash", "a,b", "{a}", "tab\there",
    "line\nbreak", "naïve", "日本語", "🦀", "\u2028", "trailing  ", "\\N", "\\x41", "t", "0", "e\u0301",
    "%s %(x)s", "\r\n", "\x01",
)  # fmt: skip
FLOATS = ("0", "-0", "NaN", "Infinity", "-Infinity", "0.1", "-1.5", "1e+15", "1e-7", "123456.789", "3")
DOUBLES = (*FLOATS, "1e+308", "5e-324", "2.2250738585072014e-308", "0.30000000000000004", "9007199254740993")
REALS = (*FLOATS, "3.4028235e+38", "1e-45", "16777217", "0.3")
NUMERICS = (
    "0", "0.000", "1.0", "1.00", "1", "-1.10", "NaN", "1e-20",
    "123456789012345678901234567890123456789012345", "-0.0000000000000000000000000000000000000001",
    "100", "1e3",
)  # fmt: skip
DAYS = ("0001-01-01", "9999-12-31", "1582-10-10", "1900-02-28", "2000-02-29", "1970-01-01", "1969-12-31")
TIMES = (
    "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1582-10-10 12:00:00.1",
    "1969-12-31 23:59:59.999999", "1883-11-18 12:03:57.5", "2000-01-01 00:00:00",
    "2024-03-31 02:30:00.000001", "2024-02-29 23:59:59.12",
)  # fmt: skip
JSONS = ('{"a": 1, "a": 2}', "1e400", "null", "[]", '{"b":[1,2.50,"x\\u00e9"]}', '"\\"q\\""', " { } ", "-0.0")
JSONBS = (
    "null", "{}", "[1, 1.0, 1.00]", '{"b": 2, "a": {"c": [null, "é"]}}', "1e3", '"x,{}"', "-0.0", "true",
)  # fmt: skip


def random_value(
    rng: Random, type_: str, *, is_toast: bool = False, labels: Sequence[str] = ()
) -> str | None:
    """Return a value of the type as text, or None for NULL; types not known here are enums of `labels`."""
    if rng.random() < 0.12:
        return None
    if type_.endswith("[]"):
        elements = [
            random_value(rng, type_[:-2], labels=labels) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))
        ]
        return array_text(elements)
    match = re.fullmatch(r"(\w+)\(([-\d,]+)\)", type_)
    name, modifier = match.groups() if match else (type_, "")
    match name:
        case "bool":
            return rng.choice("tf")
        case "int2" | "int4" | "int8":
            limit = 2 ** (8 * int(name[3]) - 1)
            return str(rng.choice((0, 1, -1, limit - 1, -limit, rng.randint(-99, 99))))
        case "float4":
            return rng.choice((*REALS, str(rng.uniform(-1e3, 1e3))))
        case "float8":
            return rng.choice((*DOUBLES, str(rng.uniform(-1e3, 1e3))))
        case "numeric" if not modifier:
            return rng.choice((*NUMERICS, f"{rng.randint(-(10**9), 10**9)}e-{rng.randint(0, 12)}"))
        case "numeric":
            precision, scale = map(int, modifier.split(","))
            most = 10**precision - 1
            return f"{rng.choice((0, 1, -1, most, -most, rng.randint(-most, most)))}e{-scale}"
        case "text" if is_toast:
            return large_text(rng) if rng.random() < 0.75 else rng.choice(TEXTS)
        case "text":
            return rng.choice((*TEXTS, word(rng), word(rng)))
        case "varchar" | "bpchar":
            return rng.choice((*TEXTS, word(rng)))[: int(modifier)]
        case "bytea":
            size = rng.randint(LARGE, 2 * LARGE) if is_toast and rng.random() < 0.75 else rng.randint(0, 9)
            return "\\x" + rng.randbytes(size).hex()
        case "date":
            return rng.choice((*DAYS, str(date(1, 1, 1) + timedelta(days=rng.randint(0, 3652058)))))
        case "timestamp":
            return moment(rng, at_most=9999)
        case "timestamptz":
            # A precision rounds, and the last microsecond of 9999 would be rounded out of the range.
            return moment(rng, at_most=9998 if modifier else 9999) + "+00"
        case "uuid":
            return str(UUID(int=rng.getrandbits(128)))
        case "json":
            return rng.choice((*JSONS, json.dumps({"t": rng.choice(TEXTS[:-1])})))
        case "jsonb":
            return rng.choice((*JSONBS, json.dumps({"t": rng.choice(TEXTS[:-1]), "n": rng.randint(0, 3)})))
    return rng.choice(labels)


def moment(rng: Random, *, at_most: int) -> str:
    spread = datetime(at_most, 12, 31) - datetime(1, 1, 1)
    drawn = datetime(1, 1, 1) + timedelta(microseconds=rng.randint(0, spread // timedelta(microseconds=1)))
    return rng.choice([*(t for t in TIMES if int(t[:4]) <= at_most), drawn.isoformat(" ")])


def word(rng: Random) -> str:
    return "".join(rng.choices("abcdefghij klm", k=rng.randint(1, 12)))


def large_text(rng: Random) -> str:
    return (rng.choice(TEXTS) + word(rng)) * 3 + rng.choice("pqrs") * rng.randint(LARGE, 2 * LARGE)


def array_text(elements: Sequence[str | None]) -> str:
    """Return a one-dimensional array literal with every element but NULL quoted."""
    quoted = (
        '"' + e.replace("\\", "\\\\").replace('"', '\\"') + '"' if e is not None else "NULL" for e in elements
    )
    return "{" + ",".join(quoted) + "}"
