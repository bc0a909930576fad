"""The model of applying changes, by hand-written cases and against a source table that it must follow."""

from collections import Counter
from random import Random

import pytest

from tests.support.histories import APPENDED, BAG, FULL_WITH_KEY, KEYED, SHAPES, random_changes
from tests.support.model import ModelChange, Shape, Table, Text, apply_all

Values = tuple[Text, ...]


def insert(shape: Shape, *new: Text, unsent: tuple[int, ...] = ()) -> ModelChange:
    return ModelChange("I", shape, new=new, unsent=frozenset(unsent))


def update(
    shape: Shape, kind: str | None, old: Values | None, new: Values, unsent: tuple[int, ...] = ()
) -> ModelChange:
    return ModelChange("U", shape, kind, old, new, frozenset(unsent))


def delete(shape: Shape, kind: str, *old: Text) -> ModelChange:
    return ModelChange("D", shape, kind, old)


def rows_after(shape: Shape, *changes: ModelChange) -> Counter[Values]:
    return apply_all([], changes).counted(shape.columns)


def test_unsent_value_comes_from_the_row() -> None:
    changes = insert(KEYED, "1", "x", "T"), update(KEYED, None, None, ("1", "y", None), (2,))
    assert rows_after(KEYED, *changes) == Counter({("1", "y", "T"): 1})


def test_last_update_does_not_hide_the_value_before_it() -> None:
    changes = (
        insert(KEYED, "1", "x", "T1"),
        update(KEYED, None, None, ("1", "x", "T2")),
        update(KEYED, None, None, ("1", "z", None), (2,)),
    )
    assert rows_after(KEYED, *changes) == Counter({("1", "z", "T2"): 1})


def test_value_before_a_delete_is_never_reached() -> None:
    changes = (
        insert(KEYED, "1", "x", "T1"),
        delete(KEYED, "K", "1", None, None),
        insert(KEYED, "1", None, None),
        update(KEYED, None, None, ("1", "y", None)),
    )
    assert rows_after(KEYED, *changes) == Counter({("1", "y", None): 1})


def test_key_change_deletes_the_old_row_and_carries_its_unsent_values() -> None:
    changes = (
        insert(KEYED, "1", "x", "T1"),
        update(KEYED, "K", ("1", None, None), ("2", "x", None), (2,)),
    )
    assert rows_after(KEYED, *changes) == Counter({("2", "x", "T1"): 1})


def test_swap_by_way_of_a_third_key_keeps_every_unsent_value() -> None:
    changes = (
        insert(KEYED, "1", "one", "T1"),
        insert(KEYED, "2", "two", "T2"),
        update(KEYED, "K", ("1", None, None), ("9", "one", None), (2,)),
        update(KEYED, "K", ("2", None, None), ("1", "two", None), (2,)),
        update(KEYED, "K", ("9", None, None), ("2", "one", None), (2,)),
    )
    assert rows_after(KEYED, *changes) == Counter({("1", "two", "T2"): 1, ("2", "one", "T1"): 1})


def test_old_key_of_a_toasted_key_does_not_mean_that_the_key_changed() -> None:
    changes = (
        insert(KEYED, "T-key", "x", "T1"),
        update(KEYED, "K", ("T-key", None, None), (None, "y", None), (0, 2)),
    )
    assert rows_after(KEYED, *changes) == Counter({("T-key", "y", "T1"): 1})


def test_null_in_an_old_key_is_not_a_value() -> None:
    changes = insert(KEYED, "1", "x", "T1"), delete(KEYED, "K", "1", None, None)
    assert rows_after(KEYED, *changes) == Counter()


def test_new_key_replaces_a_stale_row() -> None:
    changes = (
        insert(KEYED, "1", "x", "T1"),
        insert(KEYED, "2", "stale", "T2"),
        update(KEYED, "K", ("1", None, None), ("2", "x", None), (2,)),
    )
    assert rows_after(KEYED, *changes) == Counter({("2", "x", "T1"): 1})


def test_insert_replaces_a_known_key_and_delete_ignores_an_unknown_key() -> None:
    changes = (
        insert(KEYED, "1", "x", "T1"),
        insert(KEYED, "1", None, "y"),
        delete(KEYED, "K", "2", None, None),
    )
    assert rows_after(KEYED, *changes) == Counter({("1", None, "y"): 1})


def test_update_of_an_unknown_row_is_an_insert_that_names_what_it_lacks() -> None:
    table = Table()
    table.apply(update(KEYED, None, None, ("1", "x", None), (2,)))
    assert table.counted(KEYED.columns) == Counter({("1", "x", None): 1})
    assert [name for _, name in table.unavailable] == ["big"]


def test_insert_by_a_row_filter_may_lack_a_value() -> None:
    table = Table()
    table.apply(insert(KEYED, "30", "1", None, unsent=(2,)))
    assert [name for _, name in table.unavailable] == ["big"]


def test_whole_old_row_gives_unsent_values_even_without_a_base() -> None:
    changes = (update(FULL_WITH_KEY, "O", ("x", "1", "T1"), ("y", "1", None), (2,)),)
    assert rows_after(FULL_WITH_KEY, *changes) == Counter({("y", "1", "T1"): 1})


def test_one_change_touches_one_of_equal_rows() -> None:
    changes = (
        insert(BAG, "x", None, "T"),
        insert(BAG, "x", None, "T"),
        insert(BAG, "x", None, "T"),
        update(BAG, "O", ("x", None, "T"), ("y", None, None), (2,)),
        delete(BAG, "O", "x", None, "T"),
    )
    assert rows_after(BAG, *changes) == Counter({("x", None, "T"): 1, ("y", None, "T"): 1})


def test_delete_of_a_row_that_is_not_there_leaves_no_debt() -> None:
    changes = delete(BAG, "O", "x", None, None), insert(BAG, "x", None, None)
    assert rows_after(BAG, *changes) == Counter({("x", None, None): 1})


def test_table_without_identity_only_grows_until_truncated() -> None:
    changes = [insert(APPENDED, "x", "y")] * 2
    assert rows_after(APPENDED, *changes) == Counter({("x", "y"): 2})
    assert rows_after(APPENDED, *changes, ModelChange("T", APPENDED), *changes[:1]) == Counter(
        {("x", "y"): 1}
    )
    with pytest.raises(ValueError, match="without replica identity"):
        rows_after(APPENDED, delete(APPENDED, "K", "x", None))


def test_added_column_is_null_in_older_rows_and_a_dropped_one_keeps_values() -> None:
    wider = Shape(("k", "a", "big", "more"), "d", flagged=(0,))
    narrower = Shape(("k", "more"), "d", flagged=(0,))
    changes = (
        insert(KEYED, "1", "x", "T1"),
        insert(KEYED, "2", "y", "T2"),
        insert(wider, "3", "z", "T3", "new"),
        update(narrower, None, None, ("1", "m")),
    )
    expected = {("1", "x", "T1", "m"): 1, ("2", "y", "T2", None): 1, ("3", "z", "T3", "new"): 1}
    assert rows_after(wider, *changes) == Counter(expected)


def test_key_is_that_of_the_relation_version() -> None:
    one = Shape(("a", "b", "v"), "i", flagged=(0,))
    other = Shape(("a", "b", "v"), "i", flagged=(1,))
    changes = (
        insert(one, "1", "8", "x"),
        update(one, "K", ("1", None, None), ("2", "8", "x")),
        update(other, "K", (None, "8", None), ("2", "9", "y")),
        update(other, None, None, ("3", "9", "z")),
    )
    assert rows_after(one, *changes) == Counter({("3", "9", "z"): 1})


@pytest.mark.costly
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(shape.columns) + shape.identity)
@pytest.mark.parametrize("evolves", [False, True])
def test_model_follows_a_source(shape: Shape, evolves: bool) -> None:
    for seed in range(150):
        history = random_changes(Random(seed), shape, evolves=evolves)
        table = apply_all(history.initial, history.changes)
        columns = history.shape.columns
        assert table.counted(columns) == Table(history.final).counted(columns), f"seed {seed}"
        assert not table.unavailable, f"seed {seed}"


def test_random_changes_cover_what_is_hard() -> None:
    changes = [
        c for seed in range(40) for s in SHAPES for c in random_changes(Random(seed), s, evolves=True).changes
    ]
    keyed = [c for c in changes if c.op == "U" and c.shape.identity in "di"]
    moved = [c for c in keyed if c.old and any(c.old[p] != c.new[p] for p in c.shape.key if c.new)]
    assert len([c for c in moved if c.unsent]) > 100
    assert any(c.old_kind == "K" and c.unsent & set(c.shape.key) for c in keyed)
    assert {(c.op, c.old_kind) for c in changes} == {
        ("I", None), ("T", None), ("U", None), ("U", "K"), ("U", "O"), ("D", "K"), ("D", "O"),
    }  # fmt: skip
