"""A table's next step: each row of the table of decisions, and which of two rows decides."""

from dataclasses import replace
from itertools import pairwise

import pytest

from pipeline.bronze.copy_states import CompleteCopy, Gap
from pipeline.config.tables import Guards
from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import STOPPED, TABLE, FailedAttempt, Step, TableFacts, decide
from pipeline.table_name import TableName

NAME = TableName("public", "orders")
COPY = CompleteCopy(7, 1, (LSN(50),), 10)
KEYS = CompleteCopy(8, 1, (LSN(60),), 2, key_ranges=(KeyRange(("1",), ("2",)),))
GAP = Gap(LSN(10), LSN(20), "The slot was lost.")
# a table at 40 of which nothing is pending up to 100
AT_REST = TableFacts(NAME, LSN(100), LSN(40), counts={})
NONE = {"I": 0, "U": 0, "D": 0, "T": 0}

# row → facts for which it decides, its step and words of its sentence
ROWS: dict[str, tuple[TableFacts, Step, str | None]] = {
    "being written": (replace(AT_REST, is_being_written=True), Step.WRITING, "still writes table"),
    "paused": (replace(AT_REST, paused="Table public.orders is paused."), Step.PAUSE, "is paused"),
    "copy awaited": (replace(AT_REST, waits=True), Step.WAIT, "waits for its copy"),
    "log unreadable": (replace(AT_REST, unreadable="No such file."), Step.FAIL, "No such file."),
    "folder taken": (replace(AT_REST, folder="Another table is there."), Step.HOLD, "Another table"),
    "table replaced": (replace(AT_REST, is_replaced=True), Step.WAIT, "waits for its copy"),
    "backs off": (
        replace(AT_REST, last_stop=FailedAttempt("No space is left.", 39.6)),
        Step.BACK_OFF,
        "No space is left. The next attempt is in 40 s.",
    ),
    "keeps past": (replace(AT_REST, copy=COPY, past="It has rows that are gone."), Step.HOLD, "are gone"),
    "copy complete": (replace(AT_REST, copy=COPY), Step.START_FROM_COPY, None),
    "other mode": (replace(AT_REST, other_mode="Its mode changed."), Step.HOLD, "mode changed"),
    "gap": (replace(AT_REST, gap=GAP), Step.HOLD, "0/A"),
    "type change": (replace(AT_REST, type_change=LSN(50)), Step.WAIT, "the type change at 0/32"),
    "keys awaited": (replace(AT_REST, has_key_requests=True), Step.WAIT, "some of its keys"),
    "comparison awaited": (
        replace(AT_REST, rewrite=LSN(30)),
        Step.WAIT,
        "waits for its comparison with the source, where rows changed without a message before 0/1E.",
    ),
    "guards": (replace(AT_REST, counts=NONE | {"D": 5}, guards=Guards(deletes=4)), Step.HOLD, "5"),
    "rows lost": (
        replace(AT_REST, offset=INVALID, lost="The table is gone.", counts={"I": 3}),
        Step.REBUILD,
        "gone",
    ),
    "foreign commit": (replace(AT_REST, foreign="A foreign commit."), Step.FAIL, "A foreign commit."),
    "keys complete": (replace(AT_REST, partial_copies=(KEYS,)), Step.PARTIAL_RESYNC, None),
    "written recently": (
        replace(AT_REST, counts={"I": 1}, min_interval=30, since_write=29.9),
        Step.POSTPONE,
        "less than 30 s ago",
    ),
    "changes pending": (replace(AT_REST, counts={"I": 1}), Step.APPLY, None),
    "up to date": (AT_REST, Step.SKIP, None),
}


def test_every_row_has_facts_for_which_it_decides() -> None:
    assert [row.name for row in TABLE] == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_decides(name: str) -> None:
    facts, step, words = ROWS[name]
    decision = decide(facts)
    assert (decision.row, decision.step) == (name, step)
    if words is None:
        assert decision.sentence is None
    else:
        assert words in (decision.sentence or "")


def merged(first: TableFacts, second: TableFacts) -> TableFacts:
    """Return the first facts with every change that the second ones have."""
    changed = {
        field: getattr(second, field)
        for field in TableFacts.__slots__
        if getattr(second, field) != getattr(AT_REST, field)
    }
    return replace(first, **changed)


@pytest.mark.parametrize(("above", "below"), [*pairwise(ROWS)])
def test_the_row_above_decides_where_both_hold(above: str, below: str) -> None:
    facts = merged(ROWS[below][0], ROWS[above][0])
    if above == "guards":
        facts = replace(facts, offset=AT_REST.offset)  # they hold no table without rows
    assert decide(facts).row == above


@pytest.mark.parametrize("name", ROWS)
def test_what_stops_a_table_has_a_sentence(name: str) -> None:
    decision = decide(ROWS[name][0])
    assert (decision.sentence is not None) == (decision.step in STOPPED or name == "rows lost")


def test_guards_hold_no_table_without_rows_and_no_confirmed_one() -> None:
    held = ROWS["guards"][0]
    assert decide(replace(held, offset=INVALID)).step is Step.APPLY
    assert decide(replace(held, is_confirmed=True)).step is Step.APPLY
    assert decide(replace(held, counts=NONE | {"D": 4})).step is Step.APPLY


def test_before_the_survey_a_table_that_bronze_is_ahead_of_is_surveyed() -> None:
    behind = replace(AT_REST, counts=None)
    assert decide(behind).step is Step.APPLY
    assert decide(replace(behind, offset=LSN(100))).step is Step.SKIP
    assert decide(replace(behind, offset=INVALID, lost="The table is gone.")).step is Step.REBUILD


def test_guards_keep_holding_a_table_whose_next_attempt_is_not_due() -> None:
    held = replace(ROWS["guards"][0], last_stop=FailedAttempt("Table public.orders is held.", 20))
    assert decide(held).row == "guards"
    assert decide(replace(held, counts=None)).row == "backs off"  # before the survey
    assert decide(replace(held, is_confirmed=True)).row == "backs off"
    assert decide(replace(held, copy=COPY)).row == "backs off"


def test_an_interval_postpones_only_changes_and_only_while_it_lasts() -> None:
    early = ROWS["written recently"][0]
    assert decide(replace(early, since_write=30.0)).step is Step.APPLY
    assert decide(replace(early, since_write=None)).step is Step.APPLY
    assert decide(replace(early, min_interval=0, since_write=0.0)).step is Step.APPLY
    assert decide(replace(early, counts=NONE)).step is Step.SKIP


def test_before_the_survey_only_a_table_behind_is_known_to_be_early() -> None:
    early = replace(ROWS["written recently"][0], counts=None)
    assert decide(early).step is Step.APPLY
    assert decide(replace(early, is_behind=True)).step is Step.POSTPONE
    assert decide(replace(early, is_behind=True, offset=LSN(100))).step is Step.SKIP


def test_nothing_is_done_to_a_table_that_is_being_written() -> None:
    for facts, _, _ in ROWS.values():
        for counts in (None, facts.counts):
            decision = decide(replace(facts, is_being_written=True, counts=counts))
            assert (decision.row, decision.blocks_rebuild) == ("being written", False)
            assert not decision.step.writes


def test_lost_rows_come_back_with_copied_keys_too() -> None:
    lost = replace(AT_REST, offset=INVALID, lost="The table is gone.", partial_copies=(KEYS,))
    assert decide(lost).step is Step.REBUILD


def test_a_table_that_needs_rows_of_a_copy_or_is_paused_is_not_rebuilt() -> None:
    blocked = {name for name, (facts, _, _) in ROWS.items() if decide(facts).blocks_rebuild}
    assert blocked == {"paused", "copy awaited", "folder taken", "table replaced", "gap"}
