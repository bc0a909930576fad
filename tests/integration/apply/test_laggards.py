"""A table that is held, fails or waits makes no batch read old files of bronze, and catches up later."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.apply.table_pool import TablePool
from pipeline.bronze.log import Bronze
from pipeline.config.tables import Guards, TableRule
from pipeline.delta.table import Lake
from pipeline.silver.decision import Step
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.table_name import TableName
from tests.support.bronze_reads import bronze_reads
from tests.support.pipelines import MakePipeline, Pipeline, with_rules, with_writer

BAD, GOOD = TableName("public", "bad"), TableName("public", "good")
RULES = (TableRule("public.bad", guards=Guards(deletes=5)), TableRule("*.*"))
WAITING = 4  # batches with pending changes of the table that is stopped
CREATE = "CREATE TABLE {} (id int PRIMARY KEY, v text)"
FILL = "INSERT INTO {} SELECT g, 'old' FROM generate_series(1, 20) g"


@pytest.fixture
def tables(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose tables bad and good have 20 rows each, in silver."""
    pipeline = with_writer(
        with_rules(make_pipeline(create_publication="all", copy="initial"), *RULES), "auto"
    )
    for table in ("bad", "good"):
        pipeline.run(CREATE.format(table), FILL.format(table))
    pipeline.ingest()
    return pipeline


def continuous(pipeline: Pipeline) -> Applier:
    """Return an apply that has applied what there is, and runs on."""
    applier = Applier(pipeline.spark, pipeline.config)
    applier.apply_pending()
    applier.run_continuously()
    applier.pool = TablePool(patience=120)  # on a busy machine a small table may be slow
    return applier


def change(pipeline: Pipeline, number: int) -> None:
    """Change rows of both tables, and the columns of one now and then, and capture that without copies."""
    for table in ("bad", "good"):
        if number == 2:
            pipeline.run(f"ALTER TABLE {table} ADD COLUMN more int DEFAULT 7")
        pipeline.run(
            f"INSERT INTO {table} (id, v) VALUES ({100 + number}, 'new')",
            f"UPDATE {table} SET v = 'changed {number}' WHERE id > {number}",
            f"UPDATE {table} SET id = id + 1000 WHERE id = {10 + number}",
        )
    source = replace(pipeline.config.source, copy="never")
    replace(pipeline, config=replace(pipeline.config, source=source)).ingest()


def files(pipeline: Pipeline) -> set[str]:
    return {path.name for path in pipeline.path("bronze", "changes").glob("*.parquet")}


def pass_batches(pipeline: Pipeline, applier: Applier, step: Step) -> None:
    """Run batches while the table is stopped; only the first two may read old files of bronze."""
    for number in range(WAITING):
        before = files(pipeline)
        change(pipeline, number)
        with bronze_reads() as reads:
            applier.apply_pending()
        assert applier.manifest is not None
        assert applier.manifest.lsn == applier.planner.bronze.captured_offset().lsn  # type: ignore[union-attr]
        assert GOOD not in applier.manifest.behind
        if number > 1:
            assert reads.paths
            assert {Path(path).name for path in reads.paths} <= files(pipeline) - before
            assert applier.planner.tables[BAD].step is step
    pipeline.assert_equal("good")


def recover(pipeline: Pipeline, applier: Applier) -> None:
    """Apply what is pending with the next changes, and without the stop."""
    change(pipeline, WAITING)
    applier.apply_pending()
    assert applier.manifest is not None
    assert not applier.manifest.behind
    assert applier.summary.exit_code(strict=True) == 0, applier.summary.lines()
    pipeline.assert_equal("bad", "good")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the clock of the back-off, which does not move."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("pipeline.apply.back_off.time", clock)
    return clock


def test_a_table_that_its_guards_hold(tables: Pipeline, clock: Any) -> None:
    applier = continuous(tables)
    tables.run("DELETE FROM bad WHERE id <= 6")
    pass_batches(tables, applier, Step.HOLD)
    assert [kind for kind, _ in tables.events("bad")].count("held") <= 2  # again when twice as much waits
    plan = applier.planner.tables[BAD]
    fresh = Bronze(Lake(tables.root), tables.config.pipeline)
    end = fresh.captured_offset()
    assert end is not None
    found = fresh.survey_tables({BAD: plan.facts.offset}, end.lsn)[BAD]
    assert list(plan.surveys) == found
    assert "6 deletes" in str(applier.summary.tables[BAD].held)
    manifests = tables.frame("_pgdelta", "manifests").count()
    applier.apply_pending()  # bronze has nothing new, and its next attempt is not due
    assert tables.frame("_pgdelta", "manifests").count() == manifests
    assert applier.planner.decisions[BAD].step is Step.BACK_OFF
    applier.confirm(lambda name: name == BAD)
    applier.apply_pending()  # at once
    tables.assert_equal("bad", "good")
    recover(tables, applier)


def test_a_table_that_fails_is_tried_again_after_some_time(
    tables: Pipeline, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier, attempts = continuous(tables), []
    write = BatchWriter._write

    def fail(writer: BatchWriter, each: Any, plan: Any) -> int:
        if writer._name == BAD:
            attempts.append(each)
            raise OSError("no space left")
        return write(writer, each, plan)

    with monkeypatch.context() as patch:
        patch.setattr(BatchWriter, "_write", fail)
        pass_batches(tables, applier, Step.BACK_OFF)
        assert len(attempts) == 1
        assert applier.summary.exit_code(strict=False) == 1
        clock.monotonic = lambda: 1011.0
        applier.apply_pending()
        assert len(attempts) == 2
    applier.apply_pending()
    assert applier.planner.decisions[BAD].step is Step.BACK_OFF
    clock.monotonic = lambda: 1032.0
    recover(tables, applier)


def test_a_table_whose_folder_is_taken(tables: Pipeline) -> None:
    applier = continuous(tables)
    folder = tables.path("silver", "public", "bad")
    shutil.rmtree(folder)
    shutil.copytree(tables.path("silver", "public", "good"), folder)
    pass_batches(tables, applier, Step.HOLD)
    assert "contains another table" in str(applier.summary.tables[BAD].held)
    shutil.rmtree(folder)
    recover(tables, applier)


def test_a_table_that_waits_for_its_copy(make_pipeline: MakePipeline) -> None:
    tables = with_writer(make_pipeline(create_publication="all", copy="initial"), "auto")
    tables.ingest(CREATE.format("good"), FILL.format("good"))
    applier = continuous(tables)
    tables.run(CREATE.format("bad"), FILL.format("bad"))
    pass_batches(tables, applier, Step.WAIT)
    tables.ingest()
    recover(tables, applier)
