"""Which rows have the default of an ADD COLUMN: those of its table that are older than the column."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.table_input import SequenceKey, Survey
from pipeline.config.tables import RowMode, TableRule
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.sql_session import fold_by_key, follow_key_changes, net_images
from pipeline.silver.fold.write_plan import Identity, TableInput, WriteStep, plan_fold
from pipeline.silver.types.text_parsers import INT
from tests.support.silver.folding import CHANGES, SOME_TIME, add_rows, rows_of
from tests.support.silver.relations import INT4, column, relation, survey

ID, SEVEN = column("id", 1, INT4, is_key=True), column("c", 2, INT4, default="7")
BEFORE, WITH = relation(ID, version=1), relation(ID, SEVEN, version=2)
RELATIONS = (BEFORE, WITH)
# one batch: INSERT 1, ADD c DEFAULT 7, INSERT (2, 8), DROP c, INSERT 3; version 1 is the version after it too
DROPPED = (survey(1, (10, 0), (30, 4)), survey(2, (20, 1), (30, 1)))
CHANGED = (
    (10, 0, "I", 1, None, ["1"]),
    (20, 1, "I", 2, None, ["2", "8"]),
    (30, 1, "I", 2, None, ["4", "8"]),
    (30, 2, "I", 1, None, ["3"]),
    (30, 3, "U", 1, ["4"], ["5"]),
    (30, 4, "U", 1, None, ["2"]),
)


def fold_of(
    surveys: Sequence[Survey] = DROPPED,
    relations: Sequence[SourceRelation] = RELATIONS,
    *,
    versions: tuple[int, ...] = (1, 2),
    mode: RowMode = "mirror",
) -> Fold:
    table = TableInput(tuple(surveys), {each.version: each for each in relations}, LSN(1000))
    step = WriteStep(Identity.KEY, versions, (0, -1), (99, 0), replaces=False, end_lsn=LSN(1000))
    return plan_fold(table, step, {"id": INT, "c": INT}, TableRule("*.*", mode=mode))


def default_of(
    surveys: Sequence[Survey], *relations: SourceRelation, versions: tuple[int, ...] = (1, 2)
) -> tuple[str | None, SequenceKey | None]:
    """Return the default of column c in versions without it, and the change before which it counts."""
    found = fold_of(surveys, relations, versions=versions).columns[1]
    return found.missing_value, found.missing_before


def add_changes(session: DuckSql, *changes: tuple[Any, ...]) -> None:
    rows = [
        (lsn, ordinal, SOME_TIME, op, version, "K" if old else None, old, new, None)
        for lsn, ordinal, op, version, old, new in changes
    ]
    add_rows(session, "changes", rows, CHANGES)


def test_rows_before_the_column_have_its_default() -> None:
    surveys = survey(1, (10, 0), (20, 0)), survey(2, (20, 1), (30, 0))
    assert default_of(surveys, *RELATIONS) == ("7", None)
    assert default_of(surveys, *RELATIONS, versions=(1,)) == ("7", None)  # the column comes after the step


def test_rows_after_the_column_was_dropped_have_no_default() -> None:
    assert default_of(DROPPED, *RELATIONS) == ("7", (20, 1))
    after = survey(2, (20, 1), (30, 1)), survey(1, (30, 2), (30, 4))
    assert default_of(after, *RELATIONS) == ("7", (20, 1))
    assert default_of(after, *RELATIONS, versions=(1,)) == ("7", (20, 1))


def test_a_column_counts_from_the_first_version_that_has_it() -> None:
    wider = relation(ID, SEVEN, column("d", 3), version=3)
    surveys = survey(1, (10, 0), (50, 0)), survey(3, (30, 0), (40, 0)), survey(2, (20, 0), (25, 0))
    assert default_of(surveys, *RELATIONS, wider, versions=(1, 2, 3)) == ("7", (20, 0))


def test_another_table_of_the_same_name_has_no_part_in_it() -> None:
    third, fourth = relation(ID, version=3, oid=501), relation(ID, column("c", 2), version=4, oid=501)
    former = survey(1, (10, 0), (10, 0)), survey(2, (20, 0), (20, 0))
    surveys = *former, survey(3, (30, 0), (30, 0)), survey(4, (40, 0), (40, 0))
    assert default_of(surveys, *RELATIONS, third, fourth, versions=(3, 4)) == (None, None)
    nine = relation(ID, column("c", 2, default="9"), version=4, oid=501)
    assert default_of(surveys, *RELATIONS, third, nine, versions=(3, 4)) == ("9", None)
    surveys = *former, survey(3, (30, 0), (50, 0)), survey(4, (40, 0), (40, 0))
    assert default_of(surveys, *RELATIONS, third, nine, versions=(3, 4)) == ("9", (40, 0))


@pytest.mark.parametrize("mode", ["mirror", "soft_delete"])
def test_fold_by_key_knows_rows_before_and_after_the_column(session: DuckSql, mode: RowMode) -> None:
    sql = FoldSql(replace(fold_of(mode=mode), has_key_changes=True), session.engine)
    add_changes(session, *CHANGED)
    fold_by_key(session, sql)
    follow_key_changes(session, sql)
    rows = rows_of(session, "SELECT * FROM inherited WHERE op <> 'D'")
    found = {row["k0"]: row["x1"] for row in rows if not row.get("is_deleted")}
    assert {key: text for key, text in found.items() if key != "4"} == {
        "1": "7",
        "2": "8",
        "3": None,
        "5": "8",
    }


def test_versions_of_a_history_know_rows_before_and_after_the_column(session: DuckSql) -> None:
    sql = FoldSql(fold_of(mode="history"), session.engine)
    add_changes(session, *(each for each in CHANGED if each[2] == "I"))
    fold_by_key(session, sql)
    found = {row["k0"]: row["x1"] for row in rows_of(session, "SELECT * FROM by_key WHERE op = 'U'")}
    assert found == {"1": "7", "2": "8", "3": None, "4": "8"}


def test_inserted_rows_know_whether_they_are_older_than_the_column(session: DuckSql) -> None:
    add_changes(session, *(each for each in CHANGED if each[2] == "I"))
    rows = rows_of(session, FoldSql(fold_of(), session.engine).inserted("changes"))
    assert {row["x0"]: row["x1"] for row in rows} == {"1": "7", "2": "8", "3": None, "4": "8"}


def test_whole_rows_know_whether_they_are_older_than_the_column(session: DuckSql) -> None:
    whole = tuple(replace(each, replica_identity="f") for each in RELATIONS)
    sql = FoldSql(fold_of(relations=whole, versions=(1,)), session.engine)
    add_changes(session, (10, 0, "I", 1, None, ["1"]), (30, 2, "U", 1, ["2"], ["3"]))
    net_images(session, sql)
    assert {row["x0"]: row["x1"] for row in rows_of(session, "SELECT * FROM signed WHERE sign = 1")} == {
        "1": "7",
        "3": None,
    }
