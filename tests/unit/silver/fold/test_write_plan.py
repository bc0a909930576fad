"""The write steps of a table's input, by its survey."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.table_input import Survey, TruncatedAt
from pipeline.config.tables import Misfits, TableRule
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.write_plan import (
    Identity,
    Run,
    TableInput,
    WriteStep,
    plain_runs,
    plan_fold,
    plan_write_steps,
)
from pipeline.silver.types.text_parsers import BIGINT, DATE, INT, STRING
from tests.support.silver.relations import INT4, column, relation, survey

KEY, PLAIN = column("id", 1, INT4, is_key=True), column("v", 2)
KEYED = relation(KEY, PLAIN, version=1)
WIDER = relation(KEY, PLAIN, column("w", 3), version=2)
FULL = relation(column("id", 1, INT4, is_key=True), column("v", 2, is_key=True), version=3, identity="f")
FULL_WIDER = relation(*FULL.columns, column("w", 3, is_key=True), version=4, identity="f")
OTHER_KEY = relation(column("id", 1, INT4), column("v", 2, is_key=True), version=5, identity="i")
NOTHING = relation(column("id", 1, INT4), column("v", 2), version=6, identity="n")
AGAIN = relation(KEY, PLAIN, version=7, oid=501)
RELATIONS = {r.version: r for r in (KEYED, WIDER, FULL, FULL_WIDER, OTHER_KEY, NOTHING, AGAIN)}
START = (0, -1)


def write_steps(
    *surveys: Survey, runs: Sequence[Run] | None = None, shown_oid: int | None = None
) -> list[WriteStep]:
    found = plain_runs(surveys, RELATIONS) if runs is None else tuple(runs)
    assert found is not None
    return plan_write_steps(TableInput(surveys, RELATIONS, LSN(1000), found), shown_oid)


def described(step: WriteStep) -> str:
    text = f"{step.identity.value} {step.versions} ({step.start}, {step.end}] → {int(step.end_lsn)}"
    return text + f" #{step.part}" * bool(step.part) + " replaces" * step.replaces


def test_one_version_is_one_step() -> None:
    [step] = write_steps(survey(1, (10, 0), (90, 4)))
    assert described(step) == "key (1,) ((0, -1), (90, 4)] → 1000"


def test_truncates_that_mark_rows_divide_a_step_if_they_are_many() -> None:
    surveys = (survey(1, (10, 0), (90, 4)),)
    truncates = [TruncatedAt(20 + n // 50, n % 50, 0) for n in range(250)]
    runs = plain_runs(surveys, RELATIONS)
    assert runs is not None
    found = plan_write_steps(TableInput(surveys, RELATIONS, LSN(1000), runs), None, truncates)
    assert [described(step) for step in found] == [
        "key (1,) ((0, -1), (21, 49)] → 21 #1",
        "key (1,) ((21, 49), (23, 49)] → 23 #1",
        "key (1,) ((23, 49), (90, 4)] → 1000",
    ]
    assert [each for step in found for each in step.truncates] == truncates


def test_versions_of_one_key_are_one_step_even_interleaved() -> None:
    [step] = write_steps(survey(1, (10, 0), (90, 4)), survey(2, (20, 0), (80, 0)))
    assert described(step) == "key (1, 2) ((0, -1), (90, 4)] → 1000"


def test_each_identity_is_a_step_complete_up_to_the_next_transaction() -> None:
    planned = write_steps(
        survey(1, (10, 0), (20, 3)), survey(3, (30, 0), (40, 0)), survey(5, (50, 1), (60, 0))
    )
    assert [described(step) for step in planned] == [
        "key (1,) ((0, -1), (20, 3)] → 30",
        "whole row (3,) ((20, 3), (40, 0)] → 50",
        "key (5,) ((40, 0), (60, 0)] → 1000",
    ]


def test_steps_within_one_transaction_are_numbered() -> None:
    planned = write_steps(
        survey(1, (10, 0), (30, 1)),
        survey(3, (30, 2), (30, 5)),
        survey(5, (30, 6), (40, 0)),
        survey(6, (40, 1), (50, 0)),
    )
    assert [described(step) for step in planned] == [
        "key (1,) ((0, -1), (30, 1)] → 30 #1",
        "whole row (3,) ((30, 1), (30, 5)] → 30 #2",
        "key (5,) ((30, 5), (40, 0)] → 40 #1",
        "none (6,) ((40, 0), (50, 0)] → 1000",
    ]


def test_whole_rows_of_two_versions_are_two_steps() -> None:
    planned = write_steps(survey(3, (10, 0), (20, 0)), survey(4, (30, 0), (40, 0)))
    assert [step.versions for step in planned] == [(3,), (4,)]


def test_identities_that_interleave_have_no_plain_runs() -> None:
    surveys = survey(1, (10, 0), (50, 0)), survey(3, (20, 0), (40, 0))
    assert plain_runs(surveys, RELATIONS) is None
    runs = Run((1,), (10, 0), (19, 0)), Run((3,), (20, 0), (40, 0)), Run((1,), (41, 0), (50, 0))
    assert [described(step) for step in write_steps(*surveys, runs=runs)] == [
        "key (1,) ((0, -1), (19, 0)] → 20",
        "whole row (3,) ((19, 0), (40, 0)] → 41",
        "key (1,) ((40, 0), (50, 0)] → 1000",
    ]


def test_truncate_makes_what_is_before_it_irrelevant() -> None:
    [step] = write_steps(survey(1, (10, 0), (90, 4), truncate=(50, 2)))
    assert described(step) == "key (1,) ((50, 2), (90, 4)] → 1000 replaces"
    [step] = write_steps(survey(1, (10, 0), (20, 0)), survey(3, (30, 0), (90, 4), truncate=(50, 2)))
    assert described(step) == "whole row (3,) ((50, 2), (90, 4)] → 1000 replaces"


def test_truncate_at_the_end_leaves_nothing() -> None:
    [step] = write_steps(survey(1, (10, 0), (90, 4), truncate=(90, 4)))
    assert described(step) == "key (1,) ((90, 4), (90, 4)] → 1000 replaces"


def test_truncate_at_the_end_of_an_identity_empties_before_the_next_one() -> None:
    planned = write_steps(survey(1, (10, 0), (20, 0), truncate=(20, 0)), survey(3, (30, 0), (40, 0)))
    assert [described(step) for step in planned] == [
        "key (1,) ((20, 0), (20, 0)] → 30 replaces",
        "whole row (3,) ((20, 0), (40, 0)] → 1000",
    ]


def test_table_created_again_replaces_the_rows_of_the_old_one() -> None:
    [step] = write_steps(survey(1, (10, 0), (20, 0)), survey(7, (30, 3), (40, 0)))
    assert described(step) == "key (7,) ((30, 2), (40, 0)] → 1000 replaces"
    [step] = write_steps(survey(7, (30, 0), (40, 0)), shown_oid=500)
    assert described(step) == "key (7,) ((30, -1), (40, 0)] → 1000 replaces"
    [step] = write_steps(survey(7, (30, 0), (40, 0)), shown_oid=501)
    assert described(step) == "key (7,) ((0, -1), (40, 0)] → 1000"
    [step] = write_steps(survey(7, (30, 0), (40, 0), truncate=(35, 0)), shown_oid=500)
    assert described(step) == "key (7,) ((35, 0), (40, 0)] → 1000 replaces"


def test_only_the_last_of_tables_created_again_counts() -> None:
    third = relation(KEY, PLAIN, version=8, oid=502)
    surveys = survey(1, (10, 0), (20, 0)), survey(7, (30, 0), (40, 0)), survey(8, (50, 0), (60, 0))
    relations: dict[int, SourceRelation] = RELATIONS | {8: third}
    runs = plain_runs(surveys, relations)
    assert runs is not None
    [step] = plan_write_steps(TableInput(surveys, relations, LSN(1000), runs), 500)
    assert described(step) == "key (8,) ((50, -1), (60, 0)] → 1000 replaces"


def test_table_without_identity_is_appended_to_and_refuses_updates() -> None:
    unflagged = relation(column("id", 1, INT4), version=9)
    for version, of in ((6, NOTHING), (9, unflagged)):
        runs = (Run((version,), (10, 0), (20, 0)),)
        table = TableInput((survey(version, (10, 0), (20, 0)),), {version: of}, LSN(50), runs)
        assert [step.identity for step in plan_write_steps(table)] == [Identity.NONE]
        changed = TableInput((survey(version, (10, 0), (20, 0), updates=1),), {version: of}, LSN(50), runs)
        with pytest.raises(LakeError, match="has no replica identity, but has updates or deletes"):
            plan_write_steps(changed)


def test_fold_has_the_index_of_each_column_and_what_may_be_missing() -> None:
    surveys = survey(1, (10, 0), (20, 0), unsent=[1], key_tuples=1), survey(2, (30, 0), (40, 0))
    runs = plain_runs(surveys, RELATIONS)
    assert runs is not None
    table = TableInput(surveys, RELATIONS, LSN(1000), runs)
    [step] = plan_write_steps(table)
    silver = {"id": INT, "v": STRING, "w": STRING, "gone": BIGINT}
    fold = plan_fold(table, step, silver, TableRule("*.*"))
    assert [(c.name, dict(c.indexes), c.is_partial) for c in fold.columns] == [
        ("id", {1: 0, 2: 0}, False),
        ("v", {1: 1, 2: 1}, True),
        ("w", {2: 2}, True),
        ("gone", {}, True),
    ]
    assert (fold.key, fold.versions, fold.partial, fold.has_key_changes) == ((0,), (1, 2), (1, 2, 3), True)
    assert fold.columns[3].type is BIGINT or fold.columns[3].type.ddl == "BIGINT"
    configured = plan_fold(table, step, silver | {"v": BIGINT}, TableRule("*.*", types={"v": "BIGINT"}))
    assert configured.columns[1].type.ddl == "BIGINT"
    wider = plan_fold(table, step, silver | {"id": BIGINT}, TableRule("*.*"))
    assert wider.columns[0].type.ddl == "BIGINT"


def test_sidecar_of_an_earlier_policy_follows_its_column() -> None:
    dated = relation(KEY, column("d", 2, 1082), column("e__text", 3), version=8)
    runs = (Run((8,), (10, 0), (20, 0)),)
    table = TableInput((survey(8, (10, 0), (20, 0)),), {8: dated}, LSN(50), runs)
    [step] = plan_write_steps(table)
    silver = {"id": INT, "d": DATE, "d__text": STRING, "e__text": STRING, "e": INT}
    numbers = ("id", "d", "e__text", "e")
    policies: list[tuple[Misfits, bool]] = [("text", True), ("clamp", False), ("null", False)]
    for misfit, reads in policies:
        fold = plan_fold(table, step, silver, TableRule("*.*", misfits={"d": misfit}), numbers)
        [left] = [each for each in fold.columns if each.is_sidecar]
        assert (left.name, left.indexes) == ("d__text", {8: 1})
        assert ("x" in left.type.value("x")) is reads
        assert [each.indexes for each in fold.columns if each.name == "e__text"] == [{8: 2}]
    # rows that are compared as a whole have no such text to compare
    whole = replace(step, identity=Identity.WHOLE_ROW)
    fold = plan_fold(table, whole, silver, TableRule("*.*"), numbers)
    assert not any(each.is_sidecar or each.indexes for each in fold.columns if each.name == "d__text")


def test_fold_has_silver_s_type_if_the_catalog_did_not_give_one() -> None:
    unknown = relation(column("id", None, INT4, is_key=True), column("v", None, 16_500), version=1)
    surveys = (survey(1, (10, 0), (20, 0)),)
    table = TableInput(surveys, {1: unknown}, LSN(50), (Run((1,), (10, 0), (20, 0)),))
    [step] = plan_write_steps(table)
    fold = plan_fold(table, step, {"id": INT, "v": BIGINT}, TableRule("*.*"))
    assert [c.type.ddl for c in fold.columns] == ["INT", "BIGINT"]
