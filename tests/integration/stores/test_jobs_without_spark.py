"""Both jobs as processes without Java, on stores for which Spark has no client."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from pipeline.config.config import Config, Silver
from pipeline.config.storage import Storage
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.paths import ROOT
from tests.support.processes import run_command
from tests.support.servers import Database
from tests.support.stores.cloud import AZURE
from tests.support.stores.lakes import StorePipeline
from tests.support.threads import wait_until

SECRET = "TEST_OPTION_{}"


@dataclass(slots=True)
class Processes(StorePipeline):
    """The same pipeline by processes that find no Java."""

    file: Path
    environ: dict[str, str]

    def command(self, *arguments: str) -> str:
        """Run a command; return what it printed."""
        done = run_command(*self._command(*arguments), env=self.environ, timeout=300)
        return done.stdout + done.stderr

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command for the block, and end it by SIGTERM if it has not ended."""
        with subprocess.Popen(
            self._command(*arguments),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pipeline.cli", *arguments, "--config", str(self.file)]


@pytest.fixture(params=["google", AZURE])
def pipeline(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Processes]:
    place: Storage = request.getfixturevalue(request.param)
    root = f"{place.root}/{database.name}"
    config = database.config(root=root, options=place.options, create_publication="all", copy="initial")
    secrets = {SECRET.format(number): value for number, value in enumerate(place.options.values())}
    options = {name: f"${{{secret}}}" for name, secret in zip(place.options, secrets, strict=True)}
    written = {
        "pipeline": config.pipeline,
        "source": {"conninfo": database.conninfo, "create": {"publication": "all"}},
        "storage": {"root": root, "options": options},
        "silver": {"writer": "native"},
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    environ |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path / "no java"), **secrets}
    with database.connect() as source:
        yield Processes(replace(config, silver=Silver(writer="native")), source, file, environ)


@pytest.mark.promise("jobs without Spark")
def test_jobs_need_no_spark(pipeline: Processes) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
    pipeline.command("ingest")
    pipeline.command("apply")
    pipeline.assert_orders_equal()
    assert "nothing" not in pipeline.command("status").partition("\n")[0]


@pytest.mark.promise("jobs without Spark")
def test_a_continuous_run_follows_the_source_until_it_is_stopped(pipeline: Processes) -> None:
    with pipeline.running("run", "--trigger", "continuous") as process:
        pipeline.run(*ORDERS, *LINES, *LOG, *FILL)
        wait_until(lambda: _is_equal(pipeline), seconds=120)
        pipeline.run(*CHANGE)
        wait_until(lambda: _is_equal(pipeline), seconds=120)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed


@pytest.mark.promise("jobs without Spark")
def test_a_use_of_spark_is_refused_with_the_setting_to_change(
    pipeline: Processes, spark: SparkSession
) -> None:
    config: Config = pipeline.config
    lake = Lake.for_writing(config.storage, spark)
    with pytest.raises(LakeError, match=r"has no client for (gs|az): .* silver\.writer: native"):
        _ = lake.spark


def _is_equal(pipeline: Processes) -> bool:
    try:
        pipeline.assert_orders_equal()
    except (AssertionError, KeyError):  # a table that is not there yet has no columns
        return False
    return True
