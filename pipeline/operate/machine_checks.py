"""What the machine at hand lacks for the jobs: Java, and a folder for the lake that can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from pipeline.config.config import Config
from pipeline.delta.spark.jars import check_java
from pipeline.errors import LakeError
from pipeline.postgres.checks.tables import Check

_RELATIVE = (
    "Mind that storage.root is relative to the working directory; an absolute one always means one lake."
)


def check_machine(config: Config) -> Iterator[Check]:
    """Yield the checks of this machine; nothing that they make stays, and Java is only asked its version."""
    try:
        yield Check("Java", True, f"Spark will run {check_java()}.")
    except LakeError as error:
        yield Check("Java", False, str(error), "Then run it again.")
    root = config.storage.root
    if urlparse(root).scheme not in ("", "file"):
        yield Check("lake", True, f"The lake is at {root}: whether it can be written is seen by the jobs.")
        return
    path = Path(os.path.abspath(root.removeprefix("file://").removeprefix("file:")))
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        if not _has_hard_links(there):
            yield Check(
                "lake",
                False,
                f"The file system of {there} has no hard links: commits would not exclude each other there.",
                "Name a folder of another file system, or an object store, in storage.root.",
            )
            return
        has_bronze = (path / "bronze" / "changes").exists()
        sentence = f"The lake is {path}" if has_bronze else f"A new lake will be made in {path}"
        yield Check("lake", True, f"{sentence}.", "" if has_bronze or os.path.isabs(root) else _RELATIVE)
        return
    yield Check(
        "lake",
        False,
        f"The lake cannot be made in {path}: {there} cannot be written by this user.",
        "Give this user the right to write there, or name another folder in storage.root.",
    )


def _has_hard_links(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix=".pgdelta-check-", dir=folder) as name:
        handle, path = tempfile.mkstemp(dir=name)
        os.close(handle)
        try:
            os.link(path, Path(name, "link"))
        except OSError:
            return False
    return True
