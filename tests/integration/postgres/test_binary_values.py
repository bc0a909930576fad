"""Random values by the thousand: what the server sends in binary format reads as it writes it in text."""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import psycopg
import pytest

from pipeline.postgres.connection import connect
from pipeline.protocol.binary.converters import Types
from pipeline.protocol.messages import Binary
from tests.support.bronze.cells import read_column
from tests.support.servers import Database

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_LEAST, _END = -211_813_488_000_000_000, 9_223_371_331_200_000_000


def near(kind: str, number: float) -> list[bytes]:
    """Return a float and its two neighbours."""
    size = struct.calcsize(kind)
    try:
        bits = int.from_bytes(struct.pack(kind, number), "big")
    except OverflowError:
        return []
    return [(bits + d).to_bytes(size, "big") for d in (-2, -1, 0, 1, 2) if bits + d >= 0]


def float8s(random: Random) -> list[bytes]:
    drawn = [random.getrandbits(64).to_bytes(8, "big") for _ in range(4000)]
    for exponent in range(-1074, 1024, 3):
        drawn += near(">d", 2.0**exponent)
    for exponent in range(-323, 309, 2):
        for digits in (1, 2, 5, 9.5, 1.25, 9.99):
            drawn += near(">d", float(f"{digits}e{exponent}"))
    for _ in range(2000):
        drawn.append(struct.pack(">d", random.randrange(1 << 53, 1 << random.randrange(54, 90))))
        drawn.append(struct.pack(">d", round(random.uniform(-1e6, 1e6), random.randrange(6))))
        # Decimals that are midway between two floats, or nearly so.
        power = random.randrange(1, 23)
        odd = random.randrange(1, 1 << max(1, 54 - int(2.33 * power)))
        drawn.append(struct.pack(">d", (5**power * odd) << power << random.randrange(3)))
    return [value for value in drawn if struct.unpack(">d", value)[0] == struct.unpack(">d", value)[0]]


def float4s(random: Random) -> list[bytes]:
    drawn = [random.getrandbits(32).to_bytes(4, "big") for _ in range(6000)]
    for exponent in range(-149, 128):
        drawn += near(">f", 2.0**exponent)
    for exponent in range(-45, 39):
        for digits in range(1, 100, 7):
            drawn += near(">f", float(f"{digits / 10}e{exponent}"))
    drawn += [struct.pack(">f", float(random.randrange(1 << random.randrange(1, 60)))) for _ in range(3000)]
    return [value for value in drawn if struct.unpack(">f", value)[0] == struct.unpack(">f", value)[0]]


def numerics(random: Random) -> list[bytes]:
    def draw() -> bytes:
        count = random.choice((0, 1, 1, 2, 3, 4, 5, 9, 40))
        weight = random.choice((0, 0, 1, 2, 3, -1, -2, 5, 50))
        sign, scale = random.choice((0, 0, 0x4000)), random.choice((0, 0, 1, 2, 3, 4, 5, 8, 100))
        groups = [random.choice((0, 1, 9999, random.randrange(10_000))) for _ in range(count)]
        return struct.pack(f">HhHH{count}H", count, weight, sign, scale, *groups)

    return [draw() for _ in range(6000)]


def moments(random: Random) -> list[bytes]:
    drawn = [random.randrange(_LEAST, _END) for _ in range(2000)]
    drawn += [random.randrange(-(10**16), 10**16) // 10**k * 10**k for _ in range(1500) for k in (0, 1, 3, 6)]
    drawn += [-(2**63), 2**63 - 1, 0, -1, _LEAST, _END - 1]
    return [struct.pack(">q", moment) for moment in drawn]


def dates(random: Random) -> list[bytes]:
    drawn = [-(2**31), 2**31 - 1, -2_451_545, 2_145_031_948]
    drawn += [random.randrange(-2_451_545, 2_145_031_949) for _ in range(1000)]
    drawn += [random.randrange(-800_000, 3_000_000) for _ in range(3000)]
    return [struct.pack(">i", day) for day in drawn]


def times(random: Random) -> list[bytes]:
    drawn = [random.randrange(86_400_000_001) // 10 ** (i % 7) * 10 ** (i % 7) for i in range(1500)]
    return [struct.pack(">q", micros) for micros in (0, 86_400_000_000, *drawn)]


def timetzs(random: Random) -> list[bytes]:
    zones = [0, 3600, -3600, 57_599, -57_599, *(random.randrange(-57_599, 57_600) for _ in range(20))]
    zones += [random.randrange(-950, 950) * 60 for _ in range(20)]
    return [value + struct.pack(">i", random.choice(zones)) for value in times(random)]


def intervals(random: Random) -> list[bytes]:
    def draw() -> bytes:
        micros = random.choice(
            (0, 5_000_000, random.randrange(-(10**15), 10**15), random.randrange(-(10**11), 10**11))
        )
        days = random.choice((0, 1, -1, random.randrange(-(2**31), 2**31)))
        months = random.choice((0, 1, -1, 12, -12, 13, -13, random.randrange(-(2**31), 2**31)))
        return struct.pack(">qii", micros, days, months)

    return [draw() for _ in range(4000)]


def moneys(random: Random) -> list[bytes]:
    drawn = [random.randrange(-(10**k), 10**k) for k in range(1, 19) for _ in range(50)]
    return [struct.pack(">q", cents) for cents in (0, -1, 1, -(2**63), 2**63 - 1, *drawn)]


def addresses(random: Random) -> list[bytes]:
    def draw() -> bytes:
        if random.random() < 0.2:
            return bytes([2, random.randrange(33), 0, 4]) + random.randbytes(4)
        words = [random.choice((0, 0, 0, 1, 0xFFFF, random.randrange(1 << 16))) for _ in range(8)]
        return bytes([3, random.choice((128, 128, random.randrange(129))), 0, 16]) + struct.pack(
            ">8H", *words
        )

    return [draw() for _ in range(4000)]


DRAWN: dict[str, Callable[[Random], list[bytes]]] = {
    "float8": float8s, "float4": float4s, "numeric": numerics, "timestamp": moments,
    "timestamptz": moments,
    "date": dates, "time": times, "timetz": timetzs, "interval": intervals, "money": moneys,
    "inet": addresses,
}  # fmt: skip
SEND = {"float8": "float8send", "float4": "float4send", "money": "cash_send"}


def send(connection: psycopg.Connection[Any], kind: str, values: Sequence[bytes]) -> None:
    """Fill a temporary table with values, which the server takes in binary format."""
    connection.execute(f"CREATE TEMP TABLE drawn (i int, v {kind})".encode())
    with connection.cursor().copy(b"COPY pg_temp.drawn FROM STDIN (FORMAT binary)") as copy:
        copy.write(_COPY_HEADER)
        for i, value in enumerate(values):
            copy.write(struct.pack(">hiii", 2, 4, i, len(value)) + value)
        copy.write(struct.pack(">h", -1))


@pytest.mark.parametrize("kind", DRAWN)
def test_random_values_read_as_the_server_writes_them(any_database: Database, kind: str) -> None:
    seed = 20_260
    print(f"seed {seed}")
    with connect(any_database.conninfo) as connection:
        send(connection, kind, DRAWN[kind](Random(seed)))
        # The server's own bytes: it takes some forms that it does not give.
        write = SEND.get(kind, f"{kind}_send")
        query = f"SELECT {write}(v), format('%s', v) FROM pg_temp.drawn ORDER BY i"
        rows = connection.execute(query.encode()).fetchall()
        [(oid,)] = connection.execute(f"SELECT '{kind}'::regtype::oid::bigint".encode()).fetchall()
        types = Types(connection.info.server_version)
    assert len(rows) > 800
    read = types.find(oid)
    wrong = [(value.hex(), text) for value, text in rows if read(value) != text.encode()]
    assert wrong == []
    assert read_column(oid, [Binary(value) for value, _ in rows], types) == [text for _, text in rows]
