"""Sync files and the names in folders of this machine to disk."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_SETTLED_SECONDS = 2.0
_synced: dict[Path, tuple[int, int, int]] = {}  # folders with their inodes and times


def sync_names(folder: Path) -> None:
    """Sync to disk the names in a folder of this machine and in all folders above it.

    Folders that do not exist, or that this user may not read, are left out: pgdelta created nothing in them.
    So are those whose names this process has synced, and that have no new names since.
    """
    for each in (folder, *folder.absolute().parents):
        with suppress(FileNotFoundError):
            before = os.stat(each)
            state = before.st_dev, before.st_ino, before.st_mtime_ns
            if _synced.get(each) == state:
                continue
            sync_folder(each)
            # a name that is added at once may leave the time as it is
            if time.time() - before.st_mtime > _SETTLED_SECONDS:
                _synced[each] = state


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, unless this user may not read it: another who created them has done so."""
    with suppress(PermissionError):
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_file(path: Path) -> bool:
    """Sync a file; return whether it exists."""
    try:
        _sync(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    return True


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
