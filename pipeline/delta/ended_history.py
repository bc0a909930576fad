"""End the history of a Delta table in a folder or on an object store: only its newest version remains.

Values of rows that were removed stay in files of old versions, and their bounds in the log. Files that the
newest version does not name are removed at once, and the log is cut: an empty commit, a checkpoint of it, and
nothing older. Every step can be run again. A file that no commit of the log names may belong to a writer that
has not committed yet; it is left while it is young, unless the caller finds rows in it that must go. Folders
of partitions and actions in the log have values of rows in their names, so those of removed files go too.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from pipeline.delta.checkpoint_files import commit_name, list_log
from pipeline.delta.checkpoints import checkpoint_name, read_pointer, write_checkpoint
from pipeline.delta.native_commit import Operation, commit_version, read_commit, vector_file
from pipeline.delta.store.files import StoredFile
from pipeline.delta.store.mirror import fetch, files_of, remove_files
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS
from pipeline.errors import LakeError

YOUNG = 3600.0  # seconds in which a writer may still commit a file
_LOG = "_delta_log"
_SHADOW = ".checkpoint-"
_COMMIT_INFO = "commitInfo"


@dataclass(slots=True)
class RemovedFiles:
    """How many files were removed, of how many bytes; `left` are young files that no commit names."""

    count: int = 0
    byte_count: int = 0
    left: int = 0

    def add(self, file: StoredFile) -> None:
        """Count a file that is removed."""
        self.count += 1
        self.byte_count += file.size


def why_not_endable(snapshot: Snapshot) -> str | None:
    """Return why the history of a table cannot be ended, None if it can."""
    if snapshot.configuration.get("delta.enableInCommitTimestamps", "false").lower() == "true":
        return "the table property delta.enableInCommitTimestamps"
    if snapshot.configuration.get("delta.checkpointPolicy", "classic").lower() != "classic":
        return "the table property delta.checkpointPolicy"
    if any(add["path"].startswith(("/", "file:")) or "://" in add["path"] for add in snapshot.files.values()):
        return "files outside of its folder"
    return None


def remove_old_files(table: LakeTable, must_go: Callable[[Path], bool]) -> RemovedFiles:
    """Remove the files in the table's folder that its newest version does not name, and folders without any.

    `must_go` is asked about young files that no commit names: true removes them at once. The name of a
    partition's folder has values of its rows.
    """
    folder = table.folder
    found = list(_files_in(folder))  # before the log is read: what is committed meanwhile is no old file
    named = _named_in_log(folder)
    kept = names_of(table.snapshot())
    removed = RemovedFiles()
    gone: list[Path] = []
    for file in found:
        name = file.path.relative_to(folder).as_posix()
        if name in kept or _is_checksum_of(file.path, folder, kept):
            continue
        is_old = name in named or file.modified < time.time() - YOUNG
        if is_old or must_go(file.path):
            removed.add(file)
            gone.append(file.path)
        else:
            removed.left += 1
    remove_files(gone)
    changed = {folder, *(path.parent for path in gone)}
    for shadow in folder.glob(f"{_SHADOW}*"):  # they have links to old commits
        shutil.rmtree(shadow, ignore_errors=True)
    for empty in empty_folders(folder):
        with suppress(OSError):  # a writer has made a file in it
            empty.rmdir()
            changed.add(empty.parent)
    for each in changed:
        files_of(each).sync_folder(each)
    return removed


def empty_folders(folder: Path) -> list[Path]:
    """Return the folders below a table's that have no file, each before the one that contains it.

    An object store has none: folders there are parts of names.
    """
    found: set[Path] = set()
    if not files_of(folder).is_local:
        return []
    for root, folders, names in os.walk(folder, topdown=False):
        path = Path(root)
        is_log = _LOG in path.relative_to(folder).parts
        if path != folder and not is_log and not names and all(path / name in found for name in folders):
            found.add(path)
    return sorted(found, key=lambda path: -len(path.parts))


def names_of(snapshot: Snapshot) -> set[str]:
    """Return the files that a version names, relative to the table's folder."""
    names: set[str] = set()
    for add in snapshot.files.values():
        names |= _names_in(add)
    return names


def cut_log(table: LakeTable, metadata: Mapping[str, Any]) -> int:
    """Commit an empty version, with a checkpoint, and remove everything older from the log.

    `metadata` is recorded in the commit, besides that pgdelta made it. Returns the version. A log that is cut
    already is left as it is.
    """
    log = table.folder / _LOG
    version = table.version()
    if not _is_cut(log, version):
        operation = Operation("VACUUM END", {"status": "COMPLETED"}, {}, json.dumps({OURS: 1, **metadata}))
        version = commit_version(table.folder, version, [], operation)
        _checkpoint(table, version)
    _drop_removals(log, version)
    _remove_before(log, version)
    table.forget_log()
    return version


def old_files(table: LakeTable, *, log_too: bool) -> Iterator[StoredFile]:
    """Yield the files that the newest version does not name, and with `log_too` those of older versions."""
    folder, snapshot = table.folder, table.snapshot()
    kept = names_of(snapshot)
    for file in _files_in(folder):
        path = file.path
        if path.relative_to(folder).as_posix() not in kept and not _is_checksum_of(path, folder, kept):
            yield file
    if log_too:
        in_log = files_of(folder).below(folder / _LOG)
        yield from (each for each in in_log if not _is_kept(each.path, snapshot.version))


def _files_in(folder: Path) -> Iterator[StoredFile]:
    """Yield the files of a table's folder, without those of its log."""
    for file in files_of(folder).below(folder):
        first = file.path.relative_to(folder).parts[0]
        if first != _LOG and not first.startswith(_SHADOW):
            yield file


def _is_checksum_of(path: Path, folder: Path, kept: set[str]) -> bool:
    if not (path.name.startswith(".") and path.name.endswith(".crc")):
        return False
    return path.with_name(path.name[1:-4]).relative_to(folder).as_posix() in kept


def _names_in(action: Mapping[str, Any]) -> set[str]:
    names = {unquote(action["path"])}
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        names.add(vector_file(vector["pathOrInlineDv"]))
    return names


def _named_in_log(folder: Path) -> set[str]:
    """Return all files that the commits of the log name."""
    names: set[str] = set()
    log = folder / _LOG
    for version in list_log(str(log)).commits:
        for action in read_commit(log, version) or ():
            for kind in ("add", "remove", "cdc"):
                if kind in action:
                    names |= _names_in(action[kind])
    return names


def _is_cut(log: Path, version: int) -> bool:
    """Return whether the newest version is an empty commit of ours that has a checkpoint."""
    actions = read_commit(log, version)
    if actions is None or any(set(action) != {_COMMIT_INFO} for action in actions):
        return False
    is_ours = all(OURS in (a[_COMMIT_INFO].get("userMetadata") or "") for a in actions)
    return is_ours and checkpoint_name(version) in files_of(log).names_in(str(log))


def _checkpoint(table: LakeTable, version: int) -> None:
    log = table.folder / _LOG
    try:
        write_checkpoint(table.folder, version)
    except Exception:  # a table feature that only Spark knows
        from pipeline.delta.spark.log import delta_log

        delta_log(table.spark, table.path).checkpoint()
    if checkpoint_name(version) not in files_of(log).names_in(str(log)):
        raise LakeError(
            f"The log of {table.path} got no checkpoint of version {version}, so older versions were kept. "
            "Run the same command again."
        )


def _drop_removals(log: Path, version: int) -> None:
    """Leave removed files out of a checkpoint: their actions have the values of their partitions.

    These actions say when a file may be removed, and the files are removed already.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = Path(fetch(str(log / checkpoint_name(version))))
    with pq.ParquetFile(path) as file:
        if "remove" not in file.schema_arrow.names:
            return
        removals = file.read(columns=["remove"]).column("remove")
        if removals.null_count == len(removals):
            return
        kept = file.read().filter(pc.is_null(removals))
    written = path.with_name(f".{uuid4()}.tmp")
    pq.write_table(kept, written)
    files_of(path).replace(written, path)
    _correct_pointer(log, version, kept.num_rows)


def _correct_pointer(log: Path, version: int, actions: int) -> None:
    """Let `_last_checkpoint` have the size of the checkpoint of a version, if it names that one."""
    found = json.loads(read_pointer(log))
    if int(found["version"]) != version:
        return
    size = (log / checkpoint_name(version)).stat().st_size
    sizes = {"size": actions, "sizeInBytes": size}
    found |= {name: value for name, value in sizes.items() if name in found}
    found.pop("checksum", None)  # of the pointer itself
    written = log / f".{uuid4()}.tmp"
    written.write_text(json.dumps(found), encoding="utf-8")
    files_of(log).replace(written, log / "_last_checkpoint")


def _remove_before(log: Path, version: int) -> None:
    last = json.loads(read_pointer(log))
    if int(last["version"]) != version:
        raise LakeError(f"Another process writes checkpoints to {log}. Run the same command again.")
    remove_files(sorted(each.path for each in files_of(log).below(log) if not _is_kept(each.path, version)))
    files_of(log).sync_folder(log)


def _is_kept(path: Path, version: int) -> bool:
    """Return whether a file of the log belongs to the newest version, or to one that came meanwhile."""
    name = path.name.removeprefix(".")
    digits = name.partition(".")[0]
    if name.startswith("_last_checkpoint"):
        return True
    is_plain = name.removesuffix(".crc") in (
        commit_name(version),
        checkpoint_name(version),
        f"{version:020}",
    )
    return is_plain or (digits.isdigit() and len(digits) == 20 and int(digits) > version)
