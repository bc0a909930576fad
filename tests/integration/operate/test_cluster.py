"""The jobs on a real Spark cluster, with nothing but what `make dist` builds.

A standalone master and two workers on loopback run as another user than the driver (where the tests run as
root; as the same one elsewhere), from a Spark without Delta's JARs, with no Python that an executor could
start. Driver and workers share one folder, the lake, by a group; everything else of the driver's lies in a
folder that only it may enter. The driver's Python does not know this checkout: the package comes by
`--py-files`, its requirements from a folder of packages.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.delta.spark.dist import build_dist, spark_folder, submit_line
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: {root}
"""
WORKER_COUNT = 2
# what dist's README.txt asks for where driver and workers are different users of a shared folder
UMASK = 0o002
OPTIONS = ("--conf", "spark.hadoop.fs.permissions.umask-mode=002")
# short lives: the second compiler and a second collecting thread would cost more than they bring
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@dataclass(slots=True)
class Cluster:
    """A running master and its workers, and the folders of each party."""

    folder: Path  # everybody may enter
    account: pwd.struct_passwd | None  # None: as we are
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def spark_home(self) -> Path:
        """The workers' Spark, which has no JAR of Delta's."""
        return self.folder / "spark"

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a subprocess the workers' user."""
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def make_folder(self, name: str, mode: int) -> Path:
        """Make a folder that belongs to the workers' group."""
        made = self.folder / name
        made.mkdir()
        if self.account is not None:
            os.chown(made, -1, self.account.pw_gid)
        made.chmod(mode)
        return made

    def start(self, role: str, *arguments: str) -> None:
        """Start a master or a worker; its log is in the folder `logs`."""
        environ = {"SPARK_HOME": str(self.spark_home), "SPARK_LOCAL_IP": "127.0.0.1", "HOME": "/"}
        environ |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
        environ |= {key: os.environ[key] for key in ("PATH", "JAVA_HOME") if key in os.environ}
        command = [
            str(self.spark_home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{role.lower()}.{role}",
        ]
        log = (self.folder / "logs" / f"{role}-{len(self.processes)}").open("wb")
        self.processes.append(
            subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                **self.identity,
                cwd=self.folder / "work",
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=UMASK,
            )
        )
        log.close()

    def stop(self) -> None:
        """End what was started here, workers first: they end their executors."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Give a running cluster in a folder of its own, readable to its user, which pytest's folders are not."""
    account = None
    if os.geteuid() == 0:
        # not the user that the embedded server takes
        account = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-cluster-", dir="/tmp"))
    folder.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        started = Cluster(folder, account, probe.getsockname()[1])
    try:
        copy_spark(started.spark_home)
        for name in ("work", "lake"):
            started.make_folder(name, 0o2775)
        (folder / "logs").mkdir()
        started.start("Master", "--port", str(started.port))
        wait_for_port(started.port)
        for number in range(WORKER_COUNT):
            work = str(started.make_folder(f"work-{number}", 0o2775))
            started.start(
                "Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                work,
                f"spark://127.0.0.1:{started.port}",
            )
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


def copy_spark(target: Path) -> None:
    """Copy this environment's Spark by links, without Python, settings and Delta's JARs."""

    def link(source: str, copy: str) -> None:
        try:
            os.link(source, copy)
        except OSError:
            shutil.copy(source, copy)

    for part in ("bin", "jars"):
        shutil.copytree(
            spark_folder() / part,
            target / part,
            ignore=shutil.ignore_patterns("delta-*.jar", "__pycache__"),
            copy_function=link,
        )


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the master did not start"
            time.sleep(0.1)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Give a folder of the driver's that nobody else may enter."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def run_job(cluster: Cluster, job: str, private: Path) -> subprocess.CompletedProcess[str]:
    """Run the line that `make dist` prints, in the folder that it built."""
    line = submit_line(job, str(private / "pipeline.yaml")).replace("HOST:7077", f"127.0.0.1:{cluster.port}")
    spark_submit, *arguments = line.split(" ")
    # a .pth file counts in site-packages only: an editable install of this checkout is not seen
    packages = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    environ = {
        "HOME": str(private),
        "PATH": os.environ["PATH"],
        "PYSPARK_DRIVER_PYTHON": str(Path(sys.executable).resolve()),
        "PYSPARK_PYTHON": "/nonexistent/python",
        "PYTHONPATH": str(packages),
        "SPARK_HOME": str(cluster.spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
    }
    small = ["--executor-memory", "640m", "--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"]
    environ |= {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
    return subprocess.run(
        [str(cluster.spark_home / "bin" / spark_submit), *small, *OPTIONS, *arguments],
        cwd=private / "dist",
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        umask=UMASK,
        check=False,
    )


@pytest.mark.slow
def test_dist_runs_on_a_cluster_of_another_user(
    cluster: Cluster, private: Path, database: Database, spark: SparkSession
) -> None:
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, item text, price numeric(10,2), tags text[])",
        f"CREATE PUBLICATION {database.name} FOR TABLE orders",
        f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')",
        "INSERT INTO orders SELECT g, 'no ' || g, g / 7.0, ARRAY['a', NULL] FROM generate_series(1, 5000) g",
        "UPDATE orders SET id = id + 100000 WHERE id <= 100",
        "DELETE FROM orders WHERE id BETWEEN 201 AND 207",
    )
    config = private / "pipeline.yaml"
    config.write_text(
        CONFIG.format(name=database.name, conninfo=database.conninfo, root=cluster.folder / "lake")
    )
    config.chmod(0o600)
    build_dist(private / "dist", with_packages=False)
    assert not list((cluster.spark_home / "jars").glob("delta*")), "Delta comes by --jars"
    if cluster.account is not None:
        for secret in (config, private / "dist" / "pipeline.zip"):
            seen = subprocess.run(["test", "-r", str(secret)], **cluster.identity, check=False)
            assert seen.returncode == 1

    done = run_job(cluster, "ingest", private)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\ningest {database.name}: 5,107 changes of 3 transactions" in done.stdout
    assert "copied public.orders: 4,993 rows" in done.stdout
    done = run_job(cluster, "apply", private)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"apply {database.name}: 4,993 changes to 1 table")

    applications = [
        {path.name for path in cluster.folder.glob(f"work-{n}/app-*")} for n in range(WORKER_COUNT)
    ]
    assert len(applications[0]) == 2
    assert applications[0] == applications[1], "both workers took part in both jobs"
    written = list((cluster.folder / "lake" / "silver" / "public" / "orders").glob("*.parquet"))
    assert written
    if cluster.account is not None:
        assert {path.stat().st_uid for path in written} == {cluster.account.pw_uid}
    with database.connect() as connection:
        root = str(cluster.folder / "lake")
        oracle.assert_silver_equals_source(connection, spark, root, [TableName("public", "orders")])
