"""Columns are known by their numbers: renamed, swapped, dropped and added again, and without a number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bronze.relations import SourceRelation
from pipeline.silver.column_mapping import SilverColumns, align_versions, plan_renames
from pipeline.silver.schema_operations import RenameColumn
from tests.support.silver.relations import INT4, column, relation

ID = column("id", 1, INT4, is_key=True)
KNOWN = SilverColumns(500, {"id": 1, "a": 2, "b": 3})


def named(*names: str | tuple[str, int | None], version: int = 1, oid: int = 500) -> SourceRelation:
    """Return a relation of id and these columns; one without a number has the next free one."""
    columns = [column(n, i + 2) if isinstance(n, str) else column(*n) for i, n in enumerate(names)]
    return relation(ID, *columns, version=version, oid=oid)


def renames(known: SilverColumns, *versions: SourceRelation) -> list[tuple[str, str, str | None]]:
    found = plan_renames(known, align_versions(known, versions))
    return [(r.name, r.to, r.sentence) for r in found]


def names(known: SilverColumns | None, *versions: SourceRelation) -> list[list[str]]:
    return [[c.name for c in r.columns[1:]] for r in align_versions(known, versions).relations]


def after(known: SilverColumns, operations: Sequence[RenameColumn]) -> dict[str, int | None]:
    """Perform renames one by one, as Delta does: a name that is there, in any case, cannot be given."""
    numbers = dict(known.numbers)
    for operation in operations:
        assert operation.to.lower() not in {name.lower() for name in numbers}
        numbers[operation.to] = numbers.pop(operation.name)
    assert numbers == known.renamed(operations).numbers
    return numbers


def test_same_names_need_nothing() -> None:
    assert renames(KNOWN, named("a", "b")) == []
    assert renames(KNOWN, named(("b", 3), ("a", 2), ("c", 4))) == []


def test_renamed_column_gets_its_new_name() -> None:
    assert renames(KNOWN, named("x", "b")) == [("a", "x", "column a was renamed to x")]


def test_versions_before_a_rename_are_read_under_the_new_name() -> None:
    assert (
        names(KNOWN, named("a", "b"), named("x", "b", version=2), named("y", "b", version=3))
        == [["y", "b"]] * 3
    )


def test_swapped_names_are_swapped() -> None:
    swapped = named(("a", 3), ("b", 2))
    found = plan_renames(KNOWN, align_versions(KNOWN, [swapped]))
    assert after(KNOWN, found) == {"id": 1, "a": 3, "b": 2}
    said = sorted(r.sentence for r in found if r.sentence)
    assert said == ["column a was renamed to b", "column b was renamed to a"]


@pytest.mark.parametrize("order", list(permutations("abcd")))
def test_any_permutation_of_names_is_reached(order: tuple[str, ...]) -> None:
    known = SilverColumns(500, {"id": 1, "a": 2, "b": 3, "c": 4, "d": 5})
    to = named(*order)
    found = plan_renames(known, align_versions(known, [to]))
    assert after(known, found) == {"id": 1} | {name: i + 2 for i, name in enumerate(order)}


def test_name_that_changes_its_case_only_goes_by_another() -> None:
    found = plan_renames(KNOWN, align_versions(KNOWN, [named("A", "b")]))
    assert after(KNOWN, found) == {"id": 1, "A": 2, "b": 3}
    assert len(found) == 2


def test_column_dropped_and_added_again_gives_way_with_its_values() -> None:
    sentence = "column a was dropped and added again: the values it had are in a__2"
    assert renames(KNOWN, named(("a", 4), "b")) == [("a", "a__2", sentence)]
    # Rows from before the drop are read into the column that keeps their values.
    assert names(KNOWN, named("a", "b"), named(("a", 4), "b", version=2)) == [["a__2", "b"], ["a", "b"]]


def test_column_dropped_and_added_again_twice_keeps_both() -> None:
    known = SilverColumns(500, {"id": 1, "a__2": 2, "b": 3, "a": 4})
    assert [r[:2] for r in renames(known, named(("a", 5), "b"))] == [("a", "a__4")]
    taken = SilverColumns(500, {"id": 1, "a": 2, "b": 3})
    assert [r[:2] for r in renames(taken, named(("a", 4), "b", ("a__2", 5)))] == [("a", "a__2__2")]


def test_column_that_looks_the_same_after_it_was_added_again_is_said_to_be_uncertain() -> None:
    known = SilverColumns(500, {}).after(named("a", "b"))
    again = named("a", ("b", 4), version=2)
    [rename] = plan_renames(known, align_versions(known, [again]))
    assert (rename.name, rename.to, rename.kind) == ("b", "b__3", "diverged")
    assert rename.sentence is not None
    assert rename.sentence.endswith("no message tells when")
    # also where both versions come at once
    [rename] = plan_renames(known, align_versions(known, [named("a", "b"), again]))
    assert rename.kind == "diverged"
    # a column that was not the last one has another place; and one that was seen to be gone is another
    [rename] = plan_renames(known, align_versions(known, [named(("b", 3), ("a", 4), version=2)]))
    assert (rename.name, rename.kind) == ("a", "evolved")
    [rename] = plan_renames(known, align_versions(known, [named("a", version=3), again]))
    assert (rename.name, rename.kind) == ("b", "evolved")


def test_column_that_is_dropped_keeps_its_name_while_nobody_else_has_it() -> None:
    assert renames(KNOWN, named(("b", 3))) == []
    assert names(KNOWN, named("a", "b"), named(("b", 3), version=2)) == [["a", "b"], ["b"]]


def test_names_that_differ_only_in_case_give_way_to_the_column_that_came_first() -> None:
    both = named("Id", ("ID", 5))
    alike = align_versions(None, [both])
    assert [c.name for c in alike.relations[0].columns] == ["id", "Id__2", "ID__5"]
    assert (alike.names[5], alike.source_names[5]) == ("ID__5", "ID")
    # one whose own name is taken by a name that was given
    assert names(None, named("Id", ("id__2", 3))) == [["Id__2", "id__2__3"]]
    # without a number there is no name to give: such a table is held
    assert names(None, named(("Id", None))) == [["Id"]]


def test_name_comes_free_when_the_column_that_had_it_goes() -> None:
    known = SilverColumns(500, {"id": 1, "a": 2, "A__3": 3}, {"A": 3})
    assert renames(known, named("a", ("A", 3))) == []
    found = plan_renames(known, align_versions(known, [named(("A", 3))]))
    assert after(known, found) == {"id": 1, "a__2": 2, "A": 3}


def test_another_columns_old_name_may_be_taken() -> None:
    found = plan_renames(KNOWN, align_versions(KNOWN, [named("b", ("c", 3))]))
    assert after(KNOWN, found) == {"id": 1, "b": 2, "c": 3}


def test_version_without_numbers_is_read_by_the_names_of_its_time() -> None:
    unknown = named(("a", None), ("b", None))
    assert names(KNOWN, unknown, named("x", "b", version=2)) == [["x", "b"]] * 2
    # Also when a run that ended early has renamed the columns already.
    cut_short = SilverColumns(500, {"id": 1, "x": 2, "b": 3}, {"a": 2})
    assert names(cut_short, unknown, named("x", "b", version=2)) == [["x", "b"]] * 2
    assert renames(cut_short, unknown, named("x", "b", version=2)) == []
    swapped = SilverColumns(500, {"id": 1, "a": 3, "b": 2}, {"a": 2, "b": 3})
    assert names(swapped, unknown, named(("b", 2), ("a", 3), version=2)) == [["b", "a"]] * 2


def test_version_that_nobody_saw_has_the_columns_that_were_there_before_and_after() -> None:
    unseen = named(("x", None), ("b", None))
    assert names(KNOWN, unseen, named("y", "b", version=2)) == [["y", "b"]] * 2
    assert names(KNOWN, named("a", "b"), unseen, named("y", "z", version=2)) == [["y", "z"]] * 3
    # One more column, or one less: which it is nobody knows.
    wider = named(("x", None), ("b", None), ("c", None))
    assert names(KNOWN, wider, named("y", "b", version=2))[0] == ["x", "b", "c"]
    assert names(KNOWN, unseen, named(("b", 3), version=2))[0] == ["x", "b"]
    assert names(KNOWN, unseen) == [["x", "b"]]


def test_names_that_cannot_be_those_of_before_are_not_taken_for_them() -> None:
    # a column that was dropped and added again stands last
    unseen = named(("b", None), ("a", None))
    alike = align_versions(KNOWN, [unseen, named(("b", 3), ("x", 4), version=2)])
    assert [c.name for c in alike.relations[0].columns] == ["id", "b", "a"]
    assert alike.certain == (False, True)
    # the last one may have been: nobody knows, unless it is there afterwards
    unseen = named(("a", None), ("b", None))
    assert align_versions(KNOWN, [unseen, named("a", ("x", 4), version=2)]).certain == (False, True)
    assert align_versions(KNOWN, [unseen, named(("b", 3), ("a", 4), version=2)]).certain == (True, True)
    assert align_versions(KNOWN, [unseen]).certain == (False,)


def test_last_version_without_numbers_goes_by_the_one_before_it() -> None:
    last = named(("x", None), ("b", None), version=2)
    assert names(KNOWN, named("x", "b"), last) == [["x", "b"]] * 2
    assert [r[:2] for r in renames(KNOWN, named("x", "b"), last)] == [("a", "x")]


def test_another_table_has_numbers_of_its_own() -> None:
    again = named("b", "a", oid=501)
    assert renames(KNOWN, again) == []
    assert names(KNOWN, again) == [["b", "a"]]
    assert names(None, again) == [["b", "a"]]


def test_column_that_nobody_knows_gives_way_to_one_that_takes_its_name() -> None:
    """The catalog was ahead when b came, so nobody knows that it is c now."""
    known = SilverColumns(500, {"id": 1, "a": 2, "b": None})
    last = named(("b", 2), ("c", 3), version=2)
    found = plan_renames(known, align_versions(known, [last]))
    assert [(r.name, r.to, r.kind) for r in found] == [("b", "b__0", "diverged"), ("a", "b", "evolved")]
    assert after(known, found) == {"id": 1, "b": 2, "b__0": None}
    before = named(("a", 2), ("b", None))
    assert names(known, before, last) == [["b", "b__0"], ["b", "c"]]


def test_column_that_gives_way_takes_no_name_that_silver_has() -> None:
    known = SilverColumns(500, {"id": 1, "a": 2, "a__2": 3})  # a__2 is dropped, and silver keeps it
    assert renames(known, named(("a", 4)))[0][:2] == ("a", "a__2__2")


NAMES = ("a", "A", "b", "c", "a__2", "b__0")


@st.composite
def histories(draw: st.DrawFn) -> tuple[SilverColumns, list[SourceRelation]]:
    """Draw what silver may know of columns, and versions that the source may have then."""
    drawn = draw(st.lists(st.sampled_from(NAMES), unique=True))
    kept = {name.lower(): name for name in drawn}
    free = draw(st.permutations(range(2, 12)))
    numbers = {name: free[i] if draw(st.booleans()) else None for i, name in enumerate(kept.values())}
    versions = []
    for version in range(draw(st.integers(1, 3))):
        present = sorted(draw(st.sets(st.integers(2, 12), max_size=4)))
        called = draw(st.permutations(NAMES))
        knows = draw(st.booleans())
        columns = [(name, n if knows else None) for name, n in zip(called, present, strict=False)]
        versions.append(named(*columns, version=version))
    return SilverColumns(500, {"id": 1, **numbers}), versions


@given(histories())
def test_whatever_is_known_names_stay_apart(history: tuple[SilverColumns, list[SourceRelation]]) -> None:
    known, versions = history
    alike = align_versions(known, versions)
    reached = after(known, plan_renames(known, alike))
    assert {n: name for name, n in reached.items() if n in alike.names} == {
        n: name for n, name in alike.names.items() if n in known.numbers.values()
    }
    called = {n: name for name, n in reached.items() if n is not None}
    for each in alike.relations:  # names without numbers that differ in case only hold the table
        assert len({c.name for c in each.columns}) == len(each.columns)
        assert all(c.name == called.get(c.attribute_number or 0, c.name) for c in each.columns)
        told = [c.name.lower() for c in each.columns if c.name in alike.names.values()]
        assert len(set(told)) == len(told)
