"""The interface of both routes to ingest: read pgoutput messages, acknowledge LSNs.

A stream returns the raw messages of one replication slot, in the server's order. It decodes only the end LSN
of a message that ends a transaction. An acknowledgement lets the server discard changes. It is refused for an
LSN that was not received: the server would accept it, and the changes up to it would be lost.

`IdleTimeout` detects a server that has stopped sending behind a peer that still answers TCP keepalives, such
as a proxy: it requests a reply halfway through the timeout, and requires one by the end.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Protocol

from pipeline.errors import SourceError
from pipeline.protocol.lsn import INVALID, LSN

IDLE_TIMEOUT = 300.0  # seconds; a server that decodes a long transaction still replies


#: A batch of read() ends at the first of these two limits.
BATCH_MESSAGES = 10_000
BATCH_BYTES = 16 * 1024 * 1024

#: Type byte → offset of the end LSN in the message, for the messages after which the slot may be moved once
#: the transaction is durable. After Prepare (P, p) too: the server does not send the transaction again.
#: Stream Abort is not one of them, because it ends nothing durable.
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
        """The LSN up to which (inclusive) read() has returned everything that was committed."""

    @property
    def needs_acknowledgement(self) -> bool:
        """Whether read() returns nothing more until what it returned is acknowledged (SQL route only)."""

    @property
    def session(self) -> int:
        """The number of the server's decoding session that the last read() belongs to.

        In a new session, relations are described again and streams that were open are discarded.
        """

    def read(self, timeout: float) -> list[bytes]:
        """Return the next messages in order; none if `timeout` seconds passed or only received_lsn moved."""

    def interrupt(self) -> None:
        """Let read() return at once, the one in progress or the next; any thread may call this."""

    def acknowledge(self, lsn: LSN) -> None:
        """Let the server discard changes committed up to `lsn` (inclusive); refuse one not received yet."""

    def ping(self) -> None:
        """Request a keepalive with the LSN that the server has decoded to."""

    def confirm(self, timeout: float) -> bool:
        """Wait until the slot is at the last acknowledgement; return False after `timeout` seconds."""

    def close(self) -> None:
        """End the session; changes that were not acknowledged are sent again to the next one."""


def last_end_lsn(messages: Sequence[bytes]) -> LSN:
    """Return the end LSN of the last transaction that ends in `messages`, INVALID if none does."""
    for message in reversed(messages):
        offset = END_LSN_OFFSETS.get(message[0]) if message else None
        # A message that is too short is left to the decoder, which names the fault.
        if offset is not None and len(message) >= offset + 8:
            return LSN(_UINT64.unpack_from(message, offset)[0])
    return INVALID


def refused_acknowledgement(slot: str, lsn: LSN, received_lsn: LSN) -> SourceError:
    """Return the error for an acknowledgement of an LSN that was not received."""
    return SourceError(
        f"Refused to acknowledge {lsn} to the slot {slot}: changes were received up to {received_lsn} only,"
        " so that LSN is not of this stream."
    )


class IdleTimeout:
    """The time since data was received, and since a reply was requested; by the monotonic clock."""

    def __init__(self, seconds: float = IDLE_TIMEOUT) -> None:
        self.seconds = seconds
        self._received_at = time.monotonic()
        self._requested_at: float | None = None

    def reset(self) -> None:
        """Record that data was received."""
        self._received_at, self._requested_at = time.monotonic(), None

    def needs_reply(self) -> bool:
        """Return whether to request a reply now; if so, the wait for the reply starts."""
        now = time.monotonic()
        if now - self._received_at < self.seconds / 2:
            return False
        self._requested_at = self._requested_at or now
        return True

    @property
    def is_over(self) -> bool:
        """Whether a requested reply is overdue; valid only after all received data was read."""
        return self._requested_at is not None and time.monotonic() - self._requested_at > self.seconds / 2
