"""Commits of files that are written already: Delta's own transaction, given actions instead of rows.

Bronze's files are written by ingest as the table holds them: Spark need not read and write every row again.
The actions are JSON as in Delta's transaction log protocol (`add`, `txn`); conflict detection, the log store
and checkpoints are those of every other write.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.lake.conflicts import despite_conflicts
from pipeline.lake.delta_log import delta_log
from pipeline.lake.positions import Commit
from pipeline.lake.tables import LakeTable


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the table's folder that is not part of it yet."""

    name: str
    size: int  # bytes
    row_count: int
    least: dict[str, Any]
    greatest: dict[str, Any]

    def action(self) -> dict[str, Any]:
        """Return the `add` action."""
        statistics = {
            "numRecords": self.row_count,
            "minValues": self.least,
            "maxValues": self.greatest,
        }
        return {
            "add": {
                "path": self.name,
                "partitionValues": {},
                "size": self.size,
                "modificationTime": _now(),
                "dataChange": True,
                "stats": json.dumps(statistics),
            }
        }


def commit_files(table: LakeTable, files: Sequence[DataFile], *commits: Commit) -> None:
    """Append the files, be there none, and record the positions; skip what is recorded already.

    What is said of the commit is what the first one says. Several have to be new, all of them.
    """
    despite_conflicts(lambda: _commit(table, files, commits))


def _commit(table: LakeTable, files: Sequence[DataFile], commits: Sequence[Commit]) -> None:
    spark: Any = table.spark
    jvm = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    transaction = delta_log(table.spark, table.path).startTransaction()
    recorded = table.positions(transaction.snapshot())
    if any(recorded.get(commit.app_id, -1) >= commit.lsn for commit in commits):
        return
    for commit in commits:
        # Refuses this commit where another writer is first under the id, as Delta's `txnVersion` would; that
        # one reads all of the table's log.
        transaction.readTxn().addOne(commit.app_id)
    positions = [
        {"txn": {"appId": commit.app_id, "version": int(commit.lsn), "lastUpdated": _now()}}
        for commit in commits
    ]
    actions = jvm.java.util.ArrayList()
    for action in (*(file.action() for file in files), *positions):
        actions.add(delta.actions.Action.fromJson(json.dumps(action)))
    sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
    none = jvm.scala.Option.empty()
    metadata = jvm.scala.Some(commits[0].user_metadata) if commits else none
    write = getattr(delta, "DeltaOperations$Write")
    append = jvm.org.apache.spark.sql.SaveMode.Append
    operation = write(append, none, none, metadata, none, none, none, none, none)
    transaction.commit(sequence, operation)


def _now() -> int:
    return int(time.time() * 1000)
