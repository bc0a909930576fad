"""Commits that a snapshot does not see though their LSN lies before it."""

from collections.abc import Mapping, Sequence

from pipeline.bronze.copy_states import SnapshotChunks
from pipeline.delta.table import LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_WAL_OF_ALL_XIDS = 2**36  # bytes; 16 of them for each


def was_running(xids: Sequence[int], lsn: LSN) -> str:
    """Return SQL that is true for changes of transactions that a snapshot at an LSN saw running.

    An xid is used again after 2³² others, which leave more than 64 GiB of WAL: no clock is needed.
    """
    return f"xid IN ({', '.join(map(str, xids))}) AND commit_lsn > {int(lsn) - _WAL_OF_ALL_XIDS}"


def find_invisible_commits(
    changes: LakeTable, snapshots: Mapping[TableName, Sequence[SnapshotChunks]]
) -> dict[TableName, tuple[LSN, ...]]:
    """Return the commit LSNs of each table's changes that its snapshots do not see though they lie before."""
    conditions = {
        f"commit_lsn <= {int(snapshot.lsn)} AND {was_running(snapshot.running, snapshot.lsn)}"
        for of_table in snapshots.values()
        for snapshot in of_table
        if snapshot.running
    }
    if not conditions:
        return {}
    rows = (
        changes.frame()
        .where("op IN ('I', 'U', 'D', 'T')")
        .where(" OR ".join(f"({condition})" for condition in sorted(conditions)))
        .select("schema_name", "table_name", "commit_lsn", "xid")
        .distinct()
    )
    found: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in rows.collect():
        name = TableName(schema, table)
        for snapshot in snapshots.get(name, ()):
            if commit_lsn <= snapshot.lsn and xid in snapshot.running:
                found.setdefault(name, set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in found.items()}
