"""Positions in the write-ahead log: a 64-bit integer with PostgreSQL's text form.

An `LSN` compares, sorts and stores as the integer it is, and prints as `pg_lsn` does. The text form is for
people and for SQL; it does not sort (`0/9` is before `0/10`).
"""

import re

from pipeline.errors import ProtocolError

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LSN(int):
    """A position in the write-ahead log, in bytes from its beginning."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "LSN":
        """Return the position that PostgreSQL writes as `text`; raise ProtocolError for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ProtocolError(f"{text!r} is not an LSN: two hexadecimal numbers like 16/B374D848")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        """Return the text form of `pg_lsn`, like `16/B374D848`."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        """Return `LSN('16/B374D848')`."""
        return f"LSN('{self}')"


INVALID = LSN(0)
"""`InvalidXLogRecPtr`: no position."""
