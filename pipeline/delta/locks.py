"""The lock that lets one apply at a time write the silver tables of a lake.

If the lake is on a file system of this machine, a run holds an operating-system lock on a plain file of the
lake. The lock ends with the process, however that ends, and a copy of the lake is not locked. The text of the
file names the holder, for people only. On other storage, and on file systems without locks, nothing is held:
there Delta refuses the second of two commits for the same offset (docs/operations/limits.md describes what
remains).
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.delta.table import Lake
from pipeline.errors import LakeError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def lock_apply(lake: Lake) -> Iterator[None]:
    """Hold the lake's apply lock; raise LakeError if another apply holds it."""
    if lake.local_root is None:
        yield
        return
    path = Path(lake.local_root, "_pgdelta", "locks", "apply")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LakeError(
            f"The lock file {path} cannot be opened: {error.strerror}. Give apply write access to its folder."
        ) from None
    try:
        _acquire(file, lake)
        try:
            yield
        finally:
            _write_holder(file, "")
    finally:
        os.close(file)  # releases the lock


def refuse_while_apply_runs(lake: Lake) -> None:
    """Raise LakeError if an apply of the lake is running now."""
    with lock_apply(lake):
        pass


def _acquire(file: int, lake: Lake) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip()
        raise LakeError(
            f"Another apply is writing the silver tables of {lake.root}{holder and f' ({holder})'}. Stop "
            "it, or wait until it ends."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    _write_holder(file, f"process {os.getpid()} on {socket.gethostname()}")


def _write_holder(file: int, text: str) -> None:
    with suppress(OSError):  # the lock is held even if the disk is full
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
