"""Either job may be killed at any time: started again, silver equals the source, bronze has no repeats.

Both jobs run as processes of their own under a random load. A kill counts once the job has begun its work:
ingest when it holds the slot, apply when it has written something; earlier ones are counted apart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests import oracle
from tests.operate.pipelines import MakePipeline, Pipeline
from tests.operate.test_faults import CONFIG, ROOT
from tests.operate.test_random_workloads import seed_of_run
from tests.servers import Database
from tests.workload.tables import Schema, create_schema
from tests.workload.transactions import run_workload

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

KILLS = 20
SECONDS = 1500  # give up after so long


@dataclass
class Load:
    """A random workload on a thread of its own, a few transactions a second."""

    database: Database
    schema: Schema
    rng: Random
    stop: threading.Event = field(default_factory=threading.Event)
    transactions: int = 0
    error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.database.connect() as source:
                while not self.stop.wait(0.3):
                    self.transactions += 1
                    run_workload(source, self.rng, 1, schema=self.schema)
        except BaseException as error:
            self.error = error


class Job:
    """One of the jobs as a process that is started again whenever it was killed."""

    def __init__(self, name: str, config: Path, pipeline: Pipeline) -> None:
        self.name = name
        self._config = config
        self._pipeline = pipeline
        self.start()

    def start(self) -> None:
        environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
        command = [sys.executable, str(ROOT / "jobs" / f"{self.name}.py"), "--config", str(self._config)]
        self.output = self._config.with_name(f"{self.name}.out").open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [*command, "--trigger", "continuous"],
            cwd=self._config.parent,
            env=environ,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )
        self._written = self.newest_write()

    def newest_write(self) -> str:
        """Return the newest thing this job wrote to the lake."""
        if self.name == "apply":
            return max(
                (str(path) for path in self._pipeline.path("_pgdelta", "manifests").glob("*/*.json")),
                default="",
            )
        return ""

    def is_working(self) -> bool:
        """Tell whether the job does what it is for."""
        if self.name == "ingest":
            query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = current_database()"
            return any(pid is not None for [pid] in self._pipeline.source.execute(query))
        return self.newest_write() > self._written

    def kill(self, *, whole_group: bool) -> None:
        """Kill the job, with the JVM that it started or without."""
        assert self.process.poll() is None, f"{self.name} ended by itself: see {self.output.name}"
        if whole_group:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(30)
        self.output.close()

    def end(self) -> None:
        """Stop whatever is left of the job."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.output.close()


def test_kills_at_random_times_lose_and_repeat_nothing(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    seed = seed_of_run()
    print(f"PGDELTA_SEED={seed}")
    rng = Random(seed)
    pipeline = make_pipeline("load.*")
    database = pipeline.database
    schema = create_schema(pipeline.source, rng, name="load")
    pipeline.ingest()
    file = tmp_path / "pipeline.yaml"
    text = CONFIG.format(name=database.name, conninfo=database.conninfo, root=pipeline.root)
    file.write_text(text + 'tables:\n  - source: "load.*"\n')
    load = Load(database, schema, Random(seed + 1))
    thread = threading.Thread(target=load.run)
    thread.start()
    landed = {"ingest": 0, "apply": 0}
    early = 0
    jobs = [Job(name, file, pipeline) for name in landed]
    deadline = time.monotonic() + SECONDS
    try:
        while sum(landed.values()) < KILLS and time.monotonic() < deadline:
            job = min(jobs, key=lambda job: (landed[job.name], rng.random()))
            is_early = rng.random() < 0.1
            waited = time.monotonic() + (rng.uniform(0, 8) if is_early else 120)
            while time.monotonic() < waited and not job.is_working():
                time.sleep(0.1)
            was_working = job.is_working()
            if was_working:
                time.sleep(rng.uniform(0, 6))
            job.kill(whole_group=rng.random() < 0.5)
            landed[job.name] += was_working
            early += not was_working
            job.start()
    finally:
        load.stop.set()
        thread.join()
        for job in jobs:
            job.end()
    print(f"kills that landed: {landed}, early: {early}, transactions of the load: {load.transactions}")
    assert load.error is None
    assert min(landed.values()) > 0, "no kill landed"
    assert sum(landed.values()) >= KILLS
    pipeline.catch_up()
    oracle.bronze_has_no_duplicates(pipeline.spark, pipeline.root)
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, schema.names)
