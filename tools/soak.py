"""An hour of faults: both jobs run on under a mixed load, and something is hurt each minute.

`python -m tools.soak --minutes 60` (`make soak`). The load has whole, streamed, prepared and rolled-back
transactions, ALTER TABLE and TRUNCATE, on random tables and on four fixed ones. At the end of each cycle
`pgdelta reconcile` holds silver against the source while everything goes on; in the end all is drained, and
silver and bronze are compared row by row. The seed is printed, and PGDELTA_SEED gives one. Where something
differs or fails, server, lake and what the jobs wrote are left for a look; the folder is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import psycopg

from pipeline.delta.retry import is_conflict
from pipeline.delta.spark.session import start_session
from pipeline.postgres.embedded import EmbeddedServer, start_server
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.jobs import RICH, RICH_LINE, Job, Load
from tests.support.pipelines import Pipeline
from tests.support.postgres.sessions import TABLES, Sessions, create_tables
from tests.support.proxy import Proxy
from tests.support.running import CONFIG
from tests.support.seeds import seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import create_schema

PGDELTA = Path(sys.executable).parent / "pgdelta"
RULES = ("load.*", "public.*")
SETTINGS = {"max_prepared_transactions": "20", "logical_decoding_work_mem": "64kB"}


class Storm(Load):
    """A load that outlives crashes of the server: what was open then is gone, what was prepared is not."""

    def run(self) -> None:
        """Change the source until `stop` is set."""
        while not self.stop.is_set():
            super().run()
            if isinstance(self.error, psycopg.OperationalError):
                self.error = None
                self._begin_again()
            elif self.error:
                return

    def _begin_again(self) -> None:
        before = self.sessions
        assert before is not None
        while not self.stop.wait(1):
            with suppress(psycopg.OperationalError):
                self.sessions = Sessions(self.database, before.random, has_two_phase=True)
                self.sessions.next_id = before.next_id
                gids = self.database.run("SELECT gid FROM pg_prepared_xacts")
                self.sessions.gids = [gid for (gid,) in gids]
                return


class Soak:
    """The jobs, what hurts them, and how often it did."""

    def __init__(
        self, server: EmbeddedServer, link: Proxy, pipeline: Pipeline, jobs: dict[str, Job], rng: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._server = server
        self._link = link
        self._pipeline = pipeline
        self._database = pipeline.database
        self._jobs = jobs
        self._rng = rng
        self._faults: dict[str, Callable[[], None]] = {
            "ingest killed": lambda: self._kill("ingest"),
            "apply killed": lambda: self._kill("apply"),
            "apply killed, its checkpoint lost": self._lose_checkpoint,
            "walsender ended": self._end_walsender,
            "link cut": link.cut,
            "link stood still": self._stall,
            "server crashed": self._crash_server,
            "ingest stood still": lambda: self._pause("ingest"),
            "apply stood still": lambda: self._pause("apply"),
            "tables optimized": self._optimize,
        }

    def hurt(self) -> str:
        """Let one fault strike; return its name."""
        name = self._rng.choice(sorted(self._faults))
        self._faults[name]()
        self.counts[name] += 1
        return name

    def revive(self) -> None:
        """Start the jobs that ended by themselves again, as a scheduler does."""
        for job in self._jobs.values():
            if job.process.poll() is not None:
                self.counts[f"{job.name} ended by itself"] += 1
                job.end()
                last = Path(job.output.name).read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
                print(f"{job.name} ended by itself, {job.process.returncode}: {last[:300]}", flush=True)
                job.start()

    def _kill(self, name: str) -> None:
        job = self._jobs[name]
        if job.process.poll() is None:
            job.kill(whole_group=self._rng.random() < 0.5)
            job.start()

    def _lose_checkpoint(self) -> None:
        job = self._jobs["apply"]
        if job.process.poll() is None:
            job.kill(whole_group=True)
            shutil.rmtree(self._pipeline.path("_pgdelta", "checkpoints"), ignore_errors=True)
            job.start()

    def _pause(self, name: str) -> None:
        process = self._jobs[name].process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(20)
            os.killpg(process.pid, signal.SIGCONT)

    def _end_walsender(self) -> None:
        self._database.run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )

    def _stall(self) -> None:
        self._link.stall()
        time.sleep(20)
        self._link.flow()

    def _crash_server(self) -> None:
        self._server.stop(mode="immediate")
        self._server.start()

    def _optimize(self) -> None:
        tables = self._pipeline.path("silver", "load").glob("*")
        for path in (*tables, self._pipeline.path("bronze", "changes")):
            try:
                self._pipeline.session.sql(f"OPTIMIZE delta.`{path}`")
            except Exception as error:  # apply, which commits faster, was there first
                if not is_conflict(error):
                    raise
                self.counts["tables optimized, in vain"] += 1


def reconcile(config: Path) -> bool:
    """Return whether silver was proven equal to the source next to the jobs; print what was not."""
    command = [str(PGDELTA), "reconcile", "--config", str(config), "--json", "--wait", "300"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr[-2000:], flush=True)
    return done.returncode == 0


def main() -> int:
    """Run, and say what came of it; 1 where something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cycle", type=float, default=10, help="minutes between two proofs (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-soak-"))
    folder.chmod(0o755)
    server = start_server(folder / "server", settings=SETTINGS)
    is_good = False
    try:
        with Proxy(server.port) as link:
            is_good = soak(server, link, folder, options.minutes, options.cycle)
    finally:
        server.stop()
        if is_good:
            shutil.rmtree(folder)
        else:
            print(f"left for a look: {folder}", flush=True)
    return int(not is_good)


def soak(server: EmbeddedServer, link: Proxy, folder: Path, minutes: float, cycle: float) -> bool:
    """Run for so many minutes, with a proof each cycle; return whether all were equal."""
    seed = seed_of_run()
    print(f"PGDELTA_SEED={seed}: {minutes:g} minutes", flush=True)
    rng = Random(seed)
    database = Database(server, "postgres", server.conninfo)
    spark = start_session("soak")
    config = database.config(*RULES, root=str(folder / "lake"), protocol=RICH)
    source = database.connect()
    pipeline = Pipeline(database, config, source, spark=spark)
    schema = create_schema(source, rng, name="load")
    create_tables(database)
    pipeline.ingest()
    file = folder / "pipeline.yaml"
    text = CONFIG.format(name=database.name, conninfo=link.conninfo(database.conninfo), root=pipeline.root)
    text = text.replace("storage:\n", RICH_LINE + "storage:\n")
    file.write_text(text + "tables:\n" + "".join(f'  - source: "{rule}"\n' for rule in RULES))
    sessions = Sessions(database, Random(seed + 2), has_two_phase=True)
    load = Storm(database, schema, Random(seed + 1), sessions)
    thread = threading.Thread(target=load.run)
    jobs = {name: Job(name, file, pipeline) for name in ("ingest", "apply")}
    hurting = Soak(server, link, pipeline, jobs, rng)
    proofs: list[bool] = []
    thread.start()
    began = time.monotonic()
    try:
        while (passed := (time.monotonic() - began) / 60) < minutes:
            time.sleep(rng.uniform(20, 60))
            hurting.revive()
            print(f"{passed:5.1f} min: {hurting.hurt()}", flush=True)
            if passed > cycle * (len(proofs) + 1):
                time.sleep(20)
                hurting.revive()
                proofs.append(reconcile(file))
                print(f"{passed:5.1f} min: proven equal: {proofs[-1]}", flush=True)
    finally:
        load.stop.set()
        thread.join()
        for job in jobs.values():
            job.end()
    if load.error:
        raise load.error
    source = database.connect()  # the first one may not have outlived a crash
    pipeline = Pipeline(database, config, source, spark=spark)
    assert load.sessions is not None
    load.sessions.finish()
    pipeline.catch_up()
    names = [*schema.names, *(TableName("public", table) for table in (*TABLES, "filler"))]
    oracle.bronze_has_no_duplicates(spark, pipeline.root)
    oracle.assert_silver_equals_source(source, spark, pipeline.root, names)
    print(json.dumps({"faults": hurting.counts, "transactions": load.transactions, "proofs": proofs}))
    print("silver equals the source, bronze has no repeats", flush=True)
    return all(proofs)


if __name__ == "__main__":
    sys.exit(main())
