"""Certificates for test servers, made of the standard library alone: nothing of OpenSSL need be installed.

ECDSA on the curve P-256 with SHA-256, X.509 version 3 in DER, written as PEM. The arithmetic takes no care
of its timing: these keys guard nothing.
"""

import base64
import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

Point = tuple[int, int]

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
# object identifiers, as DER writes them
_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_P256 = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("0603550403")
_BASIC_CONSTRAINTS = bytes.fromhex("0603551d13")
_ALTERNATIVE_NAME = bytes.fromhex("0603551d11")


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key: `name` is the subject, `issuer` whose key signed it."""

    name: str
    secret: int
    der: bytes

    @property
    def pem(self) -> str:
        """Return the certificate as a file holds it."""
        return _pem("CERTIFICATE", self.der)

    @property
    def key_pem(self) -> str:
        """Return the private key as a file holds it."""
        public = _tag(0xA1, _bits(_encode(_multiply(self.secret))))
        fields = _number(1) + _tag(0x04, self.secret.to_bytes(32, "big")) + _tag(0xA0, _P256) + public
        return _pem("EC PRIVATE KEY", _tag(0x30, fields))


def make_authority(name: str) -> Certificate:
    """Return a CA that signed itself."""
    secret = 1 + secrets.randbelow(_N - 1)
    return Certificate(name, secret, _sign(name, secret, name, secret, None))


def issue(authority: Certificate, host: str) -> Certificate:
    """Return a server's certificate for one DNS name, signed by a CA."""
    secret = 1 + secrets.randbelow(_N - 1)
    return Certificate(host, secret, _sign(host, secret, authority.name, authority.secret, host))


def _sign(name: str, secret: int, issuer: str, issuer_secret: int, host: str | None) -> bytes:
    now = datetime.now(timezone.utc)
    times = b"".join(
        _tag(0x17, f"{moment:%y%m%d%H%M%SZ}".encode())
        for moment in (now - timedelta(days=1), now + timedelta(days=2))
    )
    if host is None:
        extension = _BASIC_CONSTRAINTS + _tag(0x01, b"\xff") + _tag(0x04, _tag(0x30, _tag(0x01, b"\xff")))
    else:
        extension = _ALTERNATIVE_NAME + _tag(0x04, _tag(0x30, _tag(0x82, host.encode())))
    key = _tag(0x30, _tag(0x30, _EC_KEY + _P256) + _bits(_encode(_multiply(secret))))
    body = _tag(
        0x30,
        _tag(0xA0, _number(2))
        + _number(secrets.randbits(64))
        + _ECDSA_SHA256
        + _name(issuer)
        + _tag(0x30, times)
        + _name(name)
        + key
        + _tag(0xA3, _tag(0x30, _tag(0x30, extension))),
    )
    digest = int.from_bytes(hashlib.sha256(body).digest(), "big")
    nonce = 1 + secrets.randbelow(_N - 1)
    r = _multiply(nonce)[0] % _N
    s = pow(nonce, -1, _N) * (digest + r * issuer_secret) % _N
    return _tag(0x30, body + _ECDSA_SHA256 + _bits(_tag(0x30, _number(r) + _number(s))))


def _multiply(factor: int) -> Point:
    """Return the generator times a factor that is not 0."""
    total: Point | None = None
    power = _G
    while factor:
        if factor & 1:
            total = power if total is None else _add(total, power)
        power = _add(power, power)
        factor >>= 1
    assert total is not None
    return total


def _add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    rise, run = (3 * x1 * x1 - 3, 2 * y1) if one == other else (y2 - y1, x2 - x1)
    slope = rise * pow(run, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def _encode(point: Point) -> bytes:
    return b"\x04" + b"".join(number.to_bytes(32, "big") for number in point)


def _name(common: str) -> bytes:
    return _tag(0x30, _tag(0x31, _tag(0x30, _COMMON_NAME + _tag(0x0C, common.encode()))))


def _number(number: int) -> bytes:
    return _tag(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tag(0x03, b"\x00" + content)


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
