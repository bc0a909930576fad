"""The object store that a run of the tests has its lakes on, where PGDELTA_ROOT asks for one.

Tests that look into the folder of a lake are skipped then, by `Pipeline.path`. `make stores` names the tests
that can run so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.delta.store.hadoop import hadoop_settings

VARIABLE = "PGDELTA_ROOT"
STORES = ("s3",)


@dataclass(frozen=True, slots=True)
class RunStore:
    """A server with S3's protocol, which the cloud's environment variables describe."""

    bucket: str
    jars: Path  # of Hadoop's client

    def root(self, *names: str) -> str:
        """Return a root on the server."""
        return "/".join([f"s3://{self.bucket}", *names])

    @property
    def spark_settings(self) -> dict[str, str]:
        """What the session of the tests needs to read lakes of which it does not have the configuration."""
        settings = hadoop_settings(self.root(), {})
        settings |= {
            "fs.s3a.connection.expect.continue": "false",  # the server answers it wrongly
        }
        return {
            "spark.driver.extraClassPath": f"{self.jars}/*",
            **{f"spark.hadoop.{name}": value for name, value in settings.items()},
        }


@pytest.fixture(scope="session")
def run_store(request: pytest.FixtureRequest) -> Iterator[RunStore | None]:
    """Give the store of the run, None if lakes are in temporary folders."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        yield None
        return
    assert asked in STORES
    from tests.support.stores.s3 import BUCKET, environ_of, s3_process

    jars = request.getfixturevalue("s3_jars")
    with s3_process() as options, pytest.MonkeyPatch.context() as patch:
        for name, value in environ_of(options).items():
            patch.setenv(name, value)
        found = RunStore(BUCKET, jars)
        settings = " ".join(f"--conf {name}={value}" for name, value in found.spark_settings.items())
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{settings} pyspark-shell")  # of processes that tests start
        yield found
