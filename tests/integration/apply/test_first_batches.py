"""What apply does before Spark is there: small tables are written, and without work Spark does not start."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest

from pipeline.apply.applier import Applier
from pipeline.apply.job import run_apply
from pipeline.delta import native_write
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, LakeError
from pipeline.progress import ApplySummary
from pipeline.protocol.lsn import LSN
from tests.support.pipelines import Pipeline, succeeded, with_writer
from tests.support.threads import wait_until


@pytest.fixture
def filled(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose bronze has rows of one table, with the writer that needs no Spark."""
    pipeline = with_writer(pipeline, "auto")
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.ingest()  # creates the slot
    pipeline.ingest("INSERT INTO t VALUES (1), (2)")
    return pipeline


@contextmanager
def start_held(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold Spark's start until the event is set, at the latest at the end of the block."""
    may_start = threading.Event()
    session = pipeline.session

    def start(name: str) -> object:
        assert may_start.wait(60)
        return session

    monkeypatch.setattr("pipeline.delta.spark.session.start_session", start)
    try:
        yield may_start
    finally:
        may_start.set()


@contextmanager
def applying(pipeline: Pipeline) -> Iterator[tuple[Future[ApplySummary], threading.Event]]:
    """Run apply continuously, without a session of the caller's, until the event is set."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            start = partial(run_apply, pipeline.config, trigger="continuous", stop=stop, starts_query=True)
            yield pool.submit(start), stop
        finally:
            stop.set()


def silver_offset(pipeline: Pipeline) -> LSN | None:
    table = Lake(pipeline.root).table("silver", "public", "t")
    return table.offset(Applier(None, pipeline.config).bronze.txn) if table.exists() else None


def test_a_run_starts_spark_only_for_a_query(filled: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.apply()

    def refuse(name: str) -> object:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("pipeline.delta.spark.session.start_session", refuse)
    began = time.monotonic()
    summary = succeeded(run_apply(filled.config))
    assert summary.batches == 0
    print(f"nothing to do: {time.monotonic() - began:.2f} s")
    filled.ingest("INSERT INTO t VALUES (3)")
    offset = silver_offset(filled)
    assert run_apply(filled.config).exit_code(strict=True) == 0
    assert silver_offset(filled) != offset
    filled.ingest("INSERT INTO t VALUES (4)")
    with pytest.raises(AssertionError, match="Spark is started"):  # the query is the clock
        run_apply(filled.config, starts_query=True)


@pytest.mark.spark
def test_a_new_query_is_a_clock_that_costs_no_spark_job(filled: Pipeline) -> None:
    scheduler = cast(Any, filled.session.sparkContext)._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    for _ in range(
        2
    ):  # Delta would read all of bronze's log for a new checkpoint, and again for the next run
        summary = filled.apply(starts_query=True)
        assert summary.stream is not None
        filled.assert_equal("t")
        filled.ingest("UPDATE t SET id = id + 10")
    assert scheduler.numTotalJobs() == before


@pytest.mark.spark
def test_small_tables_and_columns_are_written_while_spark_starts(
    filled: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_held(filled, monkeypatch) as may_start, applying(filled) as (running, stop):
        wait_until(lambda: silver_offset(filled) is not None)
        before = silver_offset(filled)
        filled.run("INSERT INTO t VALUES (5)", "DELETE FROM t WHERE id = 1")
        filled.transact(
            "ALTER TABLE t ADD v text",
            "ALTER TABLE t ADD n int DEFAULT 7",
            "INSERT INTO t VALUES (3, 'a', 8)",
        )
        filled.ingest()
        wait_until(lambda: silver_offset(filled) != before)
        assert not running.done()
        may_start.set()
        filled.ingest("UPDATE t SET id = 4 WHERE id = 3")
        silver = Lake(filled.root).table("silver", "public", "t")
        wait_until(lambda: 4 in silver.rows(["id"]).column("id").to_pylist())
        stop.set()
        assert running.result(120).exit_code(strict=True) == 0
    filled.assert_equal("t")


@pytest.mark.parametrize("trigger", ["available-now", "continuous"])
def test_an_error_of_a_first_batch_ends_the_run(
    filled: Pipeline, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    plan: Callable[..., object] = Applier.apply_pending

    def fail(self: Applier, *arguments: object) -> object:
        if threading.current_thread().name == "first-batches":
            raise LakeError("The lake is full.")
        return plan(self, *arguments)

    monkeypatch.setattr(Applier, "apply_pending", fail)
    with pytest.raises(LakeError, match="The lake is full"):
        run_apply(filled.config, trigger=trigger)


@pytest.mark.spark
def test_a_stop_while_spark_starts_ends_the_run(filled: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_held(filled, monkeypatch) as may_start, applying(filled) as (running, stop):
        wait_until(lambda: silver_offset(filled) is not None)
        stop.set()
        may_start.set()
        assert running.result(60).tables
    filled.assert_equal("t")


def test_a_run_says_for_which_table_spark_starts_and_why(
    filled: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled.apply()
    table = Lake(filled.config.storage).table("silver", "public", "t")
    native_write.set_properties(table.folder, table.snapshot(), {"delta.enableChangeDataFeed": "true"}, "{}")
    filled.ingest("INSERT INTO t VALUES (3)")

    def start(name: str) -> object:
        raise LakeError("There is no Java.")

    monkeypatch.setattr(NOTICES, "propagate", True)
    monkeypatch.setattr(SparkProvider, "started", None)
    monkeypatch.setattr("pipeline.delta.spark.session.start_session", start)
    with caplog.at_level(logging.INFO, NOTICES.name):
        filled.apply(starts_query=False)
    assert "Spark starts for public.t: the table has a change data feed" in caplog.messages
