"""HDFS on loopback: Hadoop's own servers, in a Java process of their own."""

import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from pipeline.delta.spark.jars import check_java, retrieved, spark_folder
from pipeline.delta.spark.log_store import COMPILER, build_jar
from tests.support.processes import ended

SOURCES = Path(__file__).resolve().parent / "java"


@dataclass(frozen=True, slots=True)
class Hdfs:
    """The URL of the running file system, the address of its HTTP server, and its process."""

    url: str
    http: str
    process: int

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the servers hang for a block."""
        os.kill(self.process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process, signal.SIGCONT)

    def make_folder(self, name: str) -> None:
        """Make a folder, and those above it."""
        self._put(name, "MKDIRS")

    def keep(self, name: str) -> None:
        """Keep a snapshot of a folder."""
        self._put(name, "ALLOWSNAPSHOT")
        self._put(name, "CREATESNAPSHOT")

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        with urlopen(f"{self.http}/webhdfs/v1/{name}?op=OPEN") as answer:
            content: bytes = answer.read()
            return content

    def _put(self, name: str, operation: str) -> None:
        address = f"{self.http}/webhdfs/v1/{name}?op={operation}&user.name={getpass.getuser()}"
        urlopen(Request(address, method="PUT")).close()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """Give an empty HDFS of the Hadoop that Spark has; the tests of a process share it."""
    folder = tmp_path_factory.mktemp("hdfs")
    jars, compiled_with = spark_folder() / "jars", folder / "jars"
    client = next(jars.glob("hadoop-client-api-*.jar"))
    version = client.stem.rpartition("-")[2]
    compiled_with.mkdir()
    (compiled_with / client.name).symlink_to(client)
    cluster = ("org.apache.hadoop", "hadoop-client-minicluster", version)
    with retrieved(jars.parent, [cluster, COMPILER]) as (servers, compiler):
        shutil.copy(servers, compiled_with)
        build_jar(check_java(), compiler, compiled_with, folder / "hdfs.jar", SOURCES)
    java = [str(check_java()), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
    # the data nodes write to this folder; what they log is lost
    java += ["-cp", f"{folder}/hdfs.jar:{compiled_with}/*:{jars}/*", "Hdfs", str(folder / "data")]
    server = subprocess.Popen(
        java,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with ended(server) as process:
        assert process.stdout is not None
        url, http = (process.stdout.readline().strip() for _ in range(2))
        yield Hdfs(url, http, process.pid)
