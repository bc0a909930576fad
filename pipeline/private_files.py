"""Local directories and files that only their owner can use, whatever the umask.

The files of the lake's tables are created elsewhere and follow the umask: executors and readers may be
other users.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

# NFS locks no folder that is open for reading only
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)


def make_private_folder(path: Path, *, mode: int = 0o700, exist_ok: bool = False) -> None:
    """Create a directory that only its owner can enter, and missing parents that only their owner can change.

    `mode` is the directory's mode before the umask. An existing directory raises FileExistsError or, with
    `exist_ok`, keeps its mode.
    """
    missing = []
    parent = path.parent
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o755, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=exist_ok)


def open_private(path: Path, *, append: bool = False) -> IO[str]:
    """Open a text file for writing, which only its owner can read if it is new; do not follow a symlink.

    The file is truncated unless `append`. Raise OSError for a symlink.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(path, flags | (os.O_APPEND if append else os.O_TRUNC), 0o600)
    return os.fdopen(number, "a" if append else "w", encoding="utf-8")


def lock_folder(folder: Path) -> int:
    """Lock a folder that a run has made, until the returned descriptor is closed or the process ends.

    On a file system that locks nothing, the folder is not locked, and only its run removes it.
    """
    descriptor = _open(folder)
    _lock(descriptor)
    return descriptor


def remove_unless_locked(path: Path) -> None:
    """Remove what a dead run left, a file or a folder; of a link only the link.

    A folder stays where the file system locks nothing: its run may be alive.
    """
    try:
        folder = _open(path)
    except OSError:  # no folder, removed meanwhile, or another user's
        with suppress(OSError):
            path.unlink()
        return
    try:
        if _lock(folder):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(folder: int) -> bool:
    """Lock a folder for as long as it is open; return False if that cannot be done."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
