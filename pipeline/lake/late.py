"""Transactions that a snapshot lacks although their commit records lie before it."""

from collections.abc import Mapping, Sequence

from pipeline.lake.copies import Reading
from pipeline.lake.records import TableName
from pipeline.lake.tables import LakeTable
from pipeline.protocol.lsn import LSN


def late_commits(
    changes: LakeTable, readings: Mapping[TableName, Sequence[Reading]]
) -> dict[TableName, tuple[LSN, ...]]:
    """Return the commits before a snapshot's position that it does not hold, by table.

    An xid is given anew after 2³² others: only those of the last days can be meant.
    """
    conditions = {
        f"commit_lsn <= {int(reading.lsn)} AND xid IN ({', '.join(map(str, reading.running))})"
        for found in readings.values()
        for reading in found
        if reading.running
    }
    if not conditions:
        return {}
    rows = (
        changes.frame()
        .where("op IN ('I', 'U', 'D', 'T') AND commit_time > current_timestamp() - INTERVAL 3 DAYS")
        .where(" OR ".join(f"({condition})" for condition in sorted(conditions)))
        .select("schema_name", "table_name", "commit_lsn", "xid")
        .distinct()
    )
    late: dict[TableName, set[LSN]] = {}
    for schema, table, commit_lsn, xid in rows.collect():
        for reading in readings.get((schema, table), ()):
            if commit_lsn <= reading.lsn and xid in reading.running:
                late.setdefault((schema, table), set()).add(LSN(commit_lsn))
    return {name: tuple(sorted(lsns)) for name, lsns in late.items()}
