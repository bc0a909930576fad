"""What travels around the messages in a replication session: keepalives and standby status updates.

Wire (page "Streaming Replication Protocol"): XLogData `w` start u64 end u64 time i64 payload; keepalive `k`
wal_end u64 time i64 reply u8; status update `r` written, flushed, applied u64 time i64 reply u8. Times are
microseconds since 2000-01-01 UTC. The LSNs of XLogData are not read: they are 0 for some messages.
"""

from __future__ import annotations

import struct
import time
from typing import Final

from pipeline.protocol.lsn import LSN

XLOGDATA: Final = ord("w")
XLOGDATA_HEADER_SIZE: Final = 25

_STATUS = struct.Struct(">cQQQqB")
_KEEPALIVE = struct.Struct(">cQqB")
_POSTGRES_EPOCH = 946_684_800


def read_keepalive(data: memoryview) -> tuple[LSN, bool] | None:
    """Return how far the server has read, and whether it wants an answer; None when it is no keepalive."""
    if len(data) != _KEEPALIVE.size or data[0] != ord("k"):
        return None
    _, wal_end, _, reply = _KEEPALIVE.unpack(data)
    return LSN(wal_end), bool(reply)


def write_status(written: LSN, flushed: LSN, *, reply: bool) -> bytes:
    """Return a status update; only `flushed` moves the slot. `reply` asks for a keepalive at once."""
    now = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
    return _STATUS.pack(b"r", written, flushed, flushed, now, reply)
