"""Delta's log in the JVM: its names are resolved once for each JVM."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from pipeline.delta.spark.log import delta_log, forget_log, newest_snapshot
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.protocol.lsn import LSN


class Jvm:
    """A stand-in for py4j's view of the JVM that records which names are read from it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return Name(self, name)


class Name:
    def __init__(self, jvm: Jvm, text: str) -> None:
        self._jvm = jvm
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return Name(self._jvm, f"{self._text}.{name}")

    def __call__(self, *arguments: Any) -> Any:
        return Name(self._jvm, f"{self._text}(…)")


class Session:
    def __init__(self) -> None:
        self._jvm = Jvm()
        self._jsparkSession = object()


def test_names_are_resolved_once_for_each_jvm() -> None:
    first, second = Session(), Session()
    for session in (first, second):
        delta_log(cast(SparkSession, session), "a")
        asked = len(session._jvm.asked)
        newest_snapshot(cast(SparkSession, session), "a")
        newest_snapshot(cast(SparkSession, session), "b")
        assert 0 < len(session._jvm.asked) == asked


def test_a_log_without_its_checksum_file_is_read_in_any_thread(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path), spark).table("t")
    table.ensure("n BIGINT", {"delta.checkpointInterval": "1"})
    table.append(spark.range(3).toDF("n"), TableCommit(TxnId("t"), LSN(7)))
    assert list(tmp_path.glob("t/_delta_log/*.checkpoint.parquet"))
    for checksum in tmp_path.glob("t/_delta_log/*.crc"):
        checksum.unlink()
    forget_log(spark, table.path)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(table.offsets).result() == {"pgdelta:t:1": LSN(7)}
        assert pool.submit(table.is_empty).result() is False
