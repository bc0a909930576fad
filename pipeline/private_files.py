"""Local directories and files that only their owner can use, whatever the umask.

The files of the lake's tables are created elsewhere and follow the umask: executors and readers may be
other users.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


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
