"""How far tables are behind, and how long the slot can wait: arithmetic of LSNs and times, and its sentences.

Lags are bytes of WAL and seconds; None means unknown. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.protocol.lsn import LSN
from pipeline.units import format_byte_rate, format_duration, format_size

if TYPE_CHECKING:
    from pipeline.bronze.activity import Mark
    from pipeline.postgres.replication.slot_status import SourceStatus


def lag_bytes(applied: LSN, end: LSN) -> int:
    """Return the bytes of WAL between a table's offset and an end."""
    return max(0, end - applied)


def lag_seconds(applied: LSN, end: LSN, commit_time: datetime | None, now: datetime) -> float | None:
    """Return the time since the newest applied transaction committed, 0 if nothing lies beyond it.

    It is never less than the true lag, and grows while the source writes WAL without committing changes.
    """
    if applied >= end:
        return 0.0
    return None if commit_time is None else max(0.0, (now - commit_time).total_seconds())


def wal_rate(since: Mark | None, source: SourceStatus) -> float | None:
    """Return the bytes of WAL that the source wrote per second since a mark."""
    if since is None:
        return None
    seconds = (source.now - since.time).total_seconds()
    return max(0, source.wal_lsn - since.lsn) / seconds if seconds >= 1.0 else None


def seconds_until_limit(source: SourceStatus, rate: float | None) -> float | None:
    """Return how long until the slot may lose WAL if no job reads it and the rate stays."""
    if source.keep_size is None or source.slot is None or source.safe_size is None or source.slot.is_lost:
        return None
    if source.safe_size <= 0:
        return 0.0
    return source.safe_size / rate if rate else None


def slot_lines(source: SourceStatus, slot_name: str, rate: float | None) -> list[str]:
    """Return two or three lines about the slot, the WAL retained for it, and its limit."""
    slot = source.slot
    if slot is None:
        return [f"slot {slot_name}: does not exist on the server, whose WAL ends at {source.wal_lsn}"]
    facts = [
        f"slot {slot_name}: {'active' if slot.is_active else 'not active'}",
        f"restart_lsn {slot.restart_lsn or 'not set'}",
        f"confirmed_flush_lsn {slot.confirmed_flush_lsn or 'not set'}",
    ]
    if slot.is_lost:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        return [
            ", ".join(facts),
            f"WAL ends at {source.wal_lsn}. The slot is lost{reason}, and the WAL it retained is gone. "
            "See source.lost_slot.",
        ]
    return [", ".join(facts), _wal_line(source, slot.wal_status, rate), f"limit: {_limit(source, rate)}"]


def _wal_line(source: SourceStatus, wal_status: str | None, rate: float | None) -> str:
    retained = "unknown" if source.retained_size is None else format_size(source.retained_size)
    status = f" ({wal_status})" if wal_status else ""
    written = "" if rate is None else f", {format_byte_rate(rate)}"
    return f"WAL: {retained} retained for the slot{status}, ends at {source.wal_lsn}{written}"


def _limit(source: SourceStatus, rate: float | None) -> str:
    if source.keep_size is None:
        return "max_slot_wal_keep_size is unlimited. A slot that no job reads fills the disk."
    limit = f"max_slot_wal_keep_size {format_size(source.keep_size)}"
    if source.safe_size is None:
        return f"{limit}; the server does not report how much is left"
    if source.safe_size <= 0:
        return f"{limit} is reached. The slot can be lost at the next checkpoint."
    seconds = seconds_until_limit(source, rate)
    if seconds is not None:
        forecast = f"{format_duration(seconds)} at this rate"
    else:
        forecast = "time remaining unknown (no recent WAL rate)" if rate is None else "no WAL is written"
    return f"{limit}; {format_size(source.safe_size)} left; {forecast}"
