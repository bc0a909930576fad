"""What becomes of values that silver cannot hold, by the policies of the configuration."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, price numeric(5,2), day date, n numeric, note text)"
TYPES = {"n": "INT"}


def with_rule(pipeline: Pipeline, rule: TableRule) -> Pipeline:
    """Return the same pipeline under another configuration of its tables."""
    return replace(pipeline, config=replace(pipeline.config, tables=(rule, TableRule("*.*"))))


def rows(pipeline: Pipeline, *columns: str) -> list[tuple[object, ...]]:
    frame = pipeline.frame("silver", "public", "t").orderBy("id").select(*columns)
    return [tuple(row) for row in frame.collect()]


def misfits(pipeline: Pipeline) -> list[tuple[str, str, str, str]]:
    found = pipeline.frame("_pgdelta", "misfits").select("column_name", "key", "raw_text", "policy").collect()
    return sorted(tuple(row) for row in found)


def test_text_keeps_what_does_not_fit_beside_the_column(pipeline: Pipeline) -> None:
    rule = TableRule("public.t", types=TYPES, misfits={"day": "text", "n": "text", "note": "text"})
    pipeline = with_rule(pipeline, rule)
    pipeline.run(TABLE)
    pipeline.ingest()
    pipeline.run(
        "INSERT INTO t VALUES (1, 1, 'infinity', 5, 'a'), (2, 'NaN', '2024-01-01', 1.5, 'b')",
        "INSERT INTO t VALUES (3, 2, '0044-03-15 BC', NULL, NULL)",
    )
    assert pipeline.catch_up().tables[TableName("public", "t")].misfits == 4
    columns = ("id", "price", "day", "day__text", "n", "n__text")
    assert rows(pipeline, *columns) == [
        (1, Decimal(1), None, "infinity", 5, None),
        (2, None, date(2024, 1, 1), None, None, "1.5"),
        (3, Decimal(2), None, "0044-03-15 BC", None, None),
    ]
    assert "note__text" not in pipeline.frame("silver", "public", "t").columns
    assert misfits(pipeline) == [
        ("day", '{"id":"1"}', "infinity", "text"),
        ("day", '{"id":"3"}', "0044-03-15 BC", "text"),
        ("n", '{"id":"2"}', "1.5", "text"),
        ("price", '{"id":"2"}', "NaN", "null"),
    ]
    pipeline.run(
        "UPDATE t SET day = '2025-05-05' WHERE id = 1",
        "UPDATE t SET id = 4 WHERE id = 3",
        "ALTER TABLE t RENAME n TO m",
        "UPDATE t SET price = 3 WHERE id = 2",
    )
    pipeline = with_rule(pipeline, replace(rule, types={"m": "INT"}, misfits={"day": "text", "m": "text"}))
    pipeline.catch_up()
    assert rows(pipeline, "id", "price", "day", "day__text", "m", "m__text") == [
        (1, Decimal(1), date(2025, 5, 5), None, 5, None),
        (2, Decimal(3), date(2024, 1, 1), None, None, "1.5"),
        (4, Decimal(2), None, "0044-03-15 BC", None, None),
    ]
    assert "n__text" not in pipeline.frame("silver", "public", "t").columns


@pytest.mark.slow
def test_text_under_replica_identity_full_tells_rows_apart(pipeline: Pipeline) -> None:
    pipeline = with_rule(pipeline, TableRule("public.t", misfit="text"))
    pipeline.run("CREATE TABLE t (id int, day date)", "ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline.ingest()
    pipeline.run("INSERT INTO t VALUES (1, 'infinity'), (1, '-infinity'), (1, '-infinity'), (2, NULL)")
    pipeline.catch_up()
    pipeline.run("DELETE FROM t WHERE day = 'infinity'", "UPDATE t SET id = 3 WHERE ctid = '(0,2)'")
    pipeline.catch_up()
    assert rows(pipeline, "id", "day", "day__text") == [
        (1, None, "-infinity"),
        (2, None, None),
        (3, None, "-infinity"),
    ]


def test_clamp_takes_the_nearest_value_and_records_it(pipeline: Pipeline) -> None:
    pipeline = with_rule(pipeline, TableRule("public.t", types=TYPES, misfit="clamp"))
    pipeline.run(TABLE)
    pipeline.ingest()
    pipeline.run(
        "INSERT INTO t VALUES (1, 'NaN', 'infinity', 1e20, 'a'), (2, 5, '0044-03-15 BC', -1.5, 'b')",
    )
    assert pipeline.catch_up().tables[TableName("public", "t")].misfits == 5
    assert rows(pipeline, "id", "price", "day", "n") == [
        (1, None, date(9999, 12, 31), 2**31 - 1),
        (2, Decimal(5), date(1, 1, 1), -2),
    ]
    assert [(column, policy) for column, _, _, policy in misfits(pipeline)] == [
        ("day", "clamp"),
        ("day", "clamp"),
        ("n", "clamp"),
        ("n", "clamp"),
        ("price", "null"),
    ]


def test_error_holds_that_table_before_the_transaction_and_lets_it_go_on_after_a_fix(
    make_pipeline: MakePipeline,
) -> None:
    rule = TableRule("public.t", misfits={"day": "error"})
    pipeline = with_rule(make_pipeline("*.*"), rule)
    pipeline.run(TABLE, "CREATE TABLE other (id int PRIMARY KEY, day date)")
    pipeline.ingest()
    pipeline.run(
        "INSERT INTO t VALUES (1, 'NaN', '2024-01-01')",
        "INSERT INTO other VALUES (1, 'infinity')",
    )
    pipeline.transact(
        "INSERT INTO t VALUES (2, 1, '2024-01-02')",
        "INSERT INTO t VALUES (3, 1, 'infinity')",
        "DELETE FROM t WHERE id = 3",
    )
    pipeline.run("INSERT INTO t VALUES (4, 1, '2024-01-04')", "INSERT INTO other VALUES (2, '2024-01-01')")
    pipeline.ingest()
    for _ in range(2):
        summary = pipeline.apply()
        held = summary.tables[TableName("public", "t")].held
        assert held is not None
        assert "a value of column day that its silver type cannot hold" in held
        assert "infinity" not in held
        assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
        assert rows(pipeline, "id") == [(1,)]
    assert [kind for kind, _ in pipeline.events("t")] == ["refused"]
    assert pipeline.frame("silver", "public", "other").count() == 2
    fixed = with_rule(pipeline, replace(rule, misfits={}))
    assert fixed.apply().exit_code(strict=True) == 0
    assert rows(fixed, "id") == [(1,), (2,), (4,)]


@pytest.mark.slow
def test_truncate_frees_a_table_that_error_holds(pipeline: Pipeline) -> None:
    pipeline = with_rule(pipeline, TableRule("public.t", misfit="error"))
    pipeline.run(TABLE)
    pipeline.ingest()
    pipeline.run("INSERT INTO t VALUES (1, 1, 'infinity')", "INSERT INTO t VALUES (2, 1, '2024-01-01')")
    pipeline.ingest()
    assert pipeline.apply().exit_code(strict=True) == 1
    pipeline.run("TRUNCATE t", "INSERT INTO t VALUES (3, 1, '2024-01-01')")
    pipeline.catch_up()
    pipeline.assert_equal("t")


@pytest.mark.slow
def test_error_holds_a_table_before_its_copy(make_pipeline: MakePipeline) -> None:
    rule = TableRule("public.t", misfits={"day": "error"})
    pipeline = with_rule(make_pipeline("*.*", copy="initial", create_publication="all"), rule)
    pipeline.run(TABLE, "INSERT INTO t VALUES (1, 1, 'infinity'), (2, 1, '2024-01-02')")
    pipeline.run("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    pipeline.ingest()
    for i in (3, 4):
        summary = pipeline.apply()
        assert "a value of column day" in (summary.tables[TableName("public", "t")].held or "")
        assert summary.exit_code(strict=True) == 1
        assert not pipeline.path("silver", "public", "t").exists()
        pipeline.assert_equal("other")
        pipeline.run(f"INSERT INTO t VALUES ({i}, 1, '2024-01-03')", f"INSERT INTO other VALUES ({i})")
        pipeline.ingest()
    fixed = with_rule(pipeline, replace(rule, misfits={}))
    assert fixed.apply().exit_code(strict=True) == 0
    assert rows(fixed, "id")[:2] == [(1,), (2,)]
    # nor does a copy that brings such a value take the place of what silver has
    strict = with_rule(pipeline, rule)
    run_resync(strict.config, ["public.t"], spark=strict.spark)
    strict.run("INSERT INTO t VALUES (5, 1, '2024-01-05')")
    strict.ingest()
    assert strict.apply().exit_code(strict=True) == 1
    assert rows(strict, "id") == [(1,), (2,), (3,), (4,)]
    strict.run("UPDATE t SET day = NULL WHERE id = 1")
    run_resync(strict.config, ["public.t"], spark=strict.spark)
    strict.catch_up()
    strict.assert_equal("t")
