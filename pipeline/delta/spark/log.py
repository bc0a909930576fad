"""The log of a Delta table as Spark has it: for tables that are not on a file system of this machine.

Delta's own objects in the JVM give what its Python API does not have. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct, to_json

from pipeline.delta.file_list import file_key
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError

JVM_ERRORS = (PySparkException, Py4JJavaError)
"""Raised if a log is incomplete or lacks a version."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _JvmMembers:
    """Members of the JVM that every read of a log calls: py4j would resolve each part of a name each time."""

    activate: Any
    for_table: Any
    none: Any
    write_json: Any


@lru_cache(maxsize=1)
def _jvm_members(jvm: Any) -> _JvmMembers:
    delta = jvm.org.apache.spark.sql.delta
    session_class: Any = SparkSession._get_j_spark_session_class(jvm)
    return _JvmMembers(
        session_class.setActiveSession,
        delta.DeltaLog.forTable,
        jvm.scala.Option.empty(),
        delta.util.JsonUtils.mapper().writeValueAsString,
    )


def delta_log(spark: SparkSession, path: str) -> Any:
    """Return the `DeltaLog` of the table at a path, which need not exist."""
    members = _jvm_members(spark._jvm)
    # Delta uses the active session of this thread if reading the log takes a Spark job, as after a run that
    # was killed between its commit and the commit's checksum file.
    members.activate(spark._jsparkSession)
    return members.for_table(spark._jsparkSession, path)


def newest_snapshot(spark: SparkSession, path: str) -> Any:
    """Return the newest `Snapshot` of the table at a path, read from its log now."""
    none = _jvm_members(spark._jvm).none
    return delta_log(spark, path).update(False, none, none)


def forget_log(spark: SparkSession, path: str) -> None:
    """Remove the log at a path from Delta's cache, so that the next read starts from its files."""
    jvm: Any = spark._jvm
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, hadoop_path)


def offsets_in(spark: SparkSession, snapshot: Any) -> dict[str, int]:
    """Return the version that each application id recorded last: Delta's `txn` actions as of a snapshot."""
    checksum = snapshot.checksumOpt()
    recorded = checksum.get().setTransactions() if checksum.isDefined() else checksum
    # Without the commit's checksum file this takes a Spark job over the table's log.
    found = recorded.get() if recorded.isDefined() else snapshot.setTransactions()
    # Each copy leaves an id permanently: one text instead of several calls into the JVM for each of them.
    return {each["appId"]: each["version"] for each in json.loads(_jvm_members(spark._jvm).write_json(found))}


def actions_after(
    spark: SparkSession, path: str, version: int, *, is_whole: bool
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the commits after a version in order, each with its actions as JSON.

    If the log lacks versions, LakeError is raised with `is_whole`; without it they are left out.
    """
    jvm: Any = spark._jvm
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    try:
        none = jvm.scala.Option.empty()
        for commit in as_java(delta_log(spark, path).getChanges(version + 1, none, is_whole)):
            yield int(commit._1()), [json.loads(str(action.json())) for action in as_java(commit._2())]
    except JVM_ERRORS as error:
        raise LakeError(f"The log of {path} lacks versions after {version}.") from error


def snapshot_of(spark: SparkSession, path: str, version: int | None = None) -> Snapshot:
    """Return a version of a table, default the newest; raise LakeError if the log lacks that version."""
    if version is None:
        found = newest_snapshot(spark, path)
    else:
        log, none = delta_log(spark, path), _jvm_members(spark._jvm).none
        try:
            log.history().checkVersionExists(version, none, True, False)
            found = log.getSnapshotAt(version, none, none, False)
        except JVM_ERRORS as error:
            raise LakeError(f"The log of {path} does not have version {version}.") from error
    metadata = json.loads(str(found.metadata().json()))["metaData"]
    snapshot = Snapshot(
        path,
        version=int(found.version()),
        table_id=str(metadata["id"]),
        schema_string=str(metadata.get("schemaString") or ""),
        partition_columns=tuple(metadata.get("partitionColumns") or ()),
        configuration=dict(metadata.get("configuration") or {}),
        protocol=json.loads(str(found.protocol().json()))["protocol"],
        offsets=LazyMapping(lambda: offsets_in(spark, found)),
        metadata=metadata,
    )
    return snapshot.with_files(LazyMapping(lambda: _files(spark, found), lambda: _file_count(found)))


class LazyMapping(Mapping[str, Value]):
    """A mapping that is read when it is first used; its length may be known before."""

    def __init__(
        self, read: Callable[[], Mapping[str, Value]], count: Callable[[], int] | None = None
    ) -> None:
        self._read = read
        self._count = count
        self._found: Mapping[str, Value] | None = None

    @property
    def _mapping(self) -> Mapping[str, Value]:
        if self._found is None:
            self._found = self._read()
        return self._found

    def __getitem__(self, key: str) -> Value:
        return self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        if self._found is None and self._count is not None:
            return self._count()
        return len(self._mapping)


def _file_count(snapshot: Any) -> int:
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles())


def _files(spark: SparkSession, snapshot: Any) -> dict[str, dict[str, Any]]:
    """Return the `add` action of each file, by its path and the id of its deletion vector."""
    files: dict[str, dict[str, Any]] = {}
    adds = DataFrame(snapshot.allFiles().toDF(), spark)
    for (text,) in adds.select(to_json(struct("*"))).toLocalIterator():
        add = json.loads(text)
        files[file_key(add)] = add
    return files
