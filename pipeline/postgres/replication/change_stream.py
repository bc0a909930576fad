"""The face that both delivery routes show to ingest: pgoutput messages in, acknowledgements out.

A stream hands over the raw messages of one replication slot, in the order of the server. It never decodes
them, but for the one field that says how far a transaction reaches: the end LSN in the message that ends it.

An acknowledgement tells the slot to forget. It is therefore refused beyond what was received: the server
would accept it, and lose the rows between for good.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from pipeline.errors import SourceError
from pipeline.protocol.lsn import INVALID, LSN

#: A batch of read() ends at the first of these two.
BATCH_MESSAGES = 10_000
BATCH_BYTES = 16 * 1024 * 1024

#: Message byte → offset of the end LSN in it: the messages after which the slot may be moved, once what they
#: end is kept. After a Prepare (P, p) that is the transaction itself: the server does not send it again. A
#: Stream Abort ends nothing that was to be kept.
END_LSN_OFFSETS: dict[int, int] = {
    ord("C"): 10,
    ord("c"): 14,
    ord("P"): 10,
    ord("K"): 10,
    ord("r"): 10,
    ord("p"): 10,
}

_UINT64 = struct.Struct(">Q")


class ChangeStream(Protocol):
    """The messages of one slot, by either route."""

    @property
    def received_lsn(self) -> LSN:
        """Everything committed at or before this LSN has been returned by read() already."""

    @property
    def needs_acknowledgement(self) -> bool:
        """Nothing more comes until what was read has been acknowledged (the SQL route only)."""

    @property
    def session(self) -> int:
        """The number of the server's session that the messages of the last read() came from.

        With another one, relations are described anew, and what streams were left open is void.
        """

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none once `timeout` seconds passed or received_lsn moved."""

    def acknowledge(self, lsn: LSN) -> None:
        """Let the slot forget what was committed at or before `lsn`; refuse an LSN not yet received."""

    def ping(self) -> None:
        """Ask the server to say now how far it has read."""

    def confirm(self, timeout: float) -> bool:
        """Wait until the slot stands at the last acknowledgement; False when `timeout` seconds passed."""

    def close(self) -> None:
        """End the session; what was not acknowledged is sent again to the next one."""


def last_end_lsn(messages: Sequence[bytes]) -> LSN:
    """Return the end LSN of the last transaction that ends in `messages`, INVALID when none does."""
    for message in reversed(messages):
        offset = END_LSN_OFFSETS.get(message[0]) if message else None
        # A short message is left for the decoder, which names the fault.
        if offset is not None and len(message) >= offset + 8:
            return LSN(_UINT64.unpack_from(message, offset)[0])
    return INVALID


def refused_acknowledgement(slot: str, lsn: LSN, received_lsn: LSN) -> SourceError:
    """Return the refusal of an acknowledgement that the server would take, and lose rows by."""
    return SourceError(
        f"Refused to acknowledge {lsn} to the slot {slot}: only {received_lsn} was received; the position"
        " does not come from this stream."
    )
