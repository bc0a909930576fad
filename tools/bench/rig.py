"""What the parts of `make bench` measure with: a server, the jobs' command lines, and Delta logs.

Parts use nothing of pgdelta but its commands and the logs of its lake. Unit tests give them a rig of fakes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Literal

import psycopg

from pipeline.postgres.embedded import EmbeddedServer
from tests.support.paths import ROOT
from tools.bench import processes
from tools.bench.ideal import Ideal
from tools.bench.latency import Sample, delays
from tools.bench.logs import Logs
from tools.bench.processes import Job, Run

if TYPE_CHECKING:
    from tools.bench.modes import ModeCost

BIN = Path(sys.executable).parent
INGEST = (sys.executable, str(ROOT / "jobs" / "ingest.py"))
APPLY = (sys.executable, str(ROOT / "jobs" / "apply.py"))
SUBMIT_APPLY = (str(BIN / "spark-submit"), str(ROOT / "jobs" / "apply.py"))
SPARK_ONLY = "from pyspark.sql import SparkSession\n\nSparkSession.builder.getOrCreate().stop()\n"
EMPTY_QUERY = """import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
table, checkpoint = sys.argv[1:]
changes = spark.readStream.format("delta").option("startingVersion", "latest").load(table)
query = changes.writeStream.foreachBatch(lambda rows, number: None).trigger(availableNow=True)
query.option("checkpointLocation", checkpoint).start().awaitTermination()
spark.stop()
"""
BATCH_PATIENCE = 900.0  # seconds
Writer = Literal["auto", "spark"]


class Source:
    """A database of the server, with one connection."""

    def __init__(self, server: EmbeddedServer, name: str, folder: Path) -> None:
        self.name = name
        self.conninfo = server.conninfo_of(name)
        self._binaries = server.binaries
        self._folder = folder
        self._connection = psycopg.connect(self.conninfo, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self._connection.execute(statement.encode())

    def transaction(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self._connection.transaction():
            self.execute(*statements)

    def lsn(self) -> int:
        """Return an LSN that everything committed from now on ends after."""
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        row = self._connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row is not None
        return int(row[0])

    def pgbench(self, scripts: Sequence[str], transactions: int, *, clients: int = 4) -> None:
        """Run transactions of these scripts, each about as often."""
        command = self._pgbench(scripts, clients, "-t", str(max(1, transactions // clients)))
        subprocess.run(command, check=True, capture_output=True, timeout=processes.PATIENCE)

    def pgbench_at(
        self, scripts: Sequence[str], per_second: float, seconds: int, *, clients: int = 4
    ) -> AbstractContextManager[Job]:
        """Start transactions of these scripts, as many per second; they end after `seconds`."""
        rate = ("-T", str(seconds), "-R", f"{per_second:.1f}")
        return processes.started("pgbench", self._pgbench(scripts, clients, *rate))

    def _pgbench(self, scripts: Sequence[str], clients: int, *options: str) -> list[str]:
        command = [str(self._binaries / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "2"]
        for number, script in enumerate(scripts):
            path = self._folder / f"{self.name}_{number}.sql"
            path.write_text(script)
            command += ["-f", str(path)]
        return [*command, *options, self.conninfo]

    def create_slot(self, name: str) -> None:
        """Create a logical slot of pgoutput."""
        self.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")

    def recvlogical(self, slot: str, publication: str) -> float:
        """Return the seconds that pg_recvlogical takes to write what a slot holds to a file."""
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        output = self._folder / f"{slot}.bin"
        command = [str(self._binaries / "pg_recvlogical"), "-d", self.conninfo, "-S", slot, "--start"]
        command += ["--no-loop", "--endpos", row[0], "-f", str(output), "-F", "0", "-o", "proto_version=1"]
        command += ["-o", f"publication_names={publication}", "-o", "messages=true"]
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, timeout=processes.PATIENCE)
        seconds = time.monotonic() - began
        output.unlink()
        return seconds

    def copy_out(self, table: str) -> float:
        """Return the seconds that COPY of a table to the client takes, which reads and forgets the rows."""
        began = time.monotonic()
        with self._connection.cursor() as cursor, cursor.copy(f"COPY {table} TO STDOUT".encode()) as copy:
            while copy.read():
                pass
        return time.monotonic() - began

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Following:
    """Both jobs, continuous, and the logs of what they write."""

    logs: Logs
    ingest: Job
    apply: Job

    def check(self) -> None:
        """Raise RuntimeError if a job has ended."""
        self.ingest.check()
        self.apply.check()

    def wait(self, lsn: int) -> None:
        """Wait until every table shows an LSN."""
        self.logs.wait(lsn, self.check)

    def delays(self, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
        """Return the seconds from each commit until bronze shows it, and until silver does."""
        bronze = [sample._replace(table="bronze") for sample in samples]
        silver = {table: log.seen for table, log in self.logs.silver.items()}
        return delays(bronze, {"bronze": self.logs.bronze.seen}), delays(samples, silver)


class Rig:
    """One server and one folder for all parts; sizes are multiplied by `scale`."""

    def __init__(
        self, server: EmbeddedServer, folder: Path, scale: float, say: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.scale = scale
        self.say = say
        self.ideal = Ideal(folder)
        self._server = server

    def size(self, full: int, least: int = 1) -> int:
        """Return a size at the rig's scale."""
        return max(least, round(full * self.scale))

    @contextmanager
    def source(self, name: str) -> Iterator[Source]:
        """Give a new database; it, its slots and the lakes whose names begin so are gone after the block."""
        with psycopg.connect(self._server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        source = Source(self._server, name, self.folder)
        try:
            yield source
        finally:
            source.close()
            self._drop(name)
            for lake in self.folder.glob(f"{self.root(name).name}*"):
                rmtree(lake, ignore_errors=True)

    def _drop(self, name: str) -> None:
        with psycopg.connect(self._server.conninfo, autocommit=True) as connection:
            slots = connection.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (name,)
            ).fetchall()
            for (slot,) in slots:
                # a walsender whose client has just ended still holds it
                for _ in range(100):
                    with suppress(psycopg.errors.ObjectInUse):
                        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                        break
                    time.sleep(0.1)
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def root(self, pipeline: str) -> Path:
        """Return where the lake of a pipeline is."""
        return self.folder / f"lake_{pipeline}"

    def configure(
        self, source: Source, *, pipeline: str | None = None, writer: Writer = "auto", copy: str = "initial"
    ) -> Path:
        """Write the configuration of a pipeline that follows all tables of a source; return its path."""
        name = pipeline or source.name
        path = self.folder / f"{name}_{writer}.yaml"
        silver = "silver: {writer: spark}\n" if writer == "spark" else ""
        path.write_text(
            f'pipeline: {name}\nsource: {{conninfo: "{source.conninfo}", copy: {copy}}}\n'
            f'storage: {{root: "{self.root(name)}"}}\n{silver}tables: [{{source: "public.*"}}]\n'
        )
        return path

    def ingest(self, config: Path) -> Run:
        """Capture what is committed, in a process of its own."""
        return processes.run("ingest", [*INGEST, "--config", str(config)])

    def apply(self, config: Path) -> Run:
        """Apply what bronze holds, under spark-submit."""
        return processes.run("apply", [*SUBMIT_APPLY, "--config", str(config), "--strict"])

    def spark_start(self) -> Run:
        """Start a Spark session by spark-submit, and end it."""
        script = self.folder / "spark_only.py"
        script.write_text(SPARK_ONLY)
        return processes.run("Spark's start", [SUBMIT_APPLY[0], str(script)])

    def spark_query(self, pipeline: str) -> Run:
        """Run a query that finds nothing new in bronze by spark-submit, to its end."""
        folder = self.folder / "empty_query"
        rmtree(folder, ignore_errors=True)
        folder.mkdir()
        script = folder / "empty_query.py"
        script.write_text(EMPTY_QUERY)
        paths = (script, self.root(pipeline) / "bronze" / "changes", folder / "checkpoint")
        return processes.run("empty query", [SUBMIT_APPLY[0], *map(str, paths)])

    def reconcile(self, config: Path) -> Run:
        """Compare silver with its source; fail if they differ."""
        return processes.run(
            "reconcile", [str(BIN / "pgdelta"), "reconcile", "--config", str(config), "--run"]
        )

    def prove(self, config: Path) -> Run:
        """Prove silver by fingerprints; fail if it differs."""
        return processes.run(
            "prove", [str(BIN / "pgdelta"), "prove", "--config", str(config), "--run", "--json"]
        )

    def ask(self, config: Path, *command: str) -> Run:
        """Run a command of pgdelta without Spark."""
        return processes.run(command[0], [str(BIN / "pgdelta"), *command, "--config", str(config)])

    def demo(self, seconds: int) -> Run:
        """Run the demo in a terminal; the output has the frames of its live table."""
        command = [str(BIN / "pgdelta"), "demo", "--root", str(self.folder / "demo")]
        return processes.run_in_terminal("demo", [*command, "--seconds", str(seconds)])

    def modes(self, rows: int, changes: int, rounds: int) -> Iterator[ModeCost]:
        """Write the same changes in each mode by either writer, in this process; `mirror` comes first."""
        from pipeline.delta.spark.session import start_session
        from tools.bench.modes import measure_modes

        spark = start_session("bench")
        try:
            yield from measure_modes(
                spark, self._server, self.folder, rows=rows, changes=changes, rounds=rounds
            )
        finally:
            spark.stop()

    def job(self, name: Literal["ingest", "apply"], config: Path) -> AbstractContextManager[Job]:
        """Start a continuous job; `--log json` gives the batches of apply."""
        command = INGEST if name == "ingest" else APPLY
        return processes.started(
            name, [*command, "--config", str(config), "--trigger", "continuous", "--log", "json"]
        )

    def live_reader(self, config: Path) -> AbstractContextManager[Job]:
        """Start a process that reads silver live again and again."""
        command = [sys.executable, "-m", "tools.bench.live_reader", str(config)]
        return processes.started("live reader", command)

    def follow(self, pipeline: str, tables: list[str]) -> AbstractContextManager[Logs]:
        """Read the logs of bronze and of silver tables during a block."""
        return Logs(self.root(pipeline), tables).reading()

    @contextmanager
    def following(self, config: Path, pipeline: str, tables: list[str]) -> Iterator[Following]:
        """Run both jobs continuously during a block, after the first load of silver; end them well."""
        with (
            self.follow(pipeline, tables) as logs,
            self.job("ingest", config) as ingest,
            self.job("apply", config) as apply,
        ):
            following = Following(logs, ingest, apply)
            self.say("first load")
            following.wait(0)
            yield following
            apply.stop()
            ingest.stop()

    def silver(self, pipeline: str, table: str) -> Path:
        """Return where a silver table is."""
        return self.root(pipeline) / "silver" / "public" / table

    def clock(self) -> float:
        """Return the monotonic time."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        if seconds > 0:
            time.sleep(seconds)

    def at_rate(self, per_second: float, count: int) -> Iterator[int]:
        """Give numbers from 0 on at a steady rate."""
        began = self.clock()
        for number in range(count):
            self.sleep(began + number / per_second - self.clock())
            yield number

    def wait_for_batch(self, apply: Job, lsn: int) -> float:
        """Wait until a batch of apply ended beyond an LSN; return the seconds of the first that did."""
        deadline = time.monotonic() + BATCH_PATIENCE
        while True:
            batches = [batch for batch in apply.batches() if parse_lsn(batch["position"]) > lsn]
            if batches:
                return float(batches[0]["seconds"])
            apply.check()
            if time.monotonic() > deadline:
                raise RuntimeError("apply did not get there")
            time.sleep(0.05)


def parse_lsn(text: str) -> int:
    """Return an LSN of PostgreSQL's text form as a number."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)
