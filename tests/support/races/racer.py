"""The Java programs of the races, compiled once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pipeline.delta.spark.dist import spark_folder
from pipeline.delta.spark.jars import check_java, retrieve_jar
from pipeline.delta.spark.log_store import COMPILER, build_jar

SOURCES = Path(__file__).resolve().parent / "java"


@pytest.fixture(scope="session")
def racer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the JAR of the racing program and the slow store, compiled as the log store is."""
    jars = spark_folder() / "jars"
    jar = tmp_path_factory.mktemp("racer") / "racer.jar"
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder, "ecj.jar")
        retrieve_jar(jars.parent, *COMPILER, compiler)
        build_jar(check_java(), compiler, jars, jar, SOURCES)
    return jar
