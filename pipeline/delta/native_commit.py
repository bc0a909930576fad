"""Commit to a Delta table on a file system of this machine, without Spark.

A version is written to a temporary file, synced to disk with the data files that it adds, and becomes visible
by a hard link, which the file system refuses if the version exists: the same steps, and the same guarantees,
as `LinkLogStore` gives Spark's commits. Every commit is read back.

A commit that loses the race for a version is checked against what was committed meanwhile, by the rules of
Delta, and then tries the next version. Raises `SameWriteError` if another writer recorded one of its
transaction ids, and `ConflictError` if the write has to be made again from the table's new state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import UUID, uuid4

from pipeline import __version__
from pipeline.delta.checkpoint_files import commit_name
from pipeline.delta.checksum import write_checksum
from pipeline.delta.data_files import DataFile
from pipeline.delta.log import now_milliseconds
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.store.looks import is_looked_at, look_again
from pipeline.delta.store.mirror import fetch, files_of, remove_files
from pipeline.delta.store.store import StoreError
from pipeline.delta.table_log import TableLog
from pipeline.errors import LakeError

Action = dict[str, Any]
"""One action of Delta's log protocol as JSON: an object with one key."""

ENGINE = f"pgdelta/{__version__}"
_BASE85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED_UUID = 20  # characters; a folder may precede it


class LostCommitError(LakeError):
    """A commit that the storage confirmed and did not keep."""


def lost_commit(table: Path | str, version: int) -> LostCommitError:
    """Return the error of a commit to a table whose version is another one in the log."""
    return LostCommitError(
        f"The storage of {table} lost a commit: it confirmed version {version}, which is another writer's. "
        "Nothing of the commit was acknowledged. Let all writers use a log store in which commits exclude "
        "each other (docs/operations/limits.md), then run again."
    )


@dataclass(frozen=True, slots=True)
class Operation:
    """What a commit records about itself in its `commitInfo`; the values of both mappings are texts."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None
    is_blind_append: bool = False


@dataclass(frozen=True, slots=True)
class Reads:
    """What a write depends on, by which a commit that was made meanwhile conflicts with it or not.

    `app_ids` are transaction ids besides those that it records. With `whole_table` every commit that changes
    rows conflicts, else only one that removes a file that this write removes too.
    """

    app_ids: Collection[str] = ()
    whole_table: bool = False


def commit_version(
    table: Path,
    read_version: int,
    actions: Sequence[Action],
    operation: Operation,
    reads: Reads | None = None,
) -> int:
    """Commit actions to the table in a local folder and return the version.

    The actions follow from the version `read_version`, -1 for a table that does not exist yet: its first
    commit has `protocol` and `metaData`. Raises SameWriteError, ConflictError, or LakeError if the storage
    cannot commit or has lost the commit.
    """
    reads = reads or Reads()
    log = table / "_delta_log"
    files = files_of(table)
    if read_version < 0:
        log.mkdir(parents=True, exist_ok=True)
    txn_id = str(uuid4())
    files.finish(table, _added_files(table, actions))
    version = read_version + 1
    while True:
        information = _commit_info(operation, txn_id, read_version)
        lines = [
            json.dumps(action, separators=(",", ":"), ensure_ascii=False)
            for action in (information, *actions)
        ]
        is_known = version - 1 == read_version and is_looked_at(str(table))
        if version > 0 and not is_known and not files.has_version(log, version - 1):
            raise ConflictError(f"The table in {table} was removed or replaced meanwhile. Run again.")
        if create_version(log, version, "\n".join(lines) + "\n"):
            break
        look_again(str(table))
        _check(table, version, actions, reads)
        version += 1
    _read_back(table, version, txn_id)
    files.finish_commit(log, is_first=version == 0)
    if not files.is_local:
        TableLog.of(str(table)).add_commit(version)
    else:
        with suppress(OSError):  # the commit is made
            write_checksum(log, version, actions, txn_id)
    return version


def remove_uncommitted(table: Path, read_version: int, names: Iterable[str], error: BaseException) -> None:
    """Remove data files that were written for a commit which failed, by their names in the table's folder.

    Those that a version after `read_version` names stay: a commit may fail once it is made, when its folder
    is synced. If the log cannot be read, the storage lost a commit, or it is not known whether a store will
    yet make the commit, all of them stay, and VACUUM removes them; of a store's files, this machine's copies
    are removed.
    """
    files = files_of(table)
    is_unknown = isinstance(error, (LostCommitError, StoreError))
    if is_unknown or (not files.is_local and not isinstance(error, Exception)):  # ended amid a request
        for name in names:
            files.drop(str(table / name))
        return
    committed: set[str] = set()
    version = read_version + 1
    with suppress(OSError, ValueError):
        while (actions := read_commit(table / "_delta_log", version)) is not None:
            committed.update(unquote(action["add"]["path"]) for action in actions if "add" in action)
            version += 1
        remove_files(table / name for name in names if name not in committed)


@contextmanager
def removing_uncommitted(table: Path, read_version: int, files: Collection[DataFile]) -> Iterator[None]:
    """Remove the files of a collection, which the block fills and commits, if the block fails."""
    try:
        yield
    except BaseException as error:
        remove_uncommitted(table, read_version, [file.name for file in files], error)
        raise


def read_commit(log: Path, version: int) -> list[Action] | None:
    """Return the actions of a version in a log folder, None if it does not have the version."""
    path = log / commit_name(version)
    try:
        fetch(str(path))
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line.strip()]


def txn_actions(versions: Mapping[str, int]) -> list[Action]:
    """Return the actions that record these versions by application id."""
    return [
        {"txn": {"appId": app_id, "version": int(version), "lastUpdated": now_milliseconds()}}
        for app_id, version in versions.items()
    ]


def remove_action(add: Mapping[str, Any], *, data_change: bool = True) -> Action:
    """Return the action that removes a file, from the `add` action that added it."""
    remove: dict[str, Any] = {
        "path": add["path"],
        "deletionTimestamp": now_milliseconds(),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add.get("size"),
    }
    for name in ("tags", "deletionVector", "baseRowId", "defaultRowCommitVersion"):
        if add.get(name) is not None:
            remove[name] = add[name]
    return {"remove": {name: value for name, value in remove.items() if value is not None}}


def _commit_info(operation: Operation, txn_id: str, read_version: int) -> Action:
    information: dict[str, Any] = {
        "timestamp": now_milliseconds(),
        "operation": operation.name,
        "operationParameters": dict(operation.parameters),
    }
    if read_version >= 0:
        information["readVersion"] = read_version
    information["isolationLevel"] = "Serializable"
    information["isBlindAppend"] = operation.is_blind_append
    information["operationMetrics"] = dict(operation.metrics)
    if operation.user_metadata is not None:
        information["userMetadata"] = operation.user_metadata
    information |= {"engineInfo": ENGINE, "txnId": txn_id}
    return {"commitInfo": information}


def create_version(log: Path, version: int, text: str) -> bool:
    """Create the file of a version in one step; return False if the version exists."""
    try:
        return files_of(log).create(str(log / commit_name(version)), text.encode())
    except FileNotFoundError:
        raise ConflictError(f"The table in {log.parent} was removed meanwhile. Run again.") from None


def _check(table: Path, version: int, actions: Sequence[Action], reads: Reads) -> None:
    """Raise SameWriteError or ConflictError if a version that was committed meanwhile conflicts."""
    theirs = read_commit(table / "_delta_log", version)
    if theirs is None:
        raise ConflictError(f"The table in {table} was removed or replaced meanwhile. Run again.")
    ours = {action["txn"]["appId"] for action in actions if "txn" in action}.union(reads.app_ids)
    removed = {_file_key(action["remove"]) for action in actions if "remove" in action}
    for action in theirs:
        if "txn" in action and action["txn"]["appId"] in ours:
            app_id = action["txn"]["appId"]
            error = SameWriteError(
                f"A concurrent commit, version {version} of {table}, recorded {app_id} too."
            )
            error.app_id, error.version = app_id, int(action["txn"]["version"])
            raise error
    for action in theirs:
        if "metaData" in action or "protocol" in action:
            raise ConflictError(f"The columns or properties of {table} were changed by a concurrent commit.")
        if "remove" in action and _file_key(action["remove"]) in removed:
            raise ConflictError(f"Files of {table} were removed by a concurrent commit.")
        change = action.get("add") or action.get("remove")
        if reads.whole_table and change is not None and change.get("dataChange", True):
            raise ConflictError(f"Rows of {table} were changed by a concurrent commit.")


def _file_key(action: Mapping[str, Any]) -> tuple[str, str]:
    return action["path"], json.dumps(action.get("deletionVector"), sort_keys=True)


def _read_back(table: Path, version: int, txn_id: str) -> None:
    log = table / "_delta_log"
    files_of(log).read_back(str(log / commit_name(version)))
    found = read_commit(log, version)
    if not any(action.get("commitInfo", {}).get("txnId") == txn_id for action in found or ()):
        raise lost_commit(table, version)


def _added_files(table: Path, actions: Iterable[Action]) -> list[Path]:
    """Return the files that actions add to a table, those of its change data feed included."""
    added = (action.get("add") or action.get("cdc") for action in actions)
    return [path for each in added if each is not None for path in _files_of(table, each)]


def _files_of(table: Path, added: Mapping[str, Any]) -> list[Path]:
    paths = [str(added["path"])]
    vector = added.get("deletionVector")
    if vector and vector.get("storageType") == "p":
        paths.append(str(vector["pathOrInlineDv"]))
    files = []
    for path in paths:
        parsed = urlparse(path)
        if parsed.scheme in ("", "file"):
            files.append(table / unquote(parsed.path))
    if vector and vector.get("storageType") == "u":
        files.append(table / vector_file(str(vector["pathOrInlineDv"])))
    return files


def vector_file(text: str) -> str:
    """Return the path, relative to its table, of a deletion vector in a file of its own."""
    folder, encoded = text[:-_ENCODED_UUID], text[-_ENCODED_UUID:]
    words = []
    for start in range(0, _ENCODED_UUID, 5):
        number = 0
        for character in encoded[start : start + 5]:
            number = number * 85 + _BASE85.index(character)
        words.append(number.to_bytes(4, "big"))
    name = f"deletion_vector_{UUID(bytes=b''.join(words))}.bin"
    return f"{folder}/{name}" if folder else name
