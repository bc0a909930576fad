"""The commits of ingest: Delta's own transaction, given files that are written already, fenced and read back.

Bronze's files are written by ingest as the table holds them: Spark need not read and write every row again.
The actions are JSON as in Delta's transaction log protocol (`add`, `txn`); conflict detection, the log store
and checkpoints are those of every other write. A commit is refused where the position on record is not the
one that it goes on from, or where an ingest that started later has written; what was committed is read back,
so that nothing is acknowledged that a storage lost.
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


@dataclass(slots=True)
class Epoch:
    """The number of one start of ingest, which all of its commits to bronze record.

    It is claimed in a table by the first commit there: from then on earlier starts are refused.
    """

    txn: TxnId
    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    claimed: set[str] = field(default_factory=set)  # the paths of tables

    def holds(self, path: str, recorded: Mapping[str, LSN]) -> bool:
        """Say whether no other start, later or of this very number, has claimed the table."""
        found = recorded.get(str(self.txn), INVALID)
        return found < self.number or (found == self.number and path in self.claimed)


def commit_files(
    table: LakeTable,
    files: Sequence[DataFile],
    *commits: TableCommit,
    rows: DataFrame | None = None,
    epoch: Epoch | None = None,
) -> None:
    """Append the files and rows, be there none, and record the positions; skip what is recorded already.

    What is said of the commit is what the first one says. Several have to be new, all of them. FencedError
    where the position on record is not the one to go on from, or a later epoch is; LakeError where the
    storage lost the commit.
    """
    with epoch.lock if epoch else nullcontext():
        try:
            retry_conflicts(lambda: _commit(table, files, commits, rows, epoch))
        except Exception as error:
            if epoch is None or not is_same_write(error):
                raise
            recorded = table.offsets()
            _refuse_fenced(table, recorded, commits, epoch)
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
    positions = {str(commit.txn): int(commit.lsn) for commit in commits}
    if epoch:
        # Refuses this commit where another start claims the table first.
        transaction.readTxn().addOne(str(epoch.txn))
        if table.path not in epoch.claimed:
            positions[str(epoch.txn)] = epoch.number
    for commit in commits:
        # Refuses this commit where another writer is first under the id, as Delta's `txnVersion` would; that
        # one reads all of the table's log.
        transaction.readTxn().addOne(str(commit.txn))
    actions = jvm.java.util.ArrayList()
    if rows is not None:
        written: Any = transaction.writeFiles(rows._jdf)
        for action in jvm.scala.jdk.javaapi.CollectionConverters.asJava(written):
            actions.add(action)
    added = (file.action() for file in files)
    recording = (
        {"txn": {"appId": app_id, "version": version, "lastUpdated": _now()}}
        for app_id, version in positions.items()
    )
    for described in (*added, *recording):
        actions.add(delta.actions.Action.fromJson(json.dumps(described)))
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
            f"another ingest took over while this one was held up, and has written to {table.path} since: "
            "this one ends; nothing is lost, and nothing is there twice"
        )
    for commit in commits:
        found = recorded.get(str(commit.txn), INVALID)
        if commit.expected_offset is not None and found != commit.expected_offset:
            raise FencedError(
                f"{table.path} records {found} of {commit.txn}, and this ingest was to go on from "
                f"{commit.expected_offset}: another ingest has written there, or the table was restored to "
                "an earlier version; nothing of this was committed: see that one ingest runs at a time, and "
                "run again"
            )


def _read_back(table: LakeTable, transaction: Any, version: int) -> None:
    """Raise LakeError where the log has another commit under the version that Delta gave to this one."""
    jvm: Any = table.spark._jvm
    log = transaction.deltaLog()
    path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
    lines = log.store().read(path, log.newDeltaHadoopConf())
    for number in range(lines.size()):
        information = json.loads(lines.apply(number)).get("commitInfo")
        if information is not None and information.get("txnId") == transaction.txnId():
            return
    raise LakeError(
        f"the storage of {table.path} lost a commit: version {version} is another writer's, though this one "
        "was told that it had written it; nothing of it was acknowledged: let all writers use a log store in "
        "which commits exclude each other (docs/limits.md), and run again"
    )


def _now() -> int:
    return int(time.time() * 1000)
