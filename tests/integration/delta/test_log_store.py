"""The log store for local folders, file by file: what it leaves in a log, and what it refuses."""

import stat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.spark.settings import LOG_STORES
from pipeline.delta.table import Lake

pytestmark = pytest.mark.spark
LOG_STORE = LOG_STORES["file"]
LINES = ['{"commitInfo":{}}', '{"remove":{"path":"x","dataChange":true}}']


def write(
    spark: SparkSession, path: Path, *, overwrites: bool = False, umask: str = "022", store: str = LOG_STORE
) -> None:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    configuration = session.sessionState().newHadoopConf()
    configuration.set("fs.permissions.umask-mode", umask)
    written = jvm.java.util.ArrayList()
    for line in LINES:
        written.add(line)
    made = jvm.org.apache.spark.util.Utils.classForName(store, True, False)
    constructor = made.getConstructors()[0]
    arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 1)  # type: ignore[union-attr]
    arguments[0] = configuration
    target = jvm.org.apache.hadoop.fs.Path(f"file:{path}")
    constructor.newInstance(arguments).write(target, written.iterator(), overwrites, configuration)


def test_an_entry_is_there_whole_and_no_other_file(spark: SparkSession, tmp_path: Path) -> None:
    write(spark, tmp_path / "00000000000000000007.json")
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000007.json"]
    assert (tmp_path / "00000000000000000007.json").read_text().splitlines() == LINES


def test_a_taken_version_is_refused_and_stays_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    taken = tmp_path / "00000000000000000007.json"
    taken.write_text("theirs")
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        write(spark, taken)
    assert (taken.read_text(), len(list(tmp_path.iterdir()))) == ("theirs", 1)


def test_a_replaced_file_is_read_without_the_checksum_of_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    pointer = tmp_path / "pointer"
    write(spark, pointer, overwrites=True, store="io.delta.storage.HDFSLogStore")
    (tmp_path / ".pointer.crc").write_bytes(b"crc\0\0\0\2\0" + b"\1\2\3\4")
    write(spark, pointer, overwrites=True)
    assert spark.read.text(str(pointer)).count() == len(LINES)
    assert [path.name for path in tmp_path.iterdir()] == ["pointer"]


@pytest.mark.parametrize("umask", ["022", "002", "077"])
def test_an_entry_has_the_mode_that_hadoop_gives_files(
    spark: SparkSession, tmp_path: Path, umask: str
) -> None:
    modes = []
    for number, store in enumerate((LOG_STORE, "io.delta.storage.HDFSLogStore")):
        path = tmp_path / f"{number:020}.json"
        write(spark, path, umask=umask, store=store)
        modes.append(stat.S_IMODE(path.stat().st_mode))
    assert modes[0] == modes[1] == 0o666 & ~int(umask, 8)


def test_a_missing_folder_raises_file_not_found(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="FileNotFoundException"):
        write(spark, tmp_path / "gone" / "00000000000000000007.json")


def test_tables_with_every_kind_of_file_are_committed(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path), spark).table("a folder with %2F", "t")
    vectors = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    table.ensure("id INT, part STRING", vectors)
    rows = spark.range(0, 100, 1, 1).selectExpr("CAST(id AS INT)", "'a/b c%' AS part")
    table.append(rows)
    spark.sql(f"DELETE FROM {table.identifier} WHERE id < 10")
    spark.sql(f"UPDATE {table.identifier} SET part = NULL WHERE id < 20")
    assert table.frame().where("part IS NOT NULL").count() == 80
    assert list(Path(tmp_path).rglob("deletion_vector_*.bin"))
    assert not list(tmp_path.rglob("*.tmp"))
