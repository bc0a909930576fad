"""Tables that Spark writes share its cores: a large one does not take all of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pipeline.delta.spark.provider import SparkProvider
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TASKS = 60
ROWS_OF_TASK = 200_000


def count(sessions: SparkProvider, group: str, tasks: int, rows: int) -> int:
    """Run one stage of tasks in a session of the thread; return the number of rows."""
    session = sessions.session
    session.sparkContext.setJobGroup(group, group)
    numbers = session.range(0, tasks * rows, 1, tasks).where("hash(id, id + 1, id + 2) IS NOT NULL")
    return len(numbers.where(f"id % {rows} = 0").collect())


@pytest.mark.promise("slow tables")
def test_a_small_job_ends_while_a_large_one_has_tasks_that_wait(spark: SparkSession) -> None:
    sessions, tracker = SparkProvider(spark), spark.sparkContext.statusTracker()

    def completed() -> int:
        (job,) = tracker.getJobIdsForGroup("large")
        found = tracker.getJobInfo(job)
        assert found is not None
        stages = [tracker.getStageInfo(stage) for stage in found.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    with ThreadPoolExecutor(2, thread_name_prefix="pools") as pool:
        large = pool.submit(count, sessions.new(), "large", TASKS, ROWS_OF_TASK)
        wait_until(lambda: tracker.getJobIdsForGroup("large") and completed() > 2)
        assert pool.submit(count, sessions.new(), "small", 2, 1000).result() == 2
        done = completed()
        assert large.result() == TASKS
    assert done < TASKS / 2


def test_each_thread_has_a_pool_of_its_own(spark: SparkSession) -> None:
    sessions, barrier = SparkProvider(spark), threading.Barrier(2)
    of_this_thread = spark.sparkContext.getLocalProperty("spark.scheduler.pool")

    def pool_of(_: int) -> str | None:
        barrier.wait(60)
        session = sessions.new().session
        return session.sparkContext.getLocalProperty("spark.scheduler.pool")

    with ThreadPoolExecutor(2, thread_name_prefix="own") as pool:
        assert sorted(map(str, pool.map(pool_of, range(2)))) == ["own_0", "own_1"]
    assert spark.sparkContext.getLocalProperty("spark.scheduler.pool") == of_this_thread
