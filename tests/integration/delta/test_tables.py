"""A table's position and emptiness, with and without Delta's checksum files."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.spark.frames import local_frame
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.protocol.lsn import LSN

pytestmark = pytest.mark.spark

ONE, TWO = TxnId("one"), TxnId("two")


def make(spark: SparkSession, folder: Path) -> LakeTable:
    table = Lake(str(folder), spark).table("t")
    table.ensure("id INT")
    for app, lsn in ((ONE, 5), (TWO, 9), (ONE, 7)):
        table.append(local_frame(spark, [{"id": lsn}], "id INT"), TableCommit(app, LSN(lsn)))
    return table


def test_positions_and_files_are_those_of_the_newest_version(spark: SparkSession, tmp_path: Path) -> None:
    table = make(spark, tmp_path)
    for has_checksums in (True, False):
        if not has_checksums:  # another writer, or another engine, need not write them
            for file in (tmp_path / "t" / "_delta_log").glob("*.crc"):
                file.unlink()
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
        assert [table.offset(app) for app in (ONE, TWO, TxnId("three"))] == [LSN(7), LSN(9), None]
        assert table.version_and_offset(ONE) == (3, LSN(7))
        assert not table.is_empty()
    table.overwrite(local_frame(spark, [], "id INT"), TableCommit(ONE, LSN(8)))
    assert table.is_empty()
    assert [table.offset(app) for app in (ONE, TWO)] == [LSN(8), LSN(9)]


@pytest.mark.parametrize("exists", [False, True])
def test_a_table_is_replaced_by_one_whose_columns_need_features(
    spark: SparkSession, tmp_path: Path, exists: bool
) -> None:
    lake = Lake(str(tmp_path), spark)
    other, table = lake.table("other"), lake.table("t")
    ddl = "`an id` INT, at TIMESTAMP_NTZ"
    other.ensure(ddl, {"delta.columnMapping.mode": "name"})
    other.append(local_frame(spark, [{"an id": 1, "at": "2026-01-01T00:00:00"}], ddl))
    if exists:
        table.ensure("id INT")
    table.replace_with(other, TableCommit(ONE, LSN(8)))
    assert [tuple(row) for row in table.frame().collect()] == [tuple(row) for row in other.frame().collect()]
    assert table.schema().names == other.schema().names
    assert table.offset(ONE) == LSN(8)
