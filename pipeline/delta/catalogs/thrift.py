"""Calls of a Thrift server: the binary protocol over an unframed connection, without SASL and TLS.

A value's type in Python says its type on the wire: `bool`, `int` (32 bits), `str`, a `list` of structs or
texts, a `ThriftMap` of texts, and another `dict`, whose keys are the numbers of a struct's fields. What is
read has the same form; numbers of any width are `int`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from contextlib import closing
from typing import Any, BinaryIO

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_NUMBERS = {_BOOL: ">?", _BYTE: ">b", _DOUBLE: ">d", _I16: ">h", _I32: ">i", _I64: ">q"}
_VERSION = 0x80010000
_CALL, _FAULT = 1, 3
_LONGEST = 1 << 28  # bytes of a text; a server that speaks something else has lengths of any size


class ThriftMap(dict[Any, Any]):
    """A map, not a struct."""


class ThriftError(Exception):
    """The server does not speak this protocol, or does not know the call."""


class ThriftConnection:
    """A connection on which one call follows another; a context manager that closes it."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        """Connect; raise OSError if that fails or an answer takes longer than the timeout in seconds."""
        self._socket = socket.create_connection((host, port), timeout)
        self._stream: BinaryIO = self._socket.makefile("rb")

    def __enter__(self) -> ThriftConnection:
        return self

    def __exit__(self, *error: object) -> None:
        with closing(self._socket), closing(self._stream):
            pass

    def call(self, method: str, *arguments: Any) -> Mapping[int, Any]:
        """Call a method, and return its result: the field 0 is the value, others are declared exceptions."""
        head = struct.pack(">I", _VERSION | _CALL) + _encoded(method) + struct.pack(">i", 0)
        self._socket.sendall(head + _encoded(dict(enumerate(arguments, 1))))
        version = struct.unpack(">I", self._read(4))[0]
        if version & 0xFFFF0000 != _VERSION:
            raise ThriftError("not Thrift's binary protocol")
        self._value(_STRING), self._value(_I32)
        result: Mapping[int, Any] = self._value(_STRUCT)
        if version & 0xFF == _FAULT:
            raise ThriftError(f"{method} is refused")
        return result

    def _read(self, count: int) -> bytes:
        if not 0 <= count <= _LONGEST:
            raise ThriftError("not Thrift's binary protocol")
        found = self._stream.read(count)
        if len(found) < count:
            raise ConnectionError("the server closed the connection")
        return found

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return struct.unpack(_NUMBERS[kind], self._read(struct.calcsize(_NUMBERS[kind])))[0]
        if kind == _STRING:
            return self._read(self._value(_I32)).decode("utf-8", "replace")
        if kind == _STRUCT:
            fields = {}
            while (each := self._value(_BYTE)) != 0:
                number = self._value(_I16)
                fields[number] = self._value(each)
            return fields
        if kind == _MAP:
            key, value, count = self._value(_BYTE), self._value(_BYTE), self._value(_I32)
            pairs = ((self._value(key), self._value(value)) for _ in range(count))
            return ThriftMap((tuple(k) if isinstance(k, list) else k, each) for k, each in pairs)
        if kind in (_LIST, _SET):
            each, count = self._value(_BYTE), self._value(_I32)
            return [self._value(each) for _ in range(count)]
        raise ThriftError("not Thrift's binary protocol")


def _kind(value: Any) -> int:
    return {bool: _BOOL, int: _I32, str: _STRING, list: _LIST, ThriftMap: _MAP, dict: _STRUCT}[type(value)]


def _encoded(value: Any) -> bytes:
    kind = _kind(value)
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    if kind == _STRING:
        text: bytes = value.encode("utf-8", "replace")
        return struct.pack(">i", len(text)) + text
    if kind == _LIST:
        each = _kind(value[0]) if value else _STRUCT
        return struct.pack(">bi", each, len(value)) + b"".join(map(_encoded, value))
    if kind == _MAP:
        pairs = (_encoded(key) + _encoded(each) for key, each in value.items())
        return struct.pack(">bbi", _STRING, _STRING, len(value)) + b"".join(pairs)
    fields = (struct.pack(">bh", _kind(each), number) + _encoded(each) for number, each in value.items())
    return b"".join(fields) + b"\0"
