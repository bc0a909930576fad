"""Types of extensions (hstore, pgvector) and of text search.

Except for text search, their OIDs differ from database to database: `converters` finds them by the names of
their send and output functions.
"""

import struct

from pipeline.protocol.binary.nested import Cursor
from pipeline.protocol.binary.numbers import float4_text

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
