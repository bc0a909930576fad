"""Columns are matched by attribute number: renamed, swapped, dropped and added again, unnumbered."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bronze.source_moves import MovedTable, SourceMoves
from pipeline.bronze.source_relations import SourceRelation
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.column_mapping import (
    SilverColumns,
    align_versions,
    plan_renames,
    present_sidecars,
    with_last_names,
    with_sidecars,
)
from pipeline.silver.schema.schema_operations import RenameColumn
from pipeline.table_name import TableName
from tests.support.silver.relations import INT4, column, relation

ID = column("id", 1, INT4, is_key=True)
RECORDED = SilverColumns(500, {"id": 1, "a": 2, "b": 3})


def named(*names: str | tuple[str, int | None], version: int = 1, oid: int = 500) -> SourceRelation:
    """Return a relation of id and these columns; one without a number has the next free one."""
    columns = [column(n, i + 2) if isinstance(n, str) else column(*n) for i, n in enumerate(names)]
    return relation(ID, *columns, version=version, oid=oid)


def renames(recorded: SilverColumns, *versions: SourceRelation) -> list[tuple[str, str, str | None]]:
    found = plan_renames(recorded, align_versions(recorded, versions))
    return [(r.name, r.to, r.sentence) for r in found]


def names(recorded: SilverColumns | None, *versions: SourceRelation) -> list[list[str]]:
    return [[c.name for c in r.columns[1:]] for r in align_versions(recorded, versions).relations]


def after(recorded: SilverColumns, operations: Sequence[RenameColumn]) -> dict[str, int | None]:
    """Carry out renames one by one, as Delta does: an existing name, in any case, cannot be given."""
    numbers = dict(recorded.numbers)
    for operation in operations:
        assert operation.to.lower() not in {name.lower() for name in numbers}
        numbers[operation.to] = numbers.pop(operation.name)
    assert numbers == recorded.renamed(operations).numbers
    return numbers


def test_same_names_need_nothing() -> None:
    assert renames(RECORDED, named("a", "b")) == []
    assert renames(RECORDED, named(("b", 3), ("a", 2), ("c", 4))) == []


def test_renamed_column_gets_its_new_name() -> None:
    assert renames(RECORDED, named("x", "b")) == [("a", "x", "Column a was renamed to x.")]


def test_versions_before_a_rename_are_read_under_the_new_name() -> None:
    assert (
        names(RECORDED, named("a", "b"), named("x", "b", version=2), named("y", "b", version=3))
        == [["y", "b"]] * 3
    )


def test_swapped_names_are_swapped() -> None:
    swapped = named(("a", 3), ("b", 2))
    found = plan_renames(RECORDED, align_versions(RECORDED, [swapped]))
    assert after(RECORDED, found) == {"id": 1, "a": 3, "b": 2}
    sentences = sorted(r.sentence for r in found if r.sentence)
    assert sentences == ["Column a was renamed to b.", "Column b was renamed to a."]


@pytest.mark.parametrize("order", list(permutations("abcd")))
def test_any_permutation_of_names_is_planned(order: tuple[str, ...]) -> None:
    recorded = SilverColumns(500, {"id": 1, "a": 2, "b": 3, "c": 4, "d": 5})
    to = named(*order)
    found = plan_renames(recorded, align_versions(recorded, [to]))
    assert after(recorded, found) == {"id": 1} | {name: i + 2 for i, name in enumerate(order)}


def test_name_that_changes_only_its_case_needs_an_intermediate_one() -> None:
    found = plan_renames(RECORDED, align_versions(RECORDED, [named("A", "b")]))
    assert after(RECORDED, found) == {"id": 1, "A": 2, "b": 3}
    assert len(found) == 2


def test_column_dropped_and_added_again_keeps_old_values_in_another_column() -> None:
    sentence = "Column a was dropped and added again. Its former values are in a__2."
    assert renames(RECORDED, named(("a", 4), "b")) == [("a", "a__2", sentence)]
    # Rows from before the drop are read into the column that keeps their values.
    assert names(RECORDED, named("a", "b"), named(("a", 4), "b", version=2)) == [["a__2", "b"], ["a", "b"]]


def test_column_dropped_and_added_again_twice_keeps_both() -> None:
    recorded = SilverColumns(500, {"id": 1, "a__2": 2, "b": 3, "a": 4})
    assert [r[:2] for r in renames(recorded, named(("a", 5), "b"))] == [("a", "a__4")]
    again = SilverColumns(500, {"id": 1, "a": 2, "b": 3})
    assert [r[:2] for r in renames(again, named(("a", 4), "b", ("a__2", 5)))] == [("a", "a__2__2")]


@pytest.mark.promise("uncertain columns")
def test_column_added_again_with_equal_name_type_and_order_is_uncertain() -> None:
    recorded = SilverColumns(500, {}).after(named("a", "b"))
    again = named("a", ("b", 4), version=2)
    [rename] = plan_renames(recorded, align_versions(recorded, [again]))
    assert (rename.name, rename.to, rename.kind) == ("b", "b__3", "diverged")
    assert rename.sentence is not None
    assert rename.sentence.endswith("Run a resync to copy them.")
    # also where both versions come at once
    [rename] = plan_renames(recorded, align_versions(recorded, [named("a", "b"), again]))
    assert rename.kind == "diverged"
    # a column that was not the last one has another order; one that was missing in between is another
    [rename] = plan_renames(recorded, align_versions(recorded, [named(("b", 3), ("a", 4), version=2)]))
    assert (rename.name, rename.kind) == ("a", "evolved")
    [rename] = plan_renames(recorded, align_versions(recorded, [named("a", version=3), again]))
    assert (rename.name, rename.kind) == ("b", "evolved")


def test_dropped_column_keeps_its_name_while_no_other_has_it() -> None:
    assert renames(RECORDED, named(("b", 3))) == []
    assert names(RECORDED, named("a", "b"), named(("b", 3), version=2)) == [["a", "b"], ["b"]]


def test_of_names_that_differ_only_in_case_the_first_column_keeps_its_own() -> None:
    both = named("Id", ("ID", 5))
    aligned = align_versions(None, [both])
    assert [c.name for c in aligned.relations[0].columns] == ["id", "Id__2", "ID__5"]
    assert (aligned.names[5], aligned.source_names[5]) == ("ID__5", "ID")
    # a column whose name was given to another
    assert names(None, named("Id", ("id__2", 3))) == [["Id__2", "id__2__3"]]
    # without a number there is no other name: such a table is held
    assert names(None, named(("Id", None))) == [["Id"]]


def test_name_is_free_when_its_column_is_dropped() -> None:
    recorded = SilverColumns(500, {"id": 1, "a": 2, "A__3": 3}, {"A": 3})
    assert renames(recorded, named("a", ("A", 3))) == []
    found = plan_renames(recorded, align_versions(recorded, [named(("A", 3))]))
    assert after(recorded, found) == {"id": 1, "a__2": 2, "A": 3}


def test_a_sidecar_follows_its_column_and_no_column_of_the_source_is_one() -> None:
    silver = ("id", "d", "d__text", "e", "e__text")
    numbers = {"id": 1, "d": 2, "e": 3, "e__text": 4}
    assert present_sidecars(silver, numbers) == {"d__text": "d"}
    assert present_sidecars(silver, {"id": 1}) == {}
    both = [RenameColumn("d", "x"), RenameColumn("e", "y")]
    found = [(each.name, each.to) for each in with_sidecars(both, silver, numbers)]
    assert found == [("d", "x"), ("d__text", "x__text"), ("e", "y")]


def test_a_column_may_get_the_former_name_of_another() -> None:
    found = plan_renames(RECORDED, align_versions(RECORDED, [named("b", ("c", 3))]))
    assert after(RECORDED, found) == {"id": 1, "b": 2, "c": 3}


def test_version_without_numbers_is_matched_by_its_names() -> None:
    unknown = named(("a", None), ("b", None))
    assert names(RECORDED, unknown, named("x", "b", version=2)) == [["x", "b"]] * 2
    # Also when a run that ended early has renamed the columns already.
    cut_short = SilverColumns(500, {"id": 1, "x": 2, "b": 3}, {"a": 2})
    assert names(cut_short, unknown, named("x", "b", version=2)) == [["x", "b"]] * 2
    assert renames(cut_short, unknown, named("x", "b", version=2)) == []
    swapped = SilverColumns(500, {"id": 1, "a": 3, "b": 2}, {"a": 2, "b": 3})
    assert names(swapped, unknown, named(("b", 2), ("a", 3), version=2)) == [["b", "a"]] * 2


def test_version_without_numbers_has_the_columns_of_before_and_after() -> None:
    unseen = named(("x", None), ("b", None))
    assert names(RECORDED, unseen, named("y", "b", version=2)) == [["y", "b"]] * 2
    assert names(RECORDED, named("a", "b"), unseen, named("y", "z", version=2)) == [["y", "z"]] * 3
    # One more column, or one less: unknown which one.
    wider = named(("x", None), ("b", None), ("c", None))
    assert names(RECORDED, wider, named("y", "b", version=2))[0] == ["x", "b", "c"]
    assert names(RECORDED, unseen, named(("b", 3), version=2))[0] == ["x", "b"]
    assert names(RECORDED, unseen) == [["x", "b"]]


@pytest.mark.promise("moved sources")
def test_a_moved_table_has_its_columns_in_the_order_of_its_server() -> None:
    table = MovedTable(TableName("public", "t"), LSN(5), 700, 500, {1: 1, 2: 3, 3: 2})

    def moved(*names: tuple[str, int | None], version: int) -> SourceRelation:
        sent = replace(named(*names, version=version, oid=700), lsn=6)
        return SourceMoves([table]).translate(sent)

    unseen, later = moved(("b", None), ("a", None), version=1), moved(("b", 2), ("x", 3), version=2)
    aligned = align_versions(RECORDED, [unseen, later])
    assert [[c.name for c in each.columns] for each in aligned.relations] == [["id", "b", "x"]] * 2
    assert aligned.certain == (True, True)
    assert [r[:2] for r in renames(RECORDED, unseen, later)] == [("a", "x")]
    # the old server's dropped column has no place here
    dropped = SilverColumns(500, {"id": 1, "a": 2, "b": 3, "c": 4})
    assert align_versions(dropped, [moved(("c", None), version=1), later]).certain == (False, True)


def test_names_that_cannot_be_those_of_before_are_not_matched() -> None:
    # a column that was dropped and added again is the last one
    unseen = named(("b", None), ("a", None))
    aligned = align_versions(RECORDED, [unseen, named(("b", 3), ("x", 4), version=2)])
    assert [c.name for c in aligned.relations[0].columns] == ["id", "b", "a"]
    assert aligned.certain == (False, True)
    # the last one may have been, unless it exists afterwards
    unseen = named(("a", None), ("b", None))
    assert align_versions(RECORDED, [unseen, named("a", ("x", 4), version=2)]).certain == (False, True)
    assert align_versions(RECORDED, [unseen, named(("b", 3), ("a", 4), version=2)]).certain == (True, True)
    assert align_versions(RECORDED, [unseen]).certain == (False,)


def test_last_version_without_numbers_goes_by_the_one_before_it() -> None:
    last = named(("x", None), ("b", None), version=2)
    assert names(RECORDED, named("x", "b"), last) == [["x", "b"]] * 2
    assert [r[:2] for r in renames(RECORDED, named("x", "b"), last)] == [("a", "x")]


def test_another_table_has_its_own_numbers() -> None:
    again = named("b", "a", oid=501)
    assert renames(RECORDED, again) == []
    assert names(RECORDED, again) == [["b", "a"]]
    assert names(None, again) == [["b", "a"]]


def test_column_without_a_number_is_renamed_if_another_gets_its_name() -> None:
    """The catalog was ahead when b was added, so it is unknown that b is c now."""
    recorded = SilverColumns(500, {"id": 1, "a": 2, "b": None})
    last = named(("b", 2), ("c", 3), version=2)
    found = plan_renames(recorded, align_versions(recorded, [last]))
    assert [(r.name, r.to, r.kind) for r in found] == [("b", "b__0", "diverged"), ("a", "b", "evolved")]
    assert after(recorded, found) == {"id": 1, "b": 2, "b__0": None}
    before = named(("a", 2), ("b", None))
    assert names(recorded, before, last) == [["b", "b__0"], ["b", "c"]]


def test_renamed_column_gets_no_name_that_silver_has() -> None:
    recorded = SilverColumns(500, {"id": 1, "a": 2, "a__2": 3})  # a__2 is dropped, silver keeps it
    assert renames(recorded, named(("a", 4)))[0][:2] == ("a", "a__2__2")


NAMES = ("a", "A", "b", "c", "a__2", "b__0")


@st.composite
def histories(draw: st.DrawFn) -> tuple[SilverColumns, list[SourceRelation]]:
    """Draw registered columns of silver, and relation versions that may follow."""
    drawn = draw(st.lists(st.sampled_from(NAMES), unique=True))
    kept = {name.lower(): name for name in drawn}
    free = draw(st.permutations(range(2, 12)))
    numbers = {name: free[i] if draw(st.booleans()) else None for i, name in enumerate(kept.values())}
    versions = []
    for version in range(draw(st.integers(1, 3))):
        present = sorted(draw(st.sets(st.integers(2, 12), max_size=4)))
        names = draw(st.permutations(NAMES))
        has_numbers = draw(st.booleans())
        columns = [(name, n if has_numbers else None) for name, n in zip(names, present, strict=False)]
        versions.append(named(*columns, version=version))
    return SilverColumns(500, {"id": 1, **numbers}), versions


@given(histories())
def test_names_stay_distinct_whatever_is_recorded(
    history: tuple[SilverColumns, list[SourceRelation]],
) -> None:
    recorded, versions = history
    aligned = align_versions(recorded, versions)
    renamed = after(recorded, plan_renames(recorded, aligned))
    assert {n: name for name, n in renamed.items() if n in aligned.names} == {
        n: name for n, name in aligned.names.items() if n in recorded.numbers.values()
    }
    by_number = {n: name for name, n in renamed.items() if n is not None}
    for each in aligned.relations:  # names without numbers that differ in case only hold the table
        assert len({c.name for c in each.columns}) == len(each.columns)
        assert all(c.name == by_number.get(c.attribute_number or 0, c.name) for c in each.columns)
        matched = [c.name.lower() for c in each.columns if c.name in aligned.names.values()]
        assert len(set(matched)) == len(matched)


@pytest.mark.parametrize(
    ("older", "newest", "expected"),
    [
        (("a", "b"), ("x", "b"), ["x", "b"]),
        (("a", "b"), ("b", "a"), ["b", "a"]),  # swapped
        (("a", "b"), ("a",), ["a", "b"]),  # dropped
        (("a", "b"), (("b", 2),), ["b", "b__3"]),  # b was dropped, and a got its name
        ((("a", None), "b"), ("x", "b"), ["a", "b"]),  # the catalog was ahead of the stream
    ],
)
def test_older_versions_get_the_newest_names(
    older: Sequence[str | tuple[str, int | None]],
    newest: Sequence[str | tuple[str, int | None]],
    expected: list[str],
) -> None:
    first, last, other = named(*older, version=1), named(*newest, version=2), named("a", version=3, oid=501)
    found = with_last_names([first, last], {1: first, 2: last, 3: other})
    assert [column.name for column in found[1].columns[1:]] == expected
    assert (found[2], found[3]) == (last, other)
