"""Memory and delay: an ingest process of its own captures large transactions, and is watched.

The delay is from the COMMIT to the moment when the slot was told that bronze holds the transaction.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pipeline.config.config import Config
from pipeline.postgres.embedded import EmbeddedServer
from tests.support.paths import ROOT
from tools.bench.capture import pipeline_config
from tools.bench.processes import family_of

JOB = ROOT / "jobs" / "ingest.py"
INSERT = (
    "INSERT INTO orders (customer, amount, note) "
    "SELECT g, g / 7.0, 'one of many ' || g FROM generate_series(1, %s) g"
)
STATEMENTS = 10
INSERT_WIDE = (
    "INSERT INTO orders (customer, amount, note) "
    "SELECT g, g / 7.0, repeat(md5(g::text), 12) FROM generate_series(1, %s) g"
)
WIDE_BYTES = 400
ROWS_A_TURN = 1_000
PATIENCE = 1200.0  # seconds


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory of an ingest process and its JVM, in MiB, and seconds."""

    rows: int
    python_mib: int
    jvm_mib: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """Peak memory and open files of an ingest process which so many transactions stream to at once."""

    streams: int
    data_mib: int
    python_mib: int
    jvm_mib: int
    files: int  # of Python, while all are open
    seconds: float  # from the first row to the last landed


@dataclass
class Watch:
    """Peak resident memory of a process and what it started, in MiB by the name of the program."""

    process: "subprocess.Popen[str]"
    peaks: dict[str, int] = field(default_factory=lambda: {"python": 0, "java": 0})

    def run(self) -> None:
        """Look until the process has ended."""
        while self.process.poll() is None:
            for pid in family_of(self.process.pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
                except OSError:
                    continue
                peak = next(
                    (int(line.split()[1]) // 1024 for line in status.splitlines() if "VmHWM" in line), 0
                )
                kind = "java" if name.startswith("java") else "python"
                self.peaks[kind] = max(self.peaks[kind], peak)
            time.sleep(0.2)


@contextmanager
def _watched(config: Config, *options: str) -> Iterator[Watch]:
    """Give a running ingest; it has to end well, by itself or once the block is left."""
    process = subprocess.Popen(
        [sys.executable, str(JOB), "--config", config.path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watch = Watch(process)
    watcher = threading.Thread(target=watch.run)
    watcher.start()
    try:
        yield watch
    finally:
        if options:
            process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"ingest failed: {output}")


def _end(server: EmbeddedServer, slot: str) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        connection.execute("TRUNCATE orders")


def measure_memory(server: EmbeddedServer, folder: Path, rows: int) -> Peak:
    """Capture one transaction of so many rows, committed before, and watch the memory."""
    config = pipeline_config(folder, server.conninfo, f"memory_{rows}")
    with _watched(config):
        pass
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(INSERT, (rows,))
    started = time.monotonic()
    with _watched(config) as watch:
        pass
    seconds = time.monotonic() - started
    _end(server, config.source.slot)
    return Peak(rows, watch.peaks["python"], watch.peaks["java"], seconds)


def measure_delay(server: EmbeddedServer, folder: Path, rows: int, streaming: str) -> Peak:
    """Capture one transaction of so many rows while it is written; the seconds are those after its COMMIT."""
    config = pipeline_config(folder, server.conninfo, f"delay_{streaming}", streaming=streaming)
    slot = config.source.slot
    with (
        psycopg.connect(server.conninfo, autocommit=True) as connection,
        _watched(config, "--trigger", "continuous") as watch,
    ):
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        _wait_for(watch, connection, active, (slot,))
        with connection.transaction():
            for _ in range(STATEMENTS):
                connection.execute(INSERT, (rows // STATEMENTS,))
        started = time.monotonic()
        _wait_until_landed(watch, connection, slot)
        seconds = time.monotonic() - started
    _end(server, slot)
    return Peak(rows, watch.peaks["python"], watch.peaks["java"], seconds)


def measure_streams(server: EmbeddedServer, folder: Path, streams: int, rows: int) -> OpenStreams:
    """Capture so many transactions of so many rows, open at once and interleaved; every other is committed.

    The server has to stream early: `logical_decoding_work_mem` of 64 kB.
    """
    config = pipeline_config(folder, server.conninfo, f"streams_{streams}", streaming="on")
    slot = config.source.slot
    with (
        psycopg.connect(server.conninfo, autocommit=True) as connection,
        ExitStack() as sessions,
        _watched(config, "--trigger", "continuous") as watch,
    ):
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        _wait_for(watch, connection, active, (slot,))
        started = time.monotonic()
        opened = [sessions.enter_context(psycopg.connect(server.conninfo)) for _ in range(streams)]
        for _ in range(rows // ROWS_A_TURN):
            for session in opened:
                session.execute(INSERT_WIDE, (ROWS_A_TURN,))
        connection.execute("CHECKPOINT")
        sent = (
            "SELECT sent_lsn >= %s::pg_lsn FROM pg_stat_replication JOIN pg_replication_slots "
            "ON pid = active_pid WHERE slot_name = %s"
        )
        _wait_for(watch, connection, sent, (_end_of_wal(connection, "flush"), slot))
        files = len(os.listdir(f"/proc/{watch.process.pid}/fd"))
        for number, session in enumerate(reversed(opened)):
            session.rollback() if number % 2 else session.commit()
        _wait_until_landed(watch, connection, slot)
        seconds = time.monotonic() - started
    _end(server, slot)
    data = streams * rows * WIDE_BYTES >> 20
    return OpenStreams(streams, data, watch.peaks["python"], watch.peaks["java"], files, seconds)


def _wait_until_landed(watch: Watch, connection: psycopg.Connection, slot: str) -> None:
    """Wait until the slot was told that bronze holds all that is committed."""
    end = _end_of_wal(connection, "insert")
    # an idle server says no more by itself: anything that is committed lets the slot pass the end
    connection.execute("INSERT INTO items (product) VALUES (1)")
    passed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    _wait_for(watch, connection, passed, (end, slot))


def _end_of_wal(connection: psycopg.Connection, which: str) -> str:
    row = connection.execute(f"SELECT pg_current_wal_{which}_lsn()::text".encode()).fetchone()
    assert row is not None
    return str(row[0])


def _wait_for(
    watch: Watch, connection: psycopg.Connection, query: str, parameters: tuple[object, ...]
) -> None:
    deadline = time.monotonic() + PATIENCE
    while (connection.execute(query.encode(), parameters).fetchone() or (False,))[0] is not True:
        if time.monotonic() > deadline or watch.process.poll() is not None:
            raise RuntimeError("ingest did not get there")
        time.sleep(0.05)
