"""Initial copies: ten tables under a load, next to psql's COPY of the same tables and Spark writing the rows.

Spark reads the copied rows from Parquet and writes them as Delta: what copying would cost with nothing but
the writing. The ingest job is a process of its own, and is watched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from pipeline.apply.job import run_apply
from pipeline.config.load import load_config
from pipeline.ingest.job import run_ingest
from pipeline.postgres.embedded import EmbeddedServer
from tools.bench.memory import JOB, Watch

TABLES = 10
BATCH = 50  # changes of a transaction
RATE = 1000  # changes a second
CONFIG = """\
pipeline: copied
source:
  conninfo: "{conninfo}"
  copying: {{connections: {connections}}}
storage: {{root: "{root}"}}
tables: [{{source: "copied.*"}}]
"""
CREATE = (
    "CREATE TABLE copied.t{} (id int8 PRIMARY KEY, customer int, note text, amount numeric(12,2), "
    "at timestamptz)"
)
FILL = (
    "INSERT INTO copied.t{} SELECT i, i % 1000, 'some words about row ' || i, i / 100.0, "
    "timestamptz '2020-01-01' + i * interval '1 second' FROM generate_series(1, {}) i"
)
SOURCE_SUM = (
    "SELECT count(*), sum(('x' || substr(md5(concat_ws('|', id, customer, note, amount, "
    "to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))), 1, 12))::bit(48)::int8) FROM copied.t{}"
)
SILVER_SUM = (
    "count(*)",
    "sum(CAST(conv(substr(md5(concat_ws('|', id, customer, note, amount, "
    "date_format(at, 'yyyy-MM-dd HH:mm:ss'))), 1, 12), 16, 10) AS DECIMAL(20,0)))",
)


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of it: seconds, MiB of peak memory, the slot's greatest lag in MiB, and equality."""

    rows: int
    copy_seconds: float
    psql_seconds: float
    spark_seconds: float
    python_mib: int
    jvm_mib: int
    lag_mib: float
    changes: int
    apply_seconds: float
    is_equal: bool


@dataclass
class Load:
    """Changes at a steady rate until it is stopped."""

    conninfo: str
    rows: int
    stop: threading.Event = field(default_factory=threading.Event)
    changes: int = 0

    def run(self) -> None:
        """Change rows, in transactions."""
        random = Random(7)
        began = time.monotonic()
        with psycopg.connect(self.conninfo, autocommit=True) as source:
            while not self.stop.is_set():
                table = random.randrange(TABLES)
                low = random.randrange(self.rows)
                with source.transaction():
                    source.execute(
                        f"UPDATE copied.t{table} SET amount = amount + 1 WHERE id BETWEEN {low} AND "
                        f"{low + BATCH - 3}".encode()
                    )
                    source.execute(f"DELETE FROM copied.t{table} WHERE id = {low + BATCH}".encode())
                    key = 10**9 + self.changes
                    source.execute(
                        f"INSERT INTO copied.t{table} VALUES ({key}, 1, 'new', 1, '2026-01-01')".encode()
                    )
                self.changes += BATCH
                ahead = self.changes / RATE - (time.monotonic() - began)
                if ahead > 0:
                    self.stop.wait(ahead)


@contextmanager
def running(*targets: Any) -> Iterator[None]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def measure_copy(
    spark: SparkSession, server: EmbeddedServer, folder: Path, rows: int, *, connections: int = 2
) -> Copied:
    """Copy ten tables of so many rows each."""
    with psycopg.connect(server.conninfo, autocommit=True) as source:
        source.execute("CREATE SCHEMA copied")
        for n in range(TABLES):
            source.execute(CREATE.format(n).encode())
            source.execute(FILL.format(n, rows).encode())
        source.execute("VACUUM ANALYZE")
        source.execute("CHECKPOINT")
    psql_seconds = _psql(server, connections)
    root = folder / "copied"
    path = folder / "copied.yaml"
    path.write_text(CONFIG.format(conninfo=server.conninfo, root=root, connections=connections))
    load, lags = Load(server.conninfo, rows), Lags(server.conninfo)
    with running(load.run, lags.run):
        process = subprocess.Popen(
            [sys.executable, str(JOB), "--config", str(path), "--json"], stdout=subprocess.PIPE, text=True
        )
        watch = Watch(process)
        with running(watch.run):
            said, _ = process.communicate()
        load.stop.set()
        lags.stop.set()
    copies = json.loads(said)["copies"]
    assert all(copy["complete"] for copy in copies), copies
    config = load_config(path)
    changed = spark.read.format("delta").load(f"{root}/bronze/changes")
    copied = changed.where("op = 'R'")
    files = copied.inputFiles()
    began = time.monotonic()
    spark.read.parquet(*files).write.format("delta").save(str(folder / "spark-alone"))
    spark_seconds = time.monotonic() - began
    run_ingest(config, spark=spark)
    began = time.monotonic()
    summary = run_apply(config, spark=spark)
    apply_seconds = time.monotonic() - began
    assert summary.exit_code(strict=True) == 0, summary.lines()
    return Copied(
        rows=copied.count(),
        copy_seconds=max(copy["seconds"] for copy in copies),
        psql_seconds=psql_seconds,
        spark_seconds=spark_seconds,
        python_mib=watch.peaks["python"],
        jvm_mib=watch.peaks["java"],
        lag_mib=lags.most / (1 << 20),
        changes=load.changes,
        apply_seconds=apply_seconds,
        is_equal=all(is_equal(spark, server, root, n) for n in range(TABLES)),
    )


@dataclass
class Lags:
    """The greatest distance between the log's end and what the slot was told."""

    conninfo: str
    stop: threading.Event = field(default_factory=threading.Event)
    most: int = 0

    def run(self) -> None:
        """Look each second."""
        with psycopg.connect(self.conninfo, autocommit=True) as source:
            while not self.stop.wait(1):
                row = source.execute(
                    "SELECT pg_current_wal_flush_lsn() - confirmed_flush_lsn FROM pg_replication_slots "
                    "WHERE slot_name = 'copied'"
                ).fetchone()
                self.most = max(self.most, int(row[0]) if row and row[0] is not None else 0)


def _psql(server: EmbeddedServer, connections: int) -> float:
    """Return how long psql takes to write all tables to nowhere, some at a time."""
    psql = server.binaries / "psql"

    def copy(n: int) -> None:
        command = [str(psql), "-Xqd", server.conninfo, "-c", f"COPY copied.t{n} TO STDOUT"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(copy, range(TABLES)))
    return time.monotonic() - began


def is_equal(spark: SparkSession, server: EmbeddedServer, root: Path, n: int) -> bool:
    """Compare count and sum of hashes of a table, at the source and in silver."""
    with psycopg.connect(server.conninfo, autocommit=True) as source:
        row = source.execute(SOURCE_SUM.format(n).encode()).fetchone()
    silver = spark.read.format("delta").load(f"{root}/silver/copied/t{n}").selectExpr(*SILVER_SUM).collect()
    assert row is not None
    return tuple(map(int, row)) == tuple(map(int, silver[0]))
