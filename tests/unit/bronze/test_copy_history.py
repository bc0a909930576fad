"""Which copy silver may begin with, and in which order what became of copies is read."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.bronze.copy_states import (
    COMPLETE,
    DROPPED,
    READING,
    Comparison,
    CopyHistory,
    CopyRequest,
    CopyState,
    Gap,
    SnapshotChunks,
    rewritten_before,
)
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

NAME = TableName("public", "t")


def history_of(states: Sequence[CopyState], *gaps: Gap) -> CopyHistory:
    return CopyHistory({NAME: states}, gaps)


def copy(number: int, *lsns: int, state: str = COMPLETE, keys: tuple[KeyRange, ...] = ()) -> CopyState:
    readings = [SnapshotChunks(LSN(lsn), (), 0, ()) for lsn in lsns]
    return CopyState(number, NAME, state, 1, 1, 1, readings, key_ranges=keys)


def newest(copies: CopyHistory, before: int | None = None) -> int | None:
    found = copies.newest(None if before is None else LSN(before)).get(NAME)
    return found.id if found else None


def test_the_newest_complete_copy_of_the_whole_table_counts() -> None:
    keys = (KeyRange(("1",), ("2",)),)
    copies = history_of([copy(1, 50), copy(2, 60, 70), copy(3, 80, keys=keys), copy(4, 90, state=READING)])
    assert newest(copies) == 2


def test_silver_never_begins_with_a_copy_that_lies_beyond_it() -> None:
    copies = history_of([copy(1, 50), copy(2, 60, 70)])
    assert [newest(copies, before) for before in (50, 51, 70, 71)] == [None, 1, 1, 2]


def test_a_copy_before_a_gap_counts_up_to_the_gap_only() -> None:
    copies = history_of([copy(1, 50), copy(2, 150)], Gap(LSN(100), LSN(130), ""))
    assert [newest(copies, before) for before in (100, 101, 150, 151)] == [1, None, None, 2]
    at_its_end = history_of([copy(1, 129)], Gap(LSN(100), LSN(130), ""))
    assert newest(at_its_end, 131) == 1


def test_a_comparison_closes_the_gap_of_its_table_from_its_snapshot_on() -> None:
    gap, found = Gap(LSN(100), LSN(130), ""), Comparison(LSN(130), LSN(150), 1, 7, ("r",))
    request = CopyRequest("r", NAME, CopyRequest.after_gap(NAME, LSN(130)).reason)
    copies = replace(history_of([copy(1, 50)], gap), comparisons={NAME: [found]}, requests=(request,))
    assert request.compares
    assert [newest(copies, before) for before in (101, 150, 151)] == [None, None, 1]
    assert copies.open_requests == {}
    assert copies.is_complete(NAME, 1, 7)
    assert not copies.is_complete(NAME, 1, 1)
    assert copies.republished_since(NAME, 1, 7) is None
    assert not copies.is_older(NAME, LSN(140))
    later = replace(copies, gaps=(gap, Gap(LSN(200), LSN(210), "")))
    assert not later.is_complete(NAME, 1, 7)
    assert newest(later, 300) is None


def test_rewrites_are_compared_together_unless_more_is_requested() -> None:
    rewrites = [CopyRequest.after_rewrite(NAME, LSN(lsn)) for lsn in (0x1B0, 0x1A0)]
    assert all(request.compares and not request.closes_gap for request in rewrites)
    assert rewritten_before(rewrites) == LSN(0x1B0)
    assert rewritten_before([*rewrites, CopyRequest.of(NAME, "requested")]) is None
    assert rewritten_before([]) is None
    assert CopyRequest.after_gap(NAME, LSN(130)).closes_gap


def dropped(number: int, lsn: int) -> CopyState:
    return CopyState(number, NAME, DROPPED, dropped_at=LSN(lsn))


def test_a_dropped_table_that_is_back_is_listed_until_it_is_copied_again() -> None:
    def is_returning(states: Sequence[CopyState], end_lsn: int = 1000) -> bool:
        copies = history_of(states)
        return NAME in copies.returning(copies.newest(LSN(end_lsn)), LSN(end_lsn))

    assert not is_returning([copy(1, 50), copy(2, 60, state=READING)])
    assert not is_returning([copy(1, 50), dropped(2, 100)])
    back = [copy(1, 50), dropped(2, 100), copy(3, 200, state=READING)]
    assert is_returning(back)
    assert not is_returning(back, end_lsn=99)
    copied = [*back[:2], copy(3, 200)]
    assert [is_returning(copied, end_lsn) for end_lsn in (150, 200, 201)] == [True, True, False]


def test_a_request_is_open_until_its_copy_is_complete_or_dropped() -> None:
    requests = [
        CopyRequest(name, NAME, "it was requested") for name in ("read", "copied", "dropped", "later")
    ]
    states = [copy(1, 50, state=READING), copy(2, 60), dropped(3, 70)]
    for state, request in zip(states, requests, strict=False):
        state.requests = (request.id,)
    history = CopyHistory({NAME: states}, (), tuple(requests))
    assert history.open_requests == {NAME: [requests[0], requests[3]]}
    assert CopyHistory({}, (), tuple(requests)).open_requests == {NAME: requests}


def test_a_copy_is_complete_only_as_published_now_and_after_the_last_gap() -> None:
    copies = history_of([copy(1, 50)])
    assert copies.is_complete(NAME, 1, 1)
    assert not copies.is_complete(NAME, 2, 1)
    assert not copies.is_complete(NAME, 1, 2)
    assert not history_of([copy(1, 50)], Gap(LSN(100), LSN(130), "")).is_complete(NAME, 1, 1)
    assert not history_of([copy(1, 50), dropped(2, 60)]).is_complete(NAME, 1, 1)
    assert not history_of([]).is_complete(NAME, 1, 1)
