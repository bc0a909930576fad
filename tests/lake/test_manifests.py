"""Manifests: what was recorded last is read back, and their files are merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.lake.manifests import MANIFESTS, Manifest, ManifestEntry, Manifests
from pipeline.lake.tables import Lake
from pipeline.protocol.lsn import LSN

pytestmark = pytest.mark.spark

LEAST_FILES = "spark.databricks.delta.autoCompact.minNumFiles"


@pytest.mark.parametrize("is_older", [False, True])
def test_files_do_not_add_up(spark: SparkSession, tmp_path: Path, is_older: bool) -> None:
    lake = Lake(spark, str(tmp_path))
    if is_older:
        lake.table("_pgdelta", "manifests").ensure(MANIFESTS)
    manifests = Manifests(lake)
    manifests.ensure()
    spark.conf.set(LEAST_FILES, "6")
    try:
        for number in range(1, 20):
            entry = ManifestEntry("public", "t", "file:/lake/t", number, LSN(number), is_behind=False)
            manifests.record(Manifest(LSN(number), None, (entry,)))
    finally:
        spark.conf.unset(LEAST_FILES)
    table = lake.table("_pgdelta", "manifests")
    assert int(table.snapshot().numOfFiles()) <= 6
    assert table.frame().count() == 19
    last = manifests.last()
    assert last
    assert (last.lsn, last.entries[0].version) == (LSN(19), 19)
