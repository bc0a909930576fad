"""Log sequence numbers (LSN): 64-bit integers with the text form of PostgreSQL's `pg_lsn`.

An `LSN` is stored, compared and sorted as an integer and printed as `pg_lsn` is. The text form is for people
and for SQL; it does not sort (`0/9` is before `0/10`).
"""

import re

from pipeline.errors import ProtocolError

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LSN(int):
    """A byte offset in the write-ahead log, counted from its beginning."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "LSN":
        """Return the LSN that PostgreSQL writes as `text`; raise ProtocolError for any other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ProtocolError(
                f"{text!r} is not an LSN. Write two hexadecimal numbers, such as 16/B374D848."
            )
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        """Return the text form of `pg_lsn`, such as `16/B374D848`."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        """Return `LSN('16/B374D848')`."""
        return f"LSN('{self}')"


INVALID = LSN(0)
"""`InvalidXLogRecPtr`: no LSN."""
