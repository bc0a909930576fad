"""Detect commits to a silver table that pgdelta did not make, and tables that have rows but no offset.

pgdelta's commits are recognized by their user metadata. A foreign commit that changed rows is refused, unless
a RESTORE has undone it; maintenance and changes of properties are fine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.delta.log import COLUMN_CHANGING, ROW_PRESERVING, LoggedOperation
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import OURS, TxnId
from pipeline.errors import LakeError
from pipeline.silver.swap import REBUILD
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A foreign commit that changed rows; `restorable_version` is the version that undoes it by RESTORE.

    It is None if commits of pgdelta follow: their offsets would outlive the rows that a RESTORE removes.
    """

    operation: str
    version: int
    restorable_version: int | None


def find_foreign_commit(operations: Iterable[LoggedOperation], since: int) -> ForeignCommit | None:
    """Return the first foreign commit after a version that changed rows and was not undone."""
    foreign: ForeignCommit | None = None
    unchanged_since = since  # the oldest version with the columns and rows of pgdelta's last commit
    for commit in operations:
        if OURS in commit.metadata:
            unchanged_since = commit.version
            if commit.metadata.get("operation") == REBUILD:
                foreign = None  # all rows were replaced
            elif foreign:
                foreign = replace(foreign, restorable_version=None)
        elif commit.operation in ROW_PRESERVING:
            if commit.operation in COLUMN_CHANGING and not foreign:
                unchanged_since = commit.version
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
        version = foreign.restorable_version
        restore = "" if version is None else f"RESTORE it to version {version}, or "
        run = f"{'run' if restore else 'Run'} {name.command('resync')}"
        raise LakeError(
            f"A foreign commit ({foreign.operation} at version {foreign.version}) changed rows of silver "
            f"table {name}. {restore}{run}, or remove {table.path} to rebuild it from bronze."
        )


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
