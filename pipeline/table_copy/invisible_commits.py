"""Transactions that a snapshot lacks although their commit records lie before it."""

from collections.abc import Mapping, Sequence

from pipeline.bronze.copy_states import SnapshotRanges
from pipeline.delta.table import LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_WAL_OF_ALL_XIDS = 2**36  # bytes; 16 of them for each


def is_one_of(xids: Sequence[int], lsn: LSN) -> str:
    """Return SQL that is true for changes of transactions that a snapshot at an LSN saw running.

    An xid is given anew after 2³² others, which leave more than 64 GiB of WAL: no clock is asked.
    """
    return f"xid IN ({', '.join(map(str, xids))}) AND commit_lsn > {int(lsn) - _WAL_OF_ALL_XIDS}"


def find_invisible_commits(
    changes: LakeTable, readings: Mapping[TableName, Sequence[SnapshotRanges]]
) -> dict[TableName, tuple[LSN, ...]]:
    """Return the commits before a snapshot's position that it does not hold, by table."""
    conditions = {
        f"commit_lsn <= {int(reading.lsn)} AND {is_one_of(reading.running, reading.lsn)}"
        for found in readings.values()
        for reading in found
        if reading.running
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
    late: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in rows.collect():
        for reading in readings.get(TableName(schema, table), ()):
            if commit_lsn <= reading.lsn and xid in reading.running:
                late.setdefault(TableName(schema, table), set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in late.items()}
