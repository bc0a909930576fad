"""Either job may be killed at any time: started again, silver equals the source, bronze has no repeats.

Both jobs run as processes of their own under a random load. A kill counts once the job has begun its work:
ingest when it holds the slot, apply when it has written something; earlier ones are counted apart. One load
is of whole transactions; the other also has some that stream or are prepared, and are open when a job is
killed. Protocol version 1, read in the end, is the judge of bronze.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from pipeline.config.config import Protocol
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.jobs import RICH, RICH_LINE, Job, Load
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.postgres.sessions import TABLES, Sessions, create_tables
from tests.support.running import CONFIG
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.workload.tables import create_schema

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 1500  # give up after so long


@dataclass
class Kills:
    """How many kills landed, which came early, and what was open at those of ingest."""

    landed: dict[str, int] = field(default_factory=lambda: {"ingest": 0, "apply": 0})
    early: int = 0
    open_count: int = 0
    prepared: set[str] = field(default_factory=set)

    def run(self, jobs: Sequence[Job], load: Load, rng: Random, count: int) -> None:
        """Kill one job after the other at random moments until so many kills have landed."""
        deadline = time.monotonic() + SECONDS
        while sum(self.landed.values()) < count and time.monotonic() < deadline:
            job = min(jobs, key=lambda job: (self.landed[job.name], rng.random()))
            is_early = rng.random() < 0.1
            waited = time.monotonic() + (rng.uniform(0, 8) if is_early else 120)
            while time.monotonic() < waited and not job.is_working():
                time.sleep(0.1)
            was_working = job.is_working()
            if was_working:
                time.sleep(rng.uniform(0, 6))
            job.kill(whole_group=rng.random() < 0.5)
            if load.sessions and was_working and job.name == "ingest":
                self.open_count += sum(load.sessions.open)
                self.prepared |= set(load.sessions.gids)
            self.landed[job.name] += was_working
            self.early += not was_working
            job.start()


@pytest.mark.promise("transactions are complete and once")
@pytest.mark.parametrize(("is_rich", "count"), [(False, 20), (True, 14)], ids=["whole", "streamed"])
def test_kills_at_random_times_lose_and_repeat_nothing(
    make_pipeline: MakePipeline, tmp_path: Path, is_rich: bool, count: int
) -> None:
    seed = seed_of_run()
    rng = printed_rng(seed)
    rules = ["load.*", *(["public.*"] if is_rich else [])]
    pipeline = make_pipeline(*rules, protocol=RICH if is_rich else Protocol())
    judge = make_pipeline(*rules, name="judge", protocol=Protocol(version=1))
    database = pipeline.database
    schema = create_schema(pipeline.source, rng, name="load")
    if is_rich:
        create_tables(database)
    pipeline.ingest()
    judge.ingest()
    file = tmp_path / "pipeline.yaml"
    text = CONFIG.format(name=database.name, conninfo=database.conninfo, root=pipeline.root)
    if is_rich:
        text = text.replace("storage:\n", RICH_LINE + "storage:\n")
    file.write_text(text + "tables:\n" + "".join(f'  - source: "{rule}"\n' for rule in rules))
    sessions = Sessions(database, Random(seed + 2), has_two_phase=True) if is_rich else None
    load = Load(database, schema, Random(seed + 1), sessions)
    thread = threading.Thread(target=load.run)
    thread.start()
    kills = Kills()
    jobs = [Job(name, file, pipeline) for name in kills.landed]
    try:
        kills.run(jobs, load, rng, count)
    finally:
        load.stop.set()
        thread.join()
        for job in jobs:
            job.end()
    print(
        f"kills that landed: {kills.landed}, early: {kills.early}, "
        f"transactions of the load: {load.transactions}, "
        f"open when ingest was killed: {kills.open_count}, prepared: {len(kills.prepared)}"
    )
    assert load.error is None
    assert min(kills.landed.values()) > 0, "no kill landed"
    assert sum(kills.landed.values()) >= count
    names = list(schema.names)
    if sessions:
        sessions.finish()
        names += [TableName("public", table) for table in (*TABLES, "filler")]
        assert_streamed(pipeline)
        assert kills.open_count > 0
        assert kills.prepared
    pipeline.catch_up()
    judge.ingest()
    oracle.bronze_has_no_duplicates(pipeline.spark, pipeline.root)
    assert pipeline.changes() == judge.changes()
    if is_rich:
        assert pipeline.frame("bronze", "changes").where("gid IS NOT NULL").count() > 0
        assert pipeline.frame("bronze", "prepared").count() == 0
    assert not pipeline.path("_pgdelta", "staging").exists()
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, names)


def assert_streamed(pipeline: Pipeline) -> None:
    """Assert that transactions came before their commit."""
    query = (
        "SELECT stream_txns, stream_count FROM pg_stat_replication_slots WHERE slot_name = current_database()"
    )
    [(transactions, pieces)] = pipeline.source.execute(query).fetchall()
    print(f"transactions that streamed: {transactions}, in pieces: {pieces}")
    assert transactions > 10
