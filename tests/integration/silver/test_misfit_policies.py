"""What becomes of values that silver cannot hold, by the policies of the configuration."""

from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline

TABLE = "CREATE TABLE t (id int PRIMARY KEY, price numeric(5,2), day date, n numeric, note text)"


def with_rule(pipeline: Pipeline, rule: TableRule) -> Pipeline:
    """Return the same pipeline under another configuration of its tables."""
    return replace(pipeline, config=replace(pipeline.config, tables=(rule, TableRule("*.*"))))


def rows(pipeline: Pipeline, *columns: str) -> list[tuple[object, ...]]:
    frame = pipeline.frame("silver", "public", "t").orderBy("id").select(*columns)
    return [tuple(row) for row in frame.collect()]


@pytest.mark.spark
@pytest.mark.slow
def test_text_under_replica_identity_full_distinguishes_rows(pipeline: Pipeline) -> None:
    pipeline = with_rule(pipeline, TableRule("public.t", misfit="text"))
    pipeline.ingest("CREATE TABLE t (id int, day date)", "ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'infinity'), (1, '-infinity'), (1, '-infinity'), (2, NULL)")
    pipeline.catch_up("DELETE FROM t WHERE day = 'infinity'", "UPDATE t SET id = 3 WHERE ctid = '(0,2)'")
    assert rows(pipeline, "id", "day", "day__text") == [
        (1, None, "-infinity"),
        (2, None, None),
        (3, None, "-infinity"),
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_truncate_frees_a_table_that_error_holds(pipeline: Pipeline) -> None:
    pipeline = with_rule(pipeline, TableRule("public.t", misfit="error"))
    pipeline.ingest(TABLE)
    pipeline.ingest("INSERT INTO t VALUES (1, 1, 'infinity')", "INSERT INTO t VALUES (2, 1, '2024-01-01')")
    assert pipeline.apply().exit_code(strict=True) == 1
    pipeline.catch_up("TRUNCATE t", "INSERT INTO t VALUES (3, 1, '2024-01-01')")
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.promise("misfit policies")
@pytest.mark.slow
def test_error_holds_a_table_before_its_copy(make_pipeline: MakePipeline) -> None:
    rule = TableRule("public.t", misfits={"day": "error"})
    pipeline = with_rule(make_pipeline("*.*", copy="initial", create_publication="all"), rule)
    pipeline.run(TABLE, "INSERT INTO t VALUES (1, 1, 'infinity'), (2, 1, '2024-01-02')")
    pipeline.ingest("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    for i in (3, 4):
        summary = pipeline.apply()
        assert "a value of column day" in (summary.tables[TableName("public", "t")].held or "")
        assert summary.exit_code(strict=True) == 1
        assert not pipeline.path("silver", "public", "t").exists()
        pipeline.assert_equal("other")
        pipeline.ingest(f"INSERT INTO t VALUES ({i}, 1, '2024-01-03')", f"INSERT INTO other VALUES ({i})")
    fixed = with_rule(pipeline, replace(rule, misfits={}))
    assert fixed.apply().exit_code(strict=True) == 0
    assert rows(fixed, "id")[:2] == [(1,), (2,)]
    # nor does a copy that brings such a value take the place of what silver has
    strict = with_rule(pipeline, rule)
    run_resync(strict.config, ["public.t"])
    strict.ingest("INSERT INTO t VALUES (5, 1, '2024-01-05')")
    assert strict.apply().exit_code(strict=True) == 1
    assert rows(strict, "id") == [(1,), (2,), (3,), (4,)]
    strict.run("UPDATE t SET day = NULL WHERE id = 1")
    run_resync(strict.config, ["public.t"])
    strict.assert_follows("t")
