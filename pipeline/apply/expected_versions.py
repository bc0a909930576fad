"""Check that a silver table is the one that was last read or written, and make its entry in the manifest.

A folder may be removed, restored from a backup, or replaced by another table. The applied offset then no
longer describes its rows, and the table is rebuilt or held. `ExpectedVersions` detects this by the table's
version, id and offset, before each write and when the folders are polled.

`ManifestEntries` returns the version of each table that shows the source. A version is recorded in a manifest
only if no foreign commit has changed rows since the previous manifest, or removed columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TxnId
from pipeline.errors import LakeError
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.registry import TableRegistry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.read.versions import manifest_entry, read_state, version_and_id
from pipeline.silver.schema.foreign_commits import refuse_foreign_changes
from pipeline.silver.schema.swap import is_copied
from pipeline.table_name import TableName


class ManifestEntries:
    """The entries of a batch's manifest, made from those of the previous one; threads may share it."""

    def __init__(
        self,
        lake: Lake,
        manifest: Manifest,
        path: Callable[[TableName], str],
        txn: TxnId,
        registry: TableRegistry,
    ) -> None:
        self.before = manifest.by_name
        self._registry = registry
        self._txn = txn
        self._lake = lake
        self._path = path

    def recorded_version(self, name: TableName) -> int:
        """Return the version of a table in the previous manifest, -1 if that does not contain this table."""
        _, table_id = version_and_id(self._lake.table_at(self._path(name)))
        entry = self.before.get(name)
        return entry.version if entry and entry.table_id in ("", table_id) else -1

    def current(self, name: TableName, applied: LSN, since: int, *, is_behind: bool = False) -> ManifestEntry:
        """Return the entry of a table's newest version.

        Raises LakeError if a foreign commit changed rows after the version `since`, or removed columns.
        """
        table = self._lake.table_at(self._path(name))
        entry = manifest_entry(table, name, applied, self._txn, is_behind=is_behind)
        refuse_foreign_changes(table, name, since, self._registry.read().get(name))
        return replace(entry, copied_version=self._copied_version(table, name, entry))

    def _copied_version(self, table: LakeTable, name: TableName, entry: ManifestEntry) -> int | None:
        """Return the newest version of a table that was made of copied rows, or by a rebuild."""
        before = self.before.get(name)
        is_same = before is not None and before.table_id == entry.table_id
        found, since = (before.copied_version, before.version) if before and is_same else (None, -1)
        if entry.version > since:
            for operation in table.operations_after(since):
                if operation.version <= entry.version and is_copied(operation):
                    found = operation.version
        return found

    def behind(self, name: TableName, applied: LSN) -> ManifestEntry:
        """Return the entry of a table that does not show the LSN of the manifest: its previous version.

        `applied` is the offset in its log, which may be newer: a run that ended early wrote it.
        """
        path = self._lake.table_at(self._path(name)).path
        if entry := self.before.get(name):
            return replace(entry, path=path, applied_lsn=min(applied, entry.applied_lsn), is_behind=True)
        return ManifestEntry(*name, path, -1, applied, True)


class ChangedError(LakeError):
    """Raised if the folder of a table changed since it was read; the batch is then repeated."""


@dataclass(frozen=True, slots=True)
class ExpectedVersion:
    """A silver table as its log describes it; without a table, `version` is -1 and `table_id` is empty."""

    version: int
    table_id: str
    offset: LSN

    def follows(self, last: ExpectedVersion) -> bool:
        """Return whether this is the same table with the same rows as `last`; OPTIMIZE only adds versions."""
        same = (self.table_id, self.offset) == (last.table_id, last.offset)
        return same and self.version >= last.version


class TableChange(Enum):
    """How a table changed since a manifest."""

    SAME = "the same"
    MISSING = "gone"
    OLDER = "older"
    REPLACED = "other"


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """What the first commit of a table's log records, if pgdelta made it.

    `start_lsn` is the LSN (exclusive) from which the write continued; a new table begins at 0/0.
    """

    name: TableName | None = None
    start_lsn: LSN | None = None


def classify_change(
    name: TableName,
    entry: ManifestEntry | None,
    found: ExpectedVersion,
    read_origin: Callable[[], FirstCommit],
) -> TableChange:
    """Return how a table changed since the last manifest; calls `read_origin` only if the table ids differ.

    A run that ended before its manifest leaves a later offset, and a table that it rebuilt has another id.
    Both are our own commits, and the table continues.
    """
    if entry is None or entry.version < 0:
        return TableChange.SAME
    if found.version < 0:
        return TableChange.MISSING
    if found.offset == INVALID:
        return TableChange.SAME  # no offset: the table is new, or it is refused because it has rows
    is_behind = found.offset < (entry.offset or INVALID)
    if entry.table_id in ("", found.table_id):
        return TableChange.OLDER if is_behind or found.version < entry.version else TableChange.SAME
    first = read_origin()
    if first.name != name or first.start_lsn is None:
        return TableChange.REPLACED
    return TableChange.OLDER if is_behind or first.start_lsn > INVALID else TableChange.SAME


def describe_change(name: TableName, path: str, verdict: TableChange) -> str:
    """Return the sentence about a changed table and what follows."""
    if verdict is TableChange.REPLACED:
        return (
            f"Table {name} is held: {path} contains another table than the one that pgdelta wrote. Put that "
            "table back, or move the folder away to have it rebuilt."
        )
    what = "is gone" if verdict is TableChange.MISSING else "lacks commits that pgdelta made"
    return f"The table in {path} {what}. It is rebuilt from bronze."


class ExpectedVersions:
    """The silver tables as this process read or wrote them last; each is used by one thread at a time."""

    def __init__(self, lake: Lake, path: Callable[[TableName], str], txn: TxnId) -> None:
        self._lake = lake
        self._path = path
        self._txn = txn
        self._last: dict[TableName, ExpectedVersion] = {}

    def __contains__(self, name: TableName) -> bool:
        return name in self._last

    def check(self, name: TableName, entry: ManifestEntry | None) -> tuple[ExpectedVersion, TableChange]:
        """Read and record the state of a table, and return how it changed since the last manifest."""
        table = self._lake.table_at(self._path(name))
        if entry is not None and entry.path != table.path:
            entry = None  # the configuration gives it another folder
        found = read_version(table, self._txn)
        verdict = classify_change(name, entry, found, lambda: read_first_commit(table))
        if verdict is not TableChange.SAME:
            table.forget_log()  # Spark may have cached the log of a previous folder
            found = read_version(table, self._txn)
            verdict = classify_change(name, entry, found, lambda: read_first_commit(table))
        self._last[name] = found
        return found, verdict

    def forget(self, name: TableName) -> None:
        """Read the table's log again at the next check."""
        self._last.pop(name, None)

    def require(self, name: TableName) -> None:
        """Raise ChangedError unless the table is still what was read or written last."""
        last = self._last.get(name)
        table = self._lake.table_at(self._path(name))
        if last is not None and not read_version(table, self._txn).follows(last):
            raise _changed(name, table.path)

    def record(self, name: TableName, written: ManifestEntry) -> None:
        """Record what was written; raise ChangedError if another table was in the folder by then."""
        last = self._last.get(name)
        found = _table_version(written.version, written.table_id or "", written.offset)
        if last is not None and last.version >= 0 and found.table_id != last.table_id:
            raise _changed(name, written.path)
        self._last[name] = found


def read_version(table: LakeTable, txn: TxnId) -> ExpectedVersion:
    """Return the version, id and offset in a table's log."""
    return _table_version(*read_state(table, txn))


def _table_version(version: int, table_id: str, offset: LSN | None) -> ExpectedVersion:
    return (
        ExpectedVersion(version, table_id, offset or INVALID)
        if version >= 0
        else ExpectedVersion(-1, "", INVALID)
    )


def read_first_commit(table: LakeTable) -> FirstCommit:
    """Return what the first commit of rows in the table's log records."""
    for operation in table.operations_after(-1):
        if "table" in operation.metadata:
            named, after = operation.metadata["table"], operation.metadata.get("after")
            is_named = isinstance(named, list) and len(named) == 2
            name = TableName(str(named[0]), str(named[1])) if is_named else None
            return FirstCommit(name, LSN.parse(after) if isinstance(after, str) else None)
    return FirstCommit()


def _changed(name: TableName, path: str) -> ChangedError:
    return ChangedError(
        f"The folder {path} of table {name} was removed or replaced during the batch. Run again."
    )
