"""Commits that a snapshot does not see though their LSN lies before it."""

from collections.abc import Collection, Iterator, Mapping, Sequence

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
    wanted = {snapshot for of_table in snapshots.values() for snapshot in of_table if snapshot.running}
    if not wanted:
        return {}
    found: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in _commits(changes, wanted):
        name = TableName(schema, table)
        for snapshot in snapshots.get(name, ()):
            if commit_lsn <= snapshot.lsn and xid in snapshot.running:
                found.setdefault(name, set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in found.items()}


def _commits(
    changes: LakeTable, snapshots: Collection[SnapshotChunks]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield schema, table, commit LSN and xid of changes by transactions that a snapshot saw running."""
    columns = ["schema_name", "table_name", "commit_lsn", "xid"]
    if changes.local_path is None:
        conditions = {
            f"(commit_lsn <= {int(each.lsn)} AND {was_running(each.running, each.lsn)})" for each in snapshots
        }
        rows = changes.frame().where("op IN ('I', 'U', 'D', 'T')").where(" OR ".join(sorted(conditions)))
        yield from (tuple(row) for row in rows.select(*columns).distinct().collect())
        return
    import pyarrow.compute as pc

    is_change = pc.field("op").isin(["I", "U", "D", "T"])
    is_one = pc.scalar(False)
    for each in snapshots:
        is_near = (pc.field("commit_lsn") <= int(each.lsn)) & (
            pc.field("commit_lsn") > int(each.lsn) - _WAL_OF_ALL_XIDS
        )
        is_one = is_one | (is_near & pc.field("xid").isin(list(each.running)))
    for rows in changes.scan([*columns, "op"], changes.snapshot()):
        distinct = rows.filter(is_change & is_one).group_by(columns).aggregate([])
        yield from zip(*(distinct.column(name).to_pylist() for name in columns), strict=True)
