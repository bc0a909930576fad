"""Guards: a table for which one batch would change too much is held, alone, until a person confirms."""

import shutil
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from pipeline.config.tables import Guards, TableRule
from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import apply_tables, run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.progress import ApplySummary
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline

TABLES = ("guarded", "whole", "free")
RULES = (
    TableRule("public.guarded", guards=Guards(deletes=5)),
    TableRule("public.whole", guards=Guards(truncates=0)),
    TableRule("*.*"),
)


def guarded(pipeline: Pipeline, *tables: str) -> Pipeline:
    """Return the pipeline with guards, and silver tables of 20 rows each."""
    tables = tables or TABLES
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=RULES))
    pipeline.ingest(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in tables))
    pipeline.run(*(f"INSERT INTO {table} SELECT g, 'v' FROM generate_series(1, 20) g" for table in tables))
    pipeline.catch_up()
    return pipeline


def held(summary: ApplySummary) -> set[str]:
    assert not any(state.failure for state in summary.tables.values()), summary.lines()
    return {name[1] for name, state in summary.tables.items() if state.held}


def rows(pipeline: Pipeline, table: str) -> int:
    return pipeline.frame("silver", "public", table).count()


def apply_or_rebuild(
    pipeline: Pipeline, *tables: str, rebuilds: bool = False, confirms: bool = True
) -> ApplySummary:
    globs = [f"public.{table}" for table in tables]
    run = run_rebuild if rebuilds else apply_tables
    return run(pipeline.config, globs, confirms=confirms)


@pytest.mark.quick
@pytest.mark.promise("guards")
def test_too_many_deletes_hold_only_that_table_until_a_person_confirms(pipeline: Pipeline) -> None:
    pipeline = guarded(pipeline, "guarded", "free")
    pipeline.ingest(
        "UPDATE guarded SET v = 'w'", *(f"DELETE FROM {t} WHERE id <= 6" for t in ("guarded", "free"))
    )
    steps = {table.name[1]: table.steps for table in make_plan(pipeline.config).tables}
    [step] = steps.pop("guarded")
    assert step.holds
    assert step.sentence == (
        "Table public.guarded is held by its guards: 6 deletes (guards.deletes is 5) are pending. If "
        "they are intended, run pgdelta apply --confirm --table public.guarded. Until then bronze keeps the "
        "changes."
    )
    assert list(steps) == ["free"]
    assert [(step.is_write, step.sentence) for step in steps["free"]] == [(True, "merge by key")]
    summary = pipeline.apply()
    assert held(summary) == {"guarded"}
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
    assert pipeline.frame("silver", "public", "guarded").where("v = 'v'").count() == 20
    assert pipeline.events("guarded") == [("held", step.sentence)]
    pipeline.assert_equal("free")
    with pytest.raises(ConfigError, match="--table"):
        apply_tables(pipeline.config, confirms=True)
    with pytest.raises(ConfigError, match="neither has the source"):
        apply_or_rebuild(pipeline, "gaurded")
    assert held(apply_or_rebuild(pipeline, "guarded")) == set()
    pipeline.assert_equal("guarded", "free")


@pytest.mark.spark
@pytest.mark.promise("guards")
@pytest.mark.slow
def test_a_confirmation_is_for_the_tables_that_it_names_and_once(pipeline: Pipeline) -> None:
    pipeline = guarded(pipeline)
    pipeline.ingest(
        "DELETE FROM guarded WHERE id <= 6", "TRUNCATE whole, free", "INSERT INTO free VALUES (1, 'after')"
    )
    assert held(pipeline.apply()) == {"guarded", "whole"}
    status = read_status(pipeline.config)
    states = {table.name[1]: table.state for table in status.tables}
    assert states == {"free": "current", "guarded": "held", "whole": "held"}
    pipeline.ingest("INSERT INTO guarded VALUES (21, 'new')", "DELETE FROM free")
    assert held(apply_or_rebuild(pipeline, "guarded", rebuilds=True, confirms=False)) == {"guarded", "whole"}
    assert (rows(pipeline, "guarded"), rows(pipeline, "whole")) == (20, 20)
    assert held(apply_or_rebuild(pipeline, "guarded")) == {"whole"}
    pipeline.assert_equal("guarded", "free")
    pipeline.ingest("UPDATE guarded SET id = id + 100", "DELETE FROM guarded WHERE id < 112")  # 5 deletes
    assert held(pipeline.apply()) == {"whole"}
    assert rows(pipeline, "whole") == 20
    assert held(apply_or_rebuild(pipeline, "wh*", rebuilds=True)) == set()
    pipeline.assert_equal(*TABLES)
    pipeline.ingest("DELETE FROM guarded", "TRUNCATE whole")
    assert held(pipeline.apply()) == {"guarded", "whole"}


@pytest.mark.promise("guards")
def test_a_table_that_fails_otherwise_is_guarded_all_the_same(pipeline: Pipeline) -> None:
    pipeline = guarded(pipeline, "guarded")
    DeltaTable(str(pipeline.path("silver", "public", "guarded"))).delete("id = 20")
    pipeline.ingest("DELETE FROM guarded WHERE id <= 6")
    summary = apply_or_rebuild(pipeline, "guarded", rebuilds=True, confirms=False)
    [state] = summary.tables.values()
    assert state.failure is not None
    assert "A foreign commit (DELETE at version 2) changed rows" in state.failure
    assert "6 deletes" in (state.held or "")
    assert rows(pipeline, "guarded") == 19
    assert held(apply_or_rebuild(pipeline, "guarded", rebuilds=True)) == set()
    pipeline.assert_equal("guarded")


@pytest.mark.spark
@pytest.mark.promise("guards")
@pytest.mark.slow
def test_a_resync_or_a_rebuild_of_a_table_is_not_guarded(make_pipeline: MakePipeline) -> None:
    pipeline = guarded(make_pipeline(create_publication="all"))
    pipeline.ingest("DELETE FROM guarded WHERE id <= 6")
    for _ in range(2):
        assert held(pipeline.apply()) == {"guarded"}
    assert [kind for kind, _ in pipeline.events("guarded")] == ["held"]
    copying = replace(
        pipeline, config=replace(pipeline.config, source=replace(pipeline.config.source, copy="initial"))
    )
    run_resync(copying.config, ["public.guarded"])
    copying.catch_up()  # the copy is the source as somebody asked for it
    copying.assert_equal("guarded")
    pipeline.run("DELETE FROM whole WHERE id <= 6", "TRUNCATE whole", "INSERT INTO whole VALUES (1)")
    copying.ingest()
    assert held(copying.apply()) == {"whole"}
    shutil.rmtree(pipeline.path("silver", "public", "whole"))
    assert held(copying.apply()) == set()  # built again from bronze: it showed no rows
    copying.assert_equal(*TABLES)


@pytest.mark.spark
@pytest.mark.promise("guards")
@pytest.mark.slow
def test_changes_around_copied_keys_are_guarded(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(create_publication="all", copy="initial")
    pipeline = guarded(pipeline)
    pipeline.catch_up("UPDATE guarded SET id = id + 100 WHERE id <= 10")  # no deletes
    pipeline.assert_equal("guarded")
    pipeline.ingest("DELETE FROM guarded WHERE id > 104")
    assert held(pipeline.apply()) == {"guarded"}
    keys = KeyRange(("101",), ("103",))
    run_resync(pipeline.config, ["public.guarded"], key_ranges=[keys])
    pipeline.ingest()
    [plan] = make_plan(pipeline.config).tables
    assert "6 deletes (guards.deletes is 5)" in plan.steps[0].sentence
    assert held(pipeline.apply()) == {"guarded"}
    assert rows(pipeline, "guarded") == 20
    assert held(apply_or_rebuild(pipeline, "guarded")) == set()
    pipeline.assert_equal(*TABLES)


@pytest.mark.spark
@pytest.mark.slow
def test_a_held_table_records_another_event_only_if_its_input_has_doubled(pipeline: Pipeline) -> None:
    from pipeline.apply.applier import Applier

    pipeline = guarded(pipeline)
    applier = Applier(pipeline.spark, pipeline.config)
    said = []
    for first, last in ((1, 6), (7, 8), (9, 12)):
        pipeline.ingest(f"DELETE FROM guarded WHERE id BETWEEN {first} AND {last}")
        state = applier.apply_pending().tables[TableName("public", "guarded")]
        assert f"{last} deletes" in str(state.held)
        said.append(len(pipeline.events("guarded")))
    assert said == [1, 1, 2]
    applier.confirm(lambda name: True)
    assert held(applier.apply_pending()) == set()
    applier.confirm(lambda name: False)
    pipeline.ingest("DELETE FROM guarded WHERE id BETWEEN 13 AND 18")
    assert held(applier.apply_pending()) == {"guarded"}
    assert len(pipeline.events("guarded")) == 3
