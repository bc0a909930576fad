"""Types of extensions (hstore, pgvector) and of text search.

Their oids differ from database to database, those of text search apart: `types` knows them by the names of
the functions that write them.
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
    """Return the text of an hstore; all is quoted but NULL."""
    cursor = Cursor(value)
    pairs = []
    for _ in range(cursor.count(8)):
        key, item = cursor.piece(), cursor.piece()
        if key is None:
            raise ValueError
        pairs.append(_quoted(key) + b"=>" + (b"NULL" if item is None else _quoted(item)))
    cursor.end()
    return b", ".join(pairs)


def read_vector(value: bytes) -> bytes:
    """Return the text of pgvector's vector."""
    return _floats(value, "f", 4)


def read_halfvec(value: bytes) -> bytes:
    """Return the text of pgvector's halfvec."""
    return _floats(value, "e", 2)


def read_sparsevec(value: bytes) -> bytes:
    """Return the text of pgvector's sparsevec, which counts from 1."""
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
    for _ in range(cursor.count(3)):
        text = _lexeme(cursor.text())
        (count,) = _POSITION_COUNT.unpack(cursor.take(_POSITION_COUNT.size))
        places = struct.unpack(f">{count}H", cursor.take(2 * count))
        shown = ",".join(f"{place & 0x3FFF}{_WEIGHTS[place >> 14]}" for place in places)
        lexemes.append(text + b":" + shown.encode() if count else text)
    cursor.end()
    return b" ".join(lexemes)


def read_tsquery(value: bytes) -> bytes:
    """Return the text of a tsquery: each operator comes before its right operand, which is before its left.

    Read from the end that is operands first, so a stack of texts and their priorities will do.
    """
    cursor = Cursor(value)
    items = [_query_item(cursor) for _ in range(cursor.count(3))]
    cursor.end()
    stack: list[tuple[int, bytes]] = []
    for operator, text in reversed(items):
        if operator == 0:
            stack.append((_OPERAND_PRIORITY, text))
            continue
        priority = _PRIORITY[operator]
        if len(stack) < (1 if operator == _NOT else 2):
            raise ValueError
        # Phrases bind to the left: one to the right of another stands in parentheses.
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
    """Return an operator and how it is written, or 0 and an operand."""
    kind, first = cursor.take(2)
    if kind == _OPERATOR and first in _PRIORITY:
        if first != _PHRASE:
            return first, {_NOT: b"!", _AND: b"&", _OR: b"|"}[first]
        (distance,) = _POSITION_COUNT.unpack(cursor.take(2))
        return first, b"<->" if distance == 1 else b"<%d>" % distance
    if kind != _OPERAND:
        raise ValueError
    (is_prefix,) = cursor.take(1)
    text = _lexeme(cursor.text())
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
