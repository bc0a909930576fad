"""Jobs that end at any step with their lake on an object store, without Spark: the next run continues.

What comes after a crash has nothing but the store, as on another machine.
"""

from itertools import product
from pathlib import Path

import pytest

from pipeline.crash_steps import CrashStep
from pipeline.operate.resync import run_resync
from tests.support.fault_points import WHEN, Cell, crash_at, run_killed
from tests.support.pipelines import Crash
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import S3Server, environ_of

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, long text)",
    "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
    "CREATE TABLE bag (a int, v text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
)
STEPS = list(CrashStep)
FIRST_OF_APPLY = STEPS.index(CrashStep.EVOLVE_COLUMNS)
POINTS_OF_APPLY = list(product(STEPS[FIRST_OF_APPLY:], WHEN))
SOME_OF_APPLY = [
    (CrashStep.EVOLVE_COLUMNS, "after"),
    (CrashStep.WRITE_TABLE, "after"),
    (CrashStep.SWAP_TABLE, "after"),
]
POINTS_OF_INGEST = list(product(STEPS[:FIRST_OF_APPLY], WHEN))
SOME_OF_INGEST = [(CrashStep.COMMIT_BRONZE, "after")]
Points = list[tuple[CrashStep, str]]
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
storage:
  root: {root}
"""


def change(pipeline: StorePipeline, number: int) -> None:
    """Change rows, columns and tables of the source."""
    low = 20 * number
    pipeline.run(
        f"INSERT INTO t SELECT i, 'v', repeat('l', 2500) FROM generate_series({low}, {low + 19}) i",
        f"ALTER TABLE t ADD c{number} int DEFAULT {number}",
        f"UPDATE t SET id = id + 100000, c{number} = NULL WHERE id = {low + 3}",
        f"UPDATE t SET v = 'w' WHERE id % 7 = {number % 7}",
        f"DELETE FROM t WHERE id = {low + 5}",
        "INSERT INTO bag SELECT i % 2, 'v' FROM generate_series(1, 5) i",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
        f"CREATE TABLE parted_{number} PARTITION OF parted FOR VALUES FROM ({number}) TO ({number + 1})",
        f"INSERT INTO parted VALUES ({number}, 'v')",
        f"CREATE TABLE came{number} (id int PRIMARY KEY, v text)",
        f"INSERT INTO came{number} SELECT i, 'v' FROM generate_series(1, 20) i",
    )


def assert_equal(pipeline: StorePipeline, number: int) -> None:
    """Assert that all tables are equal after a change, and that bronze has each change once."""
    pipeline.assert_equal("t", "id", "v", "long", *(f"c{n}" for n in range(number + 1)))
    pipeline.assert_equal("bag", "a", "v")
    pipeline.assert_equal("parted", "id", "v")
    pipeline.assert_equal(f"came{number}", "id", "v")
    numbers = [(row["commit_lsn"], row["ordinal"]) for row in pipeline.changes() if row["op"] != "R"]
    assert len(set(numbers)) == len(numbers)


@pytest.fixture
def pipeline(store_pipeline: StorePipeline) -> StorePipeline:
    """Give a pipeline that has copied the tables."""
    store_pipeline.catch_up(
        *TABLES,
        f"ALTER PUBLICATION {store_pipeline.config.source.publication} SET (publish_via_partition_root)",
    )
    return store_pipeline


@pytest.mark.promise("object stores")
@pytest.mark.parametrize("points", [SOME_OF_APPLY, pytest.param(POINTS_OF_APPLY, marks=pytest.mark.slow)])
def test_apply_continues_after_a_crash(pipeline: StorePipeline, points: Points) -> None:
    for number, (step, when) in enumerate(points):
        change(pipeline, number)
        if step is CrashStep.SWAP_TABLE:  # which only takes a new copy of a table that silver has
            run_resync(pipeline.config, ["public.t"])
        pipeline.ingest()
        with crash_at(step, when), pytest.raises(Crash):
            pipeline.apply()
        pipeline.lose_machine()
        pipeline.catch_up()
        assert_equal(pipeline, number)


@pytest.mark.promise("object stores")
@pytest.mark.parametrize("points", [SOME_OF_INGEST, pytest.param(POINTS_OF_INGEST, marks=pytest.mark.slow)])
def test_a_killed_ingest_continues(
    pipeline: StorePipeline, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: Points
) -> None:
    for name, value in environ_of(s3.options).items():
        monkeypatch.setenv(name, value)
    names = {"name": pipeline.config.pipeline, "conninfo": pipeline.config.source.conninfo}
    config = tmp_path / "pipeline.yaml"
    config.write_text(CONFIG.format(**names, root=pipeline.config.storage.root))
    for number, (step, when) in enumerate(points):
        change(pipeline, number)
        assert run_killed("ingest", Cell(step, when, "killed"), config), (step, when)
        pipeline.lose_machine()
        pipeline.catch_up()
        assert_equal(pipeline, number)
