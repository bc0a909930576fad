"""The clock of the host may be wrong, and jump: order is the source's, so silver still equals it.

What Delta takes for the time of a commit is the modification time of a file in its log; by it Delta removes
old files of the log. So the lake is given the times that a wrong clock leaves.
"""

import os
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze import copies
from pipeline.config.tables import TableRule
from pipeline.delta.sql import now
from pipeline.operate.rebuild import run_rebuild
from tests.support.orders_load import change
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_rules

DAY = 86_400
# Delta keeps its log for 30 days, and looks at it each time that it writes a checkpoint: after ten commits.
OFFSETS = (-100 * DAY, 100 * DAY, -1000 * DAY, 3600, -3600, 40 * DAY, -40 * DAY, 0)


def shift(pipeline: Pipeline, seconds: float) -> None:
    """Give all that the lake has the time that a clock which is wrong by so much would give it."""
    stamp = time.time() + seconds
    for path in Path(pipeline.root).rglob("*"):
        if path.is_file():
            os.utime(path, (stamp, stamp))
    jvm: Any = pipeline.session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.promise("jumping clocks")
@pytest.mark.slow
@pytest.mark.spark
def test_a_clock_that_jumps_by_years_changes_nothing(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.run(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE bag (a int, v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    clock = time.time
    for number, offset in enumerate(OFFSETS):
        monkeypatch.setattr(time, "time", lambda offset=offset: clock() + offset)
        monkeypatch.setattr(time, "time_ns", lambda offset=offset: int((clock() + offset) * 1e9))
        # each time that a copy is recorded it is earlier than the last time
        hours = count(1)
        monkeypatch.setattr(copies, "now", lambda hours=hours: now() - timedelta(hours=next(hours)))
        change(pipeline, number)
        pipeline.catch_up()
        pipeline.catch_up("INSERT INTO bag VALUES (7, 'again')")
        pipeline.assert_equal("keyed", "bag", f"came{number}", ignore_left_columns=True)
        monkeypatch.undo()
        shift(pipeline, offset)
    shift(pipeline, -40 * DAY)
    for number in range(12):
        pipeline.catch_up(f"INSERT INTO bag VALUES ({number}, 'and again')")
    pipeline.assert_equal("keyed", "bag", ignore_left_columns=True)
    logs = Path(pipeline.root).rglob("_delta_log")
    assert not all((log / f"{0:020}.json").exists() for log in logs), "the times did not count"


@pytest.mark.promise("jumping clocks")
def test_a_table_is_rewritten_again_while_the_clock_goes_back(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, n int)")
    pipeline.catch_up("INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    now = time.time_ns()
    found = []
    for number, types in enumerate(({"n": "STRING"}, {}, {"n": "STRING"}, {})):
        monkeypatch.setattr(time, "time_ns", lambda number=number: now - number * 10**15)
        other = with_rules(pipeline, TableRule("*.*", types=types, type_changes="rebuild"))
        succeeded(run_rebuild(other.config, ["public.t"]))
        found.append(dict(other.frame("silver", "public", "t").dtypes)["n"])
        assert other.frame("silver", "public", "t").count() == 5
    assert found == ["string", "int", "string", "int"]
