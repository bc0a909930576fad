"""Binary values become the text that the server itself writes, or are refused; nothing else happens."""

import struct
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.protocol.binary import extensions, numbers, times
from pipeline.protocol.binary.converters import FAULTS, CatalogType, Types, UnknownType
from pipeline.protocol.binary.nested import Converter
from tests.support.protocol.typed_values import TypedValues, load_typed_values

SERVERS = load_typed_values()
NEWEST = max(SERVERS, key=lambda server: server.server_version)
INT4, TEXT, INTERVAL, CHAR, REGCLASS, ACLITEM = 23, 25, 1186, 18, 2205, 1033
# Of these a part is a value as well.
ANY_LENGTH = (extensions.read_text, extensions.read_versioned, extensions.read_bytea)


def read(converter: Converter, value: bytes) -> bytes | None:
    """Return the text, or None where it is refused as it should be."""
    try:
        return converter(value)
    except (UnknownType, *FAULTS):
        return None


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_values_read_as_the_server_writes_them(server: TypedValues) -> None:
    types = server.types()
    assert len(server.values) > 400
    wrong = [value for value in server.values if types.find(value.oid)(value.binary) != value.text]
    assert wrong == []
    assert all(types.find_unreadable(value.oid) is None for value in server.values)


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_values_that_are_too_short_or_too_long_are_refused(server: TypedValues) -> None:
    types = server.types()
    for value in server.values:
        converter = types.find(value.oid)
        if converter in ANY_LENGTH or len(value.binary) > 300:
            continue
        for length in range(len(value.binary)):
            assert read(converter, value.binary[:length]) is None, types.name_of(value.oid)
        assert read(converter, value.binary + b"\0") is None, types.name_of(value.oid)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_values_are_text_or_refused(seed: int) -> None:
    random = Random(seed)
    values = [value for server in SERVERS for value in server.values]
    all_types = {id(server): server.types() for server in SERVERS}
    started = time.monotonic()
    refused = 0
    for _ in range(8000):
        server = random.choice(SERVERS)
        value = random.choice(server.values)
        damaged = bytearray(value.binary or b"\0")
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.choice((0, 1, 127, 255, random.randrange(256)))
        refused += read(all_types[id(server)].find(value.oid), bytes(damaged)) is None
    assert refused > 500
    assert time.monotonic() - started < 30, "some damage takes for ever"
    assert len(values) > 1000


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted({value.oid for value in NEWEST.values})), st.binary(max_size=60))
def test_any_bytes_are_text_or_refused(oid: int, value: bytes) -> None:
    read(NEWEST.types().find(oid), value)


def array(*dimensions: tuple[int, int], element: int = INT4, items: bytes = b"") -> bytes:
    head = struct.pack(">iiI", len(dimensions), 0, element)
    return head + b"".join(struct.pack(">ii", *d) for d in dimensions) + items


@pytest.mark.parametrize(
    ("oid", "value"),
    [
        (1007, array((2**31 - 1, 1))),
        (1007, array((2**16, 1), (2**16, 1), (2**16, 1))),
        (1007, array((-1, 1), (-1, 1), items=struct.pack(">ii", 4, 1))),
        (1007, array(*[(1, 1)] * 7, items=struct.pack(">ii", 4, 1))),
        (1560, struct.pack(">i", 2**31 - 1)),
        (602, struct.pack(">bi", 1, 2**27)),
        (4451, struct.pack(">i", 2**31 - 1)),
        (3614, struct.pack(">i", 2**31 - 1)),
        (3615, struct.pack(">i", 2**31 - 1)),
        (1700, struct.pack(">HhHH", 65535, 0, 0, 0)),
    ],
)
def test_counts_that_the_bytes_cannot_hold_allocate_no_memory(oid: int, value: bytes) -> None:
    assert read(Types(180000).find(oid), value) is None


@pytest.mark.parametrize(
    ("oid", "value"),
    [
        (16, b"\2"),
        (1700, struct.pack(">HhHHH", 1, 0, 0, 0, 10_000)),
        (1700, struct.pack(">HhHH", 0, 0, 0x8000, 0)),
        (1082, struct.pack(">i", 2_145_031_949)),
        (1114, struct.pack(">q", -211_813_488_000_000_001)),
        (1083, struct.pack(">q", 86_400_000_001)),
        (1266, struct.pack(">qi", 0, 57_600)),
        (869, bytes([2, 33, 0, 4, 1, 2, 3, 4])),
        (869, bytes([3, 32, 0, 4, 1, 2, 3, 4])),
        (3802, b"\2{}"),
        (3904, b"\x20"),
        (3904, b"\x00" + struct.pack(">i", -1) * 2),
        (22, array((1, 0), items=struct.pack(">i", -1))),
    ],
)
def test_what_no_server_sends_is_refused(oid: int, value: bytes) -> None:
    assert read(Types(180000).find(oid), value) is None


def test_what_servers_write_differently_is_written_as_by_the_server() -> None:
    endless = struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1)
    assert Types(170000).find(INTERVAL)(endless) == b"infinity"
    finite = b"178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"
    assert Types(160000).find(INTERVAL)(endless) == finite
    assert Types(160000).find(CHAR)(b"\xe9") == b"\\351"
    assert Types(150000).find(CHAR)(b"\xe9") == b"\xe9"


def test_float4_and_float8_are_never_midway_between_two_floats() -> None:
    assert numbers.read_float8(struct.pack(">d", 1e23)) == b"9.999999999999999e+22"
    assert repr(1e23) == "1e+23"
    assert numbers.read_float4(struct.pack(">f", 2.0**25)) == b"3.3554432e+07"


def test_minus_zero_and_zero_are_two_values() -> None:
    assert [numbers.read_float8(struct.pack(">d", x)) for x in (0.0, -0.0, 0.0)] == [b"0", b"-0", b"0"]
    assert [numbers.read_float4(struct.pack(">f", x)) for x in (0.0, -0.0, 0.0)] == [b"0", b"-0", b"0"]


@settings(max_examples=200, deadline=None)
@given(st.integers(-2_451_545, 2_145_031_948))
def test_each_day_follows_the_one_before(day: int) -> None:
    def parts(text: bytes) -> tuple[int, int, int]:
        date, _, era = text.decode().partition(" ")
        year, month, day_of_month = map(int, date.split("-"))
        return 1 - year if era else year, month, day_of_month

    first, second = (parts(times.read_date(struct.pack(">i", d))) for d in (day, min(day + 1, 2_145_031_948)))
    assert first <= second
    if second[2] == 1 and first != second:
        assert first[2] in (28, 29, 30, 31)
    elif first != second:
        assert second == (*first[:2], first[2] + 1)


def facts(
    oid: int, kind: str = "b", send: str = "", output: str = "", parts: tuple[int, ...] = ()
) -> CatalogType:
    return CatalogType(oid, f"public.t{oid}", kind, send, output, ",", parts)


OTHERS = {
    f.oid: f
    for f in (
        facts(REGCLASS, send="regclasssend", output="regclassout"),
        facts(ACLITEM, output="aclitemout"),
        facts(20_001, "c", "record_send", "record_out", (INT4, 20_002)),
        facts(20_002, send="array_send", output="array_out", parts=(20_003,)),
        facts(20_003, "d", "regclasssend", "regclassout", (REGCLASS,)),
        facts(20_004, send="array_send", output="array_out", parts=(ACLITEM,)),
        facts(20_005, "d", "", "aclitemout", (ACLITEM,)),
        facts(20_006, "r", "range_send", "range_out", (20_003,)),
        facts(20_007, "m", "multirange_send", "multirange_out", (20_006,)),
        facts(20_008, "c", "record_send", "record_out", (INT4, TEXT, 20_009)),
        facts(20_009, "e", "enum_send", "enum_out"),
        facts(20_010, "c", "record_send", "record_out", (29_999,)),
    )
}


@pytest.mark.parametrize(
    ("oid", "name"),
    [
        (REGCLASS, "public.t2205"),
        (ACLITEM, None),
        (20_001, "public.t2205"),
        (20_002, "public.t2205"),
        (20_003, "public.t2205"),
        (20_004, "public.t1033"),
        (20_005, None),
        (20_006, "public.t2205"),
        (20_007, "public.t2205"),
        (20_008, None),
        (20_010, "with oid 29999"),
        (29_999, "with oid 29999"),
        (INT4, None),
        (1007, None),
    ],
)
def test_what_cannot_be_read_is_found_however_deep_it_is(oid: int, name: str | None) -> None:
    assert Types(180000, OTHERS.get).find_unreadable(oid) == name


def test_a_type_is_requested_once_and_a_built_in_one_never() -> None:
    asked: list[int] = []

    def look_up(oid: int) -> CatalogType | None:
        asked.append(oid)
        return OTHERS.get(oid)

    types = Types(180000, look_up)
    for oid in (INT4, 1007, 20_009, 20_009, 20_008, 20_008):
        types.find(oid)
        assert types.find_unreadable(oid) is None
    assert asked == [20_009, 20_008]


def test_a_type_that_was_not_found_is_requested_again() -> None:
    later: dict[int, CatalogType] = {}
    types = Types(180000, later.get)
    with pytest.raises(UnknownType, match="with oid 20009"):
        types.find(20_009)
    later.update(OTHERS)
    assert types.find(20_009)(b"calm") == b"calm"
