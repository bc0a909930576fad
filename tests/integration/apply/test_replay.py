"""Whatever is lost, repeated or cut off, silver ends equal to the source and bronze has each change once.

A crash is an exception that nothing in the jobs catches, raised at a named place; what comes after it starts
from storage alone, as a new process does.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import Any

import pytest

from pipeline.crash_steps import CrashStep
from pipeline.errors import LakeError
from tests.support.fault_points import crash_at
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS, TABLES
from tests.support.pipelines import Crash, MakePipeline, Pipeline, succeeded


def apply_in_new_process(pipeline: Pipeline) -> Any:
    """Apply all there is without Spark's query, through which a crash would not come back."""
    from pipeline.apply.applier import Applier

    return Applier(pipeline.spark, pipeline.config).apply_pending()


def log_versions(pipeline: Pipeline, folder: str) -> dict[str, str]:
    """Return the newest commit of every Delta table below a folder of the lake."""
    logs = sorted(pipeline.path(folder).glob("**/_delta_log/*.json"))
    return {str(log.parent): log.name for log in logs}


# Runs that are repeated -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.promise("apply ends anywhere")
def test_a_lost_checkpoint_and_repeated_runs_change_nothing(pipeline: Pipeline) -> None:
    pipeline = replace(pipeline, starts_query=True)
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    pipeline.ingest(*CHANGE)
    pipeline.ingest()
    shutil.rmtree(pipeline.path("_pgdelta", "checkpoints"))
    pipeline.apply()
    pipeline.assert_equal(*TABLES)

    before = log_versions(pipeline, "silver")
    shutil.rmtree(pipeline.path("_pgdelta", "checkpoints"))
    pipeline.apply()
    pipeline.apply()
    assert log_versions(pipeline, "silver") == before
    pipeline.assert_equal(*TABLES)


@pytest.mark.promise("acknowledged after bronze")
@pytest.mark.parametrize("route", ["walsender", pytest.param("sql", marks=pytest.mark.slow)])
def test_changes_landed_but_not_acknowledged_are_not_landed_again(
    make_pipeline: MakePipeline, route: str
) -> None:
    pipeline = make_pipeline(route=route)
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    confirmed = pipeline.confirmed_lsn()
    pipeline.run(*FILL)
    with crash_at(CrashStep.ACKNOWLEDGE), pytest.raises(Crash):
        pipeline.ingest()
    assert pipeline.confirmed_lsn() == confirmed
    landed = pipeline.frame("bronze", "changes").count()
    assert landed == 46

    summary = pipeline.ingest(*CHANGE[:1])
    assert summary.changes == 3
    assert pipeline.frame("bronze", "changes").count() == landed + 3
    assert pipeline.confirmed_lsn() >= summary.captured_offset
    pipeline.apply()
    pipeline.assert_equal(*TABLES)


@pytest.mark.promise("acknowledged after bronze")
def test_changes_staged_but_not_landed_come_again(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.run(*FILL)
    with crash_at(CrashStep.COMMIT_BRONZE), pytest.raises(Crash):
        pipeline.ingest()
    assert pipeline.frame("bronze", "changes").count() == 0
    pipeline.assert_follows(*TABLES)


# Apply that ends in the middle ------------------------------------------------------------------------------


CREATED_AGAIN = (
    "DROP TABLE t",
    "CREATE TABLE t (v text, id int PRIMARY KEY)",
    "INSERT INTO t VALUES ('new', 2)",
)
PLACES = {
    "before the first table is written": (CrashStep.WRITE_TABLE, 0),
    "between two tables": (CrashStep.WRITE_TABLE, 1),
    "before a table's columns are registered": (CrashStep.REGISTER_TABLE, 0),
    "before the manifest": (CrashStep.RECORD_MANIFEST, 0),
}


@pytest.mark.parametrize(
    "place",
    # the others are steps of the fault matrix too
    [
        place if place == "before the manifest" else pytest.param(place, marks=pytest.mark.slow)
        for place in PLACES
    ],
)
def test_apply_continues_after_a_crash(pipeline: Pipeline, place: str) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    pipeline.run("ALTER TABLE orders ADD COLUMN rank int DEFAULT 5", *CHANGE)
    pipeline.ingest("UPDATE orders SET rank = 9 WHERE id = 6")
    step, passing = PLACES[place]
    with crash_at(step, passing=passing), pytest.raises(Crash):
        apply_in_new_process(pipeline)
    assert apply_in_new_process(pipeline).exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)

    # What was added must not be added again to rows that have changed since.
    pipeline.catch_up("UPDATE orders SET rank = 6 WHERE id = 7", "UPDATE orders SET item = 'x' WHERE id = 8")
    pipeline.catch_up("UPDATE orders SET item = 'y' WHERE id = 9")
    pipeline.assert_equal(*TABLES)
    assert [kind for kind, _ in pipeline.events("orders")] == ["evolved"]


@pytest.mark.promise("apply ends anywhere")
def test_a_crash_between_two_writes_of_one_table_repeats_neither(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text)")
    pipeline.catch_up("INSERT INTO t SELECT g, g + 50, 'v' FROM generate_series(1, 9) g")
    # Three ways to know a row in one transaction: three writes, the first two under a suffix of their own.
    pipeline.transact(
        "UPDATE t SET v = 'w' WHERE id < 4",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key",
        "UPDATE t SET other = other + 100 WHERE id < 3",
        "DELETE FROM t WHERE id = 9",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET id = id + 20 WHERE id IN (1, 5)",
    )
    pipeline.ingest()
    # The second run skips the write that the first one did.
    for passing in (1, 2):
        with crash_at(CrashStep.WRITE_TABLE, passing=passing), pytest.raises(Crash):
            apply_in_new_process(pipeline)
    assert apply_in_new_process(pipeline).exit_code(strict=True) == 0
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.slow
def test_a_crash_while_a_table_created_again_is_applied_loses_neither(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.ingest("UPDATE t SET v = 'changed'")
    pipeline.ingest(*CREATED_AGAIN)
    with crash_at(CrashStep.WRITE_TABLE), pytest.raises(Crash):
        apply_in_new_process(pipeline)
    succeeded(apply_in_new_process(pipeline))
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.slow
def test_rows_of_a_table_created_again_stay_when_the_record_of_it_was_lost(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.ingest(*CREATED_AGAIN)
    # The second registration comes after the rows.
    with crash_at(CrashStep.REGISTER_TABLE, passing=1), pytest.raises(Crash):
        apply_in_new_process(pipeline)
    pipeline.ingest("ALTER TABLE t ADD COLUMN n int DEFAULT 7", "INSERT INTO t VALUES ('more', 3)")
    succeeded(apply_in_new_process(pipeline))
    pipeline.assert_equal("t")


# A run that is stopped --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
def test_a_batch_during_the_stop_of_apply_neither_delays_it_nor_is_lost(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.apply.applier import Applier

    pipeline = replace(pipeline, starts_query=True)
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.ingest("INSERT INTO t VALUES (1)")
    stop, came = threading.Event(), threading.Event()
    take_batch, close = Applier.apply_batch, Applier.close

    def apply_batch(self: Applier, *batch: Any) -> None:
        if self._is_closed:
            came.set()
        take_batch(self, *batch)

    def close_before_a_batch(self: Applier) -> None:
        is_first = not self._is_closed  # the run's end closes it too
        close(self)
        if not is_first:
            return
        pipeline.ingest("INSERT INTO t VALUES (2)")
        assert came.wait(60)

    options = {"trigger": "continuous", "stop": stop, "progress": lambda _: stop.set()}
    running = threading.Thread(target=pipeline.apply, kwargs=options)
    with monkeypatch.context() as patch:
        patch.setattr(Applier, "apply_batch", apply_batch)
        patch.setattr(Applier, "close", close_before_a_batch)
        running.start()
        running.join(180)
    assert came.is_set()
    assert not running.is_alive()
    assert pipeline.frame("silver", "public", "t").count() == 1
    assert pipeline.apply().exit_code(strict=True) == 0
    pipeline.assert_equal("t")


@pytest.mark.spark
def test_an_error_that_ends_the_query_is_raised_with_its_own_message(pipeline: Pipeline) -> None:
    pipeline = replace(pipeline, starts_query=True)
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.ingest("INSERT INTO t VALUES (1)")
    refusal = LakeError("the storage takes no more")
    with (
        crash_at(CrashStep.RECORD_MANIFEST, error=refusal),
        pytest.raises(LakeError, match=r"^the storage takes no more$"),
    ):
        pipeline.apply()
    pipeline.assert_follows("t")
