"""Keys that are equal to PostgreSQL and not the same: silver has the text that the source has now."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from tests.support.pipelines import MakePipeline, Pipeline, with_rules

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

# type → a key, and one that the server takes for the same
KEYS = {
    "float8": ("-0", "0"),
    "numeric": ("1.0", "1.00"),
    "jsonb": ("1.0", "1.00"),
    "float8[]": ("{-0,NaN}", "{0,NaN}"),
}
SCALARS = [type_ for type_ in KEYS if type_ != "float8[]"]


@pytest.mark.parametrize(
    ("types", "together"),
    [
        pytest.param(SCALARS, True, marks=pytest.mark.slow),
        (SCALARS, False),
        pytest.param(["float8[]"], False, marks=pytest.mark.slow),
    ],
    ids=["in one batch", "in two batches", "in an array"],
)
def test_a_key_that_becomes_an_equal_one_is_one_row(
    pipeline: Pipeline, types: list[str], together: bool
) -> None:
    tables = {f"keyed_{i}": KEYS[type_] for i, type_ in enumerate(types)}
    for table, type_ in zip(tables, types, strict=True):
        pipeline.run(f"CREATE TABLE {table} (k {type_} PRIMARY KEY, n int)")
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO {table} VALUES ('{before}', 1)" for table, (before, _) in tables.items()))
    if not together:
        pipeline.catch_up()
    for table, (_, after) in tables.items():
        pipeline.run(f"UPDATE {table} SET k = '{after}'", f"UPDATE {table} SET n = 2")
    pipeline.catch_up()
    pipeline.assert_equal(*tables)
    for table, (before, _) in tables.items():
        pipeline.run(f"DELETE FROM {table}", f"INSERT INTO {table} VALUES ('{before}', 3)")
    pipeline.catch_up()
    pipeline.assert_equal(*tables)


def test_spellings_of_one_number_are_one_key_of_an_overridden_type(make_pipeline: MakePipeline) -> None:
    made = make_pipeline(create_publication="all")
    rule = TableRule("public.*", types={"k": "DECIMAL(10,2)"})
    pipeline = replace(made, config=replace(made.config, tables=(rule,)))
    pipeline.run("CREATE TABLE t (k numeric PRIMARY KEY, n int, body text)")
    pipeline.ingest()
    pipeline.run("INSERT INTO t VALUES ('1.0', 1, 'a'), ('2', 1, 'b'), ('100', 1, 'c')")
    pipeline.catch_up()
    pipeline.run(
        "UPDATE t SET k = '1.00' WHERE k = 1",
        "UPDATE t SET n = 2 WHERE k = 1",
        "DELETE FROM t WHERE k = 2",
        "INSERT INTO t VALUES ('2.00', 3, 'again'), ('3.0', 1, 'd')",
        "UPDATE t SET k = '3.00' WHERE k = 3",
    )
    pipeline.catch_up()
    assert rows(pipeline) == [("1.00", 2, "a"), ("2.00", 3, "again"), ("3.00", 1, "d"), ("100.00", 1, "c")]


@pytest.mark.parametrize("types", [{}, {"k": "STRING"}], ids=["as it is", "overridden"])
@pytest.mark.parametrize("kind", ["numeric", "numeric(10,2)", "numeric(50,10)"])
def test_a_number_that_silver_keeps_as_text_is_found_by_its_text(
    make_pipeline: MakePipeline, kind: str, types: dict[str, str]
) -> None:
    made = make_pipeline(create_publication="all", copy="initial")
    pipeline = with_rules(made, TableRule("public.*", types=types))
    pipeline.run(
        f"CREATE TABLE t (k {kind} PRIMARY KEY, n int)",
        "INSERT INTO t VALUES (1.50, 1), (2.50, 1), (20, 1), (30.00, 1)",
    )
    pipeline.catch_up()
    pipeline.run("UPDATE t SET n = 2 WHERE k IN (1.5, 20)", "DELETE FROM t WHERE k IN (2.5, 30)")
    pipeline.catch_up()
    assert texts(pipeline) == of_source(pipeline)
    run_rebuild(pipeline.config, ["public.t"], spark=pipeline.spark)
    assert texts(pipeline) == of_source(pipeline)
    run_resync(pipeline.config, ["public.t"])
    pipeline.run("UPDATE t SET n = 3 WHERE k = 20", "DELETE FROM t WHERE k = 1.5")
    pipeline.catch_up()
    assert texts(pipeline) == of_source(pipeline)


@pytest.mark.slow
def test_a_key_whose_type_was_widened_amid_a_batch_is_one_row(pipeline: Pipeline) -> None:
    pipeline.run("CREATE TABLE t (k numeric(10,1) PRIMARY KEY, n int, body text)")
    pipeline.ingest()
    pipeline.run(
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b')",
        "ALTER TABLE t ALTER k TYPE numeric(12,3)",
        "UPDATE t SET n = 2 WHERE k = 1",
        "DELETE FROM t WHERE k = 2",
    )
    pipeline.catch_up()
    pipeline.assert_equal("t")


def rows(pipeline: Pipeline) -> list[tuple[str, int, str]]:
    found = pipeline.frame("silver", "public", "t").orderBy("k").collect()
    return [(str(row.k), row.n, row.body) for row in found]


def texts(pipeline: Pipeline) -> list[tuple[Decimal, int]]:
    """Return the rows of silver, keys by their values."""
    found = pipeline.frame("silver", "public", "t").collect()
    return sorted((Decimal(row.k), row.n) for row in found)


def of_source(pipeline: Pipeline) -> list[tuple[Decimal, int]]:
    return sorted(pipeline.source.execute("SELECT k, n FROM t").fetchall())
