"""What a silver table has to be before it is written to: the one that was seen or written last.

A folder may be removed, put back from an older copy, or hold another table. Then the position up to which
silver is applied no longer says what its rows are: the table begins again from its copy, or is held.

What a manifest says of each silver table: the version that shows the source, and that it is only ours.
Between the manifest before and the version that this one names nobody else may have changed rows: what came
in the middle of a run is found here, before a reader is told of the version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.delta.log import forget_log, operations_after
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TxnId
from pipeline.errors import LakeError
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.foreign_commits import refuse_foreign_commits
from pipeline.silver.versions import manifest_entry, read_state, resolve_path, version_and_id
from pipeline.table_name import TableName


class ManifestEntries:
    """The entries of a pass's manifest, made from those of the one before; read by several threads."""

    def __init__(self, lake: Lake, manifest: Manifest, path: Callable[[TableName], str], txn: TxnId) -> None:
        self.before = manifest.by_name
        self._txn = txn
        self._lake = lake
        self._path = path

    def recorded_version(self, name: TableName) -> int:
        """Return the version that the manifest before has of a table, -1 where it has none of this one."""
        _, table_id = version_and_id(self._lake.table_at(self._path(name)))
        entry = self.before.get(name)
        return entry.version if entry and entry.table_id in (None, table_id) else -1

    def current(self, name: TableName, applied: LSN, since: int, *, is_behind: bool = False) -> ManifestEntry:
        """Return the entry of a table's newest version; raise LakeError where not all since is ours."""
        table = self._lake.table_at(self._path(name))
        entry = manifest_entry(table, name, applied, self._txn, is_behind=is_behind)
        refuse_foreign_commits(table, name, since)
        return entry

    def failed(self, name: TableName, applied: LSN) -> ManifestEntry:
        """Return the entry of a table that cannot be shown as of the manifest."""
        path = self._lake.table_at(self._path(name)).path
        if entry := self.before.get(name):
            return replace(entry, path=path, applied_lsn=applied, is_behind=True)
        return ManifestEntry(*name, path, -1, applied, True)


class ChangedError(LakeError):
    """Name the table whose folder is not the one that was looked at: it is looked at once more."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A silver table as its log has it; `version` is -1 and `table_id` empty where there is none."""

    version: int
    table_id: str
    offset: LSN

    def follows(self, last: TableVersion) -> bool:
        """Say whether the table is the same and no rows were written since; OPTIMIZE only adds versions."""
        same = (self.table_id, self.offset) == (last.table_id, last.offset)
        return same and self.version >= last.version


class TableChange(Enum):
    """What became of a table since a manifest."""

    SAME = "the same"
    MISSING = "gone"
    OLDER = "older"
    REPLACED = "other"


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """What the first commit of a table's log says of itself, as far as it is one of ours.

    `after` is the position that the write went on from; a table begins at 0/0.
    """

    name: TableName | None = None
    start_lsn: LSN | None = None


def classify_change(
    name: TableName, entry: ManifestEntry | None, found: TableVersion, origin: Callable[[], FirstCommit]
) -> TableChange:
    """Say what became of a table, by what the last manifest has of it; `origin` is asked where ids differ.

    A run that ended before its manifest leaves a later position, and a table that it built again has another
    id: both are ours, and go on.
    """
    if entry is None or entry.version < 0:
        return TableChange.SAME
    if found.version < 0:
        return TableChange.MISSING
    if found.offset == INVALID:
        return TableChange.SAME  # nothing says how far it is: it begins, or is refused for its rows
    is_behind = found.offset < (entry.offset or INVALID)
    if entry.table_id in (None, found.table_id):
        return TableChange.OLDER if is_behind or found.version < entry.version else TableChange.SAME
    first = origin()
    if first.name != name or first.start_lsn is None:
        return TableChange.REPLACED
    return TableChange.OLDER if is_behind or first.start_lsn > INVALID else TableChange.SAME


def describe_change(name: TableName, path: str, verdict: TableChange) -> str:
    """Say what was found, and what becomes of the table."""
    table = str(name)
    if verdict is TableChange.REPLACED:
        return (
            f"{table} is held: {path} holds another table than the one that was written there; put that "
            "back, or move the folder away, and the table is built again"
        )
    what = "is gone" if verdict is TableChange.MISSING else "lacks commits that were written to it"
    return f"the table in {path} {what}: it is built again from bronze"


class ExpectedVersions:
    """The silver tables as this process saw or wrote them last; each is used by one thread at a time."""

    def __init__(self, lake: Lake, path: Callable[[TableName], str], txn: TxnId) -> None:
        self._lake = lake
        self._path = path
        self._txn = txn
        self._last: dict[TableName, TableVersion] = {}

    def __contains__(self, name: TableName) -> bool:
        return name in self._last

    def check(self, name: TableName, entry: ManifestEntry | None) -> tuple[TableVersion, TableChange]:
        """Look at a table, keep what is found, and say what became of it since the last manifest."""
        table = self._lake.table_at(self._path(name))
        if entry is not None and resolve_path(entry.path, name, self._lake.root) != table.path:
            entry = None  # the configuration gives it another folder
        found = read_version(table, self._txn)
        verdict = classify_change(name, entry, found, lambda: read_first_commit(table))
        if verdict is not TableChange.SAME:
            forget_log(table.spark, table.path)  # of a folder that was there before
            found = read_version(table, self._txn)
            verdict = classify_change(name, entry, found, lambda: read_first_commit(table))
        self._last[name] = found
        return found, verdict

    def forget(self, name: TableName) -> None:
        """Have the next look ask the table's log."""
        self._last.pop(name, None)

    def require(self, name: TableName) -> None:
        """Raise ChangedError unless the table is still what was seen or written last."""
        last = self._last.get(name)
        table = self._lake.table_at(self._path(name))
        if last is not None and not read_version(table, self._txn).follows(last):
            raise _changed(name, table.path)

    def record(self, name: TableName, written: ManifestEntry) -> None:
        """Keep what was written; raise ChangedError where it went to another table than was there before."""
        last = self._last.get(name)
        found = _sight(written.version, written.table_id or "", written.offset)
        if last is not None and last.version >= 0 and found.table_id != last.table_id:
            raise _changed(name, written.path)
        self._last[name] = found


def read_version(table: LakeTable, txn: TxnId) -> TableVersion:
    """Look at a table's log."""
    return _sight(*read_state(table, txn))


def _sight(version: int, table_id: str, position: LSN | None) -> TableVersion:
    return (
        TableVersion(version, table_id, position or INVALID)
        if version >= 0
        else TableVersion(-1, "", INVALID)
    )


def read_first_commit(table: LakeTable) -> FirstCommit:
    """Return what the first commit of rows that the table's log has says of itself."""
    for operation in operations_after(table.spark, table.path, -1):
        if "table" in operation.metadata:
            named, after = operation.metadata["table"], operation.metadata.get("after")
            is_named = isinstance(named, list) and len(named) == 2
            name = TableName(str(named[0]), str(named[1])) if is_named else None
            return FirstCommit(name, LSN.parse(after) if isinstance(after, str) else None)
    return FirstCommit()


def _changed(name: TableName, path: str) -> ChangedError:
    return ChangedError(
        f"silver table {name}: {path} was removed or replaced while it was to be written; run again"
    )
