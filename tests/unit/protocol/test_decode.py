"""decode returns one message, or raises a ProtocolError that names message, field and offset."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    UNCHANGED_TOAST,
    BeginPrepare,
    Binary,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    StreamAbort,
    Update,
)
from tests.support.protocol.encode import encode
from tests.support.protocol.strategies import int32s, messages


@given(messages(st.none()))
def test_what_was_encoded_decodes_to_itself(message: Message) -> None:
    assert decode(encode(message)) == message


@given(messages(int32s))
def test_messages_in_a_stream_decode_with_their_xid(message: Message) -> None:
    assert decode(encode(message), in_stream=True) == message


@given(messages(st.none()), st.data())
def test_strict_prefixes_and_longer_messages_raise(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    length = data.draw(st.integers(0, len(encoded) - 1).filter(lambda cut: not is_abort(encoded[:cut])))
    with pytest.raises(ProtocolError):
        decode(encoded[:length])
    with pytest.raises(ProtocolError):
        decode(encoded + data.draw(st.binary(min_size=1, max_size=4)))


def is_abort(data: bytes) -> bool:
    """Return whether this is a Stream Abort without LSN and time, a prefix of one that has them."""
    return data[:1] == b"A" and len(data) == 9


@given(st.binary(max_size=60), st.sampled_from(b"BMCORYIUDTSEcAbPKrp"), st.booleans())
def test_any_bytes_decode_or_raise_a_protocol_error(body: bytes, kind: int, in_stream: bool) -> None:
    try:
        message = decode(bytes([kind]) + body, in_stream=in_stream)
    except ProtocolError:
        return
    assert encode(message) == bytes([kind]) + body


@given(messages(st.none()))
def test_memoryview_decodes_as_its_bytes_do(message: Message) -> None:
    padded = b"header" + encode(message) + b"rest"
    assert decode(memoryview(padded)[6:-4]) == message


def test_type_bytes_of_no_message_are_refused() -> None:
    for kind in set(range(256)) - set(b"BMCORYIUDTSEcAbPKrp"):
        with pytest.raises(ProtocolError, match=f"type byte 0x{kind:02X} is not defined"):
            decode(bytes([kind]) + bytes(40))
    with pytest.raises(ProtocolError, match="A message of 0 bytes"):
        decode(b"")


def test_value_null_unchanged_toast_and_binary_are_four_different_cells() -> None:
    message = decode(b"I\0\0\0\7N\0\5t\0\0\0\0nub\0\0\0\0t\0\0\0\1u")
    assert message == Insert(7, (b"", None, UNCHANGED_TOAST, Binary(b""), b"u"))
    cells = [b"", None, UNCHANGED_TOAST, Binary(b"")]
    assert [[a == b for b in cells] for a in cells] == [[i == j for j in range(4)] for i in range(4)]
    assert [[a != b for b in cells] for a in cells] == [[i != j for j in range(4)] for i in range(4)]
    assert len(set(cells)) == 4
    assert [repr(cell) for cell in cells] == ["b''", "None", "UNCHANGED_TOAST", "Binary(b'')"]


def test_old_tuple_of_an_update_keeps_its_kind() -> None:
    one = b"\0\1t\0\0\0\0011"
    assert decode(b"U\0\0\0\7N" + one) == Update(7, None, None, (b"1",))
    assert decode(b"U\0\0\0\7K" + one + b"N" + one) == Update(7, "K", (b"1",), (b"1",))
    assert decode(b"U\0\0\0\7O" + one + b"N" + one) == Update(7, "O", (b"1",), (b"1",))
    assert decode(b"D\0\0\0\7K" + one) == Delete(7, "K", (b"1",))
    assert decode(b"D\0\0\0\7O" + one) == Delete(7, "O", (b"1",))


def test_large_oids_and_lsns_stay_positive() -> None:
    assert decode(b"I\xff\xff\xff\xffN\0\0") == Insert(2**32 - 1, ())
    assert decode(b"O" + b"\xff" * 8 + b"n\0") == Origin(LSN(2**64 - 1), "n")


def test_1600_columns_and_none_are_legal() -> None:
    for count in (0, 1600):
        columns = b"\0c\0" + struct.pack(">Ii", 23, -1)
        relation = decode(b"R\0\0\0\7s\0t\0d" + struct.pack(">H", count) + columns * count)
        assert isinstance(relation, Relation)
        assert len(relation.columns) == count


def test_origin_has_no_xid_inside_a_stream() -> None:
    data = b"O" + bytes(8) + b"n\0"
    assert decode(data, in_stream=True) == decode(data)


def test_an_insert_has_an_xid_in_a_stream_and_nowhere_else() -> None:
    in_stream = decode(b"I\0\0\0\x09\0\0\0\7N\0\0", in_stream=True)
    assert in_stream == Insert(7, (), 9)
    with pytest.raises(ProtocolError, match="tag at byte 5"):
        decode(b"I\0\0\0\x09\0\0\0\7N\0\0")


def test_length_of_a_stream_abort_shows_whether_it_has_an_lsn() -> None:
    xids = struct.pack(">II", 7, 2**32 - 1)
    assert decode(b"A" + xids) == StreamAbort(7, 2**32 - 1)
    with_lsn = b"A" + xids + struct.pack(">Qq", 2**64 - 1, -1)
    assert decode(with_lsn) == StreamAbort(7, 2**32 - 1, LSN(2**64 - 1), -1)
    for length in set(range(len(with_lsn) + 9)) - {9, len(with_lsn)}:
        with pytest.raises(ProtocolError):
            decode((with_lsn + bytes(8))[:length])


def test_a_gid_may_be_empty_and_repeat() -> None:
    begin = decode(b"b" + bytes(28) + b"\0")
    assert begin == BeginPrepare(LSN(0), LSN(0), 0, 0, "")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"B" + bytes(19),
            "Malformed Begin message: final_lsn, commit_time and xid at byte 1: expected 20 bytes, found 19.",
        ),
        (b"C\1" + bytes(24), "Malformed Commit message: flags at byte 1: undefined flags in 0x01."),
        (b"O" + bytes(8) + b"abc", "Malformed Origin message: name at byte 9: no terminating NUL."),
        (
            b"R\0\0\0\7s\0t\0x\0\0",
            "Malformed Relation message: replica_identity at byte 9: expected d or n or f or i, found 0x78.",
        ),
        (
            b"R\0\0\0\7s\0t\0d\0\1\2c\0" + bytes(8),
            "Malformed Relation message: flags of column 1 at byte 12: undefined flags in 0x02.",
        ),
        (b"I\0\0\0\7K\0\0", "Malformed Insert message: tag at byte 5: expected N, found 0x4B."),
        (b"U\0\0\0\7X\0\0", "Malformed Update message: tag at byte 5: expected K or O or N, found 0x58."),
        (
            b"U\0\0\0\7K\0\0K\0\0",
            "Malformed Update message: tag of the new tuple at byte 8: expected N, found 0x4B.",
        ),
        (
            b"U\0\0\0\7K\0\0",
            "Malformed Update message: tag of the new tuple at byte 8: expected 1 bytes, found 0.",
        ),
        (b"D\0\0\0\7N\0\0", "Malformed Delete message: tag at byte 5: expected K or O, found 0x4E."),
        (
            b"I\0\0\0\7N\0\2nx",
            "Malformed Insert message: kind of column 2 of the new tuple at byte 9: "
            "expected n or u or t or b, found 0x78.",
        ),
        (
            b"I\0\0\0\7N\0\1t\xff\xff\xff\xffabc",
            "Malformed Insert message: column 1 of the new tuple at byte 13: "
            "expected 4294967295 bytes, found 3.",
        ),
        (b"I\0\0\0\7N\0\0\0", "Malformed Insert message: end at byte 8: 1 extra bytes."),
        (
            b"T\xff\xff\xff\xff\0\0\0\0\7",
            "Malformed Truncate message: oid 2 of 4294967295 at byte 10: expected 4 bytes, found 0.",
        ),
        (b"T\0\0\0\0\4", "Malformed Truncate message: options at byte 5: undefined flags in 0x04."),
        (
            b"S" + bytes(4) + b"\2",
            "Malformed Stream Start message: first segment at byte 5: undefined flags in 0x02.",
        ),
        (b"E\0", "Malformed Stream Stop message: end at byte 1: 1 extra bytes."),
        (
            b"c" + bytes(4) + b"\1" + bytes(24),
            "Malformed Stream Commit message: flags at byte 5: undefined flags in 0x01.",
        ),
        (
            b"c" + bytes(5) + bytes(23),
            "Malformed Stream Commit message: commit_lsn, end_lsn and commit_time at byte 6: "
            "expected 24 bytes, found 23.",
        ),
        (
            b"A" + bytes(8) + bytes(8),
            "Malformed Stream Abort message: abort_lsn and abort_time at byte 9: expected 16 bytes, found 8.",
        ),
        (b"b" + bytes(28) + b"gid", "Malformed Begin Prepare message: gid at byte 29: no terminating NUL."),
        (b"P\1" + bytes(29), "Malformed Prepare message: flags at byte 1: undefined flags in 0x01."),
        (b"K" + bytes(29), "Malformed Commit Prepared message: gid at byte 30: no terminating NUL."),
        (
            b"r" + bytes(36),
            "Malformed Rollback Prepared message: prepare_end_lsn, rollback_end_lsn, prepare_time, "
            "rollback_time and xid at byte 2: expected 36 bytes, found 35.",
        ),
        (b"p" + bytes(29) + b"g\0\0", "Malformed Stream Prepare message: end at byte 32: 1 extra bytes."),
        (b"M\2", "Malformed Logical decoding message: flags at byte 1: undefined flags in 0x02."),
    ],
)
def test_error_names_message_field_and_offset(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    assert str(caught.value) == sentence


def test_errors_hold_no_values_of_rows() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(b"I\0\0\0\7N\0\1t\0\0\0\x40secret")
    assert "secret" not in str(caught.value)
