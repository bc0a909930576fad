"""Folders of the lake: removed and moved by Hadoop's own client, so that Delta forgets what it knew of them.

On a file system of this machine their names can be forced to disk.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta.log import clear_cache
from pipeline.errors import LakeError


def remove_folder(spark: SparkSession, folder: str) -> None:
    """Remove a folder with all it holds, be it there or not."""
    files, path = hadoop_files(spark, folder)
    files.delete(path, True)
    clear_cache(spark, folder)


def folders_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the folders in a folder, none where it is not there."""
    files, path = hadoop_files(spark, folder)
    if not files.exists(path):
        return []
    return [str(found.getPath().getName()) for found in files.listStatus(path) if found.isDirectory()]


def move_folder(spark: SparkSession, folder: str, to: str) -> None:
    """Give a folder another path, where nothing is yet."""
    files, path = hadoop_files(spark, folder)
    target = path_of(spark, to)
    files.mkdirs(target.getParent())
    if not files.rename(path, target):
        raise LakeError(f"{folder} cannot be moved to {to}: see whether something is there already")
    clear_cache(spark, folder)


def sync_names(folder: Path) -> None:
    """Force to disk which names a folder of this machine has, and those of all folders above it.

    A folder that is not there is left out, and so is one that this user may not read: nothing was made in it.
    """
    for each in (folder, *folder.absolute().parents):
        with suppress(FileNotFoundError, PermissionError):
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def path_of(spark: SparkSession, name: str) -> Any:
    """Return Hadoop's path of a name."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(name)


def hadoop_files(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return the file system that Hadoop has for a name, and its path of it."""
    path = path_of(spark, name)
    session: Any = spark._jsparkSession
    return path.getFileSystem(session.sessionState().newHadoopConf()), path
