"""Remove the files of a table on a file system of this machine that no version needs any more.

As Delta's VACUUM: a file goes once it left the newest version longer ago than the table's
`delta.deletedFileRetentionDuration`, and is itself older than that. A file that the log does not name may be
another writer's, whose commit is about to follow, and stays for a day at least.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.delta.checkpoint_files import list_log
from pipeline.delta.log_retention import FILE_RETENTION, seconds_of
from pipeline.delta.native_commit import read_commit, vector_file
from pipeline.delta.store.mirror import files_of
from pipeline.delta.table_log import Snapshot, data_path
from pipeline.errors import LakeError

_DEFAULT_RETENTION = 7 * 86_400.0
_UNCOMMITTED = 86_400.0  # seconds for which a file that the log does not name stays
_LOG = "_delta_log"
_CHANGE_DATA = "_change_data"  # of a change data feed: no version needs it, readers do for the retention
_ENDINGS = (".parquet", ".bin")  # of data files and of deletion vectors


def find_unneeded(
    folder: Path, snapshot: Snapshot, now: float, kept: Collection[str] = frozenset()
) -> list[Path]:
    """Return the files of a table in a local folder that its versions do not need.

    `snapshot` is the newest version, read before this call, and `now` is in seconds since 1970. `kept` are
    paths of files that something else needs. Raises LakeError if the log does not have what the newest
    version consists of.
    """
    retention = file_retention(snapshot)
    # before the log is read: a file that is committed meanwhile is in what is read then
    listed = [(path, age) for path, age in _ages(folder, now) if age > retention]
    if not listed:
        return []
    removed, added = _removals(folder, snapshot)
    needed = {os.path.normpath(path) for add in snapshot.files.values() for path in _paths(folder, add)}
    needed |= added
    needed |= set(kept)
    needed |= {path for path, time in removed.items() if now - time <= retention}
    return [
        path
        for path, age in listed
        if (name := os.path.normpath(path)) not in needed and (name in removed or age > _UNCOMMITTED)
    ]


def file_retention(snapshot: Snapshot) -> float:
    """Return for how many seconds a table keeps files that left its newest version."""
    return seconds_of(snapshot.configuration.get(FILE_RETENTION), _DEFAULT_RETENTION)


def removed_since(folder: Path, snapshot: Snapshot, since: float) -> set[str]:
    """Return the paths of files that versions of a table in a local folder removed after a time.

    `since` is in seconds since 1970. Raises LakeError as `find_unneeded`.
    """
    removed, _ = _removals(folder, snapshot)
    return {path for path, time in removed.items() if time >= since}


def _ages(folder: Path, now: float) -> Iterator[tuple[Path, float]]:
    """Yield the files of a table, and for how many seconds each has been in its place."""
    files = files_of(folder)
    if files.is_local:
        yield from ((path, _age(path, now)) for path in _data_files(folder))
        return
    # a table below this one has a log of its own, which sorts before its files
    found = [(each.path.relative_to(folder).as_posix(), each) for each in files.below(folder)]
    inner = {name.split(f"/{_LOG}/")[0] + "/" for name, _ in found if f"/{_LOG}/" in name}
    for name, each in found:
        is_hidden = any(map(_is_hidden, name.split("/")))
        if not is_hidden and name.endswith(_ENDINGS) and not name.startswith(tuple(inner)):
            yield each.path, now - each.modified


def _data_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a table, without those of tables in folders below it, and without hidden ones."""
    for root, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not _is_hidden(name) and not os.path.isdir(os.path.join(root, name, _LOG))
        ]
        yield from (Path(root, name) for name in names if name.endswith(_ENDINGS) and not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    """Return whether VACUUM ignores a file or folder of this name; a partition's folder has a `=`."""
    return name.startswith(("_", ".")) and name != _CHANGE_DATA and "=" not in name


def _age(path: Path, now: float) -> float:
    """Return for how many seconds a file has been in its place, -1 if it is not there or is no file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return -1
    if not os.path.isfile(path):
        return -1
    # a staged file that is moved into the table's folder keeps its own time, and gets that of its move
    return now - max(found.st_mtime, found.st_ctime)


def _removals(folder: Path, snapshot: Snapshot) -> tuple[dict[str, float], set[str]]:
    """Return the files that versions removed, with the last time in seconds since 1970, and recent additions.

    Files that a version after the snapshot added are needed, whatever an earlier one removed.
    """
    log = list_log(str(folder / _LOG))
    checkpoint = next((each for each in log.checkpoints if each.version <= snapshot.version), None)
    removed: dict[str, float] = {}
    added: set[str] = set()
    if checkpoint is not None:
        for action in checkpoint.file_actions("remove"):
            _record(folder, action["remove"], removed)
    version = checkpoint.version + 1 if checkpoint else 0
    while (actions := read_commit(folder / _LOG, version)) is not None:
        for action in actions:
            if "remove" in action:
                _record(folder, action["remove"], removed)
            elif "add" in action and version > snapshot.version:
                added |= {os.path.normpath(path) for path in _paths(folder, action["add"])}
        version += 1
    if version <= snapshot.version:
        raise LakeError(
            f"The log in {folder / _LOG} does not have version {version}, so no file was removed. Restore "
            "the missing files of the log."
        )
    return removed, added


def _record(folder: Path, remove: Mapping[str, Any], removed: dict[str, float]) -> None:
    time = float(remove.get("deletionTimestamp") or 0) / 1000
    for path in map(os.path.normpath, _paths(folder, remove)):
        removed[path] = max(time, removed.get(path, time))


def _paths(folder: Path, action: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of a file that an action names, and of its deletion vector."""
    yield data_path(str(folder), action["path"])
    vector = action.get("deletionVector")
    if vector and vector.get("storageType") == "u":
        yield str(folder / vector_file(str(vector["pathOrInlineDv"])))
    elif vector and vector.get("storageType") == "p":
        yield data_path(str(folder), str(vector["pathOrInlineDv"]))
