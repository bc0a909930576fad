"""Read the log of a Delta table on a file system of this machine, without Spark.

One `TableLog` per process and table follows the log: a look at the newest version usually is two `stat`
calls, of the commit that was read last and of the next one. The first of them notices that a table was
removed and created again. A commit is applied at the cost of its own size. The files of a version are read
only when they are used; a process that only needs offsets keeps no list of files.

Nothing is written. Every method can be used by several threads.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from pipeline.delta.checkpoint_files import Checkpoint, LogFiles, commit_name, list_log
from pipeline.delta.checksum import read_checksum
from pipeline.delta.features import supported_protocol
from pipeline.delta.file_list import Add, Files, FileStore
from pipeline.delta.log_state import LogState
from pipeline.delta.store.looks import add_look, is_looked_at
from pipeline.delta.store.mirror import fetch, local_copy, mirror_of
from pipeline.delta.store.store import is_store
from pipeline.errors import DamagedLogError, LakeError

_ATTEMPTS = 5  # to read a log whose files are removed meanwhile
_MIRRORED_COMMITS = 256  # of a log on an object store that stay on this machine
_IDLE_COMMITS = 256  # after so many, an unused list of files is dropped
_FILE_ACTIONS = (b'{"add":', b'{"remove":', b'{"cdc":')


def local_path(url: str) -> str:
    """Return the path on this machine of a `file:` URL or one of an object store, or a path as it is."""
    if (copy := local_copy(url)) is not None:
        return copy
    return url.removeprefix("file://").removeprefix("file:")


@dataclass(frozen=True)
class Snapshot:
    """One version of a table; version -1 is that of a table that does not exist.

    `offsets` are the versions of all transaction ids. `timestamp` is in milliseconds since 1970: the commit's
    own if it has one, else the time of its file. `metadata` is the complete `metaData` action.
    """

    path: str
    version: int = -1
    table_id: str = ""
    schema_string: str = '{"type":"struct","fields":[]}'
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)
    timestamp: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _log: TableLog | None = field(default=None, repr=False, compare=False)
    _files: list[Mapping[str, Add]] = field(default_factory=list, repr=False, compare=False)  # one at most

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self.version >= 0

    @property
    def files(self) -> Mapping[str, Add]:
        """The `add` actions by path as the log writes it; with a deletion vector, by path and vector.

        Raises LakeError if the log does not have what makes up the version any more.
        """
        if not self._files:
            self._files.append(self._log._files_at(self) if self._log and self.exists else Files())
        return self._files[0]

    @property
    def file_count(self) -> int:
        """The number of files; the commit's checksum file tells it if there is one."""
        if self._log is not None and self.exists and not self._files:
            checksum = read_checksum(os.path.join(self.path, "_delta_log"), self.version) or {}
            if isinstance(count := checksum.get("numFiles"), int):
                return count
        return len(self.files)

    def with_files(self, files: Mapping[str, Add]) -> Snapshot:
        """Return the version with these files only, or with a mapping that reads them when they are used."""
        return replace(self, _files=[files])

    @property
    def row_count(self) -> int | None:
        """The number of rows, None if a file has no statistics of it."""
        count = 0
        for add in self.files.values():
            found = json.loads(add.get("stats") or "{}").get("numRecords")
            if found is None:
                return None
            count += found - int((add.get("deletionVector") or {}).get("cardinality", 0))
        return count

    def feature_names(self) -> frozenset[str]:
        """Return the table features that a reader must support."""
        return frozenset(self.protocol.get("readerFeatures") or ())


def data_path(table: str, path: str) -> str:
    """Return the path of a data file that an action names, below the path of its table unless absolute.

    Use `data_file` to read it.
    """
    name = unquote(path)
    return local_path(name) if name.startswith("file:") else os.path.join(table, name)


def data_file(table: str, path: str) -> str:
    """Return the path of a data file, which is on this machine now; raise LakeError if it is missing."""
    found = data_path(table, path)
    try:
        return fetch(found)
    except FileNotFoundError:
        raise LakeError(
            f"The file {found} is missing in the store: VACUUM removes what is older than "
            "delta.deletedFileRetentionDuration."
        ) from None


class _IncompleteLog(DamagedLogError):
    """A version for which the log lacks commits, or a checkpoint that can be read."""


class TableLog:
    """The log of one table on this machine; there is one object per process and path."""

    _logs: dict[str, TableLog] = {}  # noqa: RUF012 - one for the process
    _logs_lock = threading.Lock()

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.join(path, "_delta_log")
        self._lock = threading.RLock()
        self._state = LogState()
        self._offsets: dict[str, int] = {}
        self._store: FileStore | None = None
        self._mirror = mirror_of(path)
        self._newest = -1  # version that the store has, if the log is on one
        self._accepted: Mapping[str, Any] | None = None  # the protocol whose features were checked last

    @classmethod
    def of(cls, path: str) -> TableLog:
        """Return the log of the table at a path or a `file:` URL; the table need not exist."""
        if (known := cls._logs.get(path)) is not None:  # without a look at what the path is
            return known
        path = os.path.abspath(local_path(path))
        with cls._logs_lock:
            return cls._logs.setdefault(path, cls(path))

    @classmethod
    def forget(cls, path: str) -> None:
        """Forget what was read of the table at a path, and of all tables below it."""
        path = os.path.abspath(local_path(path))
        with cls._logs_lock:
            for known in [each for each in cls._logs if each == path or each.startswith(path + os.sep)]:
                del cls._logs[known]

    def snapshot(self) -> Snapshot:
        """Return the newest version, as the log is now; version -1 if there is no table.

        Raises LakeError if the log lacks commits or cannot be read.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    self._look()
                    return self._snapshot_of(self._state, self._store)
                except FileNotFoundError:
                    self._drop()
            raise LakeError(f"The log in {self.folder} changes while it is read. Run again.")

    def snapshot_at(self, version: int) -> Snapshot:
        """Return an older version; raise LakeError if the log does not have it any more, or never had it."""
        newest = self.snapshot()
        if version == newest.version and newest.exists:
            return newest
        if 0 <= version < newest.version:
            try:
                state = self._read(list_log(self.folder), version, None)
                return self._snapshot_of(state, None)
            except (FileNotFoundError, _IncompleteLog):
                pass
        raise self._lacks(version)

    def actions_after(
        self, version: int, *, is_whole: bool = True
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the commits after a version in order, each with its actions as the log has them.

        If the log lacks one of them, LakeError is raised with `is_whole`; without it the commit is left out.
        """
        newest = self.snapshot().version
        first = version + 1
        versions: Iterable[int] = range(first, newest + 1)
        if not is_whole and newest - first > 8:
            versions = [each for each in list_log(self.folder).commits if first <= each <= newest]
        for each in versions:
            try:
                yield each, self.actions(each)
            except FileNotFoundError:
                if is_whole:
                    raise self._lacks(each) from None

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit; raise FileNotFoundError if the log does not have it."""
        with open(fetch(self.commit_path(version)), "rb") as file:
            return [self._parsed(line, version) for line in file.read().splitlines() if line.strip()]

    def commit_path(self, version: int) -> str:
        """Return the path of the file of a commit."""
        return os.path.join(self.folder, commit_name(version))

    def _lacks(self, version: int) -> LakeError:
        return LakeError(
            f"The log of {self.path} does not have version {version} any more: it is older than "
            "delta.logRetentionDuration, or files of the log are missing."
        )

    def _drop(self) -> None:
        self._state, self._store, self._offsets = LogState(), None, {}

    def add_commit(self, version: int) -> None:
        """Record a version that this process has committed, and whose file is on this machine."""
        with self._lock:
            if 0 <= self._state.version < version:
                self._newest = max(self._newest, version)

    def _look(self) -> None:
        if self._state.version >= 0 and is_looked_at(self.path):
            self._update(None)
            return
        self._update(self._pull())
        if self._mirror is not None:
            add_look(self.path)

    def _pull(self) -> LogFiles | None:
        """Download the commits that the store has after the version that is known.

        One request lists that version's own commit too, by which another log in its place is noticed.
        Returns the complete list of a log if no version of it is known.
        """
        if self._mirror is None:
            return None
        version = self._state.version
        if version >= 0:
            known = self.commit_path(version)
            listed = list_log(self.folder, after=known[:-1])  # the name without its last letter
            commit = listed.objects.get(known)
            if commit is not None and commit.etag == self._mirror.etag(known):
                self._fetch_commits(listed, version)
                return None
            self._drop()
        self._mirror.drop_folder(self.folder)
        listed = list_log(self.folder)
        base = listed.checkpoints[0].version if listed.checkpoints else -1
        self._fetch_commits(listed, base)
        return listed

    def _fetch_commits(self, listed: LogFiles, first: int) -> None:
        assert self._mirror is not None
        paths = [self.commit_path(each) for each in listed.commits if each >= first]
        self._mirror.fetch_objects(listed.objects[path] for path in paths)
        self._newest = max(listed.commits, default=-1)

    def _update(self, found: LogFiles | None) -> None:
        """Read the commits after the version that is known, or the log from its beginning."""
        if self._state.version >= 0 and not self._is_unchanged():
            self._drop()
        if self._state.version < 0:
            found = found or list_log(self.folder)
            if not found.commits and not found.checkpoints:
                return
            self._state = self._read(found, None, None)
            self._offsets = self._state.offsets()
            return
        self._read_new_commits()
        if self._state.protocol is not self._accepted:
            self._accepted = supported_protocol(self.path, self._state.protocol)

    def _read_new_commits(self) -> None:
        while True:
            last = self._state.version
            if last >= self._newest if self._mirror else not os.path.exists(self.commit_path(last + 1)):
                return
            # a copy, so that a commit that cannot be read leaves the state as it was
            state = replace(self._state, version=last + 1)
            files: list[dict[str, Any]] | None = [] if self._store is not None else None
            try:
                others = self._read_commit(state, files)
            except FileNotFoundError:
                return
            self._state = state
            if self._mirror is not None:
                self._mirror.drop(self.commit_path(state.version - _MIRRORED_COMMITS))
            if others:
                self._offsets = state.offsets()
            if self._store is not None and files is not None:
                if self._store.idle_commits >= _IDLE_COMMITS:
                    self._store = None
                else:
                    self._store.apply(files)

    def _read_commit(self, state: LogState, files: list[dict[str, Any]] | None) -> bool:
        """Apply the commit of a state's version to it, and append its actions on files to `files`.

        Returns whether offsets may differ. Without `files` such actions are not parsed.
        """
        source = self.commit_path(state.version)
        with open(fetch(source), "rb") as file:
            state.source, state.identity = source, _identity(os.fstat(file.fileno()))
            content = file.read()
        state.timestamp = state.identity[-2] // 1_000_000
        others: list[dict[str, Any]] = []
        for line in content.splitlines():
            if files is None and line.startswith(_FILE_ACTIONS):
                continue
            if not line.strip():
                continue
            action = self._parsed(line, state.version)
            if "add" in action or "remove" in action:
                if files is not None:
                    files.append(action)
            elif (information := action.get("commitInfo")) is not None:
                state.timestamp = int(information.get("inCommitTimestamp") or state.timestamp)
                state.txn_id = information.get("txnId")
            else:
                others.append(action)
        if any("txn" in action for action in others):
            state.txns = dict(state.txns)
        for action in others:
            state.apply(action)
        return bool(others)

    def _read(self, files: LogFiles, end: int | None, actions: list[dict[str, Any]] | None) -> LogState:
        """Return the state of a version (default: the newest).

        Appends what happened to files to `actions`. Checkpoints that cannot be read are passed over.
        """
        last = files.commits[-1] if files.commits else -1
        last = max(last, files.checkpoints[0].version if files.checkpoints else -1)
        end = last if end is None else end
        usable = [each for each in files.checkpoints if each.version <= end]
        refused: Exception | None = None
        for checkpoint in [*usable, None]:
            begin = checkpoint.version if checkpoint else -1
            needed = range(begin + 1, end + 1)
            present = [version for version in files.commits if begin < version <= end]
            if len(present) != len(needed) or end < 0:
                continue
            if (
                actions is None
                and end in files.commits
                and (recorded := self._read_checksum(end)) is not None
            ):
                return recorded
            try:
                state = self._read_checkpoint(checkpoint, actions)
            except FileNotFoundError:
                raise
            except (OSError, ValueError, KeyError) as error:  # a file that is damaged or not complete
                refused = error
                if actions is not None:
                    actions.clear()
                continue
            for version in needed:
                state.version = version
                self._read_commit(state, actions)
            if not state.metadata or not state.protocol:
                raise LakeError(f"The log in {self.folder} does not say what columns its table has.")
            self._accepted = supported_protocol(self.path, state.protocol)
            return state
        reason = f" ({type(refused).__name__})" if refused else ""
        raise _IncompleteLog(
            f"The log in {self.folder} is not complete: version {end} cannot be read from its "
            f"commits and checkpoints{reason}. Restore the missing files of the log."
        ) from refused

    def _read_checksum(self, version: int) -> LogState | None:
        """Return the state of a version as its checksum file has it, None if it has none, or another's."""
        checksum = read_checksum(self.folder, version) or {}
        state = LogState.of_checksum(version, checksum)
        if state is None:
            return None
        self._read_commit(state, None)
        if state.txn_id is None or state.txn_id != checksum.get("txnId"):
            return None
        self._accepted = supported_protocol(self.path, state.protocol)
        return state

    def _read_checkpoint(
        self, checkpoint: Checkpoint | None, actions: list[dict[str, Any]] | None
    ) -> LogState:
        state = LogState()
        if checkpoint is None:
            return state
        for action in checkpoint.state_actions():
            state.apply(action)
        if actions is not None:
            actions.extend(checkpoint.file_actions("add"))
        state.version = checkpoint.version
        state.source = self.commit_path(state.version)
        if not os.path.exists(state.source):  # cleaned up
            state.source = checkpoint.paths[0]
        state.identity = _identity(os.stat(state.source))
        state.timestamp = state.identity[-2] // 1_000_000
        return state

    def _is_unchanged(self) -> bool:
        """Return whether the file that was read last is still in its place."""
        try:
            return _identity(os.stat(self._state.source)) == self._state.identity
        except FileNotFoundError:
            return False

    def _parsed(self, line: bytes, version: int) -> dict[str, Any]:
        try:
            action = json.loads(line)
        except ValueError:
            action = None
        if not isinstance(action, dict):
            raise DamagedLogError(
                f"Version {version} of the log in {self.folder} is damaged. Restore its file; if it is the "
                "newest, and no writer runs, remove it and the .crc file of its version."
            )
        return action

    def _snapshot_of(self, state: LogState, store: FileStore | None) -> Snapshot:
        if state.version < 0:
            return Snapshot(self.path)
        metadata = state.metadata
        expires = "delta.setTransactionRetentionDuration" in (metadata.get("configuration") or {})
        return Snapshot(
            self.path,
            state.version,
            str(metadata.get("id", "")),
            str(metadata.get("schemaString", "")),
            tuple(metadata.get("partitionColumns") or ()),
            metadata.get("configuration") or {},
            state.protocol,
            self._offsets if state is self._state and not expires else state.offsets(),
            state.timestamp,
            metadata,
            self,
            [store.view()] if store is not None else [],
        )

    def _files_at(self, snapshot: Snapshot) -> Files:
        """Return the files of a version, and keep those of the newest one."""
        with self._lock:
            is_newest = (self._state.version, self._table_id) == (snapshot.version, snapshot.table_id)
            if is_newest and self._store is not None:
                self._store.idle_commits = 0
                return self._store.view()
            actions: list[dict[str, Any]] = []
            try:
                state = self._read(list_log(self.folder), snapshot.version, actions)
            except (FileNotFoundError, _IncompleteLog):
                raise self._lacks(snapshot.version) from None
            if state.metadata.get("id", "") != snapshot.table_id:
                raise LakeError(f"The table in {self.path} was removed and created again. Run again.")
            store = FileStore(actions)
            if is_newest:
                self._store = store
            return store.view()

    @property
    def _table_id(self) -> str:
        return str(self._state.metadata.get("id", ""))


def look_at(paths: Iterable[str]) -> None:
    """Look at tables on object stores at once, for `one_look`; what is wrong is left to their readers."""
    logs = [log for log in map(TableLog.of, filter(is_store, paths)) if not is_looked_at(log.path)]
    if logs and (mirror := mirror_of(logs[0].path)) is not None:
        for log, has_succeeded in zip(logs, mirror.store.each(_try_look, logs), strict=True):
            if has_succeeded:
                add_look(log.path)


def _try_look(log: TableLog) -> bool:
    try:
        log.snapshot()
    except LakeError:
        return False
    return True


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
