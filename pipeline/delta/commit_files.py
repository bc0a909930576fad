"""Commit data files that exist already, and the offsets of what they contain, by Delta's own transaction.

Ingest writes bronze's files itself, so Spark need not read and write every row again. The actions are those
of Delta's transaction log protocol (`add`, `txn`) as JSON; conflict detection, the log store and checkpoints
are the same as for any other write. A commit is refused if the recorded offset is not the expected one, or if
an ingest that started later has written to the table. Every commit is read back, so that nothing is
acknowledged that the storage lost.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from pipeline.delta.log import delta_log
from pipeline.delta.retry import is_same_write, retry_conflicts
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import FencedError, LakeError
from pipeline.protocol.lsn import INVALID, LSN


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the table's folder that no version contains yet."""

    name: str
    size: int  # bytes
    row_count: int
    min_values: dict[str, Any]
    max_values: dict[str, Any]

    def action(self) -> dict[str, Any]:
        """Return the `add` action."""
        statistics = {
            "numRecords": self.row_count,
            "minValues": self.min_values,
            "maxValues": self.max_values,
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


@dataclass(slots=True)
class Epoch:
    """The number of one start of ingest, which fences all earlier starts.

    The first commit to a table claims it for the epoch; from then on commits of earlier epochs are refused.
    """

    txn: TxnId
    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    claimed: set[str] = field(default_factory=set)  # paths of tables

    def holds(self, path: str, recorded: Mapping[str, LSN]) -> bool:
        """Return whether no later epoch, and no other start of this number, has claimed the table."""
        epoch = recorded.get(str(self.txn), INVALID)
        return epoch < self.number or (epoch == self.number and path in self.claimed)


def commit_files(
    table: LakeTable,
    files: Sequence[DataFile],
    *commits: TableCommit,
    rows: DataFrame | None = None,
    epoch: Epoch | None = None,
) -> None:
    """Append `files` and `rows` (possibly none) and record the offsets, all in one commit.

    Does nothing if one of the offsets is already recorded. The commit has the metadata of the first of
    `commits`. Raises FencedError if the recorded offset is not the expected one or a later epoch has written,
    LakeError if the storage lost the commit.
    """
    with epoch.lock if epoch else nullcontext():
        try:
            retry_conflicts(lambda: _commit(table, files, commits, rows, epoch))
        except Exception as error:
            if epoch is None or not is_same_write(error):
                raise
            _refuse_fenced(table, table.offsets(), commits, epoch)
            raise
        if epoch:
            epoch.claimed.add(table.path)


def _commit(
    table: LakeTable,
    files: Sequence[DataFile],
    commits: Sequence[TableCommit],
    rows: DataFrame | None,
    epoch: Epoch | None,
) -> None:
    jvm: Any = table.spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    transaction = delta_log(table.spark, table.path).startTransaction()
    recorded = table.offsets(transaction.snapshot())
    _refuse_fenced(table, recorded, commits, epoch)
    if any(recorded.get(str(commit.txn), -1) >= commit.lsn for commit in commits):
        return
    versions = {str(commit.txn): int(commit.lsn) for commit in commits}
    if epoch:
        # lets Delta refuse this commit if another start claims the table first
        transaction.readTxn().addOne(str(epoch.txn))
        if table.path not in epoch.claimed:
            versions[str(epoch.txn)] = epoch.number
    for commit in commits:
        # lets Delta refuse this commit if another writer records the id first, as `txnVersion` does, which
        # would read the complete log of the table
        transaction.readTxn().addOne(str(commit.txn))
    actions = jvm.java.util.ArrayList()
    if rows is not None:
        written: Any = transaction.writeFiles(rows._jdf)
        for added in jvm.scala.jdk.javaapi.CollectionConverters.asJava(written):
            actions.add(added)
    recorded_versions = (
        {"txn": {"appId": app_id, "version": version, "lastUpdated": _now()}}
        for app_id, version in versions.items()
    )
    for action in (*(file.action() for file in files), *recorded_versions):
        actions.add(delta.actions.Action.fromJson(json.dumps(action)))
    sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
    none = jvm.scala.Option.empty()
    metadata = jvm.scala.Some(commits[0].user_metadata) if commits else none
    write = getattr(delta, "DeltaOperations$Write")
    append = jvm.org.apache.spark.sql.SaveMode.Append
    operation = write(append, none, none, metadata, none, none, none, none, none)
    version = transaction.commit(sequence, operation)
    _read_back(table, transaction, version)


def _refuse_fenced(
    table: LakeTable, recorded: Mapping[str, LSN], commits: Sequence[TableCommit], epoch: Epoch | None
) -> None:
    if epoch and not epoch.holds(table.path, recorded):
        raise FencedError(
            f"Another ingest has taken over and written to {table.path}, so this one ends. Nothing is lost, "
            "and nothing is written twice."
        )
    for commit in commits:
        offset = recorded.get(str(commit.txn), INVALID)
        if commit.expected_offset is not None and offset != commit.expected_offset:
            raise FencedError(
                f"{table.path} records the offset {offset} for {commit.txn}, but this ingest continues from "
                f"{commit.expected_offset}: another ingest has written to the table, or it was restored to "
                "an earlier version. Nothing was committed. Make sure that only one ingest runs, then run "
                "again."
            )


def _read_back(table: LakeTable, transaction: Any, version: int) -> None:
    """Raise LakeError if the version that Delta assigned to this commit is another one in the log."""
    jvm: Any = table.spark._jvm
    log = transaction.deltaLog()
    path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
    lines = log.store().read(path, log.newDeltaHadoopConf())
    for number in range(lines.size()):
        information = json.loads(lines.apply(number)).get("commitInfo")
        if information is not None and information.get("txnId") == transaction.txnId():
            return
    raise LakeError(
        f"The storage of {table.path} lost a commit: it confirmed version {version}, which is another "
        "writer's. Nothing of the commit was acknowledged. Let all writers use a log store in which commits "
        "exclude each other (docs/operations/limits.md), then run again."
    )


def _now() -> int:
    return int(time.time() * 1000)
