"""Values made of others: arrays, composites, ranges, multiranges; what is quoted in them, and how.

Arrays and composites carry the oids of what is in them, ranges do not: `Find` gives the function for an oid.
"""

import re
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

Converter: TypeAlias = Callable[[bytes], bytes]
Find: TypeAlias = Callable[[int], Converter]

_INT4 = struct.Struct(">i")
_ARRAY = struct.Struct(">iiI")
_DIMENSION = struct.Struct(">ii")
_FIELD = struct.Struct(">Ii")
_MAX_DIMENSIONS = 6

_SPACE = rb"[ \t\n\v\f\r"
_NEEDS_QUOTES = re.compile(_SPACE + rb'"\\(),]')  # in a composite
_NEEDS_QUOTES_IN_RANGE = re.compile(_SPACE + rb'"\\()[\],]')
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16


class Cursor:
    """Reads a value piece by piece; ValueError where it ends too early."""

    def __init__(self, value: bytes, at: int = 0) -> None:
        self.value = value
        self.at = at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.at + size
        if size < 0 or end > len(self.value):
            raise ValueError
        piece = self.value[self.at : end]
        self.at = end
        return piece

    def int4(self) -> int:
        """Return the next int4."""
        (number,) = _INT4.unpack(self.take(4))
        return int(number)

    def piece(self) -> bytes | None:
        """Return the bytes behind their length, None for NULL."""
        size = self.int4()
        return None if size == -1 else self.take(size)

    def text(self) -> bytes:
        """Return the bytes before the next byte 0."""
        end = self.value.index(b"\0", self.at)
        text = self.take(end - self.at)
        self.at += 1
        return text

    def count(self, least_size: int) -> int:
        """Return how many pieces follow, each of so many bytes at least."""
        count = self.int4()
        if not 0 <= count <= (len(self.value) - self.at) // least_size:
            raise ValueError
        return count

    def end(self) -> None:
        """Raise ValueError unless all was read."""
        if self.at != len(self.value):
            raise ValueError


def read_array(find: Find, delimiter_of: Callable[[int], bytes], value: bytes) -> bytes:
    """Return the text of an array, with its bounds where one does not begin at 1."""
    dimensions, texts, element = _read_elements(find, value)
    if not texts:
        return b"{}"
    delimiter = delimiter_of(element)
    needs_quotes = _needs_quotes_in_array(delimiter).search
    items = [
        b"NULL"
        if text is None
        else b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        if not text or needs_quotes(text) or (len(text) == 4 and text.upper() == b"NULL")
        else text
        for text in texts
    ]
    for size, _ in reversed(dimensions):
        items = [
            b"{%b}" % delimiter.join(items[first : first + size]) for first in range(0, len(items), size)
        ]
    if all(lower == 1 for _, lower in dimensions):
        return items[0]
    bounds = b"".join([b"[%d:%d]" % (lower, lower + size - 1) for size, lower in dimensions])
    return bounds + b"=" + items[0]


def read_vector(find: Find, value: bytes) -> bytes:
    """Return the text of an int2vector or oidvector."""
    dimensions, texts, _ = _read_elements(find, value)
    if len(dimensions) > 1 or None in texts:
        raise ValueError
    return b" ".join([text for text in texts if text is not None])


def _read_elements(find: Find, value: bytes) -> tuple[list[tuple[int, int]], list[bytes | None], int]:
    """Return the dimensions (size, lower bound), the texts of the elements, and the oid of their type."""
    dimension_count, _, element = _ARRAY.unpack_from(value)
    if not 0 <= dimension_count <= _MAX_DIMENSIONS:
        raise ValueError
    cursor = Cursor(value, _ARRAY.size)
    dimensions: list[tuple[int, int]] = []
    count = 1 if dimension_count else 0
    for _ in range(dimension_count):
        size, lower = _DIMENSION.unpack(cursor.take(_DIMENSION.size))
        dimensions.append((size, lower))
        count *= size
    # An element takes the four bytes of its length at least.
    if min(dimensions, default=(0, 0))[0] < 0 or count > (len(value) - cursor.at) // 4:
        raise ValueError
    convert = find(element)
    pieces = [cursor.piece() for _ in range(count)]
    cursor.end()
    return dimensions, [None if piece is None else convert(piece) for piece in pieces], element


def read_record(find: Find, value: bytes) -> bytes:
    """Return the text of a composite."""
    cursor = Cursor(value)
    fields = []
    for _ in range(cursor.count(_FIELD.size)):
        oid, size = _FIELD.unpack(cursor.take(_FIELD.size))
        text = b"" if size == -1 else _quoted(find(oid)(cursor.take(size)), _NEEDS_QUOTES)
        fields.append(text)
    cursor.end()
    return b"(%b)" % b",".join(fields)


def read_range(convert: Converter, value: bytes) -> bytes:
    """Return the text of a range whose bounds `convert` reads."""
    if not value or value[0] > 31:
        raise ValueError
    flags, cursor = value[0], Cursor(value, 1)
    bounds = []
    for is_open in (flags & (_EMPTY | _NO_LOWER), flags & (_EMPTY | _NO_UPPER)):
        if is_open:
            bounds.append(b"")
            continue
        piece = cursor.piece()
        if piece is None:
            raise ValueError
        bounds.append(_quoted(convert(piece), _NEEDS_QUOTES_IN_RANGE))
    cursor.end()
    if flags & _EMPTY:
        return b"empty"
    opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
    return opening + b",".join(bounds) + (b"]" if flags & _UPPER_INCLUSIVE else b")")


def read_multirange(convert: Converter, value: bytes) -> bytes:
    """Return the text of a multirange whose ranges `convert` reads."""
    cursor = Cursor(value)
    pieces = [cursor.take(cursor.int4()) for _ in range(cursor.count(5))]
    cursor.end()
    return b"{%b}" % b",".join([convert(piece) for piece in pieces])


def range_of(convert: Converter) -> Converter:
    """Return the function for ranges with bounds of one type."""
    return partial(read_range, convert)


def multirange_of(convert: Converter) -> Converter:
    """Return the function for multiranges of one type of range."""
    return partial(read_multirange, convert)


@lru_cache
def _needs_quotes_in_array(delimiter: bytes) -> "re.Pattern[bytes]":
    return re.compile(_SPACE + rb'"\\{}' + re.escape(delimiter) + b"]")


def _quoted(text: bytes, needs_quotes: "re.Pattern[bytes]") -> bytes:
    if text and not needs_quotes.search(text):
        return text
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')
