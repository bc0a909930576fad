"""Sync files and the names in folders of this machine to disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def sync_names(folder: Path) -> None:
    """Sync to disk the names in a folder of this machine and in all folders above it.

    Folders that do not exist, or that this user may not read, are left out: pgdelta created nothing in them.
    """
    for each in (folder, *folder.absolute().parents):
        with suppress(FileNotFoundError):
            sync_folder(each)


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
