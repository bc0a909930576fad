"""Check what the jobs need of this machine: Java, and a folder for the lake that can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from pipeline.config.config import Config
from pipeline.delta.spark.jars import check_java
from pipeline.errors import LakeError
from pipeline.postgres.checks.table_checks import Check

_RELATIVE = (
    "storage.root is relative to the working directory. An absolute path means the same lake from any folder."
)


def check_machine(config: Config) -> Iterator[Check]:
    """Yield the checks of this machine. They leave nothing behind, and start no JVM but `java -version`."""
    try:
        yield Check("Java", True, f"Spark will run {check_java()}.")
    except LakeError as error:
        yield Check("Java", False, str(error), "Then run it again.")
    root = config.storage.root
    if urlparse(root).scheme not in ("", "file"):
        yield Check("lake", True, f"The lake is at {root}. The jobs verify that it can be written.")
        return
    path = Path(os.path.abspath(root.removeprefix("file://").removeprefix("file:")))
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        if not _has_hard_links(there):
            yield Check(
                "lake",
                False,
                f"The file system of {there} has no hard links, so commits do not exclude each other there.",
                "Set storage.root to a folder of another file system, or to an object store.",
            )
            return
        has_bronze = (path / "bronze" / "changes").exists()
        sentence = f"The lake is {path}" if has_bronze else f"A new lake will be created in {path}"
        yield Check("lake", True, f"{sentence}.", "" if has_bronze or os.path.isabs(root) else _RELATIVE)
        return
    yield Check(
        "lake",
        False,
        f"The lake cannot be created in {path}: this user cannot write to {there}.",
        "Grant this user write access there, or set storage.root to another folder.",
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
