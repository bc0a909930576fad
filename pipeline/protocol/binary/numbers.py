"""Binary values of numbers (integers, floats, numeric, money, oid, xid, tid, pg_lsn) and geometric types.

Floats are written as by PostgreSQL 12 and newer with extra_float_digits 1 or more: the fewest digits to which
no other float is nearer, but never a decimal exactly midway between two floats, which `repr` of Python may
return. Money is in the format of locale C, with two digits after the point. Coordinates are float8.
"""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal
from functools import lru_cache

_INT2, _INT4, _INT8 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_UINT4, _UINT8 = struct.Struct(">I"), struct.Struct(">Q")
_FLOAT4, _FLOAT8 = struct.Struct(">f"), struct.Struct(">d")
_LSN = struct.Struct(">II")
_TID = struct.Struct(">IH")
_NUMERIC = struct.Struct(">HhHH")

NUMERIC_POSITIVE, NUMERIC_NEGATIVE = 0x0000, 0x4000
_SPECIAL_NUMERICS = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
#: With more digits than these before the point, a float is written with an exponent.
_FLOAT4_DIGITS, _FLOAT8_DIGITS = 6, 15
_FLOAT8_EXACT = 2.0**53  # every smaller integer is a float, and no midpoint below it is short
_FLOAT4_NORMAL = 2.0**-126
_CACHED = 1 << 15


def read_int2(value: bytes) -> bytes:
    """Return the text of an int2."""
    (number,) = _INT2.unpack(value)
    return b"%d" % number


def read_int4(value: bytes) -> bytes:
    """Return the text of an int4."""
    (number,) = _INT4.unpack(value)
    return b"%d" % number


def read_int8(value: bytes) -> bytes:
    """Return the text of an int8."""
    (number,) = _INT8.unpack(value)
    return b"%d" % number


def read_uint4(value: bytes) -> bytes:
    """Return the text of an oid, xid or cid."""
    (number,) = _UINT4.unpack(value)
    return b"%d" % number


def read_uint8(value: bytes) -> bytes:
    """Return the text of an xid8."""
    (number,) = _UINT8.unpack(value)
    return b"%d" % number


def read_lsn(value: bytes) -> bytes:
    """Return the text of a pg_lsn."""
    return b"%X/%X" % _LSN.unpack(value)


def read_tid(value: bytes) -> bytes:
    """Return the text of a tid."""
    return b"(%d,%d)" % _TID.unpack(value)


def read_money(value: bytes) -> bytes:
    """Return the text of a money value in locale C."""
    (cents,) = _INT8.unpack(value)
    whole, part = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{part:02d}".encode()


def read_numeric(value: bytes) -> bytes:
    """Return the text of a numeric, with as many digits after the point as its scale."""
    count, weight, sign, scale = _NUMERIC.unpack_from(value)
    groups = struct.unpack_from(f">{count}H", value, _NUMERIC.size)
    if len(value) != _NUMERIC.size + 2 * count or max(groups, default=0) > 9999:
        raise ValueError
    if sign in _SPECIAL_NUMERICS:
        return _SPECIAL_NUMERICS[sign]
    if sign not in (NUMERIC_POSITIVE, NUMERIC_NEGATIVE):
        raise ValueError
    text = b"-" if sign else b""
    before = weight + 1
    if before <= 0:
        text += b"0"
        groups = (0,) * -before + groups
        before = 0
    else:
        text += b"%d" % (groups[0] if groups else 0)
        text += b"".join([b"%04d" % group for group in groups[1:before]])
        text += b"0000" * (before - max(count, 1))
    if scale:
        fraction = b"".join([b"%04d" % group for group in groups[before : before + scale // 4 + 1]])
        text += b"." + fraction[:scale].ljust(scale, b"0")
    return text


@lru_cache(_CACHED)
def read_float8(value: bytes) -> bytes:
    """Return the text of a float8."""
    (number,) = _FLOAT8.unpack(value)
    size = abs(number)
    text = repr(number)
    if 1e-4 <= size < 1e15 or not size:
        return text.removesuffix(".0").encode()
    if not math.isfinite(number):
        return _special(number)
    if size < 1e15:
        return text.encode()  # Python writes exponents in the same way
    above, below = math.ulp(size), size - math.nextafter(size, 0)
    decimal = Decimal(repr(size))
    if size >= _FLOAT8_EXACT and not _is_nearest(decimal, size, below, above):
        decimal = _shortest(size, below, above, 17)
    return _format_float(number, *_parts(decimal), _FLOAT8_DIGITS)


@lru_cache(_CACHED)
def read_float4(value: bytes) -> bytes:
    """Return the text of a float4."""
    return float4_text(*_FLOAT4.unpack(value))


def float4_text(number: float) -> bytes:
    """Return the text of a number that is a float4."""
    if not math.isfinite(number):
        return _special(number)
    size = abs(number)
    mantissa, exponent = math.frexp(size)
    if size < _FLOAT4_NORMAL or mantissa == 0.5:
        # Below a power of two the next float is half as far as above it.
        above = math.ldexp(1.0, max(exponent - 24, -149))
        below = above / 2 if size > _FLOAT4_NORMAL else above
        decimal = _shortest(size, below, above, 9) if size else Decimal(0)
        return _format_float(number, *_parts(decimal), _FLOAT4_DIGITS)
    half_gap = math.ldexp(1.0, exponent - 25)
    # A decimal of six digits is exact in any such float, so shorter ones are found with six, too.
    for digits in (5, 6, 7, 8):
        text = f"{size:.{digits}e}"
        distance = abs(float(text) - size)
        if distance < half_gap or (
            distance == half_gap and _is_nearest(Decimal(text), size, 2 * half_gap, 2 * half_gap)
        ):
            break
    return _format_float(number, text[0] + text[2 : digits + 2], int(text[digits + 3 :]), _FLOAT4_DIGITS)


def _special(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


# A float8's own decimal has up to 767 digits.
_EXACT = Context(prec=1600)


def _is_nearest(decimal: Decimal, size: float, below: float, above: float) -> bool:
    """Return whether a decimal is nearer to `size` than to its neighbours `below` and `above` it."""
    twice = _EXACT.multiply(_EXACT.subtract(decimal, Decimal(size)), 2)
    return -Decimal(below) < twice < Decimal(above)


def _shortest(size: float, below: float, above: float, most: int) -> Decimal:
    """Return the decimal of the fewest digits, at most `most`, to which no other float is nearer."""
    exact = Decimal(size)
    for digits in range(1, most):
        context = Context(prec=digits)
        nearest = context.create_decimal(exact)
        for candidate in (nearest, context.next_plus(nearest)):
            if _is_nearest(candidate, size, below, above):
                return candidate
    return Context(prec=most).create_decimal(exact)


def _parts(decimal: Decimal) -> tuple[str, int]:
    """Return the digits, and the exponent of the first one."""
    _, digits, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)
    return "".join(map(str, digits)), len(digits) + exponent - 1


def _format_float(number: float, digits: str, exponent: int, digit_limit: int) -> bytes:
    """Write digits as the server does: with an exponent if the point is far from them."""
    digits = digits.rstrip("0") or "0"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if not -4 <= exponent < digit_limit:
        point = "." if len(digits) > 1 else ""
        text = f"{digits[0]}{point}{digits[1:]}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    elif exponent < 0:
        text = f"0.{'0' * (-exponent - 1)}{digits}"
    else:
        whole, part = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        text = f"{whole}.{part}" if part else whole
    return (sign + text).encode()


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
