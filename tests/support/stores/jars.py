"""Hadoop's client for S3, for the class path of a JVM."""

import shutil
from pathlib import Path

import pytest

from pipeline.delta.spark.jars import retrieved, spark_folder
from pipeline.delta.spark.releases import installed_release
from tests.support.postgres.templates import made_once


@pytest.fixture(scope="session")
def s3_jars() -> Path:
    """Give a folder with Hadoop's client for S3."""
    return made_once("s3-jars", _retrieve)


def _retrieve(folder: Path) -> None:
    with retrieved(spark_folder(), installed_release().s3_jars) as jars:
        for jar in jars:
            shutil.copy(jar, folder)
