"""How the JVM of a session starts."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.spark.jars import spark_folder


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="shows the files that a process maps")
def test_the_jvm_maps_the_archive_that_setup_made(spark: SparkSession) -> None:
    (archive,) = (spark_folder() / "pgdelta").glob("classes-*.jsa")
    jvm = spark._jvm
    assert jvm is not None
    pid = jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text()
