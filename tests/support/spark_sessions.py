"""The one Spark session of the test process, which starts when a test or a job that it runs needs it.

Tests run hundreds of small queries once each: compiling them, in Spark and in the JVM, would take most of the
time. The jobs that tests start as processes of their own run as users run them, but for the JVM's second
compiler and its second collecting thread, which cost more than they bring in a short life.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.stores.run import RunStore
from tests.support.tiers import may_use_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_QUERIES = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # VACUUM lists a table's folders in so many tasks; Spark's default is 10 000
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}

# with one tier the JVM would reserve 48 MB for compiled code, and stop compiling once that is full
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"


def pytest_configure() -> None:
    """Let Spark's JVMs, also those of processes that tests start, be those of a short life."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIFE)


@pytest.fixture(scope="session", autouse=True)
def session_settings(run_store: RunStore | None) -> Iterator[None]:
    """Let whatever starts Spark in this process start it tuned for queries that run once."""
    from pipeline.delta.spark import session as sessions

    stored = run_store.spark_settings if run_store else {}
    settings = " ".join(f"--conf {key}={value}" for key, value in {**_SMALL_QUERIES, **stored}.items())
    launch_gateway = sessions._launch_gateway

    def launch() -> Any:
        # on a store, and where all silver is written by Spark, other tests need it too
        if run_store is None and not os.environ.get("PGDELTA_WRITER") and not may_use_spark():
            raise RuntimeError("This test starts Spark. Mark it with pytest.mark.spark.")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_SUBMIT_ARGS", f"{settings} pyspark-shell")
            return launch_gateway()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_launch_gateway", launch)
        yield
    if "pyspark.sql" in sys.modules:
        from pyspark.sql import SparkSession

        if (session := SparkSession._instantiatedSession) is not None:
            session.stop()


@pytest.fixture(scope="session")
def spark(session_settings: None) -> SparkSession:
    """Give a session as the jobs have it, but tuned for queries that run once."""
    return shared_session()


def shared_session() -> SparkSession:
    """Return the session of the process, which starts now if there is none yet."""
    from pipeline.delta.spark.session import start_session

    return start_session("tests")
