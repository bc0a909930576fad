"""A table with more changes than memory should have at once is applied in parts, each a commit of its own."""

import random
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze import change_rows
from pipeline.config.tables import TableRule
from pipeline.delta.spark.provider import SparkProvider
from pipeline.operate.plan import make_plan
from pipeline.silver.write import range_parts
from pipeline.silver.write.batch_writer import BatchWriter
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_rules, with_writer

TABLES = ("t", "wide", "bag", "kept")


@pytest.fixture
def pipeline(make_pipeline: MakePipeline) -> Pipeline:
    """Give tables that silver shows: with a key, with a TOASTed value, without a key, and with a history."""
    pipeline = with_writer(make_pipeline(create_publication="all"), "native")
    pipeline = with_rules(pipeline, TableRule("public.kept", mode="history"), TableRule("public.*"))
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.run("CREATE TABLE wide (id int PRIMARY KEY, v text, body text)")
    pipeline.run("ALTER TABLE wide ALTER body SET STORAGE EXTERNAL")
    pipeline.run("CREATE TABLE bag (id int, v text)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    pipeline.run("CREATE TABLE kept (id int PRIMARY KEY, v text)")
    pipeline.ingest()
    fill = "INSERT INTO {} SELECT g, 'first' FROM generate_series(1, 50) g"
    pipeline.catch_up(*(fill.format(table) for table in TABLES))
    return pipeline


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide every range at every transaction that is in a file of its own."""
    for name in ("MAX_VALUES", "_VALUES_OF_PART", "_MAX_VALUES_OF_PART"):
        monkeypatch.setattr(range_parts, name, 1)
    monkeypatch.setattr(change_rows, "_MAX_BYTES_OF_PART", 1)

    def refuse(*arguments: object) -> None:
        raise AssertionError("Spark was used")

    monkeypatch.setattr(BatchWriter, "_write_by_spark", refuse)


def land(pipeline: Pipeline, seed: int, count: int = 6) -> None:
    """Land transactions, each by an ingest of its own."""
    randomly = random.Random(seed)
    for number in range(count):
        low = randomly.randint(1, 60)
        statements = [f"DELETE FROM {randomly.choice(TABLES)} WHERE id = {low}"]
        statements += [f"UPDATE {table} SET v = '{number}' WHERE id % 5 = {number % 5}" for table in TABLES]
        statements += [f"INSERT INTO wide VALUES ({1000 + 100 * seed + number}, 'new', repeat('x', 5000))"]
        statements += [f"UPDATE wide SET id = id + 100000 WHERE id = {1000 + 100 * seed + number - 1}"]
        if number == 2:
            statements += ["TRUNCATE bag", "INSERT INTO bag VALUES (1, 'after'), (1, 'after')"]
        if number == 3:
            statements += [
                "ALTER TABLE t ADD COLUMN more int DEFAULT 5",
                "UPDATE t SET v = 'a' WHERE id < 9",
            ]
        if number == 4:
            statements += ["ALTER TABLE t DROP COLUMN more", "UPDATE t SET v = 'less' WHERE id < 4"]
        pipeline.transact(*statements)
        pipeline.ingest()


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("seed", range(3))
def test_a_range_in_parts_shows_what_it_shows_at_once(pipeline: Pipeline, seed: int) -> None:
    before = {table: pipeline.version(table) for table in TABLES}
    land(pipeline, seed)
    summary = Applier(None, pipeline.config).apply_pending()
    succeeded(summary)
    assert summary.batches == 1
    pipeline.assert_equal("t", "wide", "bag", ignore_left_columns=True)
    versions = pipeline.frame("silver", "public", "kept").collect()
    current = sorted((row.id, row.v) for row in versions if row._is_current)
    assert current == pipeline.source.execute("SELECT id, v FROM kept ORDER BY id").fetchall()
    assert pipeline.version("bag") == before["bag"] + 1, "what is before a TRUNCATE is not written"
    for table in ("t", "wide", "kept"):
        assert pipeline.version(table) >= before[table] + 3


@pytest.mark.usefixtures("in_parts")
def test_after_a_part_of_a_transaction_a_range_is_whole(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that died has committed a step of a transaction: the next one does not end before it."""
    land(pipeline, 9, 2)
    pipeline.transact(
        "UPDATE t SET v = 'before' WHERE id < 9",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET v = 'after' WHERE id < 5",
    )
    pipeline.ingest("UPDATE t SET v = 'last' WHERE id < 3")
    writes: list[object] = []
    write = BatchWriter._write

    def die(writer: BatchWriter, *arguments: Any) -> int:
        if writer._name.table == "t" and writes:
            raise RuntimeError("killed")
        writes.extend([writer] * (writer._name.table == "t"))
        return write(writer, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(range_parts, "MAX_VALUES", 1 << 30)
        patched.setattr(BatchWriter, "_write", die)
        Applier(None, pipeline.config).apply_pending()
    land(pipeline, 10, 1)
    succeeded(Applier(None, pipeline.config).apply_pending())
    pipeline.assert_equal("t", "wide", "bag", ignore_left_columns=True)


def test_a_wide_table_is_in_parts_among_many_narrow_rows(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with the changes of all tables do not say how many bytes are those of one."""
    monkeypatch.setattr(range_parts, "MAX_VALUES", 300_000)
    monkeypatch.setattr(range_parts, "_VALUES_OF_PART", 150_000)
    before = {table: pipeline.version(table) for table in ("t", "wide")}
    for number in range(1, 5):
        pipeline.transact(
            f"INSERT INTO wide SELECT {number} * 100 + g, 'new', repeat('x', 10000) "
            "FROM generate_series(1, 15) g",
            f"INSERT INTO t SELECT {number} * 1000 + g, 'new' FROM generate_series(1, 900) g",
            *(f"UPDATE {table} SET v = 'changed' WHERE id = {number}" for table in ("t", "wide")),
        )
        pipeline.ingest()
    succeeded(Applier(None, pipeline.config).apply_pending())
    pipeline.assert_equal("t", "wide")
    assert pipeline.version("wide") == before["wide"] + 4
    assert pipeline.version("t") == before["t"] + 1


def test_the_plan_says_into_how_many_parts(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def costs() -> set[str | None]:
        tables = make_plan(pipeline.config).tables
        return {step.cost for table in tables for step in table.steps if step.is_write}

    land(pipeline, 8)
    assert not any("parts" in (cost or "") for cost in costs())
    for name in ("MAX_VALUES", "_VALUES_OF_PART", "_MAX_VALUES_OF_PART"):
        monkeypatch.setattr(range_parts, name, 1)
    assert "6 parts, each a write without Spark" in costs()


def test_where_spark_runs_it_writes_a_large_range_at_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_writer(pipeline, "auto").config
    monkeypatch.setattr(range_parts, "MAX_VALUES", 1)
    monkeypatch.setattr(SparkProvider, "started", object())
    land(pipeline, 7, 2)
    before = pipeline.version("t")
    succeeded(Applier(None, config).apply_pending())
    assert pipeline.version("t") == before + 1
