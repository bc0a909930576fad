"""Both jobs and the commands as processes of their own, with a lake on an object store and Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pipeline.config.load import load_config
from tests.support.files import places_of
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.paths import ROOT
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
storage:
  root: {root}
  options:
    endpoint: ${{TEST_ENDPOINT}}
    region: us-east-1
    access_key_id: ${{TEST_KEY}}
    secret_access_key: ${{TEST_KEY}}
silver:
  writer: {writer}
"""
# the test server answers it wrongly
OPTIONS = ("--conf", "spark.hadoop.fs.s3a.connection.expect.continue=false")


@dataclass(slots=True)
class Processes:
    """Runs jobs and commands with one configuration."""

    config: Path
    environ: dict[str, str]
    jars: Path

    def command(self, name: str, *arguments: str) -> str:
        """Run a command of the package, by its own Python; return what it printed."""
        command = [sys.executable, "-m", "pipeline.cli", name, "--config", str(self.config), *arguments]
        return self._run(command)

    def submit(self, job: str, *arguments: str) -> str:
        """Run a job by spark-submit; return what it printed."""
        path = f"spark.driver.extraClassPath={self.jars}/*"
        submit = str(Path(sys.executable).parent / "spark-submit")
        command = [submit, "--conf", path, *OPTIONS, str(ROOT / "jobs" / f"{job}.py")]
        return self._run([*command, "--config", str(self.config), *arguments])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.config.parent,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(params=["auto", "spark"])
def processes(
    request: pytest.FixtureRequest, s3: S3Server, s3_jars: Path, database: Database, tmp_path: Path
) -> Processes:
    root = f"s3://{BUCKET}/{database.name}"
    values = {"name": database.name, "conninfo": database.conninfo, "root": root, "writer": request.param}
    (tmp_path / "pipeline.yaml").write_text(CONFIG.format(**values), encoding="utf-8")
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environ |= {"TEST_ENDPOINT": s3.url, "TEST_KEY": "test", "PYTHONPATH": str(ROOT)}
    return Processes(tmp_path / "pipeline.yaml", environ, s3_jars)


def assert_equal(processes: Processes, source: psycopg.Connection[tuple[object, ...]]) -> None:
    found = StorePipeline(load_config(processes.config, processes.environ), source)
    found.assert_orders_equal()


def test_jobs_and_commands_on_an_object_store(
    processes: Processes, database: Database, tmp_path: Path
) -> None:
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
        receipt = processes.command("forget", "--table", "public.orders", "--key", "17")
        assert "no row has the keys" in receipt
        found = StorePipeline(load_config(processes.config, processes.environ), source)
        for each in found.store.list():
            path = tmp_path / "bucket" / each.name
            path.parent.mkdir(parents=True, exist_ok=True)
            found.store.download(each.name, path)
        assert places_of(tmp_path / "bucket", "xyzzySubject") == []
        assert_equal(processes, source)
