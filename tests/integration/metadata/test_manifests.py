"""Manifests: what was recorded last is read back, and their files are merged now and then."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.delta import native_write
from pipeline.delta import table as table_module
from pipeline.delta.retry import ConflictError
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.metadata.manifests import MANIFESTS, Manifest, ManifestEntry, Manifests
from pipeline.protocol.lsn import LSN

pytestmark = pytest.mark.spark

AUTO_COMPACTION = "delta.autoOptimize.autoCompact"


def record(manifests: Manifests, *numbers: int) -> None:
    for number in numbers:
        entry = ManifestEntry("public", "t", "file:/lake/t", number, LSN(number), is_behind=False)
        manifests.record(Manifest(LSN(number), None, (entry,)))


def merges(table: LakeTable) -> list[int]:
    """Return the versions in which files were merged."""
    return [each.version for each in table.operations_after(-1) if each.operation == "OPTIMIZE"]


def test_files_are_merged_where_the_version_gets_to_a_multiple(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "COMPACTION_INTERVAL", 6)
    lake = Lake(str(tmp_path), spark)
    manifests = Manifests(lake)
    manifests.ensure()
    record(manifests, *range(1, 20))
    table = lake.table("_pgdelta", "manifests")
    assert merges(table) == [7, 13, 19]
    assert table.snapshot().file_count <= 6
    assert table.frame().count() == 19
    last = manifests.last()
    assert last
    assert (last.lsn, last.entries[0].version) == (LSN(19), 19)


def test_a_process_started_on_an_older_lake_does_not_merge_at_each_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Lake(str(tmp_path), spark).table("_pgdelta", "manifests")
    table.ensure(MANIFESTS)
    record(Manifests(Lake(str(tmp_path), spark)), *range(1, 5))
    spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('{AUTO_COMPACTION}' = 'true')")
    delta: Any = spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
    delta.stats.AutoCompactPartitionStats.instance(spark._jsparkSession).resetTestOnly()
    manifests = Manifests(Lake(str(tmp_path), spark))
    manifests.ensure()
    record(manifests, 5, 6, 7)
    assert merges(table) == []
    assert AUTO_COMPACTION not in table.snapshot().configuration
    version = table.version()
    manifests.ensure()
    assert table.version() == version, "once is enough"


def test_a_merge_that_loses_against_another_writer_fails_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "COMPACTION_INTERVAL", 2)
    manifests = Manifests(Lake(str(tmp_path), spark))
    manifests.ensure()
    record(manifests, 1)
    refused = []

    def lose(folder: Path, snapshot: Snapshot) -> int:
        refused.append(snapshot.version)
        raise ConflictError("another one was first")

    monkeypatch.setattr(native_write, "compact", lose)
    record(manifests, 2, 3)
    monkeypatch.undo()
    assert len(refused) == 1
    assert Lake(str(tmp_path), spark).table("_pgdelta", "manifests").frame().count() == 3
