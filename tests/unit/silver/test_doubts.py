"""Which events leave a table in doubt, and what settles them."""

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
from pipeline.metadata.reconciliations import PROVE, Compared, ComparedAt
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


def equal_at(lsn: int) -> Compared:
    found = ComparedAt(LSN(lsn), NOON, PROVE)
    return Compared(found, found)


@pytest.mark.parametrize(
    ("copies", "compared", "is_settled"),
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
        (history(copy(5)), {NAME: equal_at(9)}, False),
        (history(copy(5)), {NAME: equal_at(10)}, True),
    ],
)
def test_a_copy_or_comparison_of_all_that_may_differ_settles(
    copies: CopyHistory, compared: Mapping[TableName, Compared], is_settled: bool
) -> None:
    for kind in ("resync", "diverged"):
        doubts = find_doubts([event(10, kind)], copies, compared)
        assert doubts == ({} if is_settled else {NAME: Doubt(NOON, LSN(10), f"{kind} at 10.")})


def test_a_doubt_lasts_since_the_first_event_and_has_the_newest_sentence() -> None:
    events = [event(3, "resync"), event(10, "resync", 1), event(12, "diverged", 2), event(14, "evolved", 3)]
    found = find_doubts(events, history(copy(5)), {})
    assert found == {NAME: Doubt(NOON + timedelta(minutes=1), LSN(12), "diverged at 12.")}


@pytest.mark.parametrize(
    ("copies", "is_settled"),
    [
        (history(copy(5)), False),
        (history(copy(5), copy(10)), True),
        (history(copy(5), copy(11, request=REPAIR)), True),
        (history(copy(5), copy(11, DROPPED)), True),
    ],
)
def test_a_table_that_was_found_to_differ_is_in_doubt_until_it_is_copied(
    copies: CopyHistory, is_settled: bool
) -> None:
    equal = ComparedAt(LSN(7), NOON, PROVE)
    different = ComparedAt(LSN(10), NOON + timedelta(hours=1), PROVE)
    compared = {NAME: Compared(different, equal, different)}
    doubts = find_doubts([], copies, compared)
    sentence = (
        f"Table {NAME} differed from its source at 0/A (prove). Run {NAME.command('reconcile')} --repair."
    )
    assert doubts == ({} if is_settled else {NAME: Doubt(NOON + timedelta(hours=1), LSN(10), sentence)})
