"""Which events leave a table in doubt, and what settles them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest

from pipeline.bronze.copy_states import (
    COMPLETE,
    DROPPED,
    READING,
    Comparison,
    CopyHistory,
    CopyRequest,
    CopyState,
    SnapshotChunks,
)
from pipeline.key_ranges import KeyRange
from pipeline.metadata.events import Event
from pipeline.protocol.lsn import LSN
from pipeline.silver.doubts import Doubt, find_doubts
from pipeline.table_name import TableName

NAME = TableName("public", "t")
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
KEYS = (KeyRange(("1",), ("1",)),)
REPAIR = CopyRequest.repair(NAME, KEYS)
OF_A_PERSON = CopyRequest.of(NAME, "it was requested", KEYS)


def event(lsn: int, kind: str, minute: int = 0) -> Event:
    recorded_at = NOON + timedelta(minutes=minute)
    return Event(*NAME, LSN(lsn), kind, f"{kind} at {lsn}.", recorded_at)


def copy(lsn: int, state: str = COMPLETE, request: CopyRequest | None = None) -> CopyState:
    ranges, ids = (request.key_ranges, (request.id,)) if request else ((), ())
    snapshots = [SnapshotChunks(LSN(lsn), (), 0, ())]
    return CopyState(lsn, NAME, state, 1, 1, 1, snapshots, key_ranges=ranges, requests=ids)


def history(*copies: CopyState, compared: int | None = None) -> CopyHistory:
    comparisons = {} if compared is None else {NAME: [Comparison(LSN(1), LSN(compared), 1, 1)]}
    return CopyHistory({NAME: copies}, requests=(REPAIR, OF_A_PERSON), comparisons=comparisons)


@pytest.mark.parametrize(
    ("copies", "verified", "is_settled"),
    [
        (history(copy(5)), {}, False),
        (history(copy(5), copy(10)), {}, True),
        (history(copy(5), copy(10, READING)), {}, False),
        (history(copy(5), copy(10, DROPPED)), {}, True),
        (history(copy(5), compared=9), {}, False),
        (history(copy(5), compared=10), {}, True),
        (history(copy(5), copy(10, request=OF_A_PERSON)), {}, False),
        (history(copy(5), copy(10, request=REPAIR)), {}, True),
        (history(copy(5), copy(10, READING, REPAIR)), {}, False),
        (history(copy(5)), {NAME: LSN(9)}, False),
        (history(copy(5)), {NAME: LSN(10)}, True),
    ],
)
def test_a_copy_or_comparison_of_all_that_may_differ_settles(
    copies: CopyHistory, verified: Mapping[TableName, LSN], is_settled: bool
) -> None:
    for kind in ("resync", "diverged"):
        doubts = find_doubts([event(10, kind)], copies, verified)
        assert doubts == ({} if is_settled else {NAME: Doubt(NOON, LSN(10), f"{kind} at 10.")})


def test_a_doubt_lasts_since_the_first_event_and_has_the_newest_sentence() -> None:
    events = [event(3, "resync"), event(10, "resync", 1), event(12, "diverged", 2), event(14, "evolved", 3)]
    found = find_doubts(events, history(copy(5)), {})
    assert found == {NAME: Doubt(NOON + timedelta(minutes=1), LSN(12), "diverged at 12.")}
