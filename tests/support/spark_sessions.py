"""The one Spark session of the test process, for tests marked `spark`.

Tests run hundreds of small queries once each: compiling them, in Spark and in the JVM, would take most of the
time. The jobs that tests start as processes of their own run as users run them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.stores.run import RunStore

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


@pytest.fixture(scope="session")
def spark(run_store: RunStore | None) -> Iterator[SparkSession]:
    """Give a session as the jobs have it, but tuned for queries that run once."""
    from pipeline.delta.spark.session import start_session

    stored = run_store.spark_settings if run_store else {}
    settings = " ".join(f"--conf {key}={value}" for key, value in {**_SMALL_QUERIES, **stored}.items())
    # with one tier the JVM would reserve 48 MB for compiled code, and stop compiling once that is full
    java = '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{settings} {java} pyspark-shell")
        session = start_session("tests")
    yield session
    session.stop()
