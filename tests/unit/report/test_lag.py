"""Lag of tables and forecast of the slot: every case of the arithmetic and of its sentences."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from pipeline.bronze.activity import Mark
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.replication.slot_status import SourceStatus
from pipeline.postgres.replication.wal_holder import WalHolder
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import lag_bytes, lag_seconds, seconds_until_limit, slot_lines, wal_rate

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


@pytest.mark.promise("lag")
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
    assert seconds_until_limit(state, rate) == left


@pytest.mark.parametrize(
    ("state", "rate", "lines"),
    [
        (source(slot()), None, [
            "WAL: 3.0 MiB retained for the slot (reserved), ends at 0/400000",
            "limit: max_slot_wal_keep_size is unlimited. A slot that no job reads fills the disk.",
        ]),
        (source(slot(MIB), 2 * MIB), 1024.0, [
            "WAL: 3.0 MiB retained for the slot (reserved), ends at 0/400000, 1 KiB/s",
            "limit: max_slot_wal_keep_size 2.0 MiB; 1.0 MiB left; 17 min 04 s at this rate",
        ]),
        (source(slot(MIB), 2 * MIB), None, [
            "WAL: 3.0 MiB retained for the slot (reserved), ends at 0/400000",
            "limit: max_slot_wal_keep_size 2.0 MiB; 1.0 MiB left; "
            "time remaining unknown (no recent WAL rate)",
        ]),
        (source(slot(MIB), 2 * MIB), 0.0, [
            "WAL: 3.0 MiB retained for the slot (reserved), ends at 0/400000, 0 B/s",
            "limit: max_slot_wal_keep_size 2.0 MiB; 1.0 MiB left; no WAL is written",
        ]),
        (source(slot(0, status="unreserved"), 2 * MIB), 0.0, [
            "WAL: 3.0 MiB retained for the slot (unreserved), ends at 0/400000, 0 B/s",
            "limit: max_slot_wal_keep_size 2.0 MiB is reached. The slot can be lost at the next checkpoint.",
        ]),
        (source(slot(None), MIB), 1.0, [
            "WAL: 3.0 MiB retained for the slot (reserved), ends at 0/400000, 1 B/s",
            "limit: max_slot_wal_keep_size 1.0 MiB; the server does not report how much is left",
        ]),
        (source(slot(None, status="lost", reason="wal_removed"), MIB), 1.0, [
            "WAL ends at 0/400000. The slot is lost (wal_removed), and the WAL it retained is gone. "
            "See source.lost_slot.",
        ]),
    ],
)  # fmt: skip
def test_the_slot_is_described_by_lines(state: SourceStatus, rate: float | None, lines: list[str]) -> None:
    first, *others = slot_lines(state, "shop", rate)
    assert first == "slot shop: active, restart_lsn 0/100000, confirmed_flush_lsn 0/200000"
    assert others == lines


def test_what_holds_the_wal_back_has_a_line() -> None:
    held = replace(source(slot()), holder=WalHolder("The transaction of PID 7 keeps it.", 3 * MIB))
    assert slot_lines(held, "shop", None)[2] == "held back: The transaction of PID 7 keeps it."


def test_a_missing_slot_is_named() -> None:
    assert slot_lines(source(None), "shop", None) == [
        "slot shop: does not exist on the server, whose WAL ends at 0/400000"
    ]


def test_an_old_server_reports_no_wal_status() -> None:
    first, wal, _ = slot_lines(source(slot(status=None, active=False)), "shop", None)
    assert first == "slot shop: not active, restart_lsn 0/100000, confirmed_flush_lsn 0/200000"
    assert wal == "WAL: 3.0 MiB retained for the slot, ends at 0/400000"
