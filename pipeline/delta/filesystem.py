"""Folders of the lake, on any storage that Hadoop's client can write: list, remove and move them.

Those on a file system of this machine need no Spark. Removing and moving a folder also clears what this
process knows of the logs in it, and Delta's cache.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from xml.etree import ElementTree

from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table_log import TableLog, local_path
from pipeline.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_FS = "fs.defaultFS"


def default_scheme(spark: SparkSession | None) -> str:
    """Return the scheme of Hadoop's default file system, that of a path without one.

    Without a session it is that of the JVM that started this process, or of HADOOP_CONF_DIR.
    """
    url: str | None = None
    if spark is not None:
        session: Any = spark._jsparkSession
        url = session.sessionState().newHadoopConf().get(_DEFAULT_FS)
    elif is_launched_by_spark():
        url = _launcher_setting(f"spark.hadoop.{_DEFAULT_FS}")
    return urlparse(url or _site_setting(_DEFAULT_FS) or "file:///").scheme


def _launcher_setting(name: str) -> str | None:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf().get(name)


def _site_setting(name: str) -> str | None:
    folder = os.environ.get("HADOOP_CONF_DIR")
    path = Path(folder, "core-site.xml") if folder else None
    if path is None or not path.is_file():
        return None
    try:
        properties = ElementTree.parse(path).getroot().iter("property")
    except ElementTree.ParseError:
        return None
    return next((each.findtext("value") for each in properties if each.findtext("name") == name), None)


def is_local(path: str) -> bool:
    """Return whether a path of a lake is on a file system of this machine."""
    return urlparse(path).scheme == "file" or os.path.isabs(path)


def remove_folder(sessions: SparkProvider, folder: str) -> None:
    """Remove a folder and its contents, if it exists."""
    if is_local(folder):
        path = Path(local_path(folder))
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    else:
        files, found = hadoop_files(sessions.session, folder)
        files.delete(found, True)
    forget_logs(sessions, folder)


def folders_in(sessions: SparkProvider, folder: str) -> list[str]:
    """Return the names of the folders in a folder, none if it does not exist."""
    if is_local(folder):
        path = Path(local_path(folder))
        return sorted(each.name for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
    files, found = hadoop_files(sessions.session, folder)
    if not files.exists(found):
        return []
    return [str(each.getPath().getName()) for each in files.listStatus(found) if each.isDirectory()]


def move_folder(sessions: SparkProvider, folder: str, to: str) -> None:
    """Move a folder to a path that does not exist yet; raise LakeError if it does."""
    if is_local(folder):
        target = Path(local_path(to))
        target.parent.mkdir(parents=True, exist_ok=True)
        is_moved = not target.exists()
        if is_moved:
            Path(local_path(folder)).rename(target)
    else:
        files, path = hadoop_files(sessions.session, folder)
        found = hadoop_path(sessions.session, to)
        files.mkdirs(found.getParent())
        is_moved = bool(files.rename(path, found))
    if not is_moved:
        raise LakeError(f"{folder} cannot be moved to {to}. Make sure that the target does not exist.")
    forget_logs(sessions, folder)


def path_exists(sessions: SparkProvider, path: str) -> bool:
    """Return whether a file or a folder exists."""
    if is_local(path):
        return os.path.exists(local_path(path))
    files, found = hadoop_files(sessions.session, path)
    return bool(files.exists(found))


def forget_logs(sessions: SparkProvider, folder: str) -> None:
    """Read the logs in a folder from their files again, here and in Spark if it has started."""
    if is_local(folder):
        TableLog.forget(folder)
    if sessions.started is not None:
        from pipeline.delta.spark.log import forget_log

        forget_log(sessions.started, folder)


def hadoop_path(spark: SparkSession, name: str) -> Any:
    """Return a name as Hadoop's `Path`."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(name)


def hadoop_files(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's `FileSystem` for a name, and the name as its `Path`."""
    path = hadoop_path(spark, name)
    session: Any = spark._jsparkSession
    return path.getFileSystem(session.sessionState().newHadoopConf()), path
