"""Which tables wait for a copy of their rows, and which events say that a renamed one lacks some."""

from dataclasses import replace

import pytest

from pipeline.apply.table_renames import ChangesUnderOtherName, names_by_table, rename_events, replaced_tables
from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.table_input import TableSurvey
from pipeline.delta.sql import EPOCH
from pipeline.metadata.registry import RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.silver.relations import column, relation, survey

A, B = TableName("public", "a"), TableName("public", "b")


def registered(name: TableName, oid: int) -> RegisteredTable:
    return RegisteredTable(*name, f"file:/lake/{name[1]}", oid, ())


def sentences(
    name: TableName,
    known: dict[TableName, int],
    seen: list[tuple[TableName, int]],
    other_name: ChangesUnderOtherName | None = None,
) -> list[str]:
    """Return the events of a table with changes from LSN 50 to 90 of the last version.

    `known` are silver's tables with their oids, `seen` the versions by name and oid.
    """
    versions = {
        number: replace(relation(column("id", 1), version=number, oid=oid), table_name=table[1])
        for number, (table, oid) in enumerate(seen)
    }
    own = [number for number, each in versions.items() if each.name == name]
    found = [survey(own[-1], (50, 0), (90, 3))]
    tables = {table: registered(table, oid) for table, oid in known.items()}
    events = [*rename_events(name, tables, versions, found, other_name)]
    assert all(event.kind == "resync" for event in events)
    return [event.sentence for event in events]


@pytest.mark.parametrize(
    ("known", "seen"),
    [
        ({A: 1}, [(A, 1)]),
        ({A: 1, B: 2}, [(A, 1), (B, 2)]),
        ({}, [(A, 1)]),
        ({A: 1}, [(A, 2)]),  # dropped and created again
        ({A: 1}, [(B, 1), (A, 1)]),  # renamed long ago
    ],
)
def test_what_lacks_nothing_is_no_event(
    known: dict[TableName, int], seen: list[tuple[TableName, int]]
) -> None:
    assert sentences(A, known, seen) == []


def test_new_name_has_its_older_rows_under_the_old_one() -> None:
    assert [s[:38] for s in sentences(B, {A: 1}, [(A, 1), (B, 1)])] == [
        "Table public.a was renamed to public.b"
    ]


def test_rename_to_the_name_of_another_table_is_an_event_too() -> None:
    found = sentences(A, {A: 1, B: 2}, [(A, 1), (B, 2), (A, 2)])
    assert [s[:38] for s in found] == ["Table public.b was renamed to public.a"]


def test_table_that_had_another_name_for_a_while_lacks_what_came_then() -> None:
    (sentence,) = sentences(A, {A: 1}, [(A, 1), (B, 1), (A, 1)], ChangesUnderOtherName(LSN(60), B))
    assert sentence.startswith("Table public.a was called public.b for a while.")


def test_the_command_of_an_event_quotes_a_name_for_the_shell() -> None:
    quoted = TableName("public", "a b")
    (sentence,) = sentences(quoted, {quoted: 1}, [(quoted, 1)], ChangesUnderOtherName(LSN(60), B))
    assert sentence.endswith("Run pgdelta resync --table 'public.a b'.")


@pytest.mark.parametrize(
    ("copied", "known", "seen", "is_replaced"),
    [
        (1, 1, [1, 1], False),
        (1, 1, [1, 2], True),  # dropped and created again, or renamed
        (1, 1, [2], True),
        (1, 1, [2, 1], True),  # and back: what came under the other name is missing all the same
        (2, 1, [2, 2], False),  # copied since
        (2, 1, [2, 3], True),
        (None, 1, [1], False),
        (None, 1, [2], True),
        (None, None, [1, 2], False),  # nothing is there that could be replaced
    ],
)
def test_input_of_another_table_than_was_copied_waits(
    copied: int | None, known: int | None, seen: list[int], is_replaced: bool
) -> None:
    versions = {oid: relation(column("id", 1), version=oid, oid=oid) for oid in (1, 2, 3)}
    copies = {A: CompleteCopy(7, copied, (LSN(40),), 10)} if copied else {}
    tables = {A: registered(A, known)} if known else {}
    found = [TableSurvey(survey(oid, (50, 0), (60, 0)), {}, EPOCH) for oid in seen]
    replaced = replaced_tables({A: found, B: []}, copies, tables, versions)
    assert replaced == ({A} if is_replaced else set())


def test_a_table_has_only_the_names_under_which_changes_were_recorded() -> None:
    versions = {1: relation(column("id", 1), version=1, oid=1)}
    versions |= {2: replace(versions[1], version=2, table_name="b")}
    found = {
        A: [TableSurvey(survey(1, (50, 0), (60, 0)), {}, EPOCH)],
        B: [TableSurvey(survey(2, (70, 0), (80, 0)), {}, EPOCH)],
    }
    assert names_by_table(found, versions) == {1: {A, B}}
    assert names_by_table({A: found[A]}, versions) == {1: {A}}
