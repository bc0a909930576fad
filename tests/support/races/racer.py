"""The Java programs of the races, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.delta.spark.jars import check_java, retrieved, spark_folder
from pipeline.delta.spark.log_store import COMPILER, build_jar

SOURCES = Path(__file__).resolve().parent / "java"


@pytest.fixture(scope="session")
def racer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the JAR of the racing program and the slow store, compiled as the log store is."""
    jars = spark_folder() / "jars"
    jar = tmp_path_factory.mktemp("racer") / "racer.jar"
    with retrieved(jars.parent, [COMPILER]) as (compiler,):
        build_jar(check_java(), compiler, jars, jar, SOURCES)
    return jar
