"""What `pgdelta plan` says of edited rules, before the next change of a table carries them out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.plan import make_plan
from pipeline.operate.plan_report import PlanStep
from pipeline.operate.rebuild import run_rebuild
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline, with_rules

KEPT = TableRule("public.kept")


@pytest.fixture
def applied(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with two tables in silver, and no changes since."""
    made = make_pipeline(copy="initial", create_publication="all")
    made.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(8, 2))",
        "CREATE TABLE kept (id int PRIMARY KEY)",
    )
    made.catch_up("INSERT INTO t SELECT i, i, i FROM generate_series(1, 20) i", "INSERT INTO kept VALUES (1)")
    return made


def steps_of(pipeline: Pipeline) -> Sequence[PlanStep]:
    """Return the steps of `t`, whose plan is the only one."""
    [planned] = make_plan(pipeline.config).tables
    assert (planned.name, planned.failure) == (TableName("public", "t"), None)
    assert not any(planned.counts.values())
    return planned.steps


@pytest.mark.promise("plan is what apply does")
def test_an_edited_rule_is_planned_before_the_next_change(applied: Pipeline) -> None:
    assert not make_plan(applied.config).tables
    [feed] = steps_of(with_rules(applied, TableRule("public.t", change_feed=True), KEPT))
    assert "delta.enableChangeDataFeed = true" in feed.sentence
    assert feed.cost == "no data is written; with the table's next change"
    held = with_rules(applied, TableRule("public.t", types={"n": "STRING"}), KEPT)
    [hold] = steps_of(held)
    assert hold.holds
    assert "DECIMAL(8,2) to STRING" in hold.sentence
    assert hold.cost == "nothing is applied from its next change on"
    # which then does what was planned
    held.ingest("UPDATE t SET n = n + 1 WHERE id = 1")
    assert "DECIMAL(8,2) to STRING" in (held.apply().tables[TableName("public", "t")].held or "")
    run_rebuild(held.config, ["public.t"])
    assert not make_plan(held.config).tables


@pytest.mark.promise("plan is what apply does")
def test_the_remedy_of_an_edited_rule_has_its_rows_and_bytes(applied: Pipeline) -> None:
    for rule, remedy in (
        (TableRule("public.t", mode="history"), "the rebuild reads 20 changes again, replaces 20 rows, "),
        (
            TableRule("public.t", partition_by=("v",)),
            "the rebuild reads 20 changes again, replaces 20 rows, ",
        ),
        (
            TableRule("public.t", columns=replace(KEPT.columns, exclude=("v",))),
            "the resync copies the table again, replaces 20 rows, ",
        ),
    ):
        [step] = steps_of(with_rules(applied, rule, KEPT))
        assert remedy in step.cost


@pytest.mark.promise("plan is what apply does")
def test_a_table_that_no_rule_names_is_planned_to_be_detached(applied: Pipeline) -> None:
    [step] = steps_of(with_rules(applied, KEPT))
    assert "No rule of the configuration matches the table any more." in step.sentence
    assert step.cost == "its rows stay where they are"
    without = with_rules(applied, KEPT)
    without.catch_up("INSERT INTO kept VALUES (2)")
    assert not make_plan(without.config).tables


@pytest.mark.promise("one bad table")
def test_a_log_that_cannot_be_read_stops_no_plan_of_an_edited_rule(applied: Pipeline) -> None:
    newest = max(applied.path("silver", "public", "t", "_delta_log").glob("*.json"))
    newest.with_name(f"{int(newest.stem) + 1:020}.json").write_text("{")
    edited = with_rules(
        applied, TableRule("public.t", mode="history"), TableRule("public.kept", mode="history")
    )
    planned = {table.name.table: table for table in make_plan(edited.config).tables}
    assert planned["t"].failure is not None
    assert "the rebuild reads 1 change again" in planned["kept"].steps[0].cost
