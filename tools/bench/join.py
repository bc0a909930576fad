"""A large table joins a live pipeline: how far behind the others are while it is copied and applied.

`pgdelta run --trigger continuous` is a process of its own. The lag of the others is asked of the lake each
second: how long ago the source passed the position that the newest manifest shows.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from pipeline.delta.table import Lake
from pipeline.postgres.embedded import EmbeddedServer
from tools.bench.copy import CREATE, FILL, TABLES, Load, is_equal, running

PGDELTA = Path(sys.executable).parent / "pgdelta"
BIG = TABLES  # the number of the table that joins
LIVE_ROWS = 20_000
PATIENCE = 900.0  # seconds
CONFIG = """\
pipeline: joined
source:
  conninfo: "{conninfo}"
  publication: joined
storage: {{root: "{root}"}}
tables: [{{source: "copied.*"}}]
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """Seconds of lag of the other tables (median and most), before and while the table joined."""

    rows: int
    seconds: float
    before: tuple[float, float]
    during: tuple[float, float]
    is_equal: bool


@dataclass
class Clock:
    """When the source's log had come how far, and how far behind it the lake's newest manifest is."""

    conninfo: str
    stop: threading.Event = field(default_factory=threading.Event)
    times: list[tuple[int, float]] = field(default_factory=list)

    def run(self) -> None:
        """Look ten times a second."""
        with psycopg.connect(self.conninfo, autocommit=True) as source:
            while not self.stop.wait(0.1):
                row = source.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
                assert row is not None
                self.times.append((int(row[0]), time.monotonic()))

    def lag(self, position: int) -> float:
        """Return how many seconds ago the log went beyond a position."""
        place = bisect_right(self.times, position, key=lambda each: each[0])
        return time.monotonic() - self.times[place][1] if place < len(self.times) else 0.0


def measure_join(spark: SparkSession, server: EmbeddedServer, folder: Path, rows: int) -> Joined:
    """Let a table of so many rows join ten others that change all the time."""
    with psycopg.connect(server.conninfo, autocommit=True) as source:
        source.execute("CREATE SCHEMA copied")
        for n in range(TABLES + 1):
            source.execute(CREATE.format(n).encode())
            source.execute(FILL.format(n, rows if n == BIG else LIVE_ROWS).encode())
        names = ", ".join(f"copied.t{n}" for n in range(TABLES))
        source.execute(f"CREATE PUBLICATION joined FOR TABLE {names}".encode())
        source.execute("VACUUM ANALYZE")
    root, path = folder / "joined", folder / "joined.yaml"
    path.write_text(CONFIG.format(conninfo=server.conninfo, root=root))
    lake = Lake(str(root), spark)
    load, clock = Load(server.conninfo, LIVE_ROWS), Clock(server.conninfo)
    command = [str(PGDELTA), "run", "--config", str(path), "--trigger", "continuous"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with running(clock.run, load.run):
            try:
                _wait(lambda: _shown(lake) == set(range(TABLES)))
                time.sleep(20)
                before = [_sample(lake, clock) for _ in range(30)]
                began = time.monotonic()
                with psycopg.connect(server.conninfo, autocommit=True) as source:
                    source.execute(f"ALTER PUBLICATION joined ADD TABLE copied.t{BIG}".encode())
                during: list[float] = []
                while BIG not in _shown(lake):
                    during.append(_sample(lake, clock))
                seconds = time.monotonic() - began
            finally:
                load.stop.set()
                clock.stop.set()
        with psycopg.connect(server.conninfo, autocommit=True) as source:
            row = source.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
            source.execute("SELECT pg_logical_emit_message(true, 'pgdelta', 'end')")
        assert row is not None
        end = int(row[0])
        _wait(lambda: _position(lake) >= end)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    equal = all(is_equal(spark, server, root, n) for n in range(TABLES + 1))
    return Joined(rows, seconds, _summary(before), _summary(during), equal)


def _wait(is_done: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)


def _sample(lake: Lake, clock: Clock) -> float:
    time.sleep(1)
    return clock.lag(_position(lake))


def _position(lake: Lake) -> int:
    table = lake.table("_pgdelta", "manifests")
    if not table.exists():
        return 0
    row = table.frame().selectExpr("max(lsn) AS lsn").head()
    return int(row.lsn or 0) if row else 0


def _shown(lake: Lake) -> set[int]:
    """Return the numbers of the tables that silver shows."""
    return {n for n in range(TABLES + 1) if not _is_missing(lake, n)}


def _is_missing(lake: Lake, n: int) -> bool:
    table = lake.table("silver", "copied", f"t{n}")
    return not table.exists() or table.is_empty()


def _summary(samples: list[float]) -> tuple[float, float]:
    return statistics.median(samples), max(samples)
