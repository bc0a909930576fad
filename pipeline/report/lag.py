"""How far a table is behind, and how long the source can wait: pure arithmetic of positions and times.

Seconds and bytes; None is what nobody knows.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.protocol.lsn import LSN
from pipeline.report.progress import duration_text, size_text

if TYPE_CHECKING:
    from pipeline.bronze.activity import Mark
    from pipeline.postgres.replication.slot_status import SourceStatus

_DAY = 86400.0


def lag_bytes(applied: LSN, end: LSN) -> int:
    """Return the bytes of the source's log between a table and an end."""
    return max(0, end - applied)


def lag_seconds(applied: LSN, end: LSN, commit_time: datetime | None, now: datetime) -> float | None:
    """Return how long ago the last transaction was committed that is applied, 0 where none lies beyond.

    A source that commits nothing while its log goes on lets it grow: it is never less than the true lag.
    """
    if applied >= end:
        return 0.0
    return None if commit_time is None else max(0.0, (now - commit_time).total_seconds())


def wal_rate(since: Mark | None, source: SourceStatus) -> float | None:
    """Return the bytes a second by which the source's log has grown since a mark."""
    if since is None:
        return None
    seconds = (source.now - since.time).total_seconds()
    return max(0, source.wal_lsn - since.lsn) / seconds if seconds >= 1.0 else None


def seconds_remaining(source: SourceStatus, rate: float | None) -> float | None:
    """Return how long until the slot may lose WAL, if it stays where it is and the rate holds."""
    if source.keep_size is None or source.slot is None or source.safe_size is None or source.slot.is_lost:
        return None
    if source.safe_size <= 0:
        return 0.0
    return source.safe_size / rate if rate else None


def source_lines(source: SourceStatus, slot_name: str, rate: float | None) -> list[str]:
    """Return what there is to say of the slot and of the WAL that it keeps."""
    slot = source.slot
    if slot is None:
        return [f"slot {slot_name}: there is none on the server, whose log ends at {source.wal_lsn}"]
    facts = [
        f"slot {slot_name}: {'active' if slot.is_active else 'not active'}",
        f"restarts at {slot.restart_lsn or 'nothing'}",
        f"confirmed {slot.confirmed_flush_lsn or 'nothing'}",
        f"the server's log ends at {source.wal_lsn}",
    ]
    if slot.wal_status:
        facts.append(f"WAL {slot.wal_status}")
    if slot.is_lost:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        return [", ".join(facts), f"the slot is lost{reason}: what it kept is gone; see source.lost_slot"]
    retained = "unknown" if source.retained_size is None else size_text(source.retained_size)
    grows = "" if rate is None else f", {size_text(round(rate))} a second are written"
    return [", ".join(facts), f"WAL kept for it: {retained}{grows}; {_limit(source, rate)}"]


def _limit(source: SourceStatus, rate: float | None) -> str:
    if source.keep_size is None:
        return "max_slot_wal_keep_size is unlimited: a slot that stands still fills the disk"
    limit = f"max_slot_wal_keep_size {size_text(source.keep_size)}"
    safe = source.safe_size
    if safe is None:
        return f"{limit}; how much more the server does not say"
    if safe <= 0:
        return f"{limit} is reached: the slot can be lost at the next checkpoint"
    left = seconds_remaining(source, rate)
    how_long = "at the present rate never" if rate == 0 else "nobody knows for how long"
    if left is not None:
        how_long = f"at the present rate for {long_text(left)}"
    return f"{limit}: {size_text(safe)} more, {how_long}"


def long_text(seconds: float) -> str:
    """Return a time in its unit, days among them."""
    return f"{seconds / _DAY:,.1f} days" if seconds >= 2 * _DAY else duration_text(seconds)
