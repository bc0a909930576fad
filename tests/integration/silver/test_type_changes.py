"""A type change that silver cannot follow, under each rule: held, read again from bronze, or copied again."""

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.copies import Copies
from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifests
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.report.status import read_status
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.pipelines import (
    Crash,
    MakePipeline,
    Pipeline,
    assert_nothing_stopped,
    with_rules,
    with_writer,
)

NAME = TableName("public", "t")
RULES = (TableRule("public.kept"), TableRule("*.*", type_changes="resync"))


def fill(make_pipeline: MakePipeline, writer: WriterSetting = "auto") -> Pipeline:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline = with_rules(with_writer(pipeline, writer), *RULES)
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, v text, w text)",
        "CREATE TABLE kept (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, g::text, 'w' FROM generate_series(1, 9) g",
    )
    pipeline.run("UPDATE t SET v = '70' WHERE id = 7", "DELETE FROM t WHERE id = 1")
    return pipeline


def values(pipeline: Pipeline) -> list[tuple[int, object]]:
    return sorted((row.id, row.v) for row in pipeline.frame("silver", "public", "t").collect())


def is_behind(pipeline: Pipeline) -> bool:
    manifest = Manifests(Lake(pipeline.root)).last()
    assert manifest is not None
    return NAME in manifest.behind


def requests(pipeline: Pipeline) -> int:
    """Return how many copies are requested, not counting the comparison after the rewrite."""
    found = Copies(Lake(pipeline.root)).read().open_requests.get(NAME, [])
    return len([each for each in found if "rewrite" not in each.reason])


@pytest.mark.spark
@pytest.mark.promise("type changes")
@pytest.mark.parametrize("writer", ["native", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_type_change_copies_the_table_again_with_what_using_computed(
    make_pipeline: MakePipeline, writer: WriterSetting
) -> None:
    pipeline = fill(make_pipeline, writer)
    pipeline.ingest(
        "ALTER TABLE t ALTER v TYPE int USING v::int * 10",
        "UPDATE t SET v = 5 WHERE id = 5",
        "INSERT INTO t VALUES (20, 200, 'new')",
        "INSERT INTO kept VALUES (1, 'follows')",
    )
    [step] = [s for t in make_plan(pipeline.config, ["public.t"]).tables for s in t.steps if s.holds]
    assert step.sentence.startswith("Table public.t waits for a copy: column v changed from STRING to INT.")
    before = [(n, "70" if n == 7 else str(n)) for n in range(2, 10)]
    with crash_at(CrashStep.RECORD_MANIFEST), pytest.raises(Crash):
        Applier(pipeline.spark, pipeline.config).apply_pending()
    for _ in range(2):  # the second time by the decision
        summary = pipeline.apply()
        assert_nothing_stopped(summary)
        assert (values(pipeline), is_behind(pipeline), requests(pipeline)) == (before, True, 1)
    pipeline.assert_equal("kept")
    [planned] = make_plan(pipeline.config, ["public.t"]).tables
    assert "waits for its copy, because silver cannot follow the type change" in planned.steps[0].sentence
    kinds = [kind for kind, _ in pipeline.events("t")]
    assert kinds.count("resync") == 1
    pipeline.catch_up("UPDATE t SET v = 6 WHERE id = 6")
    pipeline.assert_equal("t")
    assert not is_behind(pipeline)
    assert requests(pipeline) == 0
    assert dict(values(pipeline)) == {2: 20, 3: 30, 4: 40, 5: 5, 6: 6, 7: 700, 8: 80, 9: 90, 20: 200}
    pipeline.catch_up("DELETE FROM t WHERE id < 4", "ALTER TABLE t ALTER v TYPE bigint", "UPDATE t SET v = 1")
    pipeline.assert_equal("t")


@pytest.mark.promise("type changes")
def test_a_table_that_waits_for_its_copy_may_be_rebuilt_or_held_instead(make_pipeline: MakePipeline) -> None:
    pipeline = fill(make_pipeline)
    pipeline.ingest("ALTER TABLE t ALTER v TYPE int USING v::int", "UPDATE t SET v = 5 WHERE id = 5")
    assert_nothing_stopped(pipeline.apply())
    held = with_rules(pipeline, TableRule("*.*"))
    assert "Set type_changes to rebuild or resync" in str(held.apply().tables[NAME].held)
    rebuilt = run_rebuild(pipeline.config, ["public.t"])
    assert_nothing_stopped(rebuilt)
    pipeline.assert_equal("t")
    assert not is_behind(pipeline)
    pipeline.catch_up("UPDATE t SET v = 6 WHERE id = 6")
    pipeline.assert_equal("t")


@pytest.mark.promise("type changes")
def test_a_renamed_column_is_rebuilt_across_a_partial_copy(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline = with_rules(pipeline, TableRule("*.*", type_changes="rebuild"))
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, v text, day date)",
        "INSERT INTO t VALUES (1, 'a', NULL), (2, 'b', NULL)",
    )
    pipeline.catch_up("ALTER TABLE t ALTER v TYPE text USING upper(v)")
    for _ in range(2):  # the rewrite is found, and the keys that differ are copied
        pipeline.catch_up()
    history = Copies(Lake(pipeline.root)).read()
    assert [copy.key_ranges != () for copy in history.states[NAME]] == [False, True]
    pipeline.catch_up(
        "ALTER TABLE t RENAME day TO days",
        "INSERT INTO t (id) VALUES (20)",
        "ALTER TABLE t ALTER days TYPE bigint USING NULL",
        "INSERT INTO t (id, days) VALUES (21, 5)",
    )
    for _ in range(2):
        pipeline.catch_up()
    assert_nothing_stopped(pipeline.apply())
    pipeline.assert_equal("t")


@pytest.mark.promise("type changes")
def test_a_comparison_does_not_hide_that_a_table_is_held(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    pipeline.ingest("UPDATE t SET id = 3", "ALTER TABLE t ALTER v TYPE bytea USING v::bytea")
    held = pipeline.apply().tables[NAME].held
    assert held is not None
    assert "1 key range copied" in pipeline.ingest().compared[NAME]
    assert pipeline.apply().tables[NAME].held == held
    (shown,) = read_status(pipeline.config, is_offline=True).tables
    assert (shown.state, shown.sentence) == ("held", held)
    (planned,) = make_plan(pipeline.config, ["public.t"]).tables
    assert [(step.holds, step.sentence) for step in planned.steps] == [(True, held)]
