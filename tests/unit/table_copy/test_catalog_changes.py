"""Two states of the catalog: which changes of partitions no message carries."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.delta.table import Lake
from pipeline.metadata.catalog import CatalogState, CatalogTable, Root, SourcePartition, SourceType, TableFile
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.catalog_changes import (
    RootChanges,
    compare_roots,
    is_publication_changed,
    leaves_below,
    list_altered_types,
    with_other_files,
    without_expressions,
    without_filenodes,
)
from pipeline.table_name import TableName

NAME = TableName("public", "r")
ROOT = 1


def partition(
    number: int, *, parent: int = ROOT, xmin: int = 700, filenode: int | None = None
) -> SourcePartition:
    return SourcePartition(
        TableName("public", f"p{number}"), parent, xmin, number if filenode is None else filenode
    )


BEFORE = Root(NAME, {2: partition(2), 3: partition(3), 4: partition(4, parent=3, filenode=4)})


def after(changes: dict[int, SourcePartition | None]) -> RootChanges:
    partitions = {**BEFORE.partitions, **changes}
    return compare_roots(BEFORE, Root(NAME, {oid: each for oid, each in partitions.items() if each}))


def test_the_same_partitions_are_no_change() -> None:
    renamed = replace(partition(2), name=TableName("other", "name"), row_xmin=900)
    assert after({2: renamed}) == RootChanges((), (), (), ())


def test_a_partition_less_is_gone_with_those_below_it() -> None:
    assert after({2: None}).gone == (2,)
    assert after({3: None, 4: None}).gone == (3,)


@pytest.mark.parametrize("changed", [partition(2, xmin=701), partition(2, parent=3)])
def test_another_row_of_pg_inherits_is_a_return(changed: SourcePartition) -> None:
    assert after({2: changed}) == RootChanges((), (2,), (), ())


def test_a_new_partition_may_have_had_rows_unless_it_was_created_as_one() -> None:
    born = replace(partition(5), is_born=True)
    assert after({5: born, 6: partition(6), 7: partition(7, parent=6)}).joined == (6,)


def test_another_file_node_is_a_suspect() -> None:
    assert after({4: partition(4, parent=3, filenode=40)}) == RootChanges((), (), (), (4,))


def test_what_is_not_decided_keeps_its_file_node() -> None:
    now = Root(NAME, {**BEFORE.partitions, 2: partition(2, filenode=20), 4: partition(4, filenode=40)})
    kept = without_filenodes(now, BEFORE, {2})
    assert (kept.partitions[2].filenode, kept.partitions[4].filenode) == (2, 40)


def test_a_table_with_another_file_is_a_suspect_and_a_new_one_is_not() -> None:
    before = {4: TableFile(NAME, 40), 5: TableFile(NAME, 50)}
    moved = TableFile(NAME, 41)
    now = {4: moved, 5: TableFile(TableName("s", "renamed"), 50), 6: TableFile(NAME, 60)}
    assert with_other_files(before, now) == {4: moved}


def test_a_column_that_is_not_generated_any_more_is_found() -> None:
    before = {4: TableFile(NAME, 40, frozenset({2, 3})), 5: TableFile(NAME, 50)}
    now = {4: TableFile(NAME, 40, frozenset({3})), 5: TableFile(NAME, 50, frozenset({2}))}
    assert without_expressions(before, now) == {4: {2}}


MOOD = SourceType(TableName("s", "mood"), {70: 1, 71: 1}, frozenset({4, 9}), is_enum=True, altered_by=800)


@pytest.mark.parametrize(
    ("before", "now", "is_found"),
    [
        (MOOD, replace(MOOD, parts={70: 1, 71: 1, 72: 2}), False),  # ADD VALUE
        (MOOD, replace(MOOD, parts={70: 2, 71: 1}), True),  # RENAME VALUE
        (MOOD, replace(MOOD, name=TableName("s", "other")), False),
        (MOOD, replace(MOOD, parts={70: 1, 71: 1, 72: 0}, is_enum=False), True),  # ADD ATTRIBUTE
        (None, MOOD, True),  # altered since the state
        (None, replace(MOOD, altered_by=799), False),
    ],
)
def test_a_type_whose_values_have_another_text_is_found(
    before: SourceType | None, now: SourceType, is_found: bool
) -> None:
    tables = {4: TableFile(NAME, 40)}
    known = {} if before is None else {60: before}
    found = list_altered_types(
        CatalogState(9, 700, {}, LSN(5), 800, tables, types=known),
        CatalogState(9, 700, {}, LSN(6), 900, tables, types={60: now}),
    )
    assert found == ({4: [now.name]} if is_found else {})


def test_leaves_are_found_on_every_level() -> None:
    assert [*leaves_below(BEFORE, 3)] == [4]
    assert [*leaves_below(BEFORE, 2)] == [2]


def test_a_new_row_of_the_same_publication_is_a_change_of_its_settings() -> None:
    before = CatalogState(9, 700, {}, LSN(5), 800)
    assert not is_publication_changed(before, replace(before, lsn=LSN(6), oldest_xid=900))
    assert is_publication_changed(before, replace(before, publication_xmin=701))
    # Another publication of that name may have left out operations, too.
    assert is_publication_changed(before, replace(before, publication_id=10, publication_xmin=701))


def test_a_state_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    table = CatalogTable(Lake(str(tmp_path)))
    assert table.read() is None
    for state in (
        CatalogState(9, 700, {}, LSN(5), 800),
        CatalogState(
            9,
            701,
            {},
            LSN(6),
            900,
            {4: TableFile(NAME, 40, frozenset({2, 3})), 5: TableFile(NAME, 0, writers_xid=1 << 40)},
            types={60: MOOD, 61: SourceType(NAME, {0: 1 << 59})},
        ),
        CatalogState(9, 701, {ROOT: BEFORE, 7: Root(TableName("s", "empty"), {})}, LSN(6), 1 << 40),
    ):
        table.replace(state, "shop")
        found = table.read()
        assert found == state
        assert found is not None
        assert (found.lsn, found.oldest_xid) == (state.lsn, state.oldest_xid)
