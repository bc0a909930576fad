"""When a table that was held or failed is tried again."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.apply import back_off
from pipeline.apply.back_off import MAX_SECONDS, BackOff
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.protocol.lsn import LSN
from pipeline.silver.decision import TableFacts
from pipeline.table_name import TableName

FACTS = TableFacts(TableName("public", "orders"), LSN(100), LSN(40))
SENTENCE = "Table public.orders is held."


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(back_off, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def later(facts: TableFacts = FACTS) -> TableFacts:
    """Return the facts as a later batch finds them: no difference matters."""
    return replace(facts, end_lsn=LSN(200), counts={"I": 7}, is_behind=True, since_write=3.0)


def pause(tried: BackOff, clock: Any) -> float:
    """Return the seconds until the next attempt, and let them pass."""
    stop = tried.last_stop(later())
    assert stop is not None
    assert stop.sentence == SENTENCE
    clock.now += stop.seconds
    return stop.seconds


def test_the_intervals_double_up_to_the_longest(clock: Any) -> None:
    tried, pauses = BackOff(), []
    assert tried.last_stop(FACTS) is None
    for _ in range(7):
        tried.record_stop(later(), SENTENCE)
        pauses.append(pause(tried, clock))
        assert tried.last_stop(later()) is None  # it is due
    assert pauses == [10, 20, 40, 80, 160, MAX_SECONDS, MAX_SECONDS]


def test_a_table_that_was_written_begins_again(clock: Any) -> None:
    tried = BackOff()
    for _ in range(2):
        tried.record_stop(FACTS, SENTENCE)
    tried.record_success(FACTS.name)
    assert tried.last_stop(FACTS) is None
    tried.record_stop(FACTS, SENTENCE)
    assert pause(tried, clock) == 10


@pytest.mark.parametrize(
    "changed",
    [
        {"offset": LSN(41)},
        {"is_confirmed": True},
        {"copy": CompleteCopy(7, 1, (LSN(50),), 10)},
        {"waits": True},
        {"has_key_requests": True},
        {"lost": "The table is gone."},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_table_whose_facts_changed_is_tried_at_once(changed: dict[str, Any], clock: Any) -> None:
    tried = BackOff()
    for _ in range(3):
        tried.record_stop(FACTS, SENTENCE)
    facts = replace(later(), **changed)
    assert tried.last_stop(facts) is None
    tried.record_stop(facts, SENTENCE)
    stop = tried.last_stop(facts)
    assert stop is not None
    assert stop.seconds == 10


def test_a_table_that_was_current_is_later_at_the_offset_in_its_log(clock: Any) -> None:
    tried = BackOff()
    tried.record_stop(FACTS, SENTENCE)
    assert tried.last_stop(replace(FACTS, offset=LSN(30))) is not None
