"""Values made of other values: arrays, composites, ranges and multiranges, and how they quote.

Arrays and composites carry the type OIDs of their elements, ranges do not; `Find` returns the function for a
type OID.
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
    """Reads the parts of a value in order; raises ValueError if the value is too short."""

    def __init__(self, value: bytes, offset: int = 0) -> None:
        self.value = value
        self.offset = offset

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.offset + size
        if size < 0 or end > len(self.value):
            raise ValueError
        piece = self.value[self.offset : end]
        self.offset = end
        return piece

    def read_int4(self) -> int:
        """Return the next int4."""
        (number,) = _INT4.unpack(self.read(4))
        return int(number)

    def read_value(self) -> bytes | None:
        """Return the bytes after their length, None for NULL."""
        size = self.read_int4()
        return None if size == -1 else self.read(size)

    def read_cstring(self) -> bytes:
        """Return the bytes up to the next NUL."""
        end = self.value.index(b"\0", self.offset)
        text = self.read(end - self.offset)
        self.offset += 1
        return text

    def read_count(self, least_size: int) -> int:
        """Return how many parts follow, each of at least `least_size` bytes."""
        count = self.read_int4()
        if not 0 <= count <= (len(self.value) - self.offset) // least_size:
            raise ValueError
        return count

    def finish(self) -> None:
        """Raise ValueError unless all bytes were read."""
        if self.offset != len(self.value):
            raise ValueError


def read_array(find: Find, delimiter_of: Callable[[int], bytes], value: bytes) -> bytes:
    """Return the text of an array, with its bounds if one does not start at 1."""
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
    """Return the dimensions (size, lower bound), the texts of the elements, and the OID of their type."""
    dimension_count, _, element = _ARRAY.unpack_from(value)
    if not 0 <= dimension_count <= _MAX_DIMENSIONS:
        raise ValueError
    cursor = Cursor(value, _ARRAY.size)
    dimensions: list[tuple[int, int]] = []
    count = 1 if dimension_count else 0
    for _ in range(dimension_count):
        size, lower = _DIMENSION.unpack(cursor.read(_DIMENSION.size))
        dimensions.append((size, lower))
        count *= size
    # An element has at least the four bytes of its length.
    if min(dimensions, default=(0, 0))[0] < 0 or count > (len(value) - cursor.offset) // 4:
        raise ValueError
    convert = find(element)
    pieces = [cursor.read_value() for _ in range(count)]
    cursor.finish()
    return dimensions, [None if piece is None else convert(piece) for piece in pieces], element


def read_record(find: Find, value: bytes) -> bytes:
    """Return the text of a composite."""
    cursor = Cursor(value)
    fields = []
    for _ in range(cursor.read_count(_FIELD.size)):
        oid, size = _FIELD.unpack(cursor.read(_FIELD.size))
        text = b"" if size == -1 else _quoted(find(oid)(cursor.read(size)), _NEEDS_QUOTES)
        fields.append(text)
    cursor.finish()
    return b"(%b)" % b",".join(fields)


def read_range(convert: Converter, value: bytes) -> bytes:
    """Return the text of a range whose bounds `convert` converts."""
    if not value or value[0] > 31:
        raise ValueError
    flags, cursor = value[0], Cursor(value, 1)
    bounds = []
    for is_unbounded in (flags & (_EMPTY | _NO_LOWER), flags & (_EMPTY | _NO_UPPER)):
        if is_unbounded:
            bounds.append(b"")
            continue
        piece = cursor.read_value()
        if piece is None:
            raise ValueError
        bounds.append(_quoted(convert(piece), _NEEDS_QUOTES_IN_RANGE))
    cursor.finish()
    if flags & _EMPTY:
        return b"empty"
    opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
    return opening + b",".join(bounds) + (b"]" if flags & _UPPER_INCLUSIVE else b")")


def read_multirange(convert: Converter, value: bytes) -> bytes:
    """Return the text of a multirange whose ranges `convert` converts."""
    cursor = Cursor(value)
    pieces = [cursor.read(cursor.read_int4()) for _ in range(cursor.read_count(5))]
    cursor.finish()
    return b"{%b}" % b",".join([convert(piece) for piece in pieces])


def range_of(convert: Converter) -> Converter:
    """Return the function for ranges whose bounds `convert` converts."""
    return partial(read_range, convert)


def multirange_of(convert: Converter) -> Converter:
    """Return the function for multiranges whose ranges `convert` converts."""
    return partial(read_multirange, convert)


@lru_cache
def _needs_quotes_in_array(delimiter: bytes) -> "re.Pattern[bytes]":
    return re.compile(_SPACE + rb'"\\{}' + re.escape(delimiter) + b"]")


def _quoted(text: bytes, needs_quotes: "re.Pattern[bytes]") -> bytes:
    if text and not needs_quotes.search(text):
        return text
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')
