"""One apply at a time writes the silver tables of a lake.

On a file system of this machine a run holds a lock of the operating system on a plain file of the lake; it
ends with the process, however that ends, and a copy of the lake is not locked. What the file says (who holds
it) is for people only. Elsewhere, and where the file system knows no such locks, a run holds nothing: there
Delta refuses the second of two commits for the same position, and docs/limits.md says what that leaves open.
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
    """Be the one apply of the lake; raise LakeError where another is running."""
    if lake.local_root is None:
        yield
        return
    path = Path(lake.local_root, "_pgdelta", "locks", "apply")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LakeError(
            f"The lock {path} cannot be taken ({error.strerror}): apply needs to write there."
        ) from None
    try:
        _take(file, lake)
        try:
            yield
        finally:
            _say(file, "")
    finally:
        os.close(file)  # lets go of the lock


def refuse_while_apply_runs(lake: Lake) -> None:
    """Raise LakeError where an apply of the lake is running now."""
    with lock_apply(lake):
        pass


def _take(file: int, lake: Lake) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode("utf-8", "replace").strip()
        raise LakeError(
            f"Another apply writes the silver tables of {lake.root}{holder and f' ({holder})'}, and one at a "
            "time may: stop it, or wait until it has ended."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    _say(file, f"process {os.getpid()} on {socket.gethostname()}")


def _say(file: int, text: str) -> None:
    with suppress(OSError):  # a full disk is not the lock's affair
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)
