"""From which copy a table is built as of an LSN, and where bronze cannot show it."""

from typing import Any

import pytest

from pipeline.bronze.copy_states import COMPLETE, DROPPED, CopyHistory, CopyState, Gap, SnapshotChunks
from pipeline.bronze.source_relations import SourceRelation
from pipeline.errors import LakeError
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.read.past_copies import PastFacts, copy_as_of
from pipeline.table_name import TableName

NAME = TableName("public", "t")
RELATION = SourceRelation(1, 1, "public", "t", "d", (), lsn=10)


def copied(number: int, lsn: int, *, keys: bool = False) -> CopyState:
    ranges = (KeyRange(("1",), ("2",)),) if keys else ()
    snapshot = SnapshotChunks(LSN(lsn), (), 0, ())
    return CopyState(number, NAME, COMPLETE, 1, 1, 1, [snapshot], key_ranges=ranges)


def dropped(number: int, lsn: int) -> CopyState:
    return CopyState(number, NAME, DROPPED, dropped_at=LSN(lsn))


def facts(*states: CopyState, gaps: tuple[Gap, ...] = (), **other: Any) -> PastFacts:
    history = CopyHistory({NAME: states} if states else {}, gaps)
    return PastFacts(
        **{
            "name": NAME,
            "captured_lsn": LSN(100),
            "base_lsn": INVALID,
            "history": history,
            "relations": [RELATION],
            "is_copied": True,
            **other,
        }
    )


def chosen(found: PastFacts, lsn: int) -> int | None:
    copy = copy_as_of(found, LSN(lsn))
    return copy.id if copy else None


def test_the_newest_copy_before_an_lsn_is_chosen() -> None:
    found = facts(copied(1, 10), copied(2, 30), copied(3, 40, keys=True), copied(4, 60))
    assert [chosen(found, lsn) for lsn in (11, 30, 31, 60, 61, 100)] == [1, 1, 2, 2, 4, 4]


def test_a_source_that_is_not_copied_is_built_from_its_first_change() -> None:
    found = facts(is_copied=False)
    assert [chosen(found, lsn) for lsn in (10, 100)] == [None, None]
    assert chosen(facts(copied(2, 30), is_copied=False), 40) == 2


GAP = Gap(LSN(40), LSN(50), "The slot was lost.")


@pytest.mark.promise("rebuild to any LSN")
@pytest.mark.parametrize(
    ("found", "lsn", "reason"),
    [
        (facts(copied(1, 10)), 101, "complete up to 0/64 only"),
        (facts(copied(1, 10), base_lsn=LSN(30)), 29, "every change of it from 0/1E on only"),
        (facts(is_copied=False), 9, "bronze has it from 0/A on"),
        (facts(relations=[]), 50, "bronze does not have it"),
        (facts(copied(1, 30)), 30, "its first copy shows 0/1E"),
        (facts(), 30, "has no complete copy of it"),
        (facts(copied(1, 10), gaps=(GAP,)), 41, "a gap from 0/28 to 0/32"),
        (facts(copied(1, 10), gaps=(GAP,)), 60, "a gap from 0/28 to 0/32"),
        (facts(is_copied=False, gaps=(GAP,)), 60, "a gap from 0/28 to 0/32"),
        (facts(copied(1, 10), dropped(2, 50)), 50, "it was not published at 0/32"),
        (facts(copied(1, 10), dropped(2, 50), copied(3, 70)), 60, "it was not published at 0/32"),
    ],
)
def test_an_lsn_that_bronze_does_not_show_is_refused_with_the_reason(
    found: PastFacts, lsn: int, reason: str
) -> None:
    with pytest.raises(LakeError, match=r"^Table public\.t cannot be built as of .*\. .*\.$") as error:
        copy_as_of(found, LSN(lsn))
    assert reason in str(error.value)


def test_a_gap_or_a_drop_is_no_obstacle_before_it_or_after_the_next_copy() -> None:
    lost = facts(copied(1, 10), copied(2, 60), gaps=(GAP,))
    assert [chosen(lost, lsn) for lsn in (40, 61)] == [1, 2]
    back = facts(copied(1, 10), dropped(2, 50), copied(3, 70))
    assert [chosen(back, lsn) for lsn in (49, 71)] == [1, 3]
    later = SourceRelation(1, 1, "public", "t", "d", (), lsn=55)
    assert chosen(facts(is_copied=False, gaps=(GAP,), relations=[later]), 60) is None
