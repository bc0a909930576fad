"""Commits that a snapshot does not see though their LSN lies before it."""

from collections.abc import Iterable, Mapping, Sequence

from pipeline.bronze.changes_scan import ChangesScan
from pipeline.bronze.copy_states import CopyHistory, SnapshotChunks
from pipeline.delta.table import LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_WAL_OF_ALL_XIDS = 2**36  # bytes; 16 of them for each
_COLUMNS = ("schema_name", "table_name", "commit_lsn", "xid")


def was_running(xids: Sequence[int], lsn: LSN, history: CopyHistory) -> str:
    """Return SQL that is true for changes of transactions that a snapshot at an LSN saw running."""
    return _made_since(xids, _first_lsn(lsn, history))


def _made_since(xids: Sequence[int], first_lsn: LSN) -> str:
    return f"xid IN ({', '.join(map(str, xids))}) AND commit_lsn >= {int(first_lsn)}"


def _first_lsn(lsn: LSN, history: CopyHistory) -> LSN:
    """Return the LSN from which on, up to another one, no two transactions have the same xid.

    An xid is used again after 2³² others, which leave more than 64 GiB of WAL: no clock is needed. Another
    server, or an earlier state of one, uses its own.
    """
    return LSN(max(0, lsn - _WAL_OF_ALL_XIDS + 1, history.xids_since(lsn)))


def find_invisible_commits(
    changes: LakeTable, snapshots: Mapping[TableName, Sequence[SnapshotChunks]], history: CopyHistory
) -> dict[TableName, tuple[LSN, ...]]:
    """Return the commit LSNs of each table's changes that its snapshots do not see though they lie before.

    Only files that may have such changes of these tables are read, by their statistics.
    """
    running = {
        name: [snapshot for snapshot in of_table if snapshot.running] for name, of_table in snapshots.items()
    }
    running = {name: of_table for name, of_table in running.items() if of_table}
    if not running:
        return {}
    # not for each table: the history of a move has a row of each
    taken_at = {snapshot.lsn for of_table in running.values() for snapshot in of_table}
    first_lsns = {lsn: _first_lsn(lsn, history) for lsn in taken_at}
    found: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in _commits(changes, running, first_lsns):
        name = TableName(schema, table)
        for snapshot in running.get(name, ()):
            if first_lsns[snapshot.lsn] <= commit_lsn <= snapshot.lsn and xid in snapshot.running:
                found.setdefault(name, set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in found.items()}


def _commits(
    changes: LakeTable,
    snapshots: Mapping[TableName, Sequence[SnapshotChunks]],
    first_lsns: Mapping[LSN, LSN],
) -> Iterable[tuple[str, str, int, int]]:
    """Return schema, table, commit LSN and xid of changes by transactions that a snapshot saw running."""
    distinct = {snapshot for of_table in snapshots.values() for snapshot in of_table}
    conditions = {
        f"(commit_lsn <= {int(each.lsn)} AND {_made_since(each.running, first_lsns[each.lsn])})"
        for each in distinct
    }
    condition = " OR ".join(sorted(conditions))
    path = changes.local_path
    if path is None:
        rows = changes.frame().where("op IN ('I', 'U', 'D', 'T')").where(condition)
        return [tuple(row) for row in rows.select(*_COLUMNS).distinct().collect()]
    # every change of a transaction ends after its commit LSN
    starts = {name: min(first_lsns[each.lsn] for each in of_table) for name, of_table in snapshots.items()}
    scan = ChangesScan(
        path,
        changes.snapshot(),
        start_lsn=min(starts.values()),
        offsets=starts,
        xids=frozenset(xid for each in distinct for xid in each.running),
        max_commit_lsn=max(each.lsn for each in distinct),
    )
    if scan.is_empty():
        return []
    sql = f"SELECT DISTINCT {', '.join(_COLUMNS)} FROM changes WHERE {condition}"
    return scan.query(sql, (*_COLUMNS, "op", "end_lsn"))
