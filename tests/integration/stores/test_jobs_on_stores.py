"""Both jobs and the commands as processes of their own, with a lake on S3 or on HDFS and Spark."""

import os
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psycopg
import pytest

from pipeline.config.load import load_config
from pipeline.delta.store.hdfs_store import HdfsStore
from tests.support.files import places_of
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.paths import ROOT
from tests.support.processes import run_command
from tests.support.servers import Database
from tests.support.stores.hdfs import Hdfs
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: {root}{options}
silver:
  writer: {writer}
"""
S3 = """
  options:
    endpoint: ${TEST_ENDPOINT}
    region: us-east-1
    access_key_id: ${TEST_KEY}
    secret_access_key: ${TEST_KEY}"""
# the test server answers it wrongly
OPTIONS = ("--conf", "spark.hadoop.fs.s3a.connection.expect.continue=false")


@dataclass(slots=True)
class Processes:
    """Runs jobs and commands with one configuration."""

    config: Path
    environ: dict[str, str]
    client: tuple[str, ...]

    def command(self, name: str, *arguments: str) -> str:
        """Run a command of the package, by its own Python; return what it printed."""
        command = [sys.executable, "-m", "pipeline.cli", name, "--config", str(self.config), *arguments]
        return self._run(command)

    def submit(self, job: str, *arguments: str) -> str:
        """Run a job by spark-submit; return what it printed."""
        submit = str(Path(sys.executable).parent / "spark-submit")
        command = [submit, *self.client, str(ROOT / "jobs" / f"{job}.py")]
        return self._run([*command, "--config", str(self.config), *arguments])

    def _run(self, command: list[str]) -> str:
        done = run_command(*command, cwd=self.config.parent, env=self.environ, timeout=600)
        return done.stdout + done.stderr


@pytest.fixture(params=product(("s3", "hdfs"), ("auto", "spark")), ids="-".join)
def processes(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Processes:
    place, writer = request.param
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environ["PYTHONPATH"] = str(ROOT)
    client: tuple[str, ...] = ()
    if place == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        jars: Path = request.getfixturevalue("s3_jars")
        environ |= {"TEST_ENDPOINT": s3.url, "TEST_KEY": "test"}
        client = ("--conf", f"spark.driver.extraClassPath={jars}/*", *OPTIONS)
        root, options = f"s3://{BUCKET}/{database.name}", S3
    else:
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        root, options = f"{hdfs.url}/{database.name}", ""
    values = {"name": database.name, "conninfo": database.conninfo, "root": root, "writer": writer}
    (tmp_path / "pipeline.yaml").write_text(CONFIG.format(**values, options=options), encoding="utf-8")
    return Processes(tmp_path / "pipeline.yaml", environ, client)


def assert_equal(processes: Processes, source: psycopg.Connection[tuple[object, ...]]) -> None:
    found = StorePipeline(load_config(processes.config, processes.environ), source)
    found.assert_orders_equal()


@pytest.mark.promise("HDFS")
def test_jobs_and_commands_on_a_store(processes: Processes, database: Database, tmp_path: Path) -> None:
    database.run(*ORDERS, *LINES, *LOG, *FILL)
    processes.submit("ingest")
    processes.submit("apply")
    with database.connect() as source:
        assert_equal(processes, source)
        database.run(*CHANGE)
        processes.command("ingest")
        processes.submit("apply")
        assert_equal(processes, source)
        processes.command("status")
        processes.command("audit")
        processes.command("maintain")
        database.run("UPDATE orders SET item = 'again' WHERE id > 15")
        processes.command("resync", "--table", "public.orders")
        processes.command("ingest")
        processes.submit("apply")
        assert_equal(processes, source)
        database.run(
            "UPDATE orders SET item = 'xyzzySubject' WHERE id = 17", "DELETE FROM orders WHERE id = 17"
        )
        processes.command("ingest")
        processes.submit("apply")
        store = StorePipeline(load_config(processes.config, processes.environ), source).store
        if isinstance(store, HdfsStore):  # what a process leaves that dies while it writes a file
            store._client.write(f"/{database.name}/_pgdelta/uploads/left", [b"xyzzySubject"])
        receipt = processes.command("forget", "--table", "public.orders", "--key", "17")
        assert "no row has the keys" in receipt
        for each in store.list():
            path = tmp_path / "bucket" / each.name
            path.parent.mkdir(parents=True, exist_ok=True)
            store.download(each.name, path)
        assert places_of(tmp_path / "bucket", "xyzzySubject") == []
        if isinstance(store, HdfsStore):
            with pytest.raises(FileNotFoundError):
                store._client.status(f"/{database.name}/_pgdelta/uploads/left")
        assert_equal(processes, source)
