"""Which transactions are writing to tables; and servers whose sessions keep what they knew of a publication.

A transaction that has written to a table holds a lock on it until it ends, be it prepared or not. A standby
lists neither locks of the primary nor transactions; there all that were open on the server stand for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe, read_flush_lsn
from pipeline.protocol.lsn import LSN

# Of a partitioned table with all that lies below it: who writes to a leaf has a lock on the leaf alone.
_WRITERS = """
WITH RECURSIVE family(root, member) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::oid[]) oid
    UNION
    SELECT f.root, i.inhrelid FROM family f JOIN pg_catalog.pg_inherits i ON i.inhparent = f.member
)
SELECT f.root::bigint, pg_catalog.array_agg(DISTINCT l.virtualtransaction)
FROM pg_catalog.pg_locks l
JOIN family f ON f.member = l.relation
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
GROUP BY f.root
"""
_ON_STANDBY = """
SELECT pg_catalog.txid_snapshot_xmin(s), pg_catalog.txid_snapshot_xmax(s)
FROM pg_catalog.txid_current_snapshot() s
"""
# From which minor release on an open transaction learns that a table has joined meanwhile.
_TELLS_OPEN_TRANSACTIONS = {13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions that were writing to tables, by oid; of a standby the range of what may be open."""

    by_relation: Mapping[int, frozenset[str]]
    open_xids: tuple[int, int] | None = None  # the oldest, and the next that will be given

    def of(self, relation_id: int) -> frozenset[str]:
        """Return what stands for the transactions that write to a table now."""
        if self.open_xids is not None:
            oldest, following = self.open_xids
            return frozenset({str(following)} if oldest < following else ())
        return self.by_relation.get(relation_id, frozenset())

    def left(self, before: frozenset[str], relation_id: int) -> frozenset[str]:
        """Return which of those that were writing before are open still."""
        if self.open_xids is not None:
            return frozenset(following for following in before if self.open_xids[0] < int(following))
        return before & self.of(relation_id)


def list_writers(connection: Connection, relation_ids: Sequence[int]) -> OpenTransactions:
    """Return which transactions write to tables now."""
    try:
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            return OpenTransactions({}, connection.execute(_ON_STANDBY).fetchone())
        rows = connection.execute(_WRITERS, (list(relation_ids),)).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read who writes to the source's tables: {describe(error)}.") from None
    return OpenTransactions({relation_id: frozenset(writers) for relation_id, writers in rows})


def keeps_stale_entries(server_version: int) -> bool:
    """Say whether a session may go on leaving out a table that joined while a transaction wrote to it.

    Mended in 13.21, 14.18, 15.13, 16.9 and 17.5, in no release of 10 to 12.
    """
    major, minor = divmod(server_version, 10000)
    return major < 18 and minor < _TELLS_OPEN_TRANSACTIONS.get(major, minor + 1)


def write_wal_past_now(connection: Connection, should_stop: Callable[[], bool]) -> LSN:
    """Return a position beyond all that has ended, once it can be decoded."""
    try:
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or row[0]:
            return read_flush_lsn(connection)
        row = connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        # The end of a transaction of our own: the log goes on beyond all that has ended.
        connection.execute("SELECT pg_catalog.txid_current()")
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the server's WAL position: {describe(error)}.") from None
    beyond = LSN.parse(row[0])
    while read_flush_lsn(connection) <= beyond and not should_stop():
        time.sleep(_PAUSE)
    return beyond
