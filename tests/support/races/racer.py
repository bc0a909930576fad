"""The Java programs of the races, compiled once."""

from pathlib import Path

import pytest

from pipeline.delta.spark.jars import check_java, retrieved, spark_folder
from pipeline.delta.spark.log_store import COMPILER, build_jar
from tests.support.postgres.templates import made_once

SOURCES = Path(__file__).resolve().parent / "java"


def java_command(class_path: str, program: str) -> list[str]:
    """Return the command that runs one of the programs; short lives, one compiler."""
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
    return [str(check_java()), *options, "-cp", f"{class_path}:{spark_folder() / 'jars'}/*", program]


@pytest.fixture(scope="session")
def racer() -> Path:
    """Return the JAR of the racing program and the slow store, compiled as the log store is."""
    return made_once("racer", _compile) / "racer.jar"


def _compile(folder: Path) -> None:
    jars = spark_folder() / "jars"
    with retrieved(jars.parent, [COMPILER]) as (compiler,):
        build_jar(check_java(), compiler, jars, folder / "racer.jar", SOURCES)
