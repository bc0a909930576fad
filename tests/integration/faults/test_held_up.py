"""An ingest that was stopped, replaced and woken: it ends with a sentence, and bronze has no overlap.

PGDELTA_HELD_UP is how often the long test holds one up.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.verify.audit import run_audit
from tests.support.held_ingest import MOMENTS
from tests.support.paths import ROOT
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.processes import in_own_session, members, processes_with
from tests.support.running import continuous
from tests.support.seeds import seed_of_run
from tests.support.threads import in_threads, wait_until

ROUNDS = int(os.environ.get("PGDELTA_HELD_UP", "50"))
TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, name text)",
    "CREATE TABLE bag (n int, t text)",  # without a key: what comes twice is there twice
    "ALTER TABLE bag REPLICA IDENTITY FULL",
)
CHANGES = (
    "INSERT INTO items SELECT coalesce(max(id), 0) + 1, 'new' FROM items",
    "INSERT INTO bag SELECT i % 7, 'row' FROM generate_series(1, 5) i",
    "UPDATE items SET name = name || '.' WHERE id % 5 = 0 AND length(name) < 20",
    "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 2)",
)
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
  copy: never
storage: {{root: "{root}"}}
"""


@contextmanager
def load(pipeline: Pipeline) -> Iterator[None]:
    """Change the tables some twenty times a second, in a session that `break_off` leaves alone."""
    with pipeline.database.connect() as session:
        session.execute("SET application_name = 'load'")

        def change(stop: threading.Event) -> None:
            turn = 0
            while not stop.wait(0.05):
                session.execute(CHANGES[turn % len(CHANGES)].encode())
                turn += 1

        with in_threads(change):
            yield


def break_off(pipeline: Pipeline) -> None:
    """End the sessions of an ingest, as a network does that gives it up for dead."""
    pipeline.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
        "pid <> pg_backend_pid() AND application_name <> 'load' AND backend_type IN "
        "('client backend', 'walsender')"
    )


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def replace_one_that_is_held_up(pipeline: Pipeline, config: Path, moment: str, delay: float = 0.0) -> str:
    """Hold an ingest up, let another one take over, wake the first; return what the first one says."""
    log = pipeline.path("bronze", "changes", "_delta_log")
    command = [sys.executable, "-m", "tests.support.held_ingest", str(config), moment]
    with in_own_session(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        if moment == "any":
            before = len(list(log.glob("*.json")))
            wait_until(lambda: len(list(log.glob("*.json"))) > before or first.poll() is not None)
            time.sleep(delay)
            os.killpg(first.pid, signal.SIGSTOP)
        wait_until(lambda: first.poll() is not None or is_stopped(first))
        break_off(pipeline)
        with continuous(pipeline) as second:
            wait_until(lambda: second.captured or second.error)
            os.killpg(first.pid, signal.SIGCONT)
            said = first.communicate(timeout=240)[1]
            captured = second.captured
            wait_until(lambda: second.captured > captured or second.error)
        assert second.error is None
        # it ended by itself, and so does its JVM
        wait_until(lambda: not members(first.pid))
    assert first.returncode == 1
    return said


def check(pipeline: Pipeline, config: Path, moments: list[tuple[str, float]]) -> list[str]:
    pipeline.ingest(*TABLES)
    config.write_text(
        CONFIG.format(name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root)
    )
    said = []
    with load(pipeline):
        for moment, delay in moments:
            said.append(replace_one_that_is_held_up(pipeline, config, moment, delay))
    pipeline.assert_follows("items", "bag")
    proof = run_audit(pipeline.config)
    assert proof.findings == ()
    assert processes_with(str(config)) == []
    for sentence in said:
        assert (sentence[:9], sentence.count("\n")) == ("pgdelta: ", 1), sentence
        assert "unexpected" not in sentence
    return said


@pytest.mark.promise("a suspended ingest writes nothing")
@pytest.mark.parametrize(
    "moments", [("amid",), pytest.param(MOMENTS, marks=pytest.mark.slow)], ids=["amid", "all"]
)
def test_an_ingest_that_was_held_up_at_its_commit_writes_no_more(
    make_pipeline: MakePipeline, tmp_path: Path, moments: tuple[str, ...]
) -> None:
    pipeline = make_pipeline(create_publication="all")
    said = check(pipeline, tmp_path / "pipeline.yaml", [(moment, 0.0) for moment in moments])
    for moment, sentence in zip(moments, said, strict=True):
        print(f"held up {moment} its commit: {sentence}", end="")
        if moment != "after":
            assert "Another ingest has taken over" in sentence


@pytest.mark.spark
@pytest.mark.promise("a suspended ingest writes nothing")
@pytest.mark.slow
def test_an_ingest_that_was_held_up_fifty_times_at_any_moment(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    seed = seed_of_run()
    rng = random.Random(seed)
    moments = [("any", rng.uniform(0, 1.5)) for _ in range(ROUNDS)]
    said = check(make_pipeline(create_publication="all"), tmp_path / "pipeline.yaml", moments)
    fenced = sum("Another ingest has taken over" in sentence for sentence in said)
    print(f"PGDELTA_SEED={seed}: {len(said)} times held up, {fenced} of them refused at a commit")
