"""Whether a silver table is as this run knows it: nobody else may write rows to it.

A person's commits are told by what they do not say in their metadata; a table that has rows and no position
is not known at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.delta.log import COLUMN_CHANGING, ROW_PRESERVING, LoggedOperation, operations_after
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import OURS, TxnId
from pipeline.errors import LakeError
from pipeline.silver.swap import REBUILD
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit by somebody else that changed rows; `good` is the version that a RESTORE would bring back.

    It is None where commits of ours lie above: their positions would outlive the rows that a RESTORE takes.
    """

    operation: str
    version: int
    restorable_version: int | None


def find_foreign_commit(operations: Iterable[LoggedOperation], since: int) -> ForeignCommit | None:
    """Return the first commit behind a version that changed rows, is not ours, and was not undone."""
    foreign: ForeignCommit | None = None
    same = since  # the oldest version with the columns and rows of the last one of ours
    for found in operations:
        if OURS in found.metadata:
            same = found.version
            if found.metadata.get("operation") == REBUILD:
                foreign = None  # no row of before is left
            elif foreign:
                foreign = replace(foreign, restorable_version=None)
        elif found.operation in ROW_PRESERVING:
            if found.operation in COLUMN_CHANGING and not foreign:
                same = found.version
        elif not _is_undone(found, foreign, same):
            foreign = foreign or ForeignCommit(found.operation, found.version, found.version - 1)
        else:
            foreign = None
    return foreign


def _is_undone(found: LoggedOperation, foreign: ForeignCommit | None, same: int) -> bool:
    if (
        found.operation != "RESTORE"
        or found.restored_version is None
        or (foreign and foreign.restorable_version is None)
    ):
        return False
    return same <= found.restored_version < (foreign.version if foreign else found.version)


def refuse_foreign_commits(table: LakeTable, name: TableName, since_version: int) -> None:
    """Raise LakeError where somebody else changed the table's rows since a version."""
    if table.version() <= since_version:
        return
    foreign = find_foreign_commit(operations_after(table.spark, table.path, since_version), since_version)
    if foreign:
        restore = (
            ""
            if foreign.restorable_version is None
            else f"RESTORE it to version {foreign.restorable_version}, "
        )
        raise LakeError(
            f"silver table {name} was changed by somebody else ({foreign.operation} at version "
            f"{foreign.version}): {restore}remove {table.path} to have it built again from bronze, or have "
            "pgdelta resync copy it anew"
        )


def has_lost_offset(table: LakeTable, txn: TxnId) -> bool:
    """Say whether a table has rows and nothing says up to where they are applied.

    Delta forgets positions where delta.setTransactionRetentionDuration says so.
    """
    if not table.exists() or table.is_empty():
        return False
    return not records_offset(table.offsets(), txn)


def records_offset(recorded: Iterable[str], txn: TxnId) -> bool:
    """Say whether one of the ids that a table's log has is that of its position, or of what comes before it.

    A new table may have a part of a transaction, or of a copy, whose rest is not there yet. What a rewrite,
    copied keys or a back-fill recorded says nothing: Delta keeps it longer than a position from before.
    """
    found = (TxnId.parse(text) for text in recorded)
    return any(
        each is not None and each.offset_id == txn and (each.advances or each.kind.is_part) for each in found
    )


def refuse_lost_offset(table: LakeTable, name: TableName, txn: TxnId) -> None:
    """Raise LakeError where all of a table's input would be applied to rows that have it already."""
    if has_lost_offset(table, txn):
        raise LakeError(
            f"silver table {name} has rows, and nothing says how far they are: where it has the "
            "property delta.setTransactionRetentionDuration, unset it; then remove "
            f"{table.path} to have it built again from bronze, or have pgdelta resync copy it anew"
        )
