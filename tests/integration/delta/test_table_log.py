"""The native reader of logs and rows against Spark, on logs that Spark wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.delta.rows import read_rows
from pipeline.delta.spark.log import newest_snapshot, offsets_in
from pipeline.delta.table_log import TableLog
from pipeline.errors import LakeError

pytestmark = pytest.mark.spark


def agree(spark: SparkSession, path: Path, oldest: int = 0) -> None:
    """Compare with Spark what a reader that followed the log and a new one find, and an older version."""
    theirs = newest_snapshot(spark, f"file:{path}")
    rows = spark.read.format("delta").load(str(path))
    names = rows.columns
    expected = sorted(row[0] for row in rows.selectExpr("to_json(struct(*))").collect())
    tables = []
    for log in (TableLog.of(str(path)), TableLog(str(path))):
        ours = log.snapshot()
        assert ours.version == theirs.version()
        assert ours.table_id == theirs.metadata().id()
        assert json.loads(ours.schema_string) == json.loads(theirs.metadata().schemaString())
        assert ours.offsets == offsets_in(spark, theirs)
        mapper: Any = spark._jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()  # type: ignore[union-attr]
        configuration = mapper.writeValueAsString(theirs.metadata().configuration())
        assert ours.configuration == json.loads(configuration)
        assert len(ours.files) == ours.file_count == theirs.numOfFiles()
        tables.append(read_rows(str(path), ours))
    followed, table = tables
    assert sorted(map(repr, followed.to_pylist())) == sorted(map(repr, table.to_pylist()))
    assert followed.schema == table.schema
    assert table.column_names == names
    copy = path.parent / f"{path.name}.parquet"
    pq.write_table(table, copy)
    frame = spark.read.schema(rows.schema).option("__globPaths__", "false").parquet(str(copy))
    assert sorted(row[0] for row in frame.selectExpr("to_json(struct(*))").collect()) == expected
    version = max(oldest, theirs.version() - 2)
    older = TableLog.of(str(path)).snapshot_at(version)
    there = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    assert read_rows(str(path), older).num_rows == there.count()


def write(spark: SparkSession, path: Path, query: str, mode: str = "append", **options: str) -> None:
    spark.sql(query).write.format("delta").mode(mode).options(**options).save(str(path))


def run(spark: SparkSession, path: Path, statement: str) -> None:
    spark.sql(statement.format(t=f"delta.`{path}`"))


EVERY_TYPE = (
    "SELECT id, CAST(id AS INT) i, CAST(id AS SMALLINT) s, CAST(id AS TINYINT) b, CAST(id AS FLOAT) f, "
    "CAST(id AS DOUBLE) d, id > 3 AS flag, CAST(CAST(id AS STRING) AS BINARY) x, "
    "DATE'2020-01-01' + CAST(id AS INT) day, "
    "TIMESTAMP'2020-01-01 00:00:00.123456Z' + make_interval(0, 0, 0, CAST(id AS INT)) ts, "
    "TIMESTAMP_NTZ'1900-01-01 00:00:00' ntz, CAST(id AS DECIMAL(38, 10)) n, "
    "array(named_struct('a', id, 'b', 'x'), NULL) l, map('k', id) m, named_struct('inner', array(id)) st, "
    "IF(id % 2 = 0, NULL, array(id)) nl FROM range({})"
)


@pytest.mark.slow
def test_every_type_and_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t [x] %20"
    write(spark, path, EVERY_TYPE.format(7), **{"delta.checkpointInterval": "3"})
    agree(spark, path)
    for number in range(5):
        write(spark, path, EVERY_TYPE.format(number), txnAppId=f"app {number % 2}", txnVersion=str(number))
        TableLog.of(str(path)).snapshot()
    agree(spark, path)
    assert list(path.glob("_delta_log/*.checkpoint.parquet"))
    run(spark, path, "DELETE FROM {t} WHERE id = 2")
    run(spark, path, "OPTIMIZE {t}")
    agree(spark, path)
    run(spark, path, "RESTORE {t} TO VERSION AS OF 2")
    run(spark, path, "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')")
    agree(spark, path)
    # a log whose beginning was cleaned up
    for file in path.glob("_delta_log/0000000000000000000[0-2].json"):
        file.unlink()
    TableLog.forget(str(path))
    agree(spark, path, 3)
    with pytest.raises(LakeError, match="version 1 any more"):
        TableLog.of(str(path)).snapshot_at(1)
    with pytest.raises(LakeError, match="version 1 any more"):
        list(TableLog.of(str(path)).actions_after(0))
    assert next(v for v, _ in TableLog.of(str(path)).actions_after(0, is_whole=False)) == 3


def test_multi_part_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.checkpoint.partSize", "2")
    for number in range(4):
        write(session, path, f"SELECT {number} AS n", **{"delta.checkpointInterval": "2"})
    assert list(path.glob("_delta_log/*.checkpoint.*.*.parquet"))
    agree(spark, path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_checkpoints_of_version_two(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t"
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", kind)
    options = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"}
    for number in range(4):
        write(session, path, f"SELECT {number} AS n", txnAppId="a", txnVersion=str(number), **options)
    assert list(path.glob(f"_delta_log/*.checkpoint.*-*.{kind}"))
    assert list(path.glob("_delta_log/_sidecars/*.parquet"))
    for file in path.glob("_delta_log/0000000000000000000[0-2].json"):
        file.unlink()
    agree(spark, path, 3)
    assert read_rows(str(path), TableLog.of(str(path)).snapshot_at(2)).num_rows == 3


def test_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(spark, path, EVERY_TYPE.format(100), **{"delta.enableDeletionVectors": "true"})
    before = TableLog.of(str(path)).snapshot()
    held = set(before.files)
    run(spark, path, "DELETE FROM {t} WHERE id % 7 = 1")
    TableLog.of(str(path)).snapshot()  # and follows from here
    run(spark, path, "DELETE FROM {t} WHERE id % 7 = 2")
    agree(spark, path)
    assert set(before.files) == held
    found = read_rows(str(path), TableLog.of(str(path)).snapshot(), columns=["s", "id"])
    assert found.column_names == ["s", "id"]
    assert found.num_rows == 100 - 15 - 14


def test_column_mapping_and_columns_that_files_lack(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    query = "SELECT id AS a, 'x' AS b, named_struct('c', id, 'd', 'y') AS s FROM range(3)"
    write(spark, path, query, **{"delta.columnMapping.mode": "name"})
    run(spark, path, "ALTER TABLE {t} RENAME COLUMN a TO `a b`")
    run(spark, path, "ALTER TABLE {t} RENAME COLUMN s.c TO e")
    run(spark, path, "ALTER TABLE {t} ADD COLUMNS (a STRING, s.c INT)")
    TableLog.of(str(path)).snapshot()  # and follows from here
    run(spark, path, "ALTER TABLE {t} DROP COLUMN b")
    run(spark, path, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    run(spark, path, "ALTER TABLE {t} ADD COLUMNS (n SMALLINT)")
    run(spark, path, "INSERT INTO {t} SELECT 7, named_struct('e', 8, 'd', 'z', 'c', 9), 'new', 3")
    run(spark, path, "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT")
    agree(spark, path)


def test_a_table_that_is_created_again_with_partitions(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    log = TableLog.of(str(path))
    assert log.snapshot().version == -1
    write(spark, path, "SELECT 1 AS n", txnAppId="a", txnVersion="1")
    first = log.snapshot()
    assert len(first.files) == 1
    shutil.rmtree(path)
    assert not log.snapshot().exists
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    query = "SELECT id, IF(id = 1, NULL, concat('a b/', id)) AS p, DATE'2020-01-02' AS q FROM range(3)"
    options = {"txnAppId": "b", "txnVersion": "2"}
    spark.sql(query).write.format("delta").partitionBy("p", "q").options(**options).save(str(path))
    second = log.snapshot()
    assert second.table_id != first.table_id
    assert (second.version, second.offsets) == (0, {"b": 2})
    agree(spark, path)


def test_forgotten_offsets_are_those_that_spark_forgets(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(spark, path, "SELECT 1 AS n", txnAppId="a", txnVersion="1")
    for days, offsets in ((0, {}), (1, {"a": 1})):
        run(
            spark,
            path,
            "ALTER TABLE {t} SET TBLPROPERTIES "
            f"('delta.setTransactionRetentionDuration' = 'interval {days} days')",
        )
        theirs = offsets_in(spark, newest_snapshot(spark, f"file:{path}"))
        assert TableLog.of(str(path)).snapshot().offsets == TableLog(str(path)).snapshot().offsets == theirs
        assert theirs == offsets


def test_commit_timestamps(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(spark, path, "SELECT 1 AS n", **{"delta.enableInCommitTimestamps": "true"})
    [information] = [a["commitInfo"] for a in TableLog.of(str(path)).actions(0) if "commitInfo" in a]
    assert TableLog.of(str(path)).snapshot().timestamp == information["inCommitTimestamp"]
