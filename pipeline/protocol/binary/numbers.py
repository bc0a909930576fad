"""Numbers: integers, floats in their shortest form, numeric, money, oid and its kin.

Floats follow PostgreSQL 12 and newer (extra_float_digits 1 or more): the fewest digits that no other float of
the size is nearer to, and never a decimal that is exactly midway between two floats, which Python's `repr`
allows itself. Money is that of locale C: two digits after the point.
"""

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
#: Beyond so many digits before the point a float has an exponent.
_FLOAT4_DIGITS, _FLOAT8_DIGITS = 6, 15
_FLOAT8_EXACT = 2.0**53  # every smaller integer has a float, and no midpoint below it is short
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
    """Return the text of a money value as locale C has it."""
    (cents,) = _INT8.unpack(value)
    whole, part = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{part:02d}".encode()


def read_numeric(value: bytes) -> bytes:
    """Return the text of a numeric, with as many digits behind the point as its scale says."""
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
        behind = b"".join([b"%04d" % group for group in groups[before : before + scale // 4 + 1]])
        text += b"." + behind[:scale].ljust(scale, b"0")
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
        return text.encode()  # Python's exponents look the same
    above, below = math.ulp(size), size - math.nextafter(size, 0)
    decimal = Decimal(repr(size))
    if size >= _FLOAT8_EXACT and not _is_nearest(decimal, size, below, above):
        decimal = _shortest(size, below, above, 17)
    return _written(number, *_parts(decimal), _FLOAT8_DIGITS)


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
        return _written(number, *_parts(decimal), _FLOAT4_DIGITS)
    reach = math.ldexp(1.0, exponent - 25)
    # Six digits survive any such float, so what has fewer is found with six.
    for places in (5, 6, 7, 8):
        text = f"{size:.{places}e}"
        distance = abs(float(text) - size)
        if distance < reach or (distance == reach and _is_nearest(Decimal(text), size, 2 * reach, 2 * reach)):
            break
    return _written(number, text[0] + text[2 : places + 2], int(text[places + 3 :]), _FLOAT4_DIGITS)


def _special(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"


# A float8's own decimal has up to 767 digits.
_EXACT = Context(prec=1600)


def _is_nearest(decimal: Decimal, size: float, below: float, above: float) -> bool:
    """Say whether a decimal is nearer to a float than to its neighbours, which are so far away."""
    twice = _EXACT.multiply(_EXACT.subtract(decimal, Decimal(size)), 2)
    return -Decimal(below) < twice < Decimal(above)


def _shortest(size: float, below: float, above: float, most: int) -> Decimal:
    """Return the decimal of the fewest digits that is nearest to this float alone."""
    exact = Decimal(size)
    for digits in range(1, most):
        context = Context(prec=digits)
        nearest = context.create_decimal(exact)
        for candidate in (nearest, context.next_plus(nearest)):
            if _is_nearest(candidate, size, below, above):
                return candidate
    return Context(prec=most).create_decimal(exact)


def _parts(decimal: Decimal) -> tuple[str, int]:
    """Return the digits, and the power of ten of the first one."""
    _, digits, exponent = decimal.as_tuple()
    assert isinstance(exponent, int)
    return "".join(map(str, digits)), len(digits) + exponent - 1


def _written(number: float, digits: str, place: int, digit_limit: int) -> bytes:
    """Write digits as the server does: with an exponent where the point is far from them."""
    digits = digits.rstrip("0") or "0"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if not -4 <= place < digit_limit:
        point = "." if len(digits) > 1 else ""
        written = f"{digits[0]}{point}{digits[1:]}e{'-' if place < 0 else '+'}{abs(place):02d}"
    elif place < 0:
        written = f"0.{'0' * (-place - 1)}{digits}"
    else:
        whole, part = digits[: place + 1].ljust(place + 1, "0"), digits[place + 1 :]
        written = f"{whole}.{part}" if part else whole
    return (sign + written).encode()
