"""A copy may be killed at any time: the next run continues it, and silver equals the source."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.support.copies import BAG, FILL, FILL_BAG, ORDERS, load
from tests.support.paths import ROOT
from tests.support.pipelines import MakePipeline
from tests.support.processes import in_own_session
from tests.support.seeds import seed_of_run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = 20
ROWS = 400_000
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
  copying: {{range_size: 128kB, rate_limit: {rate}}}
storage: {{root: "{root}"}}
"""


@pytest.mark.promise("interrupted copies")
def test_a_copy_that_is_killed_twenty_times(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    seed = seed_of_run()
    rng = Random(seed)
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.run(*ORDERS, FILL.format(400), *BAG, FILL_BAG)
    pipeline.run(
        "CREATE TABLE plain (id int PRIMARY KEY, v text, n int)",
        f"INSERT INTO plain SELECT i, 'v' || i, i % 9 FROM generate_series(1, {ROWS}) i",
    )
    config = tmp_path / "pipeline.yaml"
    text = CONFIG.format(
        name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root, rate="200kB"
    )
    config.write_text(text)
    command = [sys.executable, str(ROOT / "jobs" / "ingest.py"), "--config", str(config)]
    kills = 0
    with load(pipeline, seed):
        while kills < KILLS:
            with in_own_session(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
                wait_for_commit(
                    process, pipeline.path("bronze", "copies"), "copy_id"
                )  # of what is to be read
                if kills % 2:
                    wait_for_commit(process, pipeline.path("bronze", "changes"), "#copy/")  # of what was read
                time.sleep(rng.uniform(0, 2.5))
                assert process.poll() is None, "the copy was complete before the last kill"
            kills += 1
        done = pipeline.frame("bronze", "changes").where("op = 'R'").count()
        pipeline.ingest()
    for _ in range(3):  # where a row moved, one copy more
        pipeline.catch_up()
    pipeline.assert_equal("orders", "bag", "plain")
    rows = pipeline.frame("bronze", "copies").collect()
    copied = pipeline.frame("bronze", "changes").where("op = 'R'")
    complete = {row.copy_id for row in rows if row.state == "complete"}
    used = copied.where(f"copy_id IN ({', '.join(map(str, complete))})").count()
    begun = [row.copy_id for row in rows if row.state == "reading"]
    resumed = len(begun) - len(set(begun))
    print(
        f"PGDELTA_SEED={seed}: {kills} kills, {done} rows were in bronze at the last; {copied.count()} rows "
        f"landed, {used} of complete copies; {resumed} times a copy went on where it was"
    )
    assert resumed


def wait_for_commit(process: subprocess.Popen[str], table: Path, word: str) -> None:
    """Wait until a table has one commit more that has a word in it, or the process has ended."""
    before = commits(table, word)
    while process.poll() is None and commits(table, word) == before:
        time.sleep(0.1)


def commits(table: Path, word: str) -> int:
    """Return how many commits in the log of a table have a word."""
    return sum(word in path.read_text() for path in table.glob("_delta_log/*.json"))
