"""Start the Spark session of a job, and further sessions for threads.

Under `spark-submit` the JVM runs already with the user's settings: only those that are not set are added.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import delta.exceptions  # noqa: F401 - gives Delta's errors their Python classes
import pyspark
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from pipeline.delta.spark.class_archive import used_archive
from pipeline.delta.spark.jars import check_java, prepare_at_first_need, spark_folder
from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.spark.log_store import is_on_class_path
from pipeline.delta.spark.releases import release_of
from pipeline.delta.spark.settings import RUNTIME_SETTINGS, SPARK_SETTINGS
from pipeline.errors import LakeError

_JVM_LOCK = threading.Lock()
_pools = threading.local()  # the context in which the thread has its pool


def start_session(name: str) -> SparkSession:
    """Return a session that can read and write Delta.

    Raises LakeError if this Spark is not supported, lacks the JARs, or finds no Java.
    """
    release = release_of(pyspark.__version__)
    with _JVM_LOCK:  # two threads would start a JVM each
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=_launch_gateway())
    conf = SparkConf()
    for key, value in (SPARK_SETTINGS | RUNTIME_SETTINGS).items():
        conf.setIfMissing(key, value)
    conf.setIfMissing("spark.app.name", name)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if not is_on_class_path(spark, "io.delta.tables.DeltaTable"):
        group, artifact, version = release.delta_jars[0]
        raise LakeError(
            "Delta Lake's JARs are not on Spark's class path. Run `pgdelta setup`, or start spark-submit "
            f"with --packages {group}:{artifact}:{version}."
        )
    for key, value in RUNTIME_SETTINGS.items():
        spark.conf.set(key, value)
    return spark


def _launch_gateway() -> Any:
    """Start Spark's JVM, or connect to the one that started this process.

    Its output goes to stderr, because stdout is for a command's result; a few lines are left out.
    """
    launch: Any = java_gateway.launch_gateway  # has no types
    if is_launched_by_spark():
        return launch()
    prepare_at_first_need()
    read_end, write_end = os.pipe()
    threading.Thread(target=_forward, args=(read_end,), name="spark-stderr", daemon=True).start()
    try:
        with used_archive(spark_folder()):
            return launch(popen_kwargs={"stdout": write_end, "stderr": write_end})
    except Exception:
        check_java()  # pyspark does not name what is missing
        raise
    finally:
        os.close(write_end)


def _forward(read_end: int) -> None:
    with open(read_end, "rb", buffering=0) as lines:
        for line in lines:
            # the JVM announces a module of Spark at every start; Delta counts the files that VACUUM removes
            if b"Using incubator modules" not in line and b"in a total of" not in line:
                # stderr may be a closed pipe
                with suppress(OSError):
                    os.write(2, line)


def new_session(spark: SparkSession) -> SparkSession:
    """Return a session for one thread, with settings and views separate from all others."""
    session = spark.newSession()
    for key, value in RUNTIME_SETTINGS.items():
        session.conf.set(key, value)
    return session


def use_own_pool(spark: SparkSession) -> None:
    """Let the jobs of this thread share the cores with those of other threads, in a pool named like it."""
    context, name = spark.sparkContext, threading.current_thread().name
    if getattr(_pools, "context", None) is not context:
        context.setLocalProperty("spark.scheduler.pool", name)
        _pools.context = context


@contextmanager
def settings(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a block."""
    before = {key: session.conf.get(key, None) for key in values}
    for key, value in values.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key, former in before.items():
            if former is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, former)
