"""Random texts for any type: as PostgreSQL prints values, at the limits of types, and damaged.

Most are a value of some type. Every type has to read all of them in the same way in both engines.
"""

import struct
from collections.abc import Iterator
from decimal import Decimal, localcontext
from random import Random

from tests.support.silver.texts import TEXTS
from tests.support.workload.values import array_text, random_value

# What casts may ignore, split at, take for a digit, a sign, an exponent, a suffix or the end of a line.
ODD = (
    *" \t\n\r\x01\x0b\x0c\x1c\x1f\x7f\x85\xa0\u1680\u2028\u3000\ufeff",
    *"+-._,:;/'\"\\{}[]()=>eEdDfFlLxXpPTZ0123456789",
    *"İıſK１٣²½日é\U0001f600\U0001d7d8",
    *(
        "e\u0301",
        "NULL",
        "NaN",
        "nan",
        "Infinity",
        "inf",
        "-0",
        "0x",
        "1_0",
        "\\x",
        '\\"',
        " BC",
        "+00",
        "24:00:00",
    ),
)
TYPES = (
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "numeric(5,2)", "numeric(38,10)",
    "numeric(38,38)", "text", "bytea", "date", "timestamp", "timestamptz", "uuid", "json",
)  # fmt: skip
DAMAGED_ARRAYS = (
    r'{"-2.5e-41\"}',
    r'{"1\"}',
    '{"1}',
    '{"}',
    '{1"}',
    '{"1""}',
    r"{1\\}",
    r'{"1\\}',
    '{"1",}',
    '{"tr\\"}',
)
"""Arrays that end within quotes, or have quotes or escapes where PostgreSQL prints none."""
_WORDS = (
    "",
    "-",
    "+",
    ".",
    "inf",
    "+INF",
    "-inf",
    "Infinity",
    "+Infinity",
    "iNfInItY",
    "nan",
    "-NaN",
    "+nan",
    "NAN",
)


def odd_texts(rng: Random, count: int) -> list[str]:
    """Return so many texts, after those that `TEXTS` lists and the damaged arrays."""
    found = [text for _, values, misfits in TEXTS for text in (*values, *misfits)]
    drawn = _texts(rng)
    return [*found, *DAMAGED_ARRAYS] + [next(drawn) for _ in range(count)]


def floating_texts(rng: Random, count: int) -> list[str]:
    """Return finite numbers: of 17 digits, of all digits, and between two neighbours."""
    kinds = (_double, _real, _between)
    found = (rng.choice(kinds)(rng) for _ in range(count))
    return [text if "n" not in text else "-0" for text in found]


def _texts(rng: Random) -> Iterator[str]:
    kinds = (_printed, _number, _double, _real, _between, _dated, _array, _vector, _word)
    while True:
        text = rng.choice(kinds)(rng)
        yield text if rng.random() < 0.7 else damaged(rng, text)


def damaged(rng: Random, text: str) -> str:
    """Return a text with some characters put in, left out or replaced."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.choice((0, len(text), rng.randint(0, len(text))))
        text = text[:at] + rng.choice((rng.choice(ODD), "")) + text[at + rng.choice((0, 0, 1)) :]
    return text


def _printed(rng: Random) -> str:
    return random_value(rng, rng.choice(TYPES)) or "NULL"


def _word(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_WORDS)
    others = [chr(rng.choice((rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(20)]
    return "".join(rng.choices([*ODD, *others], k=rng.randint(0, 6)))


def _number(rng: Random) -> str:
    """Return digits: around the limits of integers and decimals, with zeros at both ends, with exponents."""
    whole = rng.choice(
        (
            str(2 ** rng.choice((15, 16, 31, 32, 63, 64)) + rng.randint(-2, 2)),
            str(10 ** rng.choice((2, 3, 5, 18, 19, 28, 37, 38, 39)) + rng.randint(-2, 2)),
            str(rng.getrandbits(rng.randint(1, 140))),
            "9" * rng.randint(0, 45),
            "0" * rng.randint(0, 45) + str(rng.randint(0, 999)),
        )
    )
    fraction = rng.choice(
        (
            "",
            ".",
            "." + "0" * rng.randint(0, 50),
            "." + rng.choice("4569") * rng.randint(1, 45),
            f".{rng.getrandbits(rng.randint(1, 140))}" + "0" * rng.randint(0, 3),
            "." + "0" * rng.randint(0, 40) + rng.choice("159"),
        )
    )
    exponent = rng.choice(("", "", "", "", f"e{rng.randint(-400, 400):+03}", f"E{rng.randint(-50, 50)}"))
    return rng.choice(("", "", "-", "-", "+")) + whole + fraction + exponent


def _double(rng: Random) -> str:
    bits = rng.getrandbits(64)
    if rng.random() < 0.2:
        bits &= 0x800F_FFFF_FFFF_FFFF  # subnormal
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return rng.choice((repr, "{:.17g}".format, "{:.15g}".format, "{:.30e}".format))(value)


def _real(rng: Random) -> str:
    bits = rng.getrandbits(32)
    if rng.random() < 0.2:
        bits &= 0x807F_FFFF
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return rng.choice((repr, "{:.9g}".format, "{:.6g}".format, "{:.30e}".format))(value)


def _between(rng: Random) -> str:
    """Return a number exactly, or nearly, between two neighbours of FLOAT or DOUBLE: it has many digits."""
    form, unsigned, width = rng.choice((("<d", "<Q", 63), ("<f", "<I", 31)))
    most = struct.unpack(unsigned, struct.pack(form, float("inf")))[0]
    bits = rng.choice((rng.getrandbits(width) % most, rng.getrandbits(width - 11) % most, most - 1, 0))
    low, high = (Decimal(struct.unpack(form, struct.pack(unsigned, b))[0]) for b in (bits, bits + 1))
    with localcontext() as context:
        context.prec = 1200
        middle = (low + high) / 2 if high.is_finite() else low + (low - low.next_minus())
        middle += rng.choice((0, 0, 1, -1)) * middle.scaleb(-rng.choice((20, 200, 800)))
        return rng.choice(("", "-")) + rng.choice((str, "{:e}".format, "{:f}".format))(middle)


def _dated(rng: Random) -> str:
    """Return a date or timestamp, not always one that exists, with or without zone and era."""

    def part(most: int, least: int = 0) -> str:
        return f"{rng.randint(least, most) if rng.random() < 0.95 else rng.randint(0, most + 2):02}"

    year = rng.choice(
        (rng.randint(1, 9999), rng.randint(1, 9999), rng.randint(0, 3), rng.randint(9990, 10010))
    )
    year = year if rng.random() < 0.95 else rng.choice((294276, 5874897))
    day = f"{year:04}-{part(12, 1)}-{part(28, 1)}"
    fraction = rng.choice(("", "", f".{rng.randint(1, 999999):06}".rstrip("0"), f".{rng.getrandbits(30)}"))
    clock = f"{part(23)}:{part(59)}:{part(59)}{fraction}" if rng.random() < 0.95 else f"{part(23)}:{part(59)}"
    sign = rng.choice("+-")
    zone = rng.choice(
        (
            *("", "+00", "+00", "Z", " UTC", f"{sign}{part(15)}", f"{sign}{part(15)}:{part(59)}"),
            *(f"{sign}{part(15)}:{part(59)}:{part(59)}", rng.choice(ODD)),
        )
    )
    era = rng.choice(("", "", "", " BC"))
    return rng.choice(
        (
            *(
                day,
                day + era,
                day + zone,
                f"{day} {clock}",
                f"{day} {clock}{zone}",
                f"{day} {clock}{zone}{era}",
            ),
            *(f"{day}T{clock}{zone}", rng.choice(("infinity", "-infinity"))),
        )
    )


def _array(rng: Random) -> str:
    element = rng.choice((_printed, _number, _double, _real, _dated, _word))
    elements = [None if rng.random() < 0.1 else element(rng) for _ in range(rng.choice((0, 1, 2, 3, 8)))]
    plain = "{" + rng.choice(",,,;").join("NULL" if e is None else e for e in elements) + "}"
    nested = "{" + ",".join([array_text(elements)] * rng.randint(1, 2)) + "}"
    return rng.choice((plain, plain, array_text(elements), array_text(elements), nested, "[0:1]=" + plain))


def _vector(rng: Random) -> str:
    return "[" + ",".join(rng.choice((_real, _number))(rng) for _ in range(rng.randint(0, 4))) + "]"
