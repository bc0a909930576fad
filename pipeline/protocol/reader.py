"""A place in the bytes of one message, and the reading of one field after another from there.

Every read names its field: what is cut short or has a meaning that is not known is a ProtocolError with the
message, the field and its offset. The kinds of fields are those of "Message Data Types" and TupleData.
"""

import struct
from typing import Any, cast

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import UNSENT, Binary, Cell, Tuple

_INT8 = struct.Struct(">B")
_INT16 = struct.Struct(">H")
_INT32 = struct.Struct(">I")
_INT64 = struct.Struct(">Q")


class Reader:
    """A place in the bytes of one message; every read names its field, for the error if it is cut short."""

    __slots__ = ("_data", "_message", "offset")

    def __init__(self, data: bytes, message: str) -> None:
        """Stand behind the type byte of `data`, which errors call a `message`."""
        self._data = data
        self._message = message
        self.offset = 1

    @property
    def is_at_end(self) -> bool:
        """Tell whether all of the message has been read."""
        return self.offset == len(self._data)

    def error(self, field: str, offset: int, fault: str) -> ProtocolError:
        """Return the sentence for a `fault` of `field`, which begins at `offset`."""
        return ProtocolError(f"{self._message} message: {field} at byte {offset}: {fault}")

    def read_struct(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """Read all of `layout` at once."""
        offset = self.offset
        end = offset + layout.size
        if end > len(self._data):
            raise self.error(field, offset, f"{layout.size} bytes wanted, {len(self._data) - offset} left")
        self.offset = end
        return layout.unpack_from(self._data, offset)

    def read_int8(self, field: str) -> int:
        """Read one byte."""
        return cast(int, self.read_struct(_INT8, field)[0])

    def read_int16(self, field: str) -> int:
        """Read an unsigned 16-bit integer."""
        return cast(int, self.read_struct(_INT16, field)[0])

    def read_int32(self, field: str) -> int:
        """Read an unsigned 32-bit integer: an oid, an xid, a length."""
        return cast(int, self.read_struct(_INT32, field)[0])

    def read_lsn(self, field: str) -> LSN:
        """Read a position."""
        return LSN(self.read_struct(_INT64, field)[0])

    def read_tag(self, field: str, legal: str) -> str:
        """Read one byte that must be one of the ASCII letters in `legal`."""
        offset = self.offset
        tag = chr(self.read_int8(field))
        if tag not in legal:
            raise self.error(field, offset, f"0x{ord(tag):02X} is none of {', '.join(legal)}")
        return tag

    def read_flags(self, field: str, known: int) -> int:
        """Read a byte of flags, of which only the bits in `known` may be set."""
        offset = self.offset
        flags = self.read_int8(field)
        if flags & ~known:
            raise self.error(field, offset, f"flags 0x{flags:02X} have a meaning that is not known")
        return flags

    def read_string(self, field: str) -> str:
        """Read up to a NUL; bytes that are not UTF-8 become lone surrogates."""
        offset = self.offset
        end = self._data.find(b"\0", offset)
        if end < 0:
            raise self.error(field, offset, "no NUL before the message ends")
        self.offset = end + 1
        return self._data[offset:end].decode("utf-8", "surrogateescape")

    def read_bytes(self, field: str) -> bytes:
        """Read a 32-bit length and that many bytes."""
        length = self.read_int32(f"length of {field}")
        offset = self.offset
        end = offset + length
        if end > len(self._data):
            raise self.error(field, offset, f"{length} bytes wanted, {len(self._data) - offset} left")
        self.offset = end
        return self._data[offset:end]

    def read_tuple(self, field: str) -> Tuple:
        """Read TupleData: a number of columns and, for each, its kind and value."""
        count = self.read_int16(f"number of columns of the {field}")
        return tuple([self._read_cell(f"column {column} of the {field}") for column in range(1, count + 1)])

    def _read_cell(self, field: str) -> Cell:
        match self.read_tag(f"kind of {field}", "nutb"):
            case "n":
                return None
            case "u":
                return UNSENT
            case "t":
                return self.read_bytes(field)
            case _:
                return Binary(self.read_bytes(field))

    def finish(self) -> None:
        """Raise ProtocolError if the message goes on behind its last field."""
        if not self.is_at_end:
            raise self.error("end", self.offset, f"{len(self._data) - self.offset} bytes too many")
