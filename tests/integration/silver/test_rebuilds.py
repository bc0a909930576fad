"""A table is rebuilt from bronze where its silver types cannot follow, and readers see one change."""

from decimal import Decimal

import pytest

from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifests
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.progress import TableState
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash, MakePipeline, Pipeline, with_rules


def fill(pipeline: Pipeline) -> None:
    """Make a table whose history has everything that a rewrite must read again."""
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    )
    pipeline.catch_up(
        "INSERT INTO t SELECT g, g, 'w' || g, repeat('b', 3000) FROM generate_series(1, 9) g",
        "UPDATE t SET id = 20 WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "ALTER TABLE t ADD n int DEFAULT 7",
        "UPDATE t SET n = 8 WHERE id = 5",
    )


@pytest.mark.spark
@pytest.mark.parametrize("name", [pytest.param("w", marks=pytest.mark.slow), "a name, with {all};"])
def test_a_type_change_that_silver_cannot_follow_rebuilds_the_table(pipeline: Pipeline, name: str) -> None:
    pipeline = with_rules(pipeline, TableRule("*.*", type_changes="rebuild"))
    fill(pipeline)
    if name != "w":
        pipeline.run(f'ALTER TABLE t RENAME w TO "{name}"')
    pipeline.catch_up(
        "UPDATE t SET v = 100 WHERE id = 1",
        "ALTER TABLE t ALTER v TYPE text",
        "UPDATE t SET v = 'a text' WHERE id = 2",
        "INSERT INTO t (id, v) VALUES (30, 'new')",
    )
    pipeline.assert_equal("t")
    assert sorted(kind for kind, _ in pipeline.events("t"))[-1] == "resync"
    history = pipeline.session.sql(f"DESCRIBE HISTORY delta.`{pipeline.root}/silver/public/t`")
    assert history.where("operation = 'WRITE'").orderBy("version").collect()[-1].version == max(
        row.version for row in history.collect()
    )
    assert not pipeline.path("_pgdelta", "rebuilds", "public", "t").exists()
    # silver goes on from there
    pipeline.catch_up(
        "UPDATE t SET v = 'last', n = 9 WHERE id = 20",
        f'ALTER TABLE t RENAME "{name}" TO x',
        "DELETE FROM t WHERE id = 5",
    )
    pipeline.assert_equal("t")
    pipeline.catch_up("UPDATE t SET x = 'y' WHERE id < 7")
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.promise("apply ends anywhere")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "passing"), [(CrashStep.SWAP_TABLE, 0), (CrashStep.REGISTER_TABLE, 1)], ids=["swap", "register"]
)
def test_a_rebuild_that_a_crash_interrupted_is_repeated_or_continued(
    pipeline: Pipeline, step: CrashStep, passing: int
) -> None:
    from pipeline.apply.applier import Applier

    pipeline = with_rules(pipeline, TableRule("*.*", type_changes="rebuild"))
    fill(pipeline)
    pipeline.ingest("ALTER TABLE t ALTER v TYPE text", "UPDATE t SET v = 'a text' WHERE id = 2")
    with crash_at(step, passing=passing), pytest.raises(Crash):
        Applier(pipeline.spark, pipeline.config).apply_pending()
    pipeline.catch_up("ALTER TABLE t RENAME v TO title", "UPDATE t SET title = 'more', n = 1 WHERE id = 1")
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.slow
def test_another_type_in_the_configuration_frees_a_table_that_a_value_held(pipeline: Pipeline) -> None:
    pipeline = with_rules(pipeline, TableRule("*.*", misfits={"n": "error"}, type_changes="rebuild"))
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2), m numeric(5,2))")
    pipeline.catch_up("INSERT INTO t VALUES (1, 1.5, 'NaN')")
    pipeline.ingest("INSERT INTO t VALUES (2, 'NaN', 2)", "INSERT INTO t VALUES (3, 3, 3)")
    assert pipeline.apply().tables[TableName("public", "t")].held
    wider = with_rules(
        pipeline, TableRule("*.*", misfits={"n": "error"}, types={"n": "STRING"}, type_changes="rebuild")
    )
    assert wider.apply().exit_code(strict=True) == 0
    rows = wider.frame("silver", "public", "t").orderBy("id").select("id", "n", "m").collect()
    assert [tuple(row) for row in rows] == [
        (1, "1.50", None),
        (2, "NaN", Decimal(2)),
        (3, "3.00", Decimal(3)),
    ]
    # a misfit that was recorded before is not recorded again
    assert wider.frame("_pgdelta", "misfits").count() == 1


@pytest.mark.spark
@pytest.mark.slow
def test_a_rebuild_reads_every_version_into_the_last_type_of_a_column(pipeline: Pipeline) -> None:
    pipeline = with_rules(pipeline, TableRule("*.*", type_changes="rebuild"))
    pipeline.ingest(
        'CREATE TABLE cased (id int PRIMARY KEY, v int, "V" int)',
        "CREATE TABLE gone (id int PRIMARY KEY, v int, w int)",
        "CREATE TABLE boxes (id int PRIMARY KEY, v int, b box[])",
    )
    boxes = "ARRAY[box '(2,2),(1,1)', box '(4,4),(3,3)']"
    pipeline.ingest(
        "INSERT INTO cased VALUES (1, 1, 1)",
        "INSERT INTO gone VALUES (1, 1, 1)",
        f"INSERT INTO boxes VALUES (1, 1, {boxes})",
    )
    pipeline.catch_up(
        'ALTER TABLE cased ALTER "V" TYPE text',
        "INSERT INTO cased VALUES (2, 2, 'two')",
        "ALTER TABLE gone ALTER v TYPE text",
        "INSERT INTO gone VALUES (2, 'two', 2)",
        "ALTER TABLE gone DROP v, ALTER w TYPE text",
        "INSERT INTO gone VALUES (3, 'three')",
        "ALTER TABLE boxes ALTER v TYPE text",
        f"INSERT INTO boxes VALUES (2, 'two', {boxes})",
    )

    def silver(table: str, *columns: str) -> list[tuple[object, ...]]:
        rows = pipeline.frame("silver", "public", table).orderBy("id").select(*columns).collect()
        return [tuple(row) for row in rows]

    both = ["(2,2),(1,1)", "(4,4),(3,3)"]
    assert silver("boxes", "v", "b") == [("1", both), ("two", both)]
    assert silver("cased", "v", "V__3") == [(1, "1"), (2, "two")]
    assert silver("gone", "v", "w") == [("1", "1"), ("two", "2"), (None, "three")]


@pytest.mark.promise("type changes")
def test_keys_that_would_be_one_in_silver_are_not_written(make_pipeline: MakePipeline) -> None:
    pipeline = with_rules(make_pipeline("public.*", copy="initial"), TableRule("*.*", type_changes="hold"))
    pipeline.catch_up("CREATE TABLE t (k text PRIMARY KEY, v int)")
    pipeline.ingest(
        "INSERT INTO t VALUES ('01', 1), ('02', 2)",
        "ALTER TABLE t ALTER k TYPE int USING k::int",
        "UPDATE t SET v = 10 WHERE k = 1",
    )
    assert pipeline.apply().tables[TableName("public", "t")].held
    failure = run_rebuild(pipeline.config, ["public.t"]).tables[TableName("public", "t")].failure
    assert "several of its keys are one value of silver's type" in str(failure)
    run_resync(pipeline.config, ["public.t"])
    pipeline.catch_up("UPDATE t SET v = 20 WHERE k = 2")
    pipeline.assert_equal("t")


@pytest.mark.promise("shared tables")
def test_a_rebuilt_table_that_its_shared_table_cannot_show_is_behind(make_pipeline: MakePipeline) -> None:
    made = make_pipeline("*.*", copy="initial", create_publication="configured")
    pipeline = with_rules(made, TableRule("s*.*", target="{table}"))
    for schema in ("s1", "s2"):
        pipeline.run(
            f"CREATE SCHEMA {schema}",
            f"CREATE TABLE {schema}.t (id int PRIMARY KEY, n int)",
            f"INSERT INTO {schema}.t VALUES (1, 1)",
        )
    pipeline.catch_up()
    with pipeline.source.transaction():  # in one run for both
        pipeline.run("ALTER TABLE s1.t RENAME n TO m", "ALTER TABLE s2.t RENAME n TO m")
    pipeline.catch_up()
    with pipeline.source.transaction():
        pipeline.run("DROP TABLE s2.t", "CREATE TABLE s2.t (id int PRIMARY KEY, m int)")
        pipeline.run("INSERT INTO s2.t VALUES (1, 100)")
    name = TableName("s2", "t")
    for _ in range(2):
        pipeline.ingest()
        held = pipeline.apply().tables[name].held
    assert "has another name in its files" in str(held)
    assert run_rebuild(pipeline.config, [str(name)]).tables[name].held == held
    manifest = Manifests(Lake(pipeline.root)).last()
    assert manifest is not None
    assert set(manifest.behind) == {name}
    assert pipeline.apply().tables[name].held == held
    run_rebuild(pipeline.config)
    assert not pipeline.apply().tables.get(name, TableState()).held
    found = pipeline.frame("silver", "t").collect()
    assert sorted((row.id, row.m) for row in found) == [(1, 1), (1, 100)]
