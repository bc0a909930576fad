"""Which rows have the default of an ADD COLUMN: those of its table that are older than the column."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.tables import TableRule
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold import Fold
from pipeline.silver.text_parsers import INT
from pipeline.silver.write_plan import Identity, TableInput, WriteStep, plan_fold
from tests.support.silver.relations import INT4, column, relation, survey

ID, SEVEN = column("id", 1, INT4, is_key=True), column("c", 2, INT4, default="7")
BEFORE, WITH = relation(ID, version=1), relation(ID, SEVEN, version=2)
RELATIONS = (BEFORE, WITH)


def fold_of(
    surveys: Sequence[Survey],
    relations: Sequence[SourceRelation],
    *,
    versions: tuple[int, ...],
) -> Fold:
    table = TableInput(tuple(surveys), {each.version: each for each in relations}, LSN(1000))
    step = WriteStep(Identity.KEY, versions, (0, -1), (99, 0), replaces=False, end_lsn=LSN(1000))
    return plan_fold(table, step, {"id": INT, "c": INT}, TableRule("*.*"))


def default_of(
    surveys: Sequence[Survey], *relations: SourceRelation, versions: tuple[int, ...] = (1, 2)
) -> str | None:
    """Return the default of column c in versions without it."""
    return fold_of(surveys, relations, versions=versions).columns[1].missing_value


def test_rows_before_the_column_have_its_default() -> None:
    surveys = survey(1, (10, 0), (20, 0)), survey(2, (20, 1), (30, 0))
    assert default_of(surveys, *RELATIONS) == "7"
    assert default_of(surveys, *RELATIONS, versions=(1,)) == "7"  # the column comes after the step


def test_another_table_of_the_same_name_has_no_part_in_it() -> None:
    third, fourth = relation(ID, version=3, oid=501), relation(ID, column("c", 2), version=4, oid=501)
    former = survey(1, (10, 0), (10, 0)), survey(2, (20, 0), (20, 0))
    surveys = *former, survey(3, (30, 0), (30, 0)), survey(4, (40, 0), (40, 0))
    assert default_of(surveys, *RELATIONS, third, fourth, versions=(3, 4)) is None
    nine = relation(ID, column("c", 2, default="9"), version=4, oid=501)
    assert default_of(surveys, *RELATIONS, third, nine, versions=(3, 4)) == "9"
    surveys = *former, survey(3, (30, 0), (50, 0)), survey(4, (40, 0), (40, 0))
    assert default_of(surveys, *RELATIONS, third, nine, versions=(3, 4)) == "9"
