"""What an operator asks: how far is each table, what would happen next, and once more after a fix."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.config.tables import TableRule
from pipeline.errors import ConfigError
from pipeline.operate.plan import make_plan
from pipeline.operate.plan_report import Plan
from pipeline.operate.rebuild import apply_tables, run_rebuild
from pipeline.report.status import read_status
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.key_bounds import key_bounds
from pipeline.silver.fold.write import LATER_BOUNDS, Write
from pipeline.silver.read.as_of import as_of
from pipeline.silver.write import spark_target
from pipeline.silver.write.spark_target import SparkTarget
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from tests.support.pages import render
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.servers import writer_of_run

ONE_WRITE = {
    "auto": "one write without Spark (1 change)",
    "native": "one write without Spark (1 change)",
    "spark": "one write by Spark (silver.writer is spark)",
}


def status(pipeline: Pipeline) -> dict[str, str]:
    return {table.name[1]: table.state for table in read_status(pipeline.config).tables}


def plan(pipeline: Pipeline) -> Plan:
    return make_plan(pipeline.config)


@pytest.mark.spark
@pytest.mark.promise("plan is what apply does")
def test_plan_shows_what_apply_then_does(pipeline: Pipeline) -> None:
    assert plan(pipeline).tables == ()  # not even a lake
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text)", "CREATE TABLE other (id int PRIMARY KEY)"
    )
    assert plan(pipeline).tables == ()
    pipeline.ingest(
        "INSERT INTO t SELECT g, g, 'w' FROM generate_series(1, 5) g", "INSERT INTO other VALUES (1)"
    )
    other, t = plan(pipeline).tables
    assert (t.name, t.counts) == (("public", "t"), {"I": 5, "U": 0, "D": 0, "T": 0})
    created, written = t.steps
    assert created.sentence == (
        "The table is created: `id` INT, `v` INT, `w` STRING, `_commit_lsn` BIGINT, `_commit_time` TIMESTAMP"
    )
    assert (created.is_write, written.is_write, written.sentence) == (False, True, "append")
    assert not pipeline.path("silver").exists()
    pipeline.catch_up()
    assert plan(pipeline).tables == ()
    pipeline.ingest(
        "DELETE FROM t WHERE id = 5",
        "ALTER TABLE t RENAME w TO x",
        "ALTER TABLE t ALTER v TYPE bigint",
        "ALTER TABLE t ADD n int DEFAULT 7",
        "UPDATE t SET n = 8 WHERE id = 1",
        "DELETE FROM other",
        "ALTER TABLE other ALTER id TYPE text",
        "INSERT INTO other VALUES ('a')",
    )
    versions = {table: pipeline.spark_frame("silver", "public", table).schema for table in ("t", "other")}
    planned = plan(pipeline)
    assert {table: pipeline.spark_frame("silver", "public", table).schema for table in versions} == versions
    other, t = planned.tables
    shape = [step for step in t.steps if not step.is_write]
    assert [(step.sentence.partition(". If ALTER TABLE")[0], step.cost, step.loses) for step in shape] == [
        ("Column w was renamed to x.", "no data is written; readers need column mapping", None),
        ("Column v was widened from INT to BIGINT", "no data is written; readers need type widening", None),
        ("Column n was added with a default.", "sets the default in 5 rows", None),
    ]
    assert [(step.is_write, step.holds, step.cost) for step in other.steps] == [
        (True, False, ONE_WRITE[writer_of_run()]),
        (False, True, "nothing is applied from there on"),
    ]
    shown = render(planned.print, 400)
    assert "public.t" in shown
    assert "1 U, 1 D" in shown
    assert planned.as_json()["tables"][1]["changes"] == {"I": 0, "U": 1, "D": 1, "T": 0}
    rewriting = with_rules(pipeline, TableRule("*.*", type_changes="rebuild"))
    [step] = [step for step in plan(rewriting).tables[0].steps if not step.is_write]
    assert step.cost == "reads 3 changes again, replaces 1 row"
    rewriting.assert_follows("t", "other")
    assert plan(rewriting).tables == ()
    assert render(plan(rewriting).print, 400).strip().endswith("silver shows all that bronze holds (up to "
        + str(plan(rewriting).captured_offset) + ")")  # fmt: skip


def planned_sql(pipeline: Pipeline) -> dict[str, list[str]]:
    """Return the statements of `pgdelta plan --sql` by table; the printed script has each of them whole."""
    found = make_plan(pipeline.config, shows_sql=True)
    script = render(found.print, 400)
    statements = {table.name[1]: [sql for step in table.steps for sql in step.sql] for table in found.tables}
    assert [line for line in script.splitlines() if line and not line.startswith("-- ")] == [
        line
        for table in sorted(found.tables, key=lambda table: (table.attention, table.name))
        for sql in statements[table.name[1]]
        for line in f"{sql};".splitlines()
    ]
    shown = {t["table"]: [s for step in t["steps"] for s in step["sql"]] for t in found.as_json()["tables"]}
    assert shown == statements
    return statements


def by_spark(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with all of silver written by Spark."""
    silver = replace(pipeline.config.silver, writer="spark")
    return replace(pipeline, config=replace(pipeline.config, silver=silver))


def executed_sql(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *tables: str) -> dict[str, list[str]]:
    """Apply, and return what Spark is given for each silver table: statements, and writes of frames.

    Bounds of keys are replaced by the comment that a plan has of them.
    """
    given: dict[str, list[str]] = {table: [] for table in tables}
    bounds: set[str] = set()
    paths = {f"{pipeline.path('silver', 'public', table)}`": table for table in tables}
    run, commit = SparkSession.sql, SparkTarget.commit_rows

    def record(statement: str) -> None:
        for found in bounds:
            statement = statement.replace(f" AND {found}", f" AND {LATER_BOUNDS}")
        if statement.startswith(("CREATE ", "ALTER ", "UPDATE ", "MERGE ", "INSERT ")):
            for path, table in paths.items():
                if path in statement:
                    given[table].append(statement)

    def sql(session: SparkSession, statement: str, *arguments: object, **options: object) -> DataFrame:
        record(statement)
        return run(session, statement, *arguments, **options)  # type: ignore[arg-type]

    def commit_rows(target: SparkTarget, write: Write, fold: Fold) -> None:
        record(write.sql)  # an append or overwrite by Spark's writer of frames
        commit(target, write, fold)

    def noted_bounds(fold: Fold, aggregates: Mapping[str, Sequence[Any]]) -> str | None:
        found = key_bounds(fold, aggregates)
        bounds.update({found} if found else ())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(spark_target, "key_bounds", noted_bounds)
        patch.setattr(SparkSession, "sql", sql)
        patch.setattr(SparkTarget, "commit_rows", commit_rows)
        pipeline.apply()
    return given


@pytest.mark.slow
@pytest.mark.spark
def test_the_sql_of_a_plan_is_what_spark_is_then_given(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = by_spark(pipeline)
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text)",
        "CREATE TABLE bag (v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE halted (id int PRIMARY KEY, v int)",
    )
    pipeline.ingest(
        "INSERT INTO t SELECT g, g, 'geheim' FROM generate_series(1, 5) g",
        "INSERT INTO bag VALUES ('geheim'), ('geheim')",
        "INSERT INTO halted VALUES (1, 1)",
    )
    planned = planned_sql(pipeline)
    assert {table: [sql.split()[0] for sql in given] for table, given in planned.items()} == {
        table: ["CREATE", "INSERT"] for table in ("t", "bag", "halted")
    }
    assert executed_sql(pipeline, monkeypatch, "t", "bag", "halted") == planned
    pipeline.ingest(
        "ALTER TABLE t RENAME w TO x",
        "ALTER TABLE t ALTER v TYPE bigint",
        "ALTER TABLE t ADD n int DEFAULT 7",
        "ALTER TABLE t ADD at timestamp",
        "UPDATE t SET n = 8, x = 'geheim' WHERE id = 1",
        "DELETE FROM t WHERE id = 5",
        "DELETE FROM bag WHERE ctid = '(0,1)'",
        "ALTER TABLE halted ALTER v TYPE text",
        "INSERT INTO halted VALUES (2, 'geheim')",
    )
    planned = planned_sql(pipeline)
    assert [sql.split()[0] for sql in planned["t"]].count("MERGE") == 1
    assert any(sql.startswith("UPDATE") for sql in planned["t"])
    assert [sql.split()[0] for sql in planned["bag"]] == ["MERGE"]
    assert planned["halted"] == []
    assert "geheim" not in str(planned)
    assert executed_sql(pipeline, monkeypatch, "t", "bag", "halted") == planned
    pipeline.assert_equal("t", "bag")


@pytest.mark.slow
@pytest.mark.spark
def test_the_sql_of_a_plan_starts_a_new_table_from_its_copy(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = by_spark(make_pipeline(copy="initial", create_publication="all"))
    pipeline.ingest(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'geheim' FROM generate_series(1, 5) g",
    )
    pipeline.ingest("UPDATE t SET v = 'w' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    planned = planned_sql(pipeline)
    assert [sql.split()[0] for sql in planned["t"]] == ["CREATE", "INSERT", "MERGE"]
    assert "geheim" not in str(planned)
    assert executed_sql(pipeline, monkeypatch, "t") == planned
    pipeline.assert_equal("t")


def test_status_shows_why_a_table_does_not_continue_and_a_rebuild_frees_it(pipeline: Pipeline) -> None:
    assert read_status(pipeline.config).tables == ()
    pipeline.ingest(
        "CREATE TABLE held (id int PRIMARY KEY, v int)",
        "CREATE TABLE refused (id int PRIMARY KEY, day date)",
        "CREATE TABLE fine (id int PRIMARY KEY, day date)",
    )
    strict = with_rules(pipeline, TableRule("public.refused", misfit="error"), TableRule("*.*"))
    strict.catch_up(*(f"INSERT INTO {table} VALUES (1, NULL)" for table in ("held", "refused", "fine")))
    assert status(strict) == {"held": "current", "refused": "current", "fine": "current"}
    strict.ingest(
        "ALTER TABLE held ALTER v TYPE text",
        "INSERT INTO held VALUES (2, 'b')",
        "INSERT INTO refused VALUES (2, 'infinity')",
        "INSERT INTO fine VALUES (2, 'infinity')",
    )
    strict.apply()
    found = read_status(strict.config)
    assert status(strict) == {"held": "held", "refused": "refused", "fine": "current"}
    fine, held, refused = found.tables
    assert fine.misfits == {"day": 1}
    assert held.sentence is not None
    assert "column v changed from INT to STRING" in held.sentence
    assert refused.applied < found.applied == found.captured
    assert found.is_held
    assert "a value of column day" in render(found.print, 400)
    assert [table["state"] for table in found.as_json()["tables"]] == ["current", "held", "refused"]

    for run in (apply_tables, run_rebuild):
        with pytest.raises(ConfigError, match="neither has the source"):
            run(strict.config, ["public.heal"])
    assert apply_tables(strict.config, ["public.held"]).exit_code(strict=False) == 0
    with pytest.raises(ConfigError, match=r"Write schema\.table"):
        run_rebuild(strict.config, ["held"])
    assert apply_tables(strict.config).exit_code(strict=True) == 1
    fixed = with_rules(pipeline, TableRule("public.refused", misfit="text"), TableRule("*.*"))
    summary = run_rebuild(fixed.config, ["public.[hr]*", "public.held"])
    assert summary.exit_code(strict=False) == 0, summary.lines()
    assert [*summary.doubts] == [TableName("public", "held")], "USING may have computed values"
    lines = summary.lines()
    assert any(
        "rebuild " in line and "1 table built again from bronze: public.held;" in line for line in lines
    ), lines
    assert status(fixed) == {"held": "in doubt", "refused": "current", "fine": "current"}
    fixed.assert_equal("held")
    rows = fixed.frame("silver", "public", "refused").orderBy("id").select("day", "day__text").collect()
    assert [tuple(row) for row in rows] == [(None, None), (None, "infinity")]
    fixed.catch_up("INSERT INTO held VALUES (3, 'c')", "UPDATE refused SET day = '2024-01-01'")
    fixed.assert_equal("held", "refused", ignore_left_columns=True)


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_is_rebuilt_under_another_policy_without_any_change(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, day date)")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'infinity'), (2, '2024-01-01')")
    for _ in range(2):
        clamped = with_rules(pipeline, TableRule("*.*", misfit="clamp"))
        assert run_rebuild(clamped.config).exit_code(strict=True) == 0
        rows = pipeline.frame("silver", "public", "t").orderBy("id").select("day").collect()
        assert [str(row.day) for row in rows] == ["9999-12-31", "2024-01-01"]
    pipeline.catch_up("DELETE FROM t WHERE id = 1")
    pipeline.assert_equal("t")
    assert pipeline.events("t")[-1] == (
        "evolved",
        "The table was rebuilt from bronze on request.",
    )


@pytest.mark.spark
@pytest.mark.promise("foreign changes")
@pytest.mark.slow
def test_a_table_may_be_laid_out_and_maintained_by_its_owner(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 500) i")
    path = f"delta.`{pipeline.path('silver', 'public', 't')}`"
    for number, statement in enumerate(
        (
            f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            f"ALTER TABLE {path} CLUSTER BY (id)",
            f"OPTIMIZE {path}",
            f"REORG TABLE {path} APPLY (PURGE)",
            f"VACUUM {path}",
        )
    ):
        pipeline.session.sql(statement)
        pipeline.catch_up(
            f"UPDATE t SET v = 'x' WHERE id % 7 = {number}", f"DELETE FROM t WHERE id = {number + 100}"
        )
    pipeline.assert_equal("t")
    detail = pipeline.session.sql(f"DESCRIBE DETAIL {path}").head()
    assert detail is not None
    assert detail.clusteringColumns == ["id"]
    assert "deletionVectors" in detail.tableFeatures


@pytest.mark.spark
@pytest.mark.slow
def test_every_table_of_the_lake_may_be_compacted_while_changes_come(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE u (id int PRIMARY KEY)")
    for number in range(3):
        pipeline.run(f"INSERT INTO t SELECT {number} * 100 + i, 'v' FROM generate_series(1, 90) i")
        pipeline.ingest()  # lands in bronze, and is applied behind the maintenance
        for log in Path(pipeline.root).rglob("_delta_log"):
            for statement in ("OPTIMIZE", "VACUUM"):
                pipeline.session.sql(f"{statement} delta.`{log.parent}`")
        pipeline.catch_up(f"UPDATE t SET v = 'w' WHERE id % 9 = {number}", f"INSERT INTO u VALUES ({number})")
        pipeline.assert_equal("t", "u")
    assert run_audit(pipeline.config).findings == ()
    assert not as_of(pipeline.session, pipeline.root).behind
