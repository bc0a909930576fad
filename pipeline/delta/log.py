"""The log of a Delta table: Delta's own object for it, and what its commits say of themselves."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

JVM_ERRORS = (PySparkException, Py4JJavaError)
"""What a look at a log raises where the log is not whole, or has no such version."""

# Commits of these operations leave every row as it was.
HARMLESS = frozenset(
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
# Some of them change columns.
SHAPING = frozenset({"ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "DROP COLUMNS", "RENAME COLUMN"})


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """What a commit says of itself; `restored` is the version that a RESTORE went back to."""

    version: int
    operation: str
    metadata: dict[str, Any]
    restored: int | None = None


@dataclass(frozen=True, slots=True)
class _Names:
    """What is called of the JVM at every look: py4j would ask the JVM for each part of a name each time."""

    activate: Any
    for_table: Any
    none: Any
    write_json: Any


@lru_cache(maxsize=1)
def _names_of(jvm: Any) -> _Names:
    delta = jvm.org.apache.spark.sql.delta
    session_class: Any = SparkSession._get_j_spark_session_class(jvm)
    return _Names(
        session_class.setActiveSession,
        delta.DeltaLog.forTable,
        jvm.scala.Option.empty(),
        delta.util.JsonUtils.mapper().writeValueAsString,
    )


def delta_log(spark: SparkSession, path: str) -> Any:
    """Return the `DeltaLog` of the table at a path, be it there or not.

    It is an object of the JVM: for what Delta's API for Python does not reach.
    """
    names = _names_of(spark._jvm)
    # Delta asks this thread for its session where a look takes a Spark job, as after a run that was killed
    # between its commit and the commit's checksum file.
    names.activate(spark._jsparkSession)
    return names.for_table(spark._jsparkSession, path)


def newest_snapshot(spark: SparkSession, path: str) -> Any:
    """Return the newest `Snapshot` of the table at a path, after a look at its log."""
    none = _names_of(spark._jvm).none
    return delta_log(spark, path).update(False, none, none)


def clear_cache(spark: SparkSession, path: str) -> None:
    """Drop what Delta has cached of the log at a path: the next read starts from its files."""
    jvm: Any = spark._jvm
    hadoop_path = jvm.org.apache.hadoop.fs.Path(path)
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, hadoop_path)


def offsets_in(spark: SparkSession, snapshot: Any) -> dict[str, int]:
    """Return what each application recorded last, by its id: Delta's `txn` actions as of a snapshot."""
    checksum = snapshot.checksumOpt()
    recorded = checksum.get().setTransactions() if checksum.isDefined() else checksum
    # What the commit's checksum file does not say takes a Spark job over the table's log.
    found = recorded.get() if recorded.isDefined() else snapshot.setTransactions()
    # Each copy leaves an id for good: one text, not several calls into the JVM for each of them.
    return {each["appId"]: each["version"] for each in json.loads(_names_of(spark._jvm).write_json(found))}


def actions_since(
    spark: SparkSession, path: str, version: int, *, is_whole: bool
) -> Iterator[tuple[int, Iterable[Any]]]:
    """Give each commit behind a version with its actions, Delta's own objects in the JVM, in order.

    Where the log lacks versions, `is_whole` has Delta raise Py4JJavaError; else those that it has are given.
    """
    jvm: Any = spark._jvm
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    for commit in as_java(delta_log(spark, path).getChanges(version + 1, jvm.scala.Option.empty(), is_whole)):
        yield int(commit._1()), as_java(commit._2())


def kind_of(action: Any) -> str:
    """Return the name of an action's class: `AddFile`, `CommitInfo`, `SetTransaction`, …"""
    return str(action.getClass().getSimpleName())


def metadata_of(information: Any) -> dict[str, Any]:
    """Return what a `CommitInfo` has as user metadata, empty where it has none or there is no such action."""
    metadata = None if information is None else information.userMetadata()
    return json_object(metadata.get() if metadata is not None and metadata.isDefined() else None)


def operations_since(spark: SparkSession, path: str, version: int) -> Iterator[LoggedOperation]:
    """Give the commits behind a version that the log still has, in the order of their versions."""
    for number, actions in actions_since(spark, path, version, is_whole=False):
        found = next((action for action in actions if kind_of(action) == "CommitInfo"), None)
        if found is None:  # Delta's format does not ask for one
            yield LoggedOperation(number, "a commit without a name", {})
            continue
        restored = found.operationParameters().get("version") if found.operation() == "RESTORE" else None
        text = str(restored.get()) if restored is not None and restored.isDefined() else ""
        yield LoggedOperation(
            number, str(found.operation()), metadata_of(found), int(text) if text.isdecimal() else None
        )


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a commit's user metadata, empty for anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
