"""Binary values of strings, bytes, bits, addresses and text search types, and of hstore and pgvector.

The binary format of most strings, of json and of xml is the text itself; some types put a version byte before
it. The OIDs of an extension's types differ between databases: `converters` identifies them by the names of
their send and output functions.
"""

from __future__ import annotations

import struct
from itertools import groupby

from pipeline.protocol.binary.nested import Cursor
from pipeline.protocol.binary.numbers import float4_text

_BIT_COUNT = struct.Struct(">i")
_IPV4, _IPV6 = 2, 3
_ADDRESS_SIZES = {_IPV4: 4, _IPV6: 16}
_SNAPSHOT = struct.Struct(">iqq")


def read_bool(value: bytes) -> bytes:
    """Return `t` or `f`."""
    if value not in (b"\0", b"\1"):
        raise ValueError
    return b"t" if value == b"\1" else b"f"


def read_text(value: bytes) -> bytes:
    """Return the text of a type whose binary format is its text."""
    return bytes(value)


def read_versioned(value: bytes) -> bytes:
    """Return the text of jsonb, jsonpath, ltree and the like: it follows a version, which is 1."""
    if value[:1] != b"\1":
        raise ValueError
    return value[1:]


def read_char(value: bytes) -> bytes:
    """Return the text of a "char" of PostgreSQL 16 and newer, which writes bytes above 127 in octal."""
    text = read_raw_char(value)
    return text if text.isascii() else b"\\%03o" % text[0]


def read_raw_char(value: bytes) -> bytes:
    """Return the text of a "char" of older servers; the byte 0 is empty text."""
    if len(value) != 1:
        raise ValueError
    return b"" if value == b"\0" else bytes(value)


def read_bytea(value: bytes) -> bytes:
    r"""Return the bytes as `\x` and hexadecimal digits."""
    return b"\\x" + value.hex().encode()


def read_uuid(value: bytes) -> bytes:
    """Return the text of a uuid."""
    if len(value) != 16:
        raise ValueError
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])).encode()


def read_bits(value: bytes) -> bytes:
    """Return the text of a bit or varbit."""
    (count,) = _BIT_COUNT.unpack_from(value)
    data = value[_BIT_COUNT.size :]
    if count < 0 or len(data) != (count + 7) // 8:
        raise ValueError
    return f"{int.from_bytes(data, 'big'):0{len(data) * 8}b}"[:count].encode() if count else b""


def read_macaddr(value: bytes) -> bytes:
    """Return the text of a macaddr."""
    if len(value) != 6:
        raise ValueError
    return value.hex(":").encode()


def read_macaddr8(value: bytes) -> bytes:
    """Return the text of a macaddr8."""
    if len(value) != 8:
        raise ValueError
    return value.hex(":").encode()


def read_inet(value: bytes) -> bytes:
    """Return the text of an inet: with the length of its prefix unless that is the full length."""
    return _address(value, is_cidr=False)


def read_cidr(value: bytes) -> bytes:
    """Return the text of a cidr, always with the length of its prefix."""
    return _address(value, is_cidr=True)


def read_snapshot(value: bytes) -> bytes:
    """Return the text of a pg_snapshot."""
    count, least, end = _SNAPSHOT.unpack_from(value)
    if len(value) != _SNAPSHOT.size + 8 * count:
        raise ValueError
    open_xids = struct.unpack_from(f">{count}q", value, _SNAPSHOT.size)
    return b"%d:%d:" % (least, end) + b",".join([b"%d" % xid for xid in open_xids])


def _address(value: bytes, *, is_cidr: bool) -> bytes:
    if len(value) < 4:
        raise ValueError
    family, bits, _, size = value[:4]
    address = value[4:]
    if size != len(address) or _ADDRESS_SIZES.get(family) != size or bits > 8 * size:
        raise ValueError
    text = _ipv4(address) if family == _IPV4 else _ipv6(address)
    return (f"{text}/{bits}" if is_cidr or bits < 8 * size else text).encode()


def _ipv4(address: bytes) -> str:
    return ".".join(map(str, address))


def _ipv6(address: bytes) -> str:
    """Write an address with its first longest run of two or more zeros written as `::`."""
    words = struct.unpack(">8H", address)
    runs = [(is_zero, [i for i, _ in run]) for is_zero, run in groupby(enumerate(words), lambda w: not w[1])]
    zeros = max((run for is_zero, run in runs if is_zero), key=len, default=[])
    if len(zeros) < 2:
        return ":".join(f"{word:x}" for word in words)
    start, end = zeros[0], zeros[-1] + 1
    if start == 0 and (end == 6 or (end == 5 and words[5] == 0xFFFF)):
        # An IPv4 address embedded in IPv6.
        return f"::{'ffff:' if end == 5 else ''}{_ipv4(address[12:])}"
    return ":".join(f"{word:x}" for word in words[:start]) + "::" + ":".join(f"{w:x}" for w in words[end:])


_POSITION_COUNT = struct.Struct(">H")
_VECTOR = struct.Struct(">hH")
_SPARSE = struct.Struct(">iii")
_WEIGHTS = ("", "C", "B", "A")
_OPERAND, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_OPERAND_PRIORITY = 5


def read_hstore(value: bytes) -> bytes:
    """Return the text of an hstore; everything but NULL is quoted."""
    cursor = Cursor(value)
    pairs = []
    for _ in range(cursor.read_count(8)):
        key, item = cursor.read_value(), cursor.read_value()
        if key is None:
            raise ValueError
        pairs.append(_quoted(key) + b"=>" + (b"NULL" if item is None else _quoted(item)))
    cursor.finish()
    return b", ".join(pairs)


def read_vector(value: bytes) -> bytes:
    """Return the text of pgvector's vector."""
    return _floats(value, "f", 4)


def read_halfvec(value: bytes) -> bytes:
    """Return the text of pgvector's halfvec."""
    return _floats(value, "e", 2)


def read_sparsevec(value: bytes) -> bytes:
    """Return the text of pgvector's sparsevec, whose indexes count from 1."""
    width, count, _ = _SPARSE.unpack_from(value)
    if count < 0 or len(value) != _SPARSE.size + 8 * count:
        raise ValueError
    indexes = struct.unpack_from(f">{count}i", value, _SPARSE.size)
    numbers = struct.unpack_from(f">{count}f", value, _SPARSE.size + 4 * count)
    items = [b"%d:%b" % (i + 1, float4_text(n)) for i, n in zip(indexes, numbers, strict=True)]
    return b"{%b}/%d" % (b",".join(items), width)


def read_tsvector(value: bytes) -> bytes:
    """Return the text of a tsvector."""
    cursor = Cursor(value)
    lexemes = []
    for _ in range(cursor.read_count(3)):
        text = _lexeme(cursor.read_cstring())
        (count,) = _POSITION_COUNT.unpack(cursor.read(_POSITION_COUNT.size))
        positions = struct.unpack(f">{count}H", cursor.read(2 * count))
        text_positions = ",".join(f"{position & 0x3FFF}{_WEIGHTS[position >> 14]}" for position in positions)
        lexemes.append(text + b":" + text_positions.encode() if count else text)
    cursor.finish()
    return b" ".join(lexemes)


def read_tsquery(value: bytes) -> bytes:
    """Return the text of a tsquery.

    The binary format has each operator before its right operand and that before its left one. Read from the
    end, operands come first, so a stack of texts and their priorities is enough.
    """
    cursor = Cursor(value)
    items = [_query_item(cursor) for _ in range(cursor.read_count(3))]
    cursor.finish()
    stack: list[tuple[int, bytes]] = []
    for operator, text in reversed(items):
        if operator == 0:
            stack.append((_OPERAND_PRIORITY, text))
            continue
        priority = _PRIORITY[operator]
        if len(stack) < (1 if operator == _NOT else 2):
            raise ValueError
        # Phrases are left-associative: one to the right of another needs parentheses.
        right = _operand(*stack.pop(), priority + (operator == _PHRASE))
        if operator == _NOT:
            stack.append((priority, b"!" + right))
        else:
            left = _operand(*stack.pop(), priority)
            stack.append((priority, b"%b %b %b" % (left, text, right)))
    if len(stack) > 1:
        raise ValueError
    return stack[0][1] if stack else b""


def _query_item(cursor: Cursor) -> tuple[int, bytes]:
    """Return an operator and its text, or 0 and the text of an operand."""
    kind, first = cursor.read(2)
    if kind == _OPERATOR and first in _PRIORITY:
        if first != _PHRASE:
            return first, {_NOT: b"!", _AND: b"&", _OR: b"|"}[first]
        (distance,) = _POSITION_COUNT.unpack(cursor.read(2))
        return first, b"<->" if distance == 1 else b"<%d>" % distance
    if kind != _OPERAND:
        raise ValueError
    (is_prefix,) = cursor.read(1)
    text = _lexeme(cursor.read_cstring())
    marks = ["*"] if is_prefix else []
    marks += [name for bit, name in zip((8, 4, 2, 1), "ABCD", strict=True) if first & bit]
    return 0, text + b":" + "".join(marks).encode() if marks else text


def _operand(priority: int, text: bytes, needed: int) -> bytes:
    return b"( %b )" % text if priority < needed else text


def _floats(value: bytes, kind: str, size: int) -> bytes:
    count, _ = _VECTOR.unpack_from(value)
    if count < 0 or len(value) != _VECTOR.size + size * count:
        raise ValueError
    numbers = struct.unpack_from(f">{count}{kind}", value, _VECTOR.size)
    return b"[%b]" % b",".join([float4_text(number) for number in numbers])


def _lexeme(text: bytes) -> bytes:
    return b"'%b'" % text.replace(b"\\", b"\\\\").replace(b"'", b"''")


def _quoted(text: bytes) -> bytes:
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
