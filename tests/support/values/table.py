"""The values of every type that PostgreSQL 18 has, ordinary and extreme, by families of types.

What comes behind `misfits` is what the contract says that silver cannot hold: NaN in a DECIMAL, dates that
are infinite or outside the years 1 to 9999. All else has to arrive.
"""

from random import Random
from uuid import UUID

from tests.support.captures.typed import EXTENSIONS, TYPES
from tests.support.values.kinds import Kind, array_of, kind

_random = Random(20_261)


def integers(bits: int, *, is_signed: bool = True) -> list[str]:
    """Return the edges, the powers of two and ten with their neighbours, and some between."""
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    near = [n + d for k in range(3, bits, 5) for n in (1 << k, -(1 << k)) for d in (-1, 0, 1)]
    near += [10**k for k in range(0, 20, 3)] + [0, -1, lowest, lowest + 1, highest, highest - 1]
    near += [_random.randint(lowest, highest) for _ in range(6)]
    return [str(n) for n in dict.fromkeys(near) if lowest <= n <= highest]


def floats(kind_: str, exponents: range) -> list[str]:
    """Return the awkward ones, and powers of ten in reach."""
    return [*TYPES[kind_], *(f"{_random.uniform(-9, 9)}e{e}" for e in exponents)]


def numbers(precision: int, scale: int) -> list[str]:
    """Return numerics of at most this many digits, with trailing zeros."""
    most = 10**precision - 1
    drawn = [0, 1, -1, most, -most, 10 ** (precision - 1), most // 9 * 5]
    drawn += [_random.randint(-(10**k), 10**k) for k in range(1, precision + 1, max(1, precision // 12))]
    return [f"{n}e{-scale}" for n in dict.fromkeys(drawn)]


def decimals(precision: int, scale: int, silver: str) -> Kind:
    """Return numeric(p,s); one that lands as text holds NaN too."""
    values = numbers(precision, scale)
    name = f"numeric({precision},{scale})"
    return kind(name, silver, [*values, "NaN"]) if silver == "string" else kind(name, silver, values, ["NaN"])


NUMBERS = [
    kind("bool", "boolean", ["t", "f"]),
    kind("int2", "smallint", integers(16)),
    kind("int4", "int", integers(32)),
    kind("int8", "bigint", integers(64)),
    kind("float4", "float", floats("float4", range(-44, 38, 4))),
    kind("float8", "double", floats("float8", range(-322, 308, 21))),
    kind(
        "numeric",
        "string",
        [
            *TYPES["numeric"],
            *("9" * 38, "-" + "9" * 38, "9" * 39, "1" + "0" * 38, "0." + "9" * 38, "0." + "9" * 39),
            *("1e131071", "0." + "0" * 16382 + "1", "1.10", "1.1", "100", "1e2", "100.000"),
            *("-0.0", "00012.50", "1e-38", "123456789.000000000"),
        ],
    ),
    decimals(5, 2, "decimal(5,2)"),
    decimals(18, 0, "decimal(18,0)"),
    decimals(19, 9, "decimal(19,9)"),
    decimals(38, 0, "decimal(38,0)"),
    decimals(38, 38, "decimal(38,38)"),
    decimals(38, 10, "decimal(38,10)"),
    decimals(39, 0, "string"),
    decimals(100, 50, "string"),
    decimals(3, -2, "decimal(5,0)"),
    decimals(30, -8, "decimal(38,0)"),
    decimals(30, -9, "string"),
    decimals(3, 5, "decimal(5,5)"),
    decimals(2, 39, "string"),
    kind("money", "string", [*TYPES["money"], *(f"{n}.{abs(n) % 100:02d}" for n in map(int, integers(48)))]),
]

ASTRAL = "😀🦀𝕏\U0010ffff\U00010000"
TEXTS = [
    *TYPES["text"],
    *("\u2028", "a\u2029b", "\x85", "\ufeff", "\ufffe", "e\u0301", "é", "\u200d", "אב", "ﬃ", "\x7f", ASTRAL),
    *("\\N", "\\x41", "\\", "\\\\", '"', '""', "''", "`", "$1", "$$", "%s %(x)s", "{{", "}}", "[0:1]={1,2}"),
    *("${env:HOME}", "\r", "\r\n", "\n", "a\x01b", "".join(map(chr, range(1, 32))), "trailing  ", "  ", "\t"),
    *("true", "0", "-0", "1e5", "NaN", "infinity", "2024-01-01", "undefined", "/*", "--", "<a/>", "&amp;"),
    *("x" * 2040, "é" * 8191, "ab" * 32768),
]
# characters of each length in UTF-8; what would be half a pair is left out
DRAWN = _random.randbytes(2**20).decode("utf-16-le", "ignore").replace("\0", "")
LARGE = ["x" * 2**20, "🦀" * 2**18, DRAWN]
SHORT = [text for text in TEXTS if len(text) <= 20]
DOCUMENTS = [
    *("null", "true", "[]", "{}", '""', "0", "-0", "-0.0", "1e400", "1.50", "100000000000000000000000000"),
    *('{"a": 1, "a": 2}', '{"b": 2, "a": {"c": [null, "é"]}}', '"\\u2028"', '"\u2028"', '"\\"q\\" \\\\"'),
    *('["a,b", "{c}", "NULL", null]', '" "', '"\\ud83d\\ude00"', '"😀"', '{"": ""}', " [1 ,  2]\n"),
    *("[" * 500 + "]" * 500, "[" + ", ".join(map(str, range(5000))) + "]", '{"k": "' + "v" * 10_000 + '"}'),
]
STRINGS = [
    kind("text", "string", [*TEXTS, *LARGE]),
    kind("varchar", "string", [*TEXTS, *LARGE[1:2]]),
    kind("varchar(20)", "string", [*SHORT, "é" * 20, "🦀" * 20]),
    kind("bpchar", "string", TEXTS),
    kind("char(6)", "string", ["", "a", "ab    ", "abcdef", "🦀", " x", "é" * 6, "\n", '"', "\\", "NULL"]),
    kind('"char"', "string", ["", *map(chr, range(0x20, 0x7F, 3)), "\\", '"', "'", "\\200", "\\377", "\n"]),
    kind("name", "string", [*(text for text in TEXTS if len(text.encode()) < 64), "x" * 63]),
    kind("json", "string", [*DOCUMENTS, '"\\u0000"', '{"a":1,\t"a":2 }', f'"{LARGE[0]}"']),
    kind("jsonb", "string", [*DOCUMENTS, f'["{LARGE[1]}"]']),
    kind("jsonpath", "string", [*TYPES["jsonpath"], '$.a.b[0 to last]."x y"', "$ ? (@ like_regex \"^a\")"]),
    kind("bytea", "binary", [
        *TYPES["bytea"], *(f"\\x{n:02x}" for n in range(0, 256, 5)), "\\x5c", "\\x0a", "\\x22", "\\x2c",
        "\\x" + bytes(range(256)).hex(), "\\x" + "00" * 300, "\\x" + _random.randbytes(2**20).hex(),
    ]),
    kind("uuid", "string", [
        *TYPES["uuid"], "ffffffff-ffff-ffff-ffff-ffffffffffff", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}",
        *(str(UUID(int=_random.getrandbits(128))) for _ in range(20)),
    ]),
    kind("bit", "string", ["0", "1"]),
    kind("bit(5)", "string", [f"{n:05b}" for n in range(32)]),
    kind("varbit", "string", [*TYPES["varbit"], "1" * 1001, *(f"{n:b}" for n in range(0, 4000, 200))]),
    kind("varbit(7)", "string", ["", *(f"{n:b}" for n in range(0, 128, 9))]),
]  # fmt: skip

DAYS = [
    *("0001-01-01", "0001-12-31", "0099-02-28", "1000-01-01", "1500-02-28", "1582-10-04", "1582-10-05"),
    *("1582-10-10", "1582-10-14", "1582-10-15", "1700-02-28", "1883-11-18", "1899-12-31", "1900-02-28"),
    *("1900-03-01", "1969-12-31", "1970-01-01", "1999-12-31", "2000-01-01", "2000-02-29", "2024-02-29"),
    *("2038-01-19", "2262-04-11", "2262-04-12", "1677-09-21", "9998-12-31", "9999-12-31"),
]
NO_DAYS = ["infinity", "-infinity", "0001-12-31 BC", "0044-03-15 BC", "4714-11-24 BC", "10000-01-01"]
CLOCK = [
    *("00:00:00", "23:59:59.999999", "12:00:00.1", "02:30:00.000001", "01:02:03.1234", "12:34:56.00012"),
    *("00:00:00.999999", "11:59:59.5", "03:14:07", "23:47:16.854775", "23:47:16.854776"),
]
MOMENTS = [f"{day} {CLOCK[i % len(CLOCK)]}" for i, day in enumerate([*DAYS, *DAYS[::-1]])]
NO_MOMENTS = [*(f"{day} {CLOCK[2]} BC" for day in ("0001-12-31", "0044-03-15")), "10000-01-01 00:00:00"]
NO_MOMENTS += ["infinity", "-infinity", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"]
ZONES = ("+00", "+14", "-12", "+05:30", "-04:56:02", "+15:59:59", "-15:59:59", "-03:30")
EDGES = ("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00")
TIMES = [
    kind("date", "date", DAYS, [*NO_DAYS, "5874897-12-31", "10000-02-29", "99999-01-01"]),
    kind("timestamp", "timestamp_ntz", [*MOMENTS, EDGES[0][:-3], EDGES[1][:-3]], NO_MOMENTS),
    kind("timestamp(0)", "timestamp_ntz", MOMENTS[:-1], [*NO_MOMENTS[:-1], EDGES[1][:-3]]),
    kind("timestamp(3)", "timestamp_ntz", MOMENTS[:-1], NO_MOMENTS[:-1]),
    kind(
        "timestamptz",
        "timestamp",
        [*EDGES, *(m + ZONES[i % 8] for i, m in enumerate(MOMENTS) if "0001-01-02" < m < "9999-12-30")],
        [
            *(moment if "infinity" in moment else moment.replace(" BC", "") + "+00" + " BC" * ("BC" in moment)
              for moment in NO_MOMENTS),
            "0001-01-01 00:00:00+14", "9999-12-31 23:59:59-14", "9999-12-31 23:59:59.999999-00:00:01",
        ],
    ),
    kind("timestamptz(2)", "timestamp", [m + "+00" for m in MOMENTS[2:-2]], ["infinity", EDGES[1]]),
    kind("time", "string", [*CLOCK, "24:00:00", *TYPES["time"]]),
    kind("time(3)", "string", [*CLOCK, "24:00:00"]),
    kind("timetz", "string", [*(c + z for c in CLOCK[:6] for z in ZONES[:5]), *TYPES["timetz"]]),
    kind("interval", "string", [
        *TYPES["interval"], *(f"{_random.randint(-99, 99)} mons {_random.randint(-99, 99)} days {c}"
                              for c in CLOCK), "-2147483648 mons -2147483648 days",
    ]),
    kind("interval year to month", "string", ["1 year 2 mons", "-1 mon", "0"]),
    kind("interval day to second(2)", "string", ["1 day 00:00:01.239", "-00:00:00.01", "0"]),
]  # fmt: skip


def same(*names: str, silver: str = "string") -> list[Kind]:
    """Return types with the values that binary format is tested with."""
    return [kind(name, silver, TYPES[name]) for name in names]


SYSTEM = [
    kind("oid", "bigint", integers(32, is_signed=False)),
    kind("xid", "string", integers(32, is_signed=False)),
    kind("cid", "string", integers(32, is_signed=False)),
    kind("xid8", "string", integers(64, is_signed=False)),
    kind("pg_lsn", "string", [f"{_random.getrandbits(k):X}/{_random.getrandbits(32):X}" for k in range(1, 33)]
         + TYPES["pg_lsn"]),
    *(kind(name, "string", TYPES[name] + [f"{n}:{n + 9}:{n + 1},{n + 7}" for n in range(3, 999, 50)])
      for name in ("pg_snapshot", "txid_snapshot")),
    *same("tid", "refcursor"),
    kind("int2vector", "string", TYPES["int2vector"]),
    kind("oidvector", "string", TYPES["oidvector"]),
]  # fmt: skip
# binary format does not have what these need to be read
REGISTERED = [
    kind("aclitem", "string", ["postgres=arwdDxtm/postgres", "=r/postgres", "postgres=r*w/postgres"]),
    kind("regclass", "string", ["pg_class", "42", "public.numbers", "-"]),
    kind("regtype", "string", ["int4", "timestamptz[]", "public.numbers", "-"]),
    kind("regproc", "string", ["now", "-"]),
    kind("regprocedure", "string", ["abs(int4)", "-"]),
    kind("regoper", "string", ["0", "||/"]),
    kind("regoperator", "string", ["+(int4,int4)", "0"]),
    kind("regrole", "string", ["postgres", "-"]),
    kind("regnamespace", "string", ["public", "odd", "-"]),
    kind("regconfig", "string", ["simple", "english", "-"]),
    kind("regdictionary", "string", ["simple", "-"]),
    kind("regcollation", "string", ['"C"', "-"]),
]
NETS = [
    *same("inet", "cidr"),
    *(
        kind(name, "string", [*TYPES[name], *(_random.randbytes(size).hex(":") for _ in range(20))])
        for name, size in (("macaddr", 6), ("macaddr8", 8))
    ),
]
_NUMBERS = ["0", "-0", "1.5", "-1e300", "5e-324", "NaN", "Infinity", "-Infinity", "0.1", "1e15", "123456.789"]
_POINTS = [f"({x},{_NUMBERS[(i * 7 + 3) % 11]})" for i, x in enumerate(_NUMBERS * 2)]
_PAIRS = [f"{point},{_POINTS[i * 5 % 22]}" for i, point in enumerate(_POINTS)]
SHAPES = [
    kind("point", "string", [*TYPES["point"], *_POINTS]),
    kind("lseg", "string", [*TYPES["lseg"], *(f"[{pair}]" for pair in _PAIRS)]),
    kind(
        "line",
        "string",
        [*TYPES["line"], *(f"{{2.5,{x},{y}}}" for x, y in zip(_NUMBERS, _NUMBERS[2:], strict=False))],
    ),
    kind("box", "string", [*TYPES["box"], *_PAIRS], delimiter=";"),
    kind("path", "string", [*TYPES["path"], *(f"[{pair},(1,2)]" for pair in _PAIRS)]),
    kind("polygon", "string", [*TYPES["polygon"], *(f"({pair},(1,2))" for pair in _PAIRS)]),
    kind("circle", "string", [*TYPES["circle"], *(f"<{point},{i}.5>" for i, point in enumerate(_POINTS))]),
]
SEARCH = same("tsvector", "tsquery")
_BOUNDS = {
    "int4": ["-2147483648", "-1", "0", "7", "2147483646"],
    "int8": ["-9223372036854775808", "-1", "0", "7", "9223372036854775806"],
    "num": ["-Infinity", "-1e40", "0.000", "1.50", "1.500000001", "NaN"],
    "date": ["-infinity", "0044-03-15 BC", "0001-01-01", "2024-02-29", "10000-01-01", "infinity"],
    "ts": ["-infinity", "0044-03-15 01:02:03.5 BC", "2024-02-29 12:00:00.000001", "294276-12-31", "infinity"],
    "tstz": ["-infinity", "0044-03-15 00:00:00+14 BC", "2024-02-29 12:00:00.1-08", "10000-01-01", "infinity"],
}


def ranges(bounds: list[str]) -> list[str]:
    """Return ranges between each bound and the next ones, open and closed."""
    found = ["empty", "(,)", f"(,{bounds[1]}]", f"[{bounds[-2]},)"]
    for i, lower in enumerate(bounds):
        for j, upper in enumerate(bounds[i:], i):
            opening, closing = ("[]", "[)", "(]", "()")[(i + j) % 4] if i < j else "[]"
            found.append(f'{opening}"{lower}","{upper}"{closing}')
    return found


def multiranges(bounds: list[str]) -> list[str]:
    """Return sets of ranges that lie apart, touch and overlap."""
    single = ranges(bounds)
    return [
        "{}",
        *(f"{{{one}}}" for one in single),
        *(f"{{{a},{b}}}" for a, b in zip(single, single[3:], strict=False)),
    ]


RANGES = [
    *(kind(f"{name}range", "string", [*TYPES[f"{name}range"], *ranges(b)]) for name, b in _BOUNDS.items()),
    *(kind(f"{name}multirange", "string", multiranges(bounds)) for name, bounds in _BOUNDS.items()),
]
OWN = [
    *same(
        'odd."Mood\'s"', "odd.pair", "odd.pairs", "odd.nest", "odd.textrange", "odd.pricerange", "odd.span"
    ),
    kind("odd.price", "decimal(12,2)", [*TYPES["odd.price"], "9999999999.99"], ["NaN"]),
    kind("odd.high_price", "decimal(12,2)", [*TYPES["odd.high_price"], "0.10"], ["NaN"]),
    kind("odd.corner", "string", TYPES["odd.corner"], delimiter=";"),
]
CONTRIB = [
    *(kind(f"public.{name}", "string", EXTENSIONS[extension][name])
      for extension in ("citext", "ltree") for name in EXTENSIONS[extension]),
    kind("xml", "string", [*EXTENSIONS["xml"]["xml"], "text only", "<a>\n&lt;&amp;é😀</a>", "<!-- --><a/>"]),
]  # fmt: skip
HSTORE = kind("public.hstore", "map<string,string>", EXTENSIONS["hstore"]["hstore"])
VECTORS = [kind(f"public.{name}", "string", values) for name, values in EXTENSIONS["vector"].items()]

_PRICES = array_of(OWN[-3])
SCALARS = {
    "numbers": [*NUMBERS, *TIMES],
    "strings": [*STRINGS, *SYSTEM, *NETS, *SHAPES, *SEARCH],
    "own": [*RANGES, *OWN, *CONTRIB],
}
ARRAYS = {f"{name}_arrays": [array_of(element) for element in kinds] for name, kinds in SCALARS.items()}
ARRAYS["own_arrays"] += [
    Kind("odd.prices", _PRICES.silver, _PRICES.cells),
    array_of(kind("odd.prices", "string", TYPES["odd.prices"])),
]
MAPS = {"maps": [HSTORE, array_of(HSTORE)]}
"""Only Spark writes maps, and each column of a table costs it time: they have tables of their own."""
ONLY_AS_TEXT = {"only_as_text": [*REGISTERED, *(array_of(element) for element in REGISTERED)]}
# rows without a key: one type of each silver type
BAGS = {
    name: [kind for kinds in of.values() for kind in kinds if kind.type in types]
    for name, of, types in (
        ("bags", SCALARS, {"bool", "int2", "float4", "numeric(5,2)", "bytea", "date", "timestamp"}),
        ("bags_too", SCALARS, {"int8", "float8", "jsonb", "char(6)", "timestamptz", "oid"}),
        ("bags_maps", MAPS, {"public.hstore"}),
        (
            "bags_arrays",
            ARRAYS,
            {"int4[]", "float8[]", "numeric(5,2)[]", "text[]", "bytea[]", "timestamptz[]"},
        ),
    )
}
FAMILIES = {**SCALARS, **ARRAYS, **MAPS, **ONLY_AS_TEXT}
NEWEST_FAMILIES = {"vectors": [*VECTORS, *(array_of(element) for element in VECTORS)]}
