"""Cells in binary format land as the text of their values, whole columns of them or one by one."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bronze.columnar import binary as binary_module
from pipeline.bronze.columnar.binary import COLUMN_READERS
from pipeline.errors import ProtocolError
from pipeline.protocol.binary import extensions, numbers, times
from pipeline.protocol.binary.converters import FAULTS, CatalogType, Types
from pipeline.protocol.binary.nested import Converter
from pipeline.protocol.messages import UNCHANGED_TOAST, Binary, Delete, Insert, Relation, TupleData, Update
from tests.support.bronze.cells import decode, read_column, relation
from tests.support.protocol.typed_values import TypedValues, load_typed_values

SERVERS = load_typed_values()
INT4, TEXT, NUMERIC, JSONB, INT8, REGCLASS = 23, 25, 1700, 3802, 20, 2205
# Oids whose values are read a column at once.
OIDS: dict[Converter, int] = {
    extensions.read_bool: 16, numbers.read_int2: 21, numbers.read_int4: INT4, numbers.read_int8: INT8,
    numbers.read_uint4: 26, numbers.read_float8: 701, numbers.read_numeric: NUMERIC, times.read_date: 1082,
    times.read_timestamp: 1114, times.read_timestamptz: 1184, extensions.read_uuid: 2950,
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_columns_of_values_read_as_the_server_writes_them(server: TypedValues) -> None:
    by_type: dict[int, list[tuple[Binary, str]]] = {}
    for value in server.values:
        text = value.text.decode("utf-8", "replace")
        by_type.setdefault(value.oid, []).append((Binary(value.binary), text))
    assert set(OIDS.values()) <= set(by_type)
    for oid, values in by_type.items():
        given_values = [b for b, _ in values]
        # Once each, and in an order that mixes what is read at once with what is not.
        for cells, expected in (
            (given_values, [t for _, t in values]),
            (
                [*given_values, None, *given_values[::-1]],
                [t for _, t in values] + [None] + [t for _, t in values[::-1]],
            ),
        ):
            assert read_column(oid, cells, server.types()) == expected


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_a_row_of_every_type_reads_in_old_and_new(server: TypedValues) -> None:
    values = list(server.values)
    row: TupleData = tuple(Binary(value.binary) for value in values)
    expected = [value.text.decode("utf-8", "replace") for value in values]
    described = relation(*(value.oid for value in values))
    partial: TupleData = tuple(UNCHANGED_TOAST if i % 3 else cell for i, cell in enumerate(row))
    columns = decode(
        [Update(7, "O", row, partial), Delete(7, "O", row)], [described], [0, 0], server.types(), xid=9
    )
    assert columns.old.to_pylist() == [expected, expected]
    assert columns.new.to_pylist() == [[None if i % 3 else t for i, t in enumerate(expected)], None]
    assert columns.subxid is not None
    assert columns.subxid.tolist() == [9, 9]


def read_one(converter: Converter, value: bytes) -> str | None:
    try:
        return converter(value).decode()
    except FAULTS:
        return None


def ints(size: int, signed: bool = True) -> st.SearchStrategy[bytes]:
    bits = 8 * size
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = st.sampled_from([10**k + d for k in range(20) for d in (-1, 0, 1) if low <= 10**k + d <= high])
    numbers_ = st.one_of(
        st.integers(low, high), near, near.map(lambda n: max(-n, low)), st.sampled_from([low, high])
    )
    return numbers_.map(lambda n: n.to_bytes(size, "big", signed=signed))


groups = st.lists(
    st.one_of(st.integers(0, 9999), st.sampled_from([0, 1, 9, 10, 99, 100, 999, 1000, 9999])), max_size=9
)
numerics = st.builds(
    lambda digits, *rest: struct.pack(f">HhHH{len(digits)}H", len(digits), *rest, *digits),
    groups, st.integers(-9, 9), st.sampled_from([0, 0, 0x4000, 0xC000]), st.integers(0, 30),
)  # fmt: skip
moments = st.one_of(
    st.integers(-63_082_281_600_000_000, 252_455_616_000_000_000),
    st.integers(-63_082_281_600, 252_455_616_000).map(lambda second: second * 1_000_000),
    st.integers(-(10**10), 10**10).map(lambda n: n * 100),
    st.sampled_from([2**63 - 1, -(2**63), 0, -1, -63_082_281_600_000_001, 252_455_616_000_000_000]),
    st.integers(-(2**63), 2**63 - 1),
).map(lambda n: struct.pack(">q", n))
DRAWN: dict[Converter, st.SearchStrategy[bytes]] = {
    extensions.read_bool: st.binary(min_size=1, max_size=1),
    numbers.read_int2: ints(2),
    numbers.read_int4: ints(4),
    numbers.read_int8: ints(8),
    numbers.read_uint4: ints(4, signed=False),
    numbers.read_float8: st.one_of(
        st.floats(),
        st.integers(-(10**16), 10**16).map(float),
        st.floats(-1000, 1000).map(lambda x: round(x, 2)),
    ).map(lambda x: struct.pack(">d", x)),
    numbers.read_numeric: numerics,
    times.read_date: st.one_of(st.integers(-731_000, 2_923_000), st.integers(-(2**31), 2**31 - 1)).map(
        lambda n: struct.pack(">i", n)
    ),
    times.read_timestamp: moments,
    times.read_timestamptz: moments,
    extensions.read_uuid: st.binary(min_size=16, max_size=16),
}


@pytest.mark.costly
@pytest.mark.parametrize("converter", DRAWN, ids=lambda converter: str(converter.__name__))
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_columns_read_as_value_by_value(converter: Converter, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(DRAWN[converter], max_size=30))
    values = [value for value in drawn if read_one(converter, value) is not None]
    oid = OIDS[converter]
    assert read_column(oid, [Binary(v) for v in values]) == [read_one(converter, v) for v in values]
    for value in drawn:
        if value not in values:
            with pytest.raises(ProtocolError, match=r"column 1 of the new tuple \(c0\) has \d+ bytes?"):
                read_column(oid, [*(Binary(v) for v in values), Binary(value)])


def test_every_column_at_once_has_its_one_by_one() -> None:
    assert set(COLUMN_READERS) == set(OIDS) == set(DRAWN)
    for converter, oid in OIDS.items():
        assert Types(180000).find(oid) is converter


@pytest.mark.costly
def test_each_day_of_ten_thousand_years_reads_as_one_by_one() -> None:
    days = [Binary(struct.pack(">i", day)) for day in range(-731_000, 2_923_000, 173)]
    assert read_column(1082, days) == [times.read_date(day).decode() for day in days]


def test_rows_of_several_relations_text_and_binary_mix() -> None:
    def int4(number: int) -> Binary:
        return Binary(struct.pack(">i", number))

    relations = [relation(INT4, TEXT), relation(JSONB), relation(TEXT, INT4, INT4)]
    messages: list[Insert | Update | Delete] = []
    of_row: list[int] = []
    expected: list[list[str | None]] = []
    for i in range(300):
        which = i % 3
        of_row.append(which)
        if which == 0:
            messages.append(Insert(7, (int4(i), b"text" if i % 2 else Binary(b"binary"))))
            expected.append([str(i), "text" if i % 2 else "binary"])
        elif which == 1:
            messages.append(Insert(7, (Binary(b"\1[%d]" % i),)))
            expected.append([f"[{i}]"])
        else:
            messages.append(
                Update(7, "K", (None, int4(i), None), (UNCHANGED_TOAST, int4(-i), b"17" if i % 2 else None))
            )
            expected.append([None, str(-i), "17" if i % 2 else None])
    columns = decode(messages, relations, of_row, Types(180000))
    assert columns.new.to_pylist() == expected
    assert columns.old.to_pylist() == [[None, str(i), None] if i % 3 == 2 else None for i in range(300)]
    assert columns.unchanged_toast.to_pylist() == [[0] if i % 3 == 2 else None for i in range(300)]


def test_text_that_is_not_utf8_is_kept_raw_as_in_text_format() -> None:
    messages = [Insert(7, (Binary(b"caf\xe9"), Binary(b"\0\0\0\5")))]
    columns = decode(messages, [relation(TEXT, INT4)], [0], Types(150000))
    assert columns.new.to_pylist() == [[r"caf\xE9", "5"]]
    assert columns.raw_new.to_pylist() == [[b"caf\xe9", b"5"]]


def refusal(message: Insert | Update | Delete, described: Relation, types: Types | None) -> str:
    good: TupleData = tuple(None for _ in described.columns)
    with pytest.raises(ProtocolError) as caught:
        decode([Insert(7, good), message, Insert(7, good)], [described], [0, 0, 0], types)
    return str(caught.value)


def test_a_malformed_value_is_refused_by_column_and_never_shown() -> None:
    described = relation(INT4, NUMERIC)
    new: TupleData = Binary(b"\0\0\0\1"), Binary(b"secret!")
    assert refusal(Insert(7, new), described, Types(180000)) == (
        "Insert number 1: column 2 of the new tuple (c1) has 7 bytes that cannot be decoded as numeric."
    )
    old: TupleData = Binary(b"secret"), None
    assert refusal(Delete(7, "K", old), described, Types(180000)) == (
        "Delete number 1: column 1 of the old tuple (c0) has 6 bytes that cannot be decoded as integer."
    )
    sentence = refusal(Insert(7, (Binary(b"\2{}"), None)), relation(JSONB, INT4), Types(180000))
    assert sentence.endswith("of the new tuple (c0) has 3 bytes that cannot be decoded as jsonb.")


def test_a_type_that_is_not_known_is_refused_by_name() -> None:
    known = CatalogType(REGCLASS, "regclass", "b", "regclasssend", "regclassout", ",", ())
    message = Insert(7, (Binary(b"\0\0\0\1"),))
    assert refusal(message, relation(REGCLASS), Types(180000, {REGCLASS: known}.get)) == (
        "Insert number 1: column 1 of the new tuple (c0) is in binary format, and the binary format of the"
        " type regclass is not supported. Set source.protocol.binary to false."
    )
    assert "the catalog has no type with oid 99999" in refusal(message, relation(99_999), Types(180000))


def test_an_unknown_type_inside_a_value_is_refused_by_name() -> None:
    record = CatalogType(20_001, "public.pair", "c", "record_send", "record_out", ",", (INT4,))
    value = struct.pack(">iIii", 1, REGCLASS, 4, 1)
    sentence = refusal(Insert(7, (Binary(value),)), relation(20_001), Types(180000, {20_001: record}.get))
    assert "the catalog has no type with oid 2205" in sentence


def test_a_binary_value_that_was_not_requested_is_refused() -> None:
    sentence = refusal(Insert(7, (Binary(b"1"),)), relation(TEXT), None)
    assert (
        sentence == "Insert number 1: column 1 of the new tuple is in binary format, which was not requested."
    )


def test_text_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_module, "_BYTE_LIMIT", 1000)
    with pytest.raises(ProtocolError, match="more than 2 GiB"):
        read_column(17, [Binary(b"x" * 600)])
