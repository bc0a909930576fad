"""How far behind, and how long the source can wait: every case of the arithmetic and of its sentences."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from pipeline.bronze.activity import Mark
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.replication.slot_status import SourceStatus
from pipeline.protocol.lsn import LSN
from pipeline.report.lag import lag_bytes, lag_seconds, long_text, seconds_remaining, source_lines, wal_rate

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
MIB = 1 << 20


def slot(
    safe: int | None = None,
    *,
    status: str | None = "reserved",
    reason: str | None = None,
    active: bool = True,
) -> Slot:
    return Slot(
        "shop",
        "pgoutput",
        "shop",
        False,
        LSN(2 * MIB),
        LSN(MIB),
        17 if active else None,
        wal_status=status,
        safe_wal_size=safe,
        invalidation_reason=reason,
    )


def source(slot: Slot | None, keep_size: int | None = None) -> SourceStatus:
    return SourceStatus(NOW, LSN(4 * MIB), keep_size, slot)


def test_lag_is_nothing_at_the_end_and_since_the_commit_before_it() -> None:
    committed = NOW - timedelta(seconds=90)
    assert lag_seconds(LSN(100), LSN(100), committed, NOW) == 0.0
    assert lag_seconds(LSN(101), LSN(100), None, NOW) == 0.0
    assert lag_seconds(LSN(99), LSN(100), committed, NOW) == 90.0
    assert lag_seconds(LSN(99), LSN(100), None, NOW) is None
    assert lag_seconds(LSN(99), LSN(100), NOW + timedelta(seconds=2), NOW) == 0.0  # clocks differ
    assert (lag_bytes(LSN(60), LSN(100)), lag_bytes(LSN(101), LSN(100))) == (40, 0)


def test_the_rate_is_measured_from_a_commit_to_now() -> None:
    state = source(slot())
    assert wal_rate(None, state) is None
    assert wal_rate(Mark(LSN(MIB), NOW - timedelta(minutes=1)), state) == 3 * MIB / 60
    assert wal_rate(Mark(LSN(4 * MIB), NOW - timedelta(minutes=1)), state) == 0
    assert wal_rate(Mark(LSN(5 * MIB), NOW - timedelta(minutes=1)), state) == 0
    assert wal_rate(Mark(LSN(MIB), NOW - timedelta(seconds=0.5)), state) is None


@pytest.mark.parametrize(
    ("state", "rate", "left"),
    [
        (source(slot(1000), MIB), 10.0, 100.0),
        (source(slot(1000), MIB), 0.0, None),
        (source(slot(1000), MIB), None, None),
        (source(slot(0), MIB), 10.0, 0.0),
        (source(slot(-5), MIB), None, 0.0),
        (source(slot(None)), 10.0, None),
        (source(slot(1000, status="lost"), MIB), 10.0, None),
        (source(None, MIB), 10.0, None),
    ],
)
def test_the_time_left_is_what_is_safe_at_the_rate(
    state: SourceStatus, rate: float | None, left: float | None
) -> None:
    assert seconds_remaining(state, rate) == left


@pytest.mark.parametrize(
    ("state", "rate", "said"),
    [
        (source(slot()), None, "WAL kept for it: 3.0 MiB; max_slot_wal_keep_size is unlimited: a slot that "
         "stands still fills the disk"),
        (source(slot(MIB), 2 * MIB), 1024.0, "WAL kept for it: 3.0 MiB, 1 KiB a second are written; "
         "max_slot_wal_keep_size 2.0 MiB: 1.0 MiB more, at the present rate for 17 min 04 s"),
        (source(slot(MIB), 2 * MIB), None, "WAL kept for it: 3.0 MiB; max_slot_wal_keep_size 2.0 MiB: 1.0 "
         "MiB more, nobody knows for how long"),
        (source(slot(MIB), 2 * MIB), 0.0, "WAL kept for it: 3.0 MiB, 0 B a second are written; "
         "max_slot_wal_keep_size 2.0 MiB: 1.0 MiB more, at the present rate never"),
        (source(slot(0), 2 * MIB), 0.0, "WAL kept for it: 3.0 MiB, 0 B a second are written; "
         "max_slot_wal_keep_size 2.0 MiB is reached: the slot can be lost at the next checkpoint"),
        (source(slot(None, status="lost", reason="wal_removed"), MIB), 1.0, "the slot is lost (wal_removed): "
         "what it kept is gone; see source.lost_slot"),
    ],
)  # fmt: skip
def test_what_is_said_of_the_slot(state: SourceStatus, rate: float | None, said: str) -> None:
    first, second = source_lines(state, "shop", rate)
    assert first.startswith("slot shop: active, restarts at 0/100000, confirmed 0/200000, ")
    assert second == said


def test_a_slot_that_is_not_there_is_named() -> None:
    assert source_lines(source(None), "shop", None) == [
        "slot shop: there is none on the server, whose log ends at 0/400000"
    ]
    idle = source_lines(source(slot(status=None, active=False)), "shop", None)[0]
    assert idle == (
        "slot shop: not active, restarts at 0/100000, confirmed 0/200000, the server's log ends at 0/400000"
    )


def test_long_times_are_days() -> None:
    assert [long_text(s) for s in (3.25, 90, 7200, 86400 * 3.5)] == [
        "3.2 s",
        "1 min 30 s",
        "2 h 00 min",
        "3.5 days",
    ]
