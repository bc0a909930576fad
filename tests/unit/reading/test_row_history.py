"""Which changes belong to the life of a row, and what they changed."""

from datetime import datetime, timezone
from typing import Any

import pytest

from pipeline.protocol.lsn import INVALID, LSN
from pipeline.reading.history import RowHistory
from pipeline.reading.row_history import HistoryEntry, RowChange, find_lives
from pipeline.table_name import TableName
from tests.support.pages import render
from tests.support.silver.relations import INT4, column, relation

BEFORE = relation(column("id", 1, INT4, is_key=True), column("v", 2), column("big", 3))
AFTER = relation(column("id", 1, INT4, is_key=True), column("w", 2), column("big", 3), version=2)


def change(
    lsn: int, op: str, old: str | None = None, new: str | None = None, *texts: Any, **more: Any
) -> RowChange:
    values = (new, *texts) if new is not None else ()
    time, of = datetime(2026, 1, 31, tzinfo=timezone.utc), more.pop("relation", BEFORE)
    return RowChange(LSN(lsn), 0, op, of, time, 7, old, new, values, **more)


def shown(life: list[HistoryEntry]) -> list[tuple[int, str, list[tuple[str, str | None]]]]:
    return [(int(e.change.lsn), e.change.op, [(c.column.name, c.text) for c in e.columns]) for e in life]


@pytest.mark.promise("history of a row")
def test_a_life_is_followed_through_key_changes_to_its_end() -> None:
    changes = [
        change(60, "D", "9"),
        change(10, "I", None, "3", "a", "b"),
        change(20, "U", None, "3", "c", None, unsent=frozenset({2})),
        change(30, "U", "3", "5", "c", None, unsent=frozenset({2})),
        change(40, "I", None, "3", "other", "b"),
        change(50, "U", "5", "9", "d", "e", relation=AFTER),
    ]
    life = [
        (10, "I", [("id", "3"), ("v", "a"), ("big", "b")]),
        (20, "U", [("v", "c")]),
        (30, "U", [("id", "5")]),
        (50, "U", [("id", "9"), ("w", "d"), ("big", "e")]),
        (60, "D", []),
    ]
    for key in ("5", "9"):
        [found] = find_lives(changes, key)
        assert shown(found) == life
    both = find_lives(changes, "3")
    assert [shown(each) for each in both] == [life, [(40, "I", [("id", "3"), ("v", "other"), ("big", "b")])]]
    before = [c.before for c in both[0][3].columns]
    assert before == ["5", "c", "b"], "a renamed column is the same"
    assert find_lives(changes, "8") == []


def test_a_row_that_bronze_has_only_in_part_begins_where_bronze_does() -> None:
    found = find_lives([change(10, "D", "1"), change(20, "U", None, "1", "a", "b")], "1")
    assert [[e.change.op for e in life] for life in found] == [["D"], ["U"]]


@pytest.mark.promise("history of a row")
def test_a_truncate_ends_the_existing_lives_and_a_copy_continues_them() -> None:
    changes = [
        change(10, "R", None, "1", "a", "b"),
        change(20, "U", None, "1", "c", "b"),
        change(30, "R", None, "1", "d", "b"),
        change(40, "T"),
        change(50, "T"),
        change(60, "I", None, "1", "e", None),
    ]
    first, second = find_lives(changes, "1")
    assert shown(first)[1:] == [(20, "U", [("v", "c")]), (30, "R", [("v", "d")]), (40, "T", [])]
    assert [e.change.op for e in second] == ["I"]


def test_a_history_has_values_as_sql_and_eighty_columns() -> None:
    lives = find_lives(
        [change(10, "I", None, "1", "it's\n", "x" * 5000), change(20, "U", None, "1", None, "y")], "1"
    )
    history = RowHistory(TableName("public", "t"), ("1",), LSN(99), INVALID, tuple(map(tuple, lives)))
    text = render(history.print, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(
        "public.t, key 1: 2 changes up to 0/63\n\n0/A  2026-01-31 00:00:00.000000Z  xid 7  insert\n"
    )
    assert r"id: 1, v: E'it\'s\n', big: 'xxx" in text or r"v: E'it''s\n'" in text
    assert "(5,000 bytes)" in " ".join(text.split())
    assert r"→ NULL, big: " in " ".join(text.split())
    [[insert, update]] = history.as_json()["rows"]
    assert insert["columns"][2] == {"name": "big", "value": "x" * 5000}
    assert update["columns"][0] == {"name": "v", "value": None, "before": "it's\n"}
