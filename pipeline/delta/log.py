"""The log of a Delta table: Delta's own objects for it, and what its commits record about themselves.

The objects live in the JVM: they give what Delta's Python API does not have. Nothing is written. Operation
names are those of Delta's `DeltaOperations`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

JVM_ERRORS = (PySparkException, Py4JJavaError)
"""Raised if a log is incomplete or lacks a version."""

# Commits of these operations change no row.
ROW_PRESERVING = frozenset(
    {
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "CLUSTER BY",
        "COMPUTE STATS",
        "CREATE TABLE",
        "DOMAIN METADATA CLEANUP",
        "DROP COLUMNS",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "FSCK",
        "OPTIMIZE",
        "OPTIMIZE CHECKPOINT",
        "RENAME COLUMN",
        "REORG",
        "REORG TABLE UPGRADE UNIFORM",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
# Those that change columns.
COLUMN_CHANGING = frozenset(
    {"ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "DROP COLUMNS", "RENAME COLUMN"}
)


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """What a commit records about itself; `restored_version` is the target of a RESTORE."""

    version: int
    operation: str
    metadata: dict[str, Any]
    restored_version: int | None = None


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
) -> Iterator[tuple[int, Iterable[Any]]]:
    """Yield the commits after a version in order, each with its actions (Delta's objects in the JVM).

    If the log lacks versions, Delta raises Py4JJavaError with `is_whole`; without it they are left out.
    """
    jvm: Any = spark._jvm
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    for commit in as_java(delta_log(spark, path).getChanges(version + 1, jvm.scala.Option.empty(), is_whole)):
        yield int(commit._1()), as_java(commit._2())


def action_name(action: Any) -> str:
    """Return the class name of an action: `AddFile`, `CommitInfo`, `SetTransaction`, …"""
    return str(action.getClass().getSimpleName())


def user_metadata_of(information: Any) -> dict[str, Any]:
    """Return the user metadata of a `CommitInfo`, empty if it has none or is None."""
    metadata = None if information is None else information.userMetadata()
    return json_object(metadata.get() if metadata is not None and metadata.isDefined() else None)


def operations_after(spark: SparkSession, path: str, version: int) -> Iterator[LoggedOperation]:
    """Yield the commits after a version that the log still has, in order."""
    for number, actions in actions_after(spark, path, version, is_whole=False):
        information = next((action for action in actions if action_name(action) == "CommitInfo"), None)
        if information is None:  # the protocol does not require it
            yield LoggedOperation(number, "a commit without a name", {})
            continue
        operation = str(information.operation())
        restored = information.operationParameters().get("version") if operation == "RESTORE" else None
        text = str(restored.get()) if restored is not None and restored.isDefined() else ""
        restored_version = int(text) if text.isdecimal() else None
        yield LoggedOperation(number, operation, user_metadata_of(information), restored_version)


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object that a commit's user metadata is, empty for anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
