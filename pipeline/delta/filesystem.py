"""Folders of the lake, on any storage that Hadoop's client can write: list, remove and move them.

Removing and moving a folder also clears Delta's cache of its log. On a file system of this machine, the names
in a folder can be synced to disk.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta.log import forget_log
from pipeline.errors import LakeError


def remove_folder(spark: SparkSession, folder: str) -> None:
    """Remove a folder and its contents, if it exists."""
    files, path = hadoop_files(spark, folder)
    files.delete(path, True)
    forget_log(spark, folder)


def folders_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the folders in a folder, none if it does not exist."""
    files, path = hadoop_files(spark, folder)
    if not files.exists(path):
        return []
    return [str(found.getPath().getName()) for found in files.listStatus(path) if found.isDirectory()]


def move_folder(spark: SparkSession, folder: str, to: str) -> None:
    """Move a folder to a path that does not exist yet; raise LakeError if it does."""
    files, path = hadoop_files(spark, folder)
    target = hadoop_path(spark, to)
    files.mkdirs(target.getParent())
    if not files.rename(path, target):
        raise LakeError(f"{folder} cannot be moved to {to}. Make sure that the target does not exist.")
    forget_log(spark, folder)


def sync_names(folder: Path) -> None:
    """Sync to disk the names in a folder of this machine and in all folders above it.

    Folders that do not exist, or that this user may not read, are left out: pgdelta created nothing in them.
    """
    for each in (folder, *folder.absolute().parents):
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def hadoop_path(spark: SparkSession, name: str) -> Any:
    """Return a name as Hadoop's `Path`."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(name)


def hadoop_files(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's `FileSystem` for a name, and the name as its `Path`."""
    path = hadoop_path(spark, name)
    session: Any = spark._jsparkSession
    return path.getFileSystem(session.sessionState().newHadoopConf()), path
