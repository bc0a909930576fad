"""The messages around pgoutput in a replication session: XLogData, keepalive, standby status update.

Layouts follow the page "Streaming Replication Protocol". XLogData is `w`, start LSN, end LSN, send time,
payload; its LSNs are not read, because they are 0 for some messages. A keepalive is `k`, end of WAL, send
time, reply flag. A status update is `r`, the LSNs written, flushed and applied, send time, reply flag. Times
are microseconds since 2000-01-01 UTC.
"""

from __future__ import annotations

import struct
import time
from typing import Final

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS

XLOGDATA: Final = ord("w")
XLOGDATA_HEADER_SIZE: Final = 25

_KEEPALIVE = struct.Struct(">cQqB")
_STATUS_UPDATE = struct.Struct(">cQQQqB")


def decode_keepalive(data: memoryview) -> tuple[LSN, bool] | None:
    """Return the LSN that the server has decoded to, and whether it requests a reply; None for other data."""
    if len(data) != _KEEPALIVE.size or data[0] != ord("k"):
        return None
    _, wal_end, _, reply = _KEEPALIVE.unpack(data)
    return LSN(wal_end), bool(reply)


def encode_status_update(written: LSN, flushed: LSN, *, reply: bool) -> bytes:
    """Return a status update; only `flushed` moves the slot, and `reply` requests a keepalive at once."""
    now = time.time_ns() // 1000 - POSTGRES_EPOCH_MICROSECONDS
    return _STATUS_UPDATE.pack(b"r", written, flushed, flushed, now, reply)
