"""Row messages decoded side by side say what the scalar decoder says of each, or refuse the same messages."""

import struct
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bronze.columnar.decode import RowColumns, decode_rows
from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import UNCHANGED_TOAST, Binary, Cell, Delete, Insert, TupleData, Update
from tests.support.protocol.encode import encode
from tests.support.protocol.golden import MESSAGES
from tests.support.protocol.strategies import int32s, old_kinds

RowMessage = Insert | Update | Delete


def is_binary(message: RowMessage) -> bool:
    tuples = (getattr(message, side, None) or () for side in ("old", "new"))
    return any(isinstance(cell, Binary) for cells in tuples for cell in cells)


DECODED = {data: decode(data) for data in MESSAGES}
ROWS = [data for data, m in DECODED.items() if isinstance(m, RowMessage) and not is_binary(m)]
IN_BINARY = [data for data, m in DECODED.items() if isinstance(m, RowMessage) and is_binary(m)]

small = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(lambda text: text.encode()))
# On both sides of the mean length that decides how values are copied.
large = st.integers(100, 900).map(lambda length: b"x" * length)
cells: st.SearchStrategy[Cell] = st.one_of(st.none(), st.just(UNCHANGED_TOAST), small, large)
tuples: st.SearchStrategy[TupleData] = st.lists(cells, max_size=6).map(tuple)
row_messages: st.SearchStrategy[RowMessage] = st.one_of(
    st.builds(Insert, int32s, tuples),
    st.builds(Update, int32s, st.none(), st.none(), tuples),
    st.builds(Update, int32s, old_kinds, tuples, tuples),
    st.builds(Delete, int32s, old_kinds, tuples),
)


def texts(cells: TupleData | None) -> list[str | None] | None:
    if cells is None:
        return None
    return [shown(cell) if isinstance(cell, bytes) else None for cell in cells]


def shown(value: bytes) -> str:
    """Return a text as bronze has it: a byte that is not UTF-8 reads like its escape in PostgreSQL."""
    text = value.decode("utf-8", "surrogateescape")
    return "".join(rf"\x{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else c for c in text)


def raw(cells: TupleData | None) -> list[bytes | None] | None:
    """Return the bytes of a tuple that is not UTF-8, None for any other."""
    values = [cell if isinstance(cell, bytes) else None for cell in cells or ()]
    try:
        for value in values:
            (value or b"").decode()
    except UnicodeDecodeError:
        return values
    return None


def meaning_of(message: RowMessage) -> dict[str, object]:
    old: TupleData | None = getattr(message, "old", None)
    new: TupleData | None = getattr(message, "new", None)
    return {
        "op": type(message).__name__[0],
        "relation_id": message.oid,
        "old_kind": getattr(message, "old_kind", None),
        "old": texts(old),
        "new": texts(new),
        "unsent": [i for i, cell in enumerate(new or ()) if cell is UNCHANGED_TOAST] or None,
        "raw_old": raw(old),
        "raw_new": raw(new),
    }


FIELDS = {"unsent": "unchanged_toast"}  # of RowColumns, where bronze has another name


def rows_of(columns: RowColumns) -> list[dict[str, object]]:
    names = ("op", "relation_id", "old_kind", "old", "new", "unsent", "raw_old", "raw_new")
    lists = {name: getattr(columns, FIELDS.get(name, name)).tolist() for name in names}
    for column in (columns.op, columns.old_kind, columns.old, columns.new, columns.unchanged_toast):
        column.validate(full=True)
    return [dict(zip(names, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def check(messages: Sequence[bytes]) -> None:
    expected = []
    for data in messages:
        decoded = decode(data)
        assert isinstance(decoded, RowMessage)
        expected.append(meaning_of(decoded))
    assert rows_of(decode_rows(messages)) == expected


def test_captured_messages_decode_as_one_by_one() -> None:
    assert len(ROWS) > 50
    check(ROWS)
    check([data for data in ROWS if len(data) < 60])
    for data in ROWS:
        check([data])


@pytest.mark.costly
@settings(max_examples=60, deadline=None)
@given(st.lists(row_messages, max_size=12))
def test_drawn_messages_decode_as_one_by_one(messages: list[RowMessage]) -> None:
    check([encode(message) for message in messages])


def test_no_messages_are_no_rows() -> None:
    assert rows_of(decode_rows([])) == []


def test_tables_without_columns_and_with_1600_decode_side_by_side() -> None:
    wide: TupleData = tuple(str(i).encode() if i % 3 else (None, UNCHANGED_TOAST)[i % 2] for i in range(1600))
    check(
        [encode(m) for m in (Insert(1, ()), Insert(2, wide), Delete(1, "K", ()), Update(2, "O", wide, wide))]
    )
    check([encode(Insert(1, ()))] * 3)


@pytest.mark.costly
@pytest.mark.parametrize("length", [0, 1, 239, 240, 241, 500_000])
def test_values_of_any_length_come_through(length: int) -> None:
    value = "ü".encode() * (length // 2) + b"x" * (length % 2)
    check([encode(Insert(1, (value, None, b"", UNCHANGED_TOAST, value)))] * 5)


def test_value_that_is_not_utf8_shows_its_bytes_and_is_kept_raw() -> None:
    latin, fine = Insert(1, (b"caf\xe9", None, UNCHANGED_TOAST)), Insert(1, ("café".encode(), b"", None))
    other = Delete(1, "K", (b"caf\xe8", None, None))
    [first, second, third] = rows_of(decode_rows([encode(latin), encode(fine), encode(other)]))
    assert (first["new"], first["raw_new"]) == ([r"caf\xE9", None, None], [b"caf\xe9", None, None])
    assert (second["new"], second["raw_new"]) == (["café", "", None], None)
    # as a key it is not the first one
    assert (third["old"], third["raw_old"]) == ([r"caf\xE8", None, None], [b"caf\xe8", None, None])


def test_character_split_over_two_values_is_not_utf8() -> None:
    check([encode(Insert(1, (b"\xc3", b"\xa9")))])


@pytest.mark.parametrize("value", [b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xe2\x82"])
def test_what_python_does_not_take_for_utf8_arrow_does_not_either(value: bytes) -> None:
    check([encode(Insert(1, (b"a", value)))])


def refusal(messages: Sequence[bytes], widths: Sequence[int] | None = None) -> str:
    counts = None if widths is None else np.array(widths, np.int64)
    with pytest.raises(ProtocolError) as caught:
        decode_rows(messages, counts, lambda row: f"number {row}")
    return str(caught.value)


def test_every_strict_prefix_in_a_batch_raises_and_is_named() -> None:
    before, behind = ROWS[:3], ROWS[3:5]
    for data in sorted(ROWS, key=len)[:60]:
        for length in range(len(data)):
            assert "number 3" in refusal([*before, data[:length], *behind])
            assert "number 0" in refusal([data[:length]])


def test_trailing_bytes_in_a_batch_raise() -> None:
    for data in ROWS:
        for extra in (b"\0", b"n", b"N", data):
            assert "number 2" in refusal([*ROWS[:2], data + extra, ROWS[2]])


def test_first_malformed_message_is_named_whatever_is_wrong_with_it() -> None:
    good = encode(Insert(7, (b"1",)))
    assert "number 1" in refusal([good, good + b"?", b"Z", good[:-1]])


@pytest.mark.costly
@pytest.mark.promise("hostile bytes")
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(6))
def test_damaged_batches_decode_as_one_by_one_or_raise_protocol_errors(seed: int) -> None:
    random = Random(seed)
    short = [data for data in ROWS if len(data) < 200]
    raised = 0
    for _ in range(600):
        batch = random.choices(short, k=4)
        damaged = bytearray(random.choice(short))
        for _ in range(random.randint(1, 3)):
            byte = random.choice((0, 1, 255, *b"IUDKONnutb", random.randrange(256)))
            damaged[random.randrange(len(damaged))] = byte
        place = random.randrange(5)
        batch.insert(place, bytes(damaged))
        try:
            decoded = decode(bytes(damaged))
            accepted = isinstance(decoded, RowMessage) and not is_binary(decoded)
        except ProtocolError:
            accepted = False
        if accepted:
            check(batch)
        else:
            raised += 1
            assert f"number {place}" in refusal(batch)
    assert raised > 100


def test_count_of_columns_that_no_message_can_hold_allocates_no_memory() -> None:
    claims = b"I" + struct.pack(">I", 1) + b"N" + b"\xff\xff"
    assert "number 0" in refusal([claims] * 20_000)


def test_length_beyond_the_message_raises() -> None:
    for length in (2, 2**31 - 1, 2**31, 2**32 - 1):
        data = b"I" + struct.pack(">I", 1) + b"N\x00\x01t" + struct.pack(">I", length) + b"x"
        assert "number 1" in refusal([ROWS[0], data])


def test_binary_value_is_refused_with_a_sentence() -> None:
    assert IN_BINARY
    for data in IN_BINARY:
        assert "binary format" in refusal([ROWS[0], data])
    data = encode(Update(7, "K", (Binary(b"\0\0\0\1"), None), (b"1", b"x")))
    assert refusal([data]) == (
        "Update number 0: column 1 of the old tuple is in binary format, which was not requested."
    )


@pytest.mark.parametrize(
    ("message", "side"),
    [
        (Insert(7, (b"1",)), "1 column in the new tuple"),
        (Insert(7, (b"1", b"2", b"3")), "3 columns in the new tuple"),
        (Update(7, "K", (b"1",), (b"1", b"2")), "1 column in the old tuple"),
        (Update(7, "O", (b"1", b"2"), (b"1",)), "1 column in the new tuple"),
        (Delete(7, "K", (b"1", None, None)), "3 columns in the old tuple"),
    ],
    ids=str,
)
def test_tuple_with_another_number_of_columns_than_its_relation_is_refused(
    message: RowMessage, side: str
) -> None:
    key = b"1", None
    good: list[RowMessage] = [
        Insert(7, key),
        Update(7, "K", key, (b"2", UNCHANGED_TOAST)),
        Delete(7, "K", key),
    ]
    batch = [encode(m) for m in (*good, message)]
    assert len(decode_rows(batch[:3], np.array([2, 2, 2])).op) == 3
    name = type(message).__name__
    assert refusal(batch, [2, 2, 2, 2]) == f"{name} number 3: {side}, but its relation has 2."


def test_message_that_is_no_row_is_refused() -> None:
    commit = b"C" + struct.pack(">BQQq", 0, 1, 2, 3)
    assert refusal([ROWS[0], commit]) == "Commit number 1 is not a row message."
