"""The store that a run of the tests has its lakes on, where PGDELTA_ROOT asks for one: `s3` or `hdfs`.

Tests that open the folder of a lake are skipped then, by `Pipeline.path`. `make stores` names the tests
that can run so.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from pipeline.delta.store.hadoop import hadoop_settings
from tests.support.stores.hdfs import Hdfs

VARIABLE = "PGDELTA_ROOT"
STORES = ("s3", "hdfs")


@dataclass(frozen=True, slots=True)
class RunStore:
    """A server that lakes are on, and what the session of the tests needs to read them.

    The session does not have the configuration of the lakes.
    """

    url: str
    spark_settings: Mapping[str, str]

    def root(self, *names: str) -> str:
        """Return a root on the server."""
        return "/".join([self.url, *names])


@pytest.fixture(scope="session")
def run_store(request: pytest.FixtureRequest) -> Iterator[RunStore | None]:
    """Give the store of the run, None if lakes are in temporary folders."""
    asked = os.environ.get(VARIABLE)
    if asked is None:
        yield None
        return
    assert asked in STORES
    if asked == "hdfs":
        hdfs: Hdfs = request.getfixturevalue("hdfs")
        yield RunStore(hdfs.url, {})
        return
    from tests.support.stores.s3 import BUCKET, environ_of, s3_process

    jars = request.getfixturevalue("s3_jars")
    with s3_process() as options, pytest.MonkeyPatch.context() as patch:
        for name, value in environ_of(options).items():
            patch.setenv(name, value)
        url = f"s3://{BUCKET}"
        client = {
            **hadoop_settings(url, {}),
            "fs.s3a.connection.expect.continue": "false",  # the server answers it wrongly
        }
        settings = {
            "spark.driver.extraClassPath": f"{jars}/*",
            **{f"spark.hadoop.{name}": value for name, value in client.items()},
        }
        arguments = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments} pyspark-shell")  # of processes that tests start
        yield RunStore(url, settings)
