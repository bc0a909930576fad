"""Relation versions of another server are read with the oids and attribute numbers of the lake."""

from dataclasses import replace

from pipeline.bronze.source_moves import MovedTable, SourceMoves
from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

A, B = TableName("public", "a"), TableName("public", "b")


def relation(oid: int, lsn: int, *numbers: int) -> SourceRelation:
    columns = tuple(
        SourceColumn(f"c{number}", 23, -1, False, number, 23, -1, None, "int4out") for number in numbers
    )
    return SourceRelation(1, oid, "public", "a", "d", columns, lsn)


def numbers_of(found: SourceRelation) -> list[int | None]:
    return [column.attribute_number for column in found.columns]


def test_a_version_of_before_the_move_stays_as_it_is() -> None:
    moves = SourceMoves((MovedTable(A, LSN(100), 7, 5, {1: 1, 2: 3}),))
    assert moves.translate(relation(7, 99, 1, 2)) == relation(7, 99, 1, 2)
    assert SourceMoves().translate(relation(7, 99, 1)) == relation(7, 99, 1)


def test_a_moved_table_keeps_its_numbers_and_a_new_column_gets_a_free_one() -> None:
    moves = SourceMoves((MovedTable(A, LSN(100), 7, 5, {1: 1, 2: 3}),))
    found = moves.translate(relation(7, 100, 1, 2, 3))
    assert found.oid == 5
    assert numbers_of(found) == [1, 3, 10_003]
    assert [moves.lake_number(7, number) for number in (0, 2, 3)] == [(5, 0), (5, 3), (5, 10_003)]
    assert moves.lake_id(7) == 5
    assert SourceMoves().lake_number(7, 2) == (7, 2)


def test_a_table_that_did_not_move_has_the_oid_of_no_other() -> None:
    moves = SourceMoves((MovedTable(A, LSN(100), 7, 5, {1: 1}), MovedTable(B, LSN(100), 5, 7, {1: 1})))
    assert moves.translate(relation(5, 200, 1)).oid == 7
    assert moves.translate(relation(9, 200, 1)).oid == 2**32 + 9
    again = SourceMoves((*moves.tables, MovedTable(A, LSN(300), 5, 5, {1: 1, 2: 10_003})))
    assert again.translate(relation(5, 301, 1, 2, 3)) == replace(
        relation(5, 301, 1, 2, 3), columns=again.translate(relation(5, 301, 1, 2, 3)).columns
    )
    assert numbers_of(again.translate(relation(5, 301, 1, 2, 3))) == [1, 10_003, 20_003]


def test_a_server_with_the_same_numbers_needs_no_others() -> None:
    moves = SourceMoves((MovedTable(A, LSN(100), 5, 5, {1: 1, 3: 3}),))
    assert moves.translate(relation(5, 200, 1, 3, 4)) == relation(5, 200, 1, 3, 4)
    assert moves.translate(relation(9, 200, 1)) == relation(9, 200, 1)


def test_a_table_that_has_other_columns_has_the_oid_of_none() -> None:
    begun = SourceMoves().begun(A, LSN(100), 5)
    moves = SourceMoves((begun,))
    assert moves.translate(relation(5, 99, 1)).oid == 5
    found = moves.translate(relation(5, 100, 1, 2))
    assert (found.oid, numbers_of(found)) == (2**32 + 5, [10_001, 10_002])
    assert moves.translate(relation(9, 100, 1)).oid == 2**32 + 9
    assert moves.begun(A, LSN(100), 5) == begun  # by a run that was killed
    assert moves.begun(A, LSN(300), 5).lake_id == 2 * 2**32 + 5
