"""Folders of the lake, on any storage that Hadoop's client can write: list, remove and move them.

Those on a file system of this machine need no Spark. Removing and moving a folder also clears what this
process knows of the logs in it, and Delta's cache.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.store.mirror import Mirror, mirror_at
from pipeline.delta.store.store import is_store
from pipeline.delta.table_log import TableLog, local_path
from pipeline.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_FS = "fs.defaultFS"
_LOG = "_delta_log"


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
    from xml.etree import ElementTree  # its parser is a library of its own

    try:
        properties = ElementTree.parse(path).getroot().iter("property")
    except ElementTree.ParseError:
        return None
    return next((each.findtext("value") for each in properties if each.findtext("name") == name), None)


def is_local(path: str) -> bool:
    """Return whether a path of a lake is on a file system of this machine."""
    return path.startswith("/") or path[:5].lower() == "file:"


def file_instead_of(folder: Path) -> Path | None:
    """Return the file that is where a folder of this machine, or one above it, would be."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), None)
    return there if there is not None and not there.is_dir() else None


def is_within(path: str, folder: str) -> bool:
    """Return whether a path names a folder or a path in it, also by a link or another form of its URL."""
    one, other = (os.path.realpath(local_path(each)) if is_local(each) else each for each in (path, folder))
    return f"{one}/".startswith(f"{other}/")


def remove_folder(sessions: SparkProvider, folder: str) -> None:
    """Remove a folder and its contents, if it exists."""
    if (mirror := mirror_at(folder)) is not None:
        mirror.store.delete([each.name for each in mirror.list(local_path(folder))])
        mirror.drop_folder(local_path(folder))
    elif is_local(folder):
        path = Path(local_path(folder))
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    else:
        files, found = hadoop_files(sessions.session, folder)
        files.delete(found, True)
    forget_logs(sessions, folder)


def remove_empty_table(sessions: SparkProvider, folder: str) -> None:
    """Remove the folders of a table that have no files, by Hadoop; leave what has files.

    A creation that is cut off leaves them, and on object stores the removal of a table does, because only
    Hadoop finds its own marks of folders. Spark takes a folder that is not empty for a table, and creates
    none there.
    """
    for name in (f"{folder}/_delta_log/_staged_commits", f"{folder}/_delta_log", folder):
        files, path = hadoop_files(sessions.session, name)
        if files.exists(path):
            if len(files.listStatus(path)) > 0:
                return
            files.delete(path, False)


def folders_in(sessions: SparkProvider, folder: str) -> list[str]:
    """Return the names of the folders in a folder, none if it does not exist."""
    if (mirror := mirror_at(folder)) is not None:
        names = (name for name, _ in mirror.names(local_path(folder)))
        return sorted({name.split("/")[0] for name in names if "/" in name})
    if is_local(folder):
        path = Path(local_path(folder))
        return sorted(each.name for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
    files, found = hadoop_files(sessions.session, folder)
    if not files.exists(found):
        return []
    return [str(each.getPath().getName()) for each in files.listStatus(found) if each.isDirectory()]


def move_folder(
    sessions: SparkProvider, folder: str, to: str, record: Callable[[], None] = lambda: None
) -> None:
    """Move a folder to a path that does not exist yet, and record that; raise LakeError if it exists.

    On a store a move is a copy, object by object. The path may have what an interrupted copy left. The move
    is recorded before the folder is removed: what is recorded as the folder's path always has all objects.
    """
    if (mirror := mirror_at(folder)) is not None:
        is_moved = is_part_of(to, folder)
        if is_moved:
            _copy_objects(mirror, mirror.name(local_path(folder)), mirror.name(local_path(to)))
    elif is_local(folder):
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
    record()
    if mirror is not None:
        remove_folder(sessions, folder)
    forget_logs(sessions, folder)


def is_part_of(folder: str, whole: str) -> bool:
    """Return whether a folder of a store has only copies of another's objects.

    They have the same names and sizes, and the first ones of their logs, which name the write, are the same.
    """
    mirror = mirror_at(folder)
    if mirror is None:
        return False
    part = {name: each.size for name, each in mirror.names(local_path(folder))}
    if not part:
        return True
    found = {name: each.size for name, each in mirror.names(local_path(whole))}
    if not part.items() <= found.items():
        return False
    first = next((name for name in sorted(part) if name.startswith(f"{_LOG}/")), None)
    if first is None:
        return True
    names = (mirror.name(f"{local_path(each)}/{first}") for each in (folder, whole))
    copied, original = (mirror.store.read(name)[0] for name in names)
    return copied == original


def _copy_objects(mirror: Mirror, source: str, target: str) -> None:
    """Copy the objects that the target lacks, the log last."""
    copied = {each.name[len(target) :] for each in mirror.store.list(target)}
    objects = [each.name[len(source) :] for each in mirror.store.list(source)]
    lacking = [name for name in objects if name not in copied]
    log = [name for name in lacking if name.startswith(f"/{_LOG}/")]
    data = [name for name in lacking if not name.startswith(f"/{_LOG}/")]
    mirror.store.each(lambda name: mirror.store.copy(source + name, target + name), data)
    for name in log:  # in order: a copy that is interrupted leaves an older version
        mirror.store.copy(source + name, target + name)


def path_exists(sessions: SparkProvider, path: str) -> bool:
    """Return whether a file or a folder exists."""
    if (mirror := mirror_at(path)) is not None:
        name = mirror.name(local_path(path))
        parent = name.rpartition("/")[0]
        return any(
            each.name == name or each.name.startswith(f"{name}/") for each in mirror.store.list(parent)
        )
    if is_local(path):
        return os.path.exists(local_path(path))
    files, found = hadoop_files(sessions.session, path)
    return bool(files.exists(found))


def forget_logs(sessions: SparkProvider, folder: str) -> None:
    """Read the logs in a folder from their files again, here and in Spark if it has started."""
    if is_local(folder) or is_store(folder):
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
