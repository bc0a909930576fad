"""Jobs in processes of their own, and a load that runs meanwhile."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pipeline.config.config import Protocol
from tests.support.paths import ROOT
from tests.support.pipelines import Pipeline
from tests.support.postgres.sessions import Sessions
from tests.support.servers import Database
from tests.support.workload.tables import Schema
from tests.support.workload.transactions import run_workload

RICH = Protocol(streaming="parallel", two_phase=True, written=frozenset({"streaming", "two_phase"}))


RICH_LINE = "  protocol: {streaming: parallel, two_phase: true}\n"


@dataclass
class Load:
    """A random workload on a thread of its own, a few transactions a second; sessions may take turns."""

    database: Database
    schema: Schema
    rng: Random
    sessions: Sessions | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    transactions: int = 0
    error: BaseException | None = None

    def run(self) -> None:
        try:
            with self.database.connect() as source:
                while not self.stop.wait(0.3):
                    self.transactions += 1
                    run_workload(source, self.rng, 1, schema=self.schema)
                    if self.sessions:
                        self.sessions.step()
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

    def newest_write(self) -> int:
        """Return when this job last committed to the lake."""
        if self.name == "apply":
            logs = ("silver/*/*/_delta_log/*.json", "_pgdelta/manifests/_delta_log/*.json")
            files = (path for log in logs for path in Path(self._pipeline.root).glob(log))
            return max((path.stat().st_mtime_ns for path in files), default=0)
        return 0

    def is_working(self) -> bool:
        """Return whether the job does its work."""
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
