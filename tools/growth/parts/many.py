"""What 1,000 tables cost: copies, batches, restarts and memory, next to 100 tables of a real server.

Each step is a process of its own, which runs a job without Spark's clock and JVM (`many_step`). The rows of
silver are compared with the source's at the end of each part.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml

from pipeline.config.load import load_config
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.metadata.manifests import Manifests
from pipeline.postgres.embedded import EmbeddedServer, start_server

TABLES = (100, 1000)
ROWS = 100  # of each table
FEW = 50  # tables that a small batch changes
LIMIT = 1.3  # of the processor time for each table, in that of the smallest number of tables
_PIPELINE = "many"
_STEP_SECONDS = 3600
_NO_LAW = frozenset({"ingest resumes a copy"})  # what is left depends on the moment of the kill


@dataclass(frozen=True, slots=True)
class Step:
    """What one job took; `files` counts each opening of a file of bronze; `changed` tables share the cost."""

    name: str
    tables: int
    changed: int
    seconds: float
    cpu: float
    peak: int  # MiB
    files: int

    @property
    def per_table(self) -> float:
        """The milliseconds of processor time for each table."""
        return 1000 * self.cpu / self.changed

    def line(self) -> str:
        """Return the step as text."""
        return (
            f"{self.name:<30}{self.tables:>7,}{self.seconds:>9.1f}{self.cpu:>8.1f}{self.per_table:>10.1f}"
            f"{self.peak:>7,}{self.files:>7,}"
        )


HEADING = f"{'step':<30}{'tables':>7}{'seconds':>9}{'CPU s':>8}{'ms/table':>10}{'MiB':>7}{'files':>7}"


class ManyTables:
    """A database with many small tables, and a lake that is filled from it by processes."""

    def __init__(self, server: EmbeddedServer, folder: Path, count: int) -> None:
        self.count = count
        self._database = f"many_{count}"
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._database}".encode())
        self._conninfo = server.conninfo_of(self._database)
        self.source = psycopg.connect(self._conninfo, autocommit=True)
        self._folder = folder
        with self.source.transaction():
            for number in range(count):
                table = f"CREATE TABLE t{number} (id int PRIMARY KEY, name text, n bigint)"
                rows = f"SELECT i, 'name ' || i, i FROM generate_series(1, {ROWS}) i"
                self.source.execute(f"{table}; INSERT INTO t{number} {rows}".encode())

    def close(self) -> None:
        """End the session at the source."""
        self.source.close()

    def configure(self, name: str) -> Path:
        """Return the file of a pipeline with an empty lake."""
        path = self._folder / f"{name}.yaml"
        content = {
            "pipeline": f"{_PIPELINE}_{name}_{self.count}",
            "source": {"conninfo": self._conninfo, "create": {"publication": "all"}},
            "storage": {"root": str(self._folder / name)},
            "tables": [{"source": "public.*"}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def run(self, config: Path, job: str, name: str, changed: int | None = None) -> Step:
        """Run a job; raise RuntimeError if it fails."""
        command = _command(config, job)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STEP_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{job} of {self.count} tables failed: {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        return Step(name, self.count, changed or self.count, **found)

    def change(self, count: int) -> None:
        """Change a row and insert one in so many tables, in one transaction each."""
        for number in range(count):
            self.source.execute(
                f"UPDATE t{number} SET n = n + 1, name = 'changed' WHERE id = 7;"
                f"INSERT INTO t{number} SELECT max(id) + 1, 'new', 0 FROM t{number}".encode()
            )

    def compare(self, config: Path) -> None:
        """Raise RuntimeError unless silver has each table's rows."""
        settings = load_config(config)
        lake = Lake(settings.storage.root)
        manifest = Manifests(lake).last()
        if manifest is None or manifest.behind or len(manifest.entries) != self.count:
            raise RuntimeError("Silver does not show all tables.")
        for number in range(self.count):
            rows = lake.table("silver", "public", f"t{number}").rows(["id", "name", "n"]).to_pylist()
            expected = self.source.execute(f"SELECT id, name, n FROM t{number}".encode()).fetchall()
            if sorted(tuple(row.values()) for row in rows) != sorted(expected):
                raise RuntimeError(f"t{number} is not as at the source.")

    def kill_half_way(self, config: Path) -> int:
        """Kill ingest once half of the tables are in bronze; return how many are."""
        settings = load_config(config)
        changes = Lake(settings.storage.root).table("bronze", "changes")
        process = subprocess.Popen(
            _command(config, "ingest"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            landed = 0
            while landed < self.count / 2:
                if process.poll() is not None:
                    raise RuntimeError("Ingest ended before it was killed.")
                time.sleep(0.02)
                offsets = TxnId.all_of(changes.offsets())
                landed = sum(txn.kind is TxnKind.CHUNKS for txn in offsets)
            return landed
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _command(config: Path, job: str) -> list[str]:
    return [sys.executable, "-m", "tools.growth.many_step", str(config), job]


def measure_many(many: ManyTables) -> Iterator[Step]:
    """Yield the steps of one number of tables."""
    config = many.configure("lake")
    yield many.run(config, "ingest", "ingest copies all")
    yield many.run(config, "apply", "apply starts all")
    for name, count in ((f"{FEW} tables", FEW), ("all tables", many.count)):
        many.change(count)
        yield many.run(config, "ingest", f"ingest changes of {name}", count)
        yield many.run(config, "apply", f"apply changes of {name}", count)
    many.compare(config)
    for job in ("ingest", "apply"):
        yield many.run(config, job, f"{job} has nothing to do")
    yield many.run(config, "status", "status")
    killed = many.configure("killed")
    landed = many.kill_half_way(killed)
    yield many.run(killed, "ingest", "ingest resumes a copy", max(1, many.count - landed))
    many.run(killed, "apply", "apply")
    many.compare(killed)


def print_many(scale: float, folder: Path | None) -> bool:
    """Measure and print a table; return whether the cost for each table does not grow."""
    print(f"Tables of {ROWS} rows; ms/table is processor time for each table, or each changed one")
    print(HEADING, flush=True)
    steps: list[Step] = []
    with (
        tempfile.TemporaryDirectory(prefix="pgdelta-growth-", dir=folder) as own,
        _server(Path(own)) as server,
    ):
        for full in TABLES:
            count = max(FEW, round(full * scale))
            part = Path(own) / str(count)
            part.mkdir(exist_ok=True)
            with closing(ManyTables(server, part, count)) as many:
                for step in measure_many(many):
                    steps.append(step)
                    print(step.line(), flush=True)
    return _print_law(steps)


def _print_law(steps: list[Step]) -> bool:
    is_lawful = True
    for name in dict.fromkeys(step.name for step in steps):
        first, *_, last = (step for step in steps if step.name == name)
        ratio = last.per_table / first.per_table
        is_kept = ratio <= LIMIT
        verdict = "no law" if name in _NO_LAW else "the law holds" if is_kept else "the law does not hold"
        is_lawful &= is_kept or name in _NO_LAW
        print(f"{name}: {last.tables:,} tables cost {ratio:.2f} x {first.tables:,}, each; {verdict}")
    return is_lawful


@contextmanager
def _server(folder: Path) -> Iterator[EmbeddedServer]:
    settings: dict[str, Any] = {"max_locks_per_transaction": "4096", "autovacuum": "off"}
    server = start_server(folder / "server", settings=settings)
    try:
        yield server
    finally:
        server.stop()
