"""Commit data files that exist already, and the offsets of what they contain.

Ingest writes bronze's files itself, so nothing reads and writes every row again. On a file system of this
machine the commit is pgdelta's own (`native_commit`), elsewhere that of Delta's transaction in Spark; the
actions are those of Delta's transaction log protocol (`add`, `txn`). A commit is refused if the recorded
offset is not the expected one, or if an ingest that started later has written to the table. Every commit is
read back, so that nothing is acknowledged that the storage lost.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.delta.data_files import DataFile
from pipeline.delta.log import now_milliseconds
from pipeline.delta.native_commit import Operation, Reads, lost_commit
from pipeline.delta.native_write import rows_file
from pipeline.delta.retry import ConflictError, SameWriteError, is_same_write, retry_conflicts
from pipeline.delta.spark.frames import Rows, local_frame
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.errors import FencedError
from pipeline.protocol.lsn import INVALID, LSN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_now = now_milliseconds


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
    rows: tuple[Rows, str] | None = None,
    frame: DataFrame | None = None,
    epoch: Epoch | None = None,
) -> None:
    """Append `files` (possibly none) and a few rows, with their DDL, and record the offsets, in one commit.

    The rows of a `frame` are for tables on other storage than this machine's file systems.
    Does nothing if one of the offsets is already recorded. The commit has the metadata of the first of
    `commits`. Raises FencedError if the recorded offset is not the expected one or a later epoch has written,
    LakeError if the storage lost the commit.
    """
    with epoch.lock if epoch else nullcontext():
        try:
            retry_conflicts(lambda: _commit(table, files, commits, rows, frame, epoch))
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
    rows: tuple[Rows, str] | None,
    frame: DataFrame | None,
    epoch: Epoch | None,
) -> None:
    snapshot = table.snapshot()
    if frame is not None or not table.writes_natively(snapshot):
        frame = local_frame(table.spark, *rows) if rows is not None else frame
        _commit_by_spark(table, files, commits, frame, epoch)
        return
    versions = _versions(table, table.offsets(snapshot), commits, epoch)
    if versions is None:
        return
    own = [] if rows is None else [rows_file(table.folder, snapshot, rows[0])]
    metadata = commits[0].user_metadata if commits else None
    operation = Operation("WRITE", {"mode": "Append"}, {}, metadata, is_blind_append=True)
    # without a claim of its own, the commit is refused if another start claims the table first
    reads = Reads(app_ids=[str(epoch.txn)] if epoch else ())
    try:
        table.commit(snapshot, [file.action() for file in (*files, *own)], versions, operation, reads)
    except (ConflictError, SameWriteError):
        for file in own:
            (table.folder / file.name).unlink(missing_ok=True)
        raise


def _versions(
    table: LakeTable, recorded: Mapping[str, LSN], commits: Sequence[TableCommit], epoch: Epoch | None
) -> dict[str, int] | None:
    """Return what a commit records by application id; None if one of its offsets is recorded already."""
    _refuse_fenced(table, recorded, commits, epoch)
    if any(recorded.get(str(commit.txn), -1) >= commit.lsn for commit in commits):
        return None
    versions = {str(commit.txn): int(commit.lsn) for commit in commits}
    if epoch and table.path not in epoch.claimed:
        versions[str(epoch.txn)] = epoch.number
    return versions


def _commit_by_spark(
    table: LakeTable,
    files: Sequence[DataFile],
    commits: Sequence[TableCommit],
    frame: DataFrame | None,
    epoch: Epoch | None,
) -> None:
    from pipeline.delta.spark.log import delta_log, offsets_in

    jvm: Any = table.spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    transaction = delta_log(table.spark, table.path).startTransaction()
    recorded = {app_id: LSN(v) for app_id, v in offsets_in(table.spark, transaction.snapshot()).items()}
    versions = _versions(table, recorded, commits, epoch)
    if versions is None:
        return
    if epoch:
        # lets Delta refuse this commit if another start claims the table first
        transaction.readTxn().addOne(str(epoch.txn))
    for commit in commits:
        # lets Delta refuse this commit if another writer records the id first, as `txnVersion` does, which
        # would read the complete log of the table
        transaction.readTxn().addOne(str(commit.txn))
    actions = jvm.java.util.ArrayList()
    if frame is not None:
        written: Any = transaction.writeFiles(frame._jdf)
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
    """Raise LostCommitError if the version that Delta assigned to this commit is another one in the log."""
    jvm: Any = table.spark._jvm
    log = transaction.deltaLog()
    path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
    lines = log.store().read(path, log.newDeltaHadoopConf())
    for number in range(lines.size()):
        information = json.loads(lines.apply(number)).get("commitInfo")
        if information is not None and information.get("txnId") == transaction.txnId():
            return
    raise lost_commit(table.path, version)
