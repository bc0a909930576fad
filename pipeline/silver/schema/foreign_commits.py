"""Detect commits to a silver table that pgdelta did not make, and tables that have rows but no offset.

pgdelta's commits are recognized by their user metadata. A foreign commit that changed rows is refused, unless
a RESTORE has undone it; maintenance and changes of properties are fine. So are other columns, names and wider
types, as long as the table has each column that is registered: in a column that was added again, rows would
have NULL until a change brings their values.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.delta.log import LoggedOperation
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS, TxnId
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredTable
from pipeline.silver.schema.swap import REBUILD
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A foreign commit that is refused; `restorable_version` is the version that undoes it by RESTORE.

    It is None if commits of pgdelta follow: their offsets would outlive the rows that a RESTORE removes.
    The version is -1 if Delta's log does not have the commit any more.
    """

    operation: str
    version: int
    restorable_version: int | None

    def error(self, what: str, table: LakeTable, name: TableName) -> LakeError:
        """Return what to raise, given what the commit did to the table's rows or columns."""
        version = self.restorable_version
        restore = "" if version is None else f"RESTORE it to version {version}, or "
        run = f"{'run' if restore else 'Run'} {name.command('resync')}"
        commit = f"({self.operation} at version {self.version})"
        if self.version < 0:
            commit = "that Delta's log does not have any more"
        return LakeError(
            f"A foreign commit {commit} {what} of silver table {name}. "
            f"{restore}{run}, or remove {table.path} to rebuild it from bronze."
        )


def find_foreign_commit(operations: Iterable[LoggedOperation], since: int) -> ForeignCommit | None:
    """Return the first foreign commit after a version that changed rows and was not undone."""
    foreign: ForeignCommit | None = None
    unchanged_since = since  # the oldest version with the rows of pgdelta's last commit
    for commit in operations:
        if OURS in commit.metadata:
            unchanged_since = commit.version
            if commit.metadata.get("operation") == REBUILD:
                foreign = None  # all rows were replaced
            elif foreign:
                foreign = replace(foreign, restorable_version=None)
        elif not commit.changes_rows:
            continue
        elif _undoes(commit, foreign, unchanged_since):
            foreign = None
        else:
            foreign = foreign or ForeignCommit(commit.operation, commit.version, commit.version - 1)
    return foreign


def _undoes(commit: LoggedOperation, foreign: ForeignCommit | None, unchanged_since: int) -> bool:
    """Return whether a commit restores the rows of pgdelta's last commit."""
    if commit.operation != "RESTORE" or commit.restored_version is None:
        return False
    if foreign and foreign.restorable_version is None:
        return False
    return unchanged_since <= commit.restored_version < (foreign.version if foreign else commit.version)


def refuse_foreign_commits(table: LakeTable, name: TableName, since_version: int) -> None:
    """Raise LakeError if a foreign commit changed the table's rows since a version."""
    if table.version() <= since_version:
        return
    foreign = find_foreign_commit(table.operations_after(since_version), since_version)
    if foreign:
        raise foreign.error("changed rows", table, name)


def refuse_missing(snapshot: Snapshot) -> None:
    """Raise LakeError if there is no table where it is registered."""
    if not snapshot.exists:
        raise LakeError(
            f"There is no table in {snapshot.path}. Put its folder back, or run pgdelta apply to rebuild it "
            "from bronze."
        )


def find_removal(
    operations: Iterable[LoggedOperation], columns: Mapping[str, str], sidecars: Collection[str] = ()
) -> tuple[ForeignCommit, list[str]] | None:
    """Return the first foreign commit that removed columns, and the names of all that such commits removed.

    `columns` are registered ones that the newest version lacks (physical name → name), and `sidecars` the
    names of those that it lacks and may have had. None if pgdelta removed them.
    """
    names = dict(columns)
    present, last_own = {*columns}, -1
    removed_by: dict[str, LoggedOperation] = {}
    for commit in operations:
        if OURS in commit.metadata:
            last_own = commit.version
        if commit.schema_string is None:
            continue
        fields = TableSchema.of_json(commit.schema_string).fields
        found = {each.physical_name: each.name for each in fields if each.physical_name in columns}
        found |= {each.name: each.name for each in fields if each.name in sidecars}
        removed_by |= dict.fromkeys(present - found.keys(), commit)
        present = {*found}
        names |= found
    foreign = {key: commit for key, commit in removed_by.items() if OURS not in commit.metadata}
    if not foreign and columns.keys() <= removed_by.keys():
        return None
    removed = sorted(names[key] for key in foreign.keys() | (columns.keys() - removed_by.keys()))
    if not foreign:
        return ForeignCommit("", -1, None), removed
    first = min(foreign.values(), key=lambda commit: commit.version)
    restorable = first.version - 1 if first.version > last_own else None
    return ForeignCommit(first.operation, first.version, restorable), removed


def refuse_removed_columns(
    table: LakeTable, name: TableName, registered: RegisteredTable, sidecars: Collection[str] = ()
) -> None:
    """Raise LakeError if a foreign commit removed a registered column, or one of the `sidecars` to add.

    What pgdelta removed, and could not register before it ended, is not missing.
    """
    columns = {each.physical_name: each.silver_name for each in registered.columns if each.physical_name}
    columns |= {physical_name: physical_name for physical_name in registered.metadata_columns}
    present = table.physical_names().values()
    missing = {physical: column for physical, column in columns.items() if physical not in present}
    if not missing and not sidecars:
        return
    if missing:
        refuse_missing(table.snapshot())
    removal = find_removal(table.operations_after(-1), missing, sidecars)
    if removal is not None:
        commit, removed = removal
        what = f"removed column{'s' if len(removed) > 1 else ''} {', '.join(removed)}"
        raise commit.error(what, table, name)


def refuse_foreign_changes(
    table: LakeTable, name: TableName, since_version: int, registered: RegisteredTable | None
) -> None:
    """Raise LakeError if a foreign commit changed rows since a version, or removed a registered column."""
    refuse_foreign_commits(table, name, since_version)
    if registered is not None:
        refuse_removed_columns(table, name, registered)


def has_lost_offset(table: LakeTable, txn: TxnId) -> bool:
    """Return whether a table has rows, but records no offset.

    Delta removes offsets that are older than delta.setTransactionRetentionDuration, if that is set.
    """
    if not table.exists() or table.is_empty():
        return False
    return not records_offset(table.offsets(), txn)


def records_offset(app_ids: Iterable[str], txn: TxnId) -> bool:
    """Return whether one of the recorded ids is that of the offset, or of a part of what it will complete.

    A new table may have a part of a transaction or of a copy, and no offset yet. The ids of rebuilds, partial
    copies and backfills do not count: Delta may keep them longer than an offset.
    """
    ids = (TxnId.parse(app_id) for app_id in app_ids)
    return any(
        each is not None and each.offset_id == txn and (each.advances or each.kind.is_part) for each in ids
    )


def refuse_lost_offset(table: LakeTable, name: TableName, txn: TxnId) -> None:
    """Raise LakeError if a table has rows but no offset: all its input would be applied a second time."""
    if has_lost_offset(table, txn):
        raise LakeError(
            f"Silver table {name} has rows but records no offset. Unset its property "
            f"delta.setTransactionRetentionDuration, then run {name.command('resync')}, or remove "
            f"{table.path} to rebuild it from bronze."
        )
