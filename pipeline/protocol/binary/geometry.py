"""Geometric types: coordinates are float8."""

import struct

from pipeline.protocol.binary.numbers import read_float8

_COUNT = struct.Struct(">i")
_POINT_SIZE = 16


def read_point(value: bytes) -> bytes:
    """Return the text of a point."""
    return b"(%b)" % b",".join(_numbers(value, 2))


def read_lseg(value: bytes) -> bytes:
    """Return the text of a line segment."""
    return b"[%b]" % _points(value, 2)


def read_box(value: bytes) -> bytes:
    """Return the text of a box."""
    return _points(value, 2)


def read_line(value: bytes) -> bytes:
    """Return the text of a line."""
    return b"{%b}" % b",".join(_numbers(value, 3))


def read_circle(value: bytes) -> bytes:
    """Return the text of a circle."""
    return b"<(%b,%b),%b>" % tuple(_numbers(value, 3))


def read_polygon(value: bytes) -> bytes:
    """Return the text of a polygon."""
    return b"(%b)" % _counted(value)


def read_path(value: bytes) -> bytes:
    """Return the text of a path; an open one is in brackets."""
    if value[:1] not in (b"\0", b"\1"):
        raise ValueError
    return (b"(%b)" if value[0] else b"[%b]") % _counted(value[1:])


def _counted(value: bytes) -> bytes:
    (count,) = _COUNT.unpack_from(value)
    return _points(value[_COUNT.size :], count)


def _points(value: bytes, count: int) -> bytes:
    if count * _POINT_SIZE != len(value):
        raise ValueError
    return b",".join([read_point(value[at : at + _POINT_SIZE]) for at in range(0, len(value), _POINT_SIZE)])


def _numbers(value: bytes, count: int) -> list[bytes]:
    if len(value) != 8 * count:
        raise ValueError
    return [read_float8(value[at : at + 8]) for at in range(0, len(value), 8)]
