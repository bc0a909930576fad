"""Strings, json and xml, and bytes that are written as text: bytea, uuid, bits, addresses.

Most strings are their own binary format; some types put a byte with the version of their format before it.
"""

import struct
from itertools import groupby

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
    """Return the text of an inet: with the length of its prefix unless that is the whole address."""
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
