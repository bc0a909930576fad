"""Folders and files of this host that belong to one user, whatever the umask.

What the lake's tables are made of is not among them: it follows the umask, because executors and readers may
be other users.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def make_private_folder(path: Path, *, mode: int = 0o700, exist_ok: bool = False) -> None:
    """Make a folder that nobody else can enter, and what is missing above it, which nobody else can change.

    `mode` is what others may do at the most. One that is there already stays as it is, with `exist_ok`.
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
    """Open a text file for writing that nobody else can read; a link in its place is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(path, flags | (os.O_APPEND if append else os.O_TRUNC), 0o600)
    return os.fdopen(number, "a" if append else "w", encoding="utf-8")
