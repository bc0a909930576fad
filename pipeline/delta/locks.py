"""The lock that lets one apply at a time write the silver tables of a lake.

If the lake is on a file system of this machine, a run holds an operating-system lock on a plain file of the
lake. The lock ends with the process, however that ends, and a copy of the lake is not locked. The text of the
file names the holder, for people only.

If the lake is on an object store, a run holds a lease (`store/lease`), which fences its commits (`fence`). A
lease ends a while after its process. On other storage, and on file systems without locks, nothing is held:
there Delta refuses the second of two commits for the same offset (docs/operations/limits.md describes what
remains).
"""

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.delta.commit_files import commit_files
from pipeline.delta.fence import Fence, announce_fences, fence_of, fenced, withdraw_fence
from pipeline.delta.filesystem import folders_in
from pipeline.delta.store.lease import SECONDS, Lease
from pipeline.delta.store.looks import look_again
from pipeline.delta.store.mirror import mirror_at
from pipeline.delta.store.store import is_store
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.errors import NOTICES, LakeError
from pipeline.protocol.lsn import LSN

SECONDS_VARIABLE = "PGDELTA_LEASE_SECONDS"  # another length of a lease, for tests
_LEASE = "_pgdelta/locks/apply"
_METADATA = "_pgdelta"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def lock_apply(lake: Lake, pipeline: str, stop: threading.Event | None = None) -> Iterator[None]:
    """Hold the lake's apply lock; raise LakeError if another apply holds it.

    On an object store this waits for the lease of a run that has died, until `stop` is set.
    """
    if lake.local_root is not None:
        with _file_lock(lake, lake.local_root):
            yield
    elif is_store(lake.root):
        with _lease(lake, pipeline, stop):
            yield
    else:
        yield


def refuse_while_apply_runs(lake: Lake) -> None:
    """Raise LakeError if an apply of the lake is running now."""
    if lake.local_root is not None:
        with _file_lock(lake, lake.local_root):
            pass
    elif is_store(lake.root):
        lease = _lease_of(lake)
        lease.acquire(NOTICES.info)
        lease.release()


def find_running_apply(lake: Lake) -> str | None:
    """Return who holds the lake's apply lock, or held it last and did not release it; None if it is free.

    Changes nothing, and never makes another apply fail that starts at this moment. Raises LakeError if the
    lock cannot be used.
    """
    if lake.local_root is not None:
        return _find_file_holder(_lock_path(lake.local_root))
    return _lease_of(lake).find_holder() if is_store(lake.root) else None


def claim_table(table: LakeTable) -> None:
    """Commit the number of this process's lease to a table, if an earlier owner could still commit to it.

    A later commit of an earlier owner is then refused. Does nothing without a lease.
    """
    fence = fence_of(table.path)
    if fence is None or table.path in fence.claimed:
        return
    snapshot = table.snapshot()
    if snapshot.version >= 0:
        if fence.claims(table.path, snapshot.offsets):
            commit_files(table, [], TableCommit(fence.txn, LSN(fence.lease.number)))
            look_again(table.local_path)  # an earlier owner may have committed before it
        fence.claimed.add(table.path)


@contextmanager
def _lease(lake: Lake, pipeline: str, stop: threading.Event | None) -> Iterator[None]:
    lease = _lease_of(lake)
    lease.acquire(NOTICES.info, stop)
    is_clean = False
    try:
        with fenced(Fence(lake.root, TxnId(pipeline, kind=TxnKind.FENCE), lease)):
            if (spark := lake.sessions.started) is not None:
                announce_fences(spark)
            for name in folders_in(lake.sessions, lake.path(_METADATA)):
                claim_table(lake.table(_METADATA, name))
            yield
        is_clean = True
    finally:
        lease.release(is_clean=is_clean)
        if (spark := lake.sessions.started) is not None:
            with suppress(Exception):  # the JVM may have ended
                withdraw_fence(spark, lake.root)


def _lease_of(lake: Lake) -> Lease:
    mirror = mirror_at(lake.root)
    assert mirror is not None, lake.root
    seconds = float(os.environ.get(SECONDS_VARIABLE, SECONDS))
    # a request must have ended long before the lease does
    return Lease(mirror.store.with_patience(seconds / 6), _LEASE, "apply", seconds)


@contextmanager
def _file_lock(lake: Lake, root: str) -> Iterator[None]:
    path = _lock_path(root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise _not_opened(path, error) from None
    try:
        _acquire(file, lake)
        try:
            yield
        finally:
            _write_holder(file, "")
    finally:
        os.close(file)  # releases the lock


def _acquire(file: int, lake: Lake) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read_holder(file)
        raise LakeError(
            f"Another apply is writing the silver tables of {lake.root}{holder and f' ({holder})'}. Stop "
            "it, or wait until it ends."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    _write_holder(file, f"process {os.getpid()} on {socket.gethostname()}")


def _find_file_holder(path: Path) -> str | None:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_opened(path, error) from None
    try:
        holder = _read_holder(file)
        if not holder:  # released, or not acquired yet: the lock is not tried, as an apply may start now
            return None
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(file)
    return None


def _lock_path(root: str) -> Path:
    return Path(root, "_pgdelta", "locks", "apply")


def _not_opened(path: Path, error: OSError) -> LakeError:
    return LakeError(
        f"The lock file {path} cannot be opened: {error.strerror}. Give apply write access to its folder."
    )


def _read_holder(file: int) -> str:
    return os.pread(file, 200, 0).decode("utf-8", "replace").strip()


def _write_holder(file: int, text: str) -> None:
    with suppress(OSError):  # the lock is held even if the disk is full
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
