"""Capture: one WAL read by `pg_recvlogical` into a file, and by ingest into committed bronze.

Both read the same changes through slots of their own, on the same machine, one after the other; messages are
counted from bronze: every row change, and a Begin and a Commit for each transaction. What forcing commits to
disk costs is measured in the same way: two pipelines capture the same WAL, one without it, in turn.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
from pyspark.sql import SparkSession

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.delta.store.files import SYNC_VARIABLE
from pipeline.ingest.job import run_ingest
from pipeline.postgres.embedded import EmbeddedServer

SCRIPT = """\
\\set id random(1, 100000)
BEGIN;
INSERT INTO orders (customer, amount, note) VALUES (:id, :id / 7.0, 'placed by customer ' || :id);
INSERT INTO orders (customer, amount, note) VALUES (:id, :id / 3.0, 'and another one');
INSERT INTO items (product, quantity) VALUES (:id, 1), (:id + 1, 2);
UPDATE customers SET visits = visits + 1, seen_at = now() WHERE id = :id;
UPDATE customers SET name = 'customer ' || visits WHERE id = :id;
COMMIT;
"""
SCHEMA = """
CREATE TABLE orders (
    id bigserial PRIMARY KEY, customer int, amount numeric(12, 2), note text,
    placed_at timestamptz DEFAULT now()
);
CREATE TABLE items (id bigserial PRIMARY KEY, product int, quantity int, is_gift bool DEFAULT false);
CREATE TABLE customers (id int PRIMARY KEY, name text, visits int DEFAULT 0, seen_at timestamptz);
INSERT INTO customers (id, name) SELECT g, 'customer ' || g FROM generate_series(1, 100000) g;
CREATE PUBLICATION bench FOR ALL TABLES;
"""


@dataclass(frozen=True, slots=True)
class Capture:
    """Seconds of both readers over the same messages."""

    messages: int
    changes: int
    transactions: int
    reference_seconds: float
    capture_seconds: float

    @property
    def ratio(self) -> float:
        """Return our rate as a part of pg_recvlogical's."""
        return self.reference_seconds / self.capture_seconds


@dataclass(frozen=True, slots=True)
class Sync:
    """Seconds of captures of the same WAL, a round each, with commits forced to disk and without."""

    messages: int
    on_seconds: tuple[float, ...]
    off_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Return the rate with sync as a part of that without, by the medians."""
        return median(self.off_seconds) / median(self.on_seconds)


def pipeline_config(folder: Path, conninfo: str, name: str, *, streaming: str = "auto") -> Config:
    """Write and load a configuration that uses the publication `bench`."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"pipeline: {name}\nsource:\n  conninfo: {conninfo!r}\n  publication: bench\n  copy: never\n"
        f"  protocol:\n    streaming: {streaming!r}\n"
        f"storage:\n  root: {folder / name}\ntables:\n  - source: public.*\n"
    )
    return load_config(path)


def create_schema(server: EmbeddedServer) -> None:
    """Create what the load writes to, and the publication."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(SCHEMA)


def measure_capture(spark: SparkSession, server: EmbeddedServer, folder: Path, transactions: int) -> Capture:
    """Write the WAL once, then read it with both."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        config = pipeline_config(folder, server.conninfo, "capture")
        # An empty run makes the tables and warms Spark up.
        run_ingest(config, spark=spark)
        connection.execute("INSERT INTO items (product) SELECT g FROM generate_series(1, 100000) g")
        run_ingest(config, spark=spark)
        connection.execute("SELECT pg_create_logical_replication_slot('reference', 'pgoutput')")
        _generate(server, folder, transactions)
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        reference = _run_reference(server, folder, row[0])
        connection.execute("SELECT pg_drop_replication_slot('reference')")
    started = time.monotonic()
    summary = run_ingest(config, spark=spark)
    seconds = time.monotonic() - started
    messages = summary.changes + 2 * summary.transactions
    return Capture(messages, summary.changes, summary.transactions, reference, seconds)


def measure_sync(
    spark: SparkSession, server: EmbeddedServer, folder: Path, transactions: int, rounds: int
) -> Sync:
    """Capture the same WAL with sync and without, in each round in another order."""
    configs = {name: pipeline_config(folder, server.conninfo, f"sync_{name}") for name in ("on", "off")}
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    messages = 0
    try:
        for turn in range(rounds + 1):  # the first makes the tables and warms Spark up
            if turn:
                _generate(server, folder, transactions)
            for name in sorted(configs, reverse=bool(turn % 2)):
                os.environ[SYNC_VARIABLE] = str(name == "on").lower()
                started = time.monotonic()
                summary = run_ingest(configs[name], spark=spark)
                if turn:
                    seconds[name].append(time.monotonic() - started)
            messages = summary.changes + 2 * summary.transactions
    finally:
        os.environ.pop(SYNC_VARIABLE, None)
    return Sync(messages, tuple(seconds["on"]), tuple(seconds["off"]))


def _generate(server: EmbeddedServer, folder: Path, transactions: int) -> None:
    script = folder / "load.sql"
    script.write_text(SCRIPT)
    command = [str(server.binaries / "pgbench"), "-n", "-M", "prepared", "-c", "4", "-j", "2"]
    command += ["-f", str(script), "-t", str(transactions // 4), server.conninfo]
    subprocess.run(command, check=True, capture_output=True)


def _run_reference(server: EmbeddedServer, folder: Path, end: str) -> float:
    output = folder / "reference.bin"
    command = [str(server.binaries / "pg_recvlogical"), "-d", server.conninfo, "-S", "reference", "--start"]
    command += ["--no-loop", "--endpos", end, "-f", str(output), "-F", "0"]
    command += ["-o", "proto_version=1", "-o", "publication_names=bench", "-o", "messages=true"]
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - started
    output.unlink()
    return seconds
