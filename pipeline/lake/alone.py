"""Whether a silver table is as this run knows it: nobody else may write rows to it.

A person's commits are told by what they do not say in their metadata; a table that has rows and no position
is not known at all.
"""

from pipeline.errors import LakeError
from pipeline.lake.tables import LakeTable


def refuse_foreign_commits(table: LakeTable, name: tuple[str, str], since_version: int) -> None:
    """Raise LakeError where somebody else changed the table's rows since a version."""
    if foreign := table.foreign_commit(since_version):
        raise LakeError(
            f"silver table {'.'.join(name)} was changed by somebody else ({foreign}): RESTORE it to "
            f"the version before, remove {table.path} to have it built again from bronze, or have "
            "pgdelta resync copy it anew"
        )


def is_forgotten(table: LakeTable, app_id: str) -> bool:
    """Say whether a table has rows and nothing says up to where they are applied.

    Delta forgets positions where delta.setTransactionRetentionDuration says so.
    """
    if not table.exists() or table.is_empty():
        return False
    return not any(str(found.appId()).startswith(app_id) for found in table.transactions())


def refuse_forgotten(table: LakeTable, name: tuple[str, str], app_id: str) -> None:
    """Raise LakeError where all of a table's input would be applied to rows that have it already."""
    if is_forgotten(table, app_id):
        raise LakeError(
            f"silver table {'.'.join(name)} has rows, and nothing says how far they are: where it has the "
            "property delta.setTransactionRetentionDuration, unset it; then remove "
            f"{table.path} to have it built again from bronze, or have pgdelta resync copy it anew"
        )
