"""A standalone Spark cluster on loopback: a master and two workers, as other users than the driver.

The accounts are others where the tests run as root; elsewhere everything runs as the tests do. The workers'
Spark has none of Delta's JARs, and no Python that an executor could start. A worker's folder is its own
account's; everybody may enter the folder above it. Workers have an address each: executors at one address
would read each other's files.
"""

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.delta.spark.dist import submit_line
from pipeline.delta.spark.jars import spark_folder
from pipeline.delta.spark.log_store import JAR_NAME
from pipeline.delta.spark.releases import installed_release
from tests.support.processes import in_own_session
from tests.support.spark_sessions import SHORT_LIFE

_MAX_SECONDS = 900  # for a job or a command
_SHARED_UMASK = 0o002
"""What dist's README.txt asks for where driver and workers are different users of a shared folder."""


@dataclass(slots=True)
class Cluster:
    """A running master and its workers, and the folders of each party.

    `accounts` are those of the workers, None for the tests' own; the master has the first one's.
    """

    folder: Path  # everybody may enter
    accounts: Sequence[pwd.struct_passwd | None]
    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def spark_home(self) -> Path:
        """The workers' Spark, which has no JAR of Delta's."""
        return self.folder / "spark"

    @property
    def master(self) -> str:
        """The master's URL."""
        return f"spark://127.0.0.1:{self.port}"

    def work_folder(self, number: int) -> Path:
        """Return the folder of a worker."""
        return self.folder / f"work-{number}"

    def applications(self) -> list[set[str]]:
        """Return the applications that each worker ran executors of."""
        folders = (self.work_folder(number) for number in range(len(self.accounts)))
        return [{path.name for path in folder.glob("app-*")} for folder in folders]

    def can_read(self, path: Path) -> bool:
        """Return whether a worker of another account may read a file."""
        others = [identity(each) for each in self.accounts if each is not None]
        command = ["test", "-r", str(path)]
        return any(subprocess.run(command, **each, check=False).returncode == 0 for each in others)

    def start(self, number: int, role: str, *arguments: str) -> None:
        """Start a master or a worker as an account; its log is in the folder `logs`."""
        host = "127.0.0.1" if role == "Master" else f"127.0.0.{number + 2}"
        environ = {"SPARK_HOME": str(self.spark_home), "SPARK_LOCAL_IP": host, "HOME": "/"}
        environ |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIFE}
        environ |= {key: os.environ[key] for key in ("PATH", "JAVA_HOME") if key in os.environ}
        command = [
            str(self.spark_home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{role.lower()}.{role}",
        ]
        log = (self.folder / "logs" / f"{role}-{len(self.processes)}").open("wb")
        self.processes.append(
            subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0", *arguments],
                **identity(self.accounts[number]),
                cwd=self.work_folder(number),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=_SHARED_UMASK,
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


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs jobs and commands on a cluster, from the folder that `make dist` built.

    Its Python does not know this checkout: jobs get the package by `--py-files`. `options` are added to each
    command line, `environ` to each environment.
    """

    cluster: Cluster
    private: Path  # only the driver may enter; has `dist` and `pipeline.yaml`
    options: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """The configuration of the pipeline."""
        return self.private / "pipeline.yaml"

    def submit(self, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a job by the line that `make dist` prints."""
        spark_submit, *line = self._line(job)
        line[line.index("--master") + 1] = self.cluster.master
        command = str(self.cluster.spark_home / "bin" / spark_submit)
        return self._run([command, *self._sizes(), *self.options, *line, *arguments])

    def command(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the package, whose Spark, if it starts, is the cluster's."""
        line = self._line("ingest")
        jars = line[line.index("--jars") : line.index("--jars") + 2]
        given = ["--master", self.cluster.master, *jars, *self._sizes(), *self.options, "pyspark-shell"]
        environ = {"PYSPARK_SUBMIT_ARGS": shlex.join(given)}
        environ["PYTHONPATH"] = f"{self.private / 'dist' / 'pipeline.zip'}:{_packages()}"
        python = [str(Path(sys.executable).resolve()), "-m", "pipeline.cli"]
        return self._run([*python, name, "--config", str(self.config), *arguments], environ)

    def _line(self, job: str) -> list[str]:
        has_s3 = (self.private / "dist" / "s3").exists()
        return shlex.split(submit_line(job, str(self.config), s3=has_s3))

    def _sizes(self) -> list[str]:
        return ["--executor-memory", "640m", "--conf", f"spark.executor.extraJavaOptions={SHORT_LIFE}"]

    def _run(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        given = {
            "HOME": str(self.private),
            "PATH": os.environ["PATH"],
            "PYSPARK_DRIVER_PYTHON": str(Path(sys.executable).resolve()),
            "PYSPARK_PYTHON": "/nonexistent/python",
            "PYTHONPATH": _packages(),
            "SPARK_HOME": str(self.cluster.spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": SHORT_LIFE,
        }
        given |= {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
        with in_own_session(
            command,
            cwd=self.private / "dist",
            env={**given, **self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=_SHARED_UMASK,
        ) as process:
            output, errors = process.communicate(timeout=_MAX_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _packages() -> str:
    # a .pth file counts in site-packages only: an editable install of this checkout is not seen
    return next(path for path in sys.path if path.endswith("site-packages"))


def identity(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return what makes a subprocess an account's."""
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@contextmanager
def running_cluster(*names: str) -> Iterator[Cluster]:
    """Run a master and a worker for each account for the block, in a folder that their users can read.

    Pytest's own folders are not.
    """
    accounts = [pwd.getpwnam(name) if os.geteuid() == 0 else None for name in names]
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-cluster-", dir="/tmp"))
    folder.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        started = Cluster(folder, accounts, probe.getsockname()[1])
    try:
        _copy_spark(started.spark_home)
        (folder / "logs").mkdir()
        for number, account in enumerate(accounts):
            work = started.work_folder(number)
            work.mkdir(mode=0o700)
            if account is not None:
                os.chown(work, account.pw_uid, account.pw_gid)
        started.start(0, "Master", "--port", str(started.port))
        _wait_for_port(started.port)
        for number in range(len(accounts)):
            work_folder = ["--work-dir", str(started.work_folder(number))]
            started.start(number, "Worker", "--cores", "1", "--memory", "1g", *work_folder, started.master)
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _copy_spark(target: Path) -> None:
    """Copy this environment's Spark by links, without Python, settings and what `make setup` added."""
    release = installed_release()
    added = [f"{artifact}-*.jar" for _, artifact, _ in release.delta_jars]
    if not release.replaces_hadoop:
        added += [f"{artifact}-{version}.jar" for _, artifact, version in release.s3_jars]

    def link(source: str, copy: str) -> None:
        try:
            os.link(source, copy)
        except OSError:
            shutil.copy(source, copy)

    for part in ("bin", "jars"):
        shutil.copytree(
            spark_folder() / part,
            target / part,
            ignore=shutil.ignore_patterns(*added, JAR_NAME, "__pycache__"),
            copy_function=link,
        )


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the master did not start"
            time.sleep(0.1)
