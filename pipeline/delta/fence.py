"""The fence of a job that holds a lease: a late owner of the lease cannot write after the next one has begun.

A table records the number of a lease as the version of a transaction id. A commit is refused if the table
records a greater number than that of this process, or if a commit that was made meanwhile records one. So the
next owner claims a table, by recording its number, before it reads what it will write to: whatever is late
then is committed before that and read with it, or refused.

A table needs a claim only if an owner since the last one may still write to it. In most runs none may, and
then commits need nothing more. Spark's commits are fenced by the log store, which reads the lease before it
creates a version (`pgdelta.storage.Fence`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.delta.native_commit import Reads
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.spark.log_store import is_on_class_path
from pipeline.delta.store.lease import Lease
from pipeline.delta.store.mirror import files_of
from pipeline.delta.txn import TxnId
from pipeline.errors import FencedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_CLASS = "pgdelta.storage.Fence"


@dataclass(frozen=True, slots=True)
class Fence:
    """What fences the commits of this process to the tables below `root`, except those of bronze.

    Bronze is written by ingest, which has an epoch of its own.
    """

    root: str
    txn: TxnId
    lease: Lease
    claimed: set[str] = field(default_factory=set)
    """Paths of tables that need no claim any more."""

    def covers(self, path: str) -> bool:
        """Return whether commits to the table at a path are fenced."""
        found = _address(path)
        root = _address(self.root)
        return found.startswith(f"{root}/") and not found.startswith(f"{root}/bronze/")

    def claims(self, path: str, offsets: Mapping[str, int]) -> dict[str, int]:
        """Return what a commit has to record by application id, given what its table records.

        Raises FencedError if this process has lost the lease, or a later owner has claimed the table.
        """
        self.lease.check()
        recorded = offsets.get(str(self.txn), 0)
        if recorded > self.lease.number:
            raise self._overtaken(path)
        return {str(self.txn): self.lease.number} if recorded <= self.lease.suspect else {}

    def reads(self, reads: Reads | None) -> Reads:
        """Return what a commit depends on, with the id of the fence."""
        reads = reads or Reads()
        return replace(reads, app_ids=[*reads.app_ids, str(self.txn)])

    def refuse(self, path: str, error: SameWriteError) -> None:
        """Raise the error of a commit that lost against one with an id of this one, if the fence is why."""
        if error.app_id == str(self.txn) and error.version > self.lease.number:
            raise self._overtaken(path) from None
        self.lease.check()
        if error.app_id == str(self.txn):
            raise ConflictError(f"Another commit of this run claimed {path} meanwhile. Run again.") from None

    def refuse_creation(self, path: str, error: SameWriteError) -> None:
        """Raise the error of creating a table that another process created, unless that is this one."""
        if error.version > self.lease.number:
            raise self._overtaken(path) from None
        if error.version < self.lease.number:
            raise ConflictError(f"The table in {path} was created meanwhile. Run again.") from None

    def _overtaken(self, path: str) -> FencedError:
        return FencedError(
            f"Another apply has taken over and written to {path}, so this one ends. Nothing is lost, and "
            "nothing is written twice."
        )


_held: list[Fence] = []
_lock = threading.Lock()


@contextmanager
def fenced(fence: Fence) -> Iterator[None]:
    """Fence the commits of this process for a block."""
    with _lock:
        _held.append(fence)
    try:
        yield
    finally:
        with _lock:
            _held.remove(fence)


def fence_of(path: str) -> Fence | None:
    """Return what fences the commits of this process to the table at a path, which may be in a mirror."""
    if not _held:
        return None
    path = files_of(path).url(path)
    return next((fence for fence in reversed(_held) if fence.covers(path)), None)


def raise_if_fenced(error: Exception, path: str) -> None:
    """Raise FencedError if that is the error, or if this process may not write to a table any more."""
    if isinstance(error, FencedError):
        raise error
    fence = fence_of(path)
    if fence is not None:
        fence.lease.check()


def announce_fences(spark: SparkSession) -> None:
    """Let the log store of a session's JVM fence what this process holds, if it is pgdelta's."""
    if _held and is_on_class_path(spark, _JAVA_CLASS):
        jvm: Any = spark._jvm
        for fence in _held:
            jvm.pgdelta.storage.Fence.hold(fence.root, fence.lease.place, fence.lease.token)


def withdraw_fence(spark: SparkSession, root: str) -> None:
    """Let the log store of a session's JVM refuse no commit below a root any more."""
    if is_on_class_path(spark, _JAVA_CLASS):
        jvm: Any = spark._jvm
        jvm.pgdelta.storage.Fence.release(root)


def _address(path: str) -> str:
    """Return a path without its scheme: `s3` and `s3a` are names of one store."""
    return path.rpartition("://")[2].rstrip("/")
