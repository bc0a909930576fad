"""The Spark session of a job, and sessions whose writes record a position.

Under `spark-submit` the JVM is already up and its settings are the user's: only what is not set is added.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from pipeline.errors import LakeError
from pipeline.lake.launcher import is_launched_by_spark
from pipeline.lake.settings import DELTA_JARS, RUNTIME_SETTINGS, SPARK_SETTINGS
from pipeline.lake.tables import Commit

_TXN = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def start_session(name: str) -> SparkSession:
    """Return a session that can read and write Delta, or raise LakeError saying how to get one."""
    if SparkContext._gateway is None:
        SparkContext._ensure_initialized(gateway=_launch_gateway())
    conf = SparkConf()
    for key, value in (SPARK_SETTINGS | RUNTIME_SETTINGS).items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.app.name", name)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if not _has_delta(spark):
        group, artifact, version = DELTA_JARS[0]
        raise LakeError(
            "Delta Lake's JARs are not on Spark's class path: run `make setup`, or give spark-submit "
            f"--packages {group}:{artifact}:{version}"
        )
    for key, value in RUNTIME_SETTINGS.items():
        spark.conf.set(key, value)
    return spark


def _launch_gateway() -> Any:
    """Start Spark's JVM, or join the one that started this process; leave one line of its stderr out."""
    launch: Any = java_gateway.launch_gateway  # has no types
    if is_launched_by_spark():
        return launch()
    read_end, write_end = os.pipe()
    threading.Thread(target=_forward, args=(read_end,), name="spark-stderr", daemon=True).start()
    try:
        return launch(popen_kwargs={"stderr": write_end})
    finally:
        os.close(write_end)


def _forward(read_end: int) -> None:
    with open(read_end, "rb", buffering=0) as lines:
        for line in lines:
            # the JVM announces a module that Spark asks for, at every start
            if b"Using incubator modules" not in line:
                # our stderr may be a pipe that nobody reads any more
                with suppress(OSError):
                    os.write(2, line)


def _has_delta(spark: SparkSession) -> bool:
    try:
        spark._jvm.java.lang.Class.forName(  # type: ignore[union-attr]
            "io.delta.tables.DeltaTable",
            False,
            spark._jvm.Thread.currentThread().getContextClassLoader(),  # type: ignore[union-attr]
        )
    except Exception:
        return False
    return True


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session with settings and views of its own, for one thread."""
    session = spark.newSession()
    for key, value in RUNTIME_SETTINGS.items():
        session.conf.set(key, value)
    return session


def without_variables(text: str) -> str:
    """Return JSON that means the same and holds no `$`.

    In the value of a setting, Spark would replace `${env:…}`, which a table may be called, by the driver's
    variable.
    """
    return text.replace("$", "\\u0024")


@contextmanager
def committing(session: SparkSession, commit: Commit) -> Iterator[None]:
    """Make every write of the session record this commit; Delta skips a second one to a table in silence."""
    session.conf.set(_TXN[0], commit.app_id)
    session.conf.set(_TXN[1], str(int(commit.lsn)))
    session.conf.set(_METADATA, without_variables(commit.user_metadata))
    try:
        yield
    finally:
        for key in (*_TXN, _METADATA):
            session.conf.unset(key)
