"""The transactions of the source that have not ended: those that write to tables, and the prepared ones.

A transaction that has written to a table, prepared or not, holds a lock on it until it ends. A standby lists
neither the primary's locks nor its transactions; there, every transaction that was open counts as a writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.postgres.connection import Connection, read_flush_lsn, reading
from pipeline.postgres.sql_text import THIS_DATABASE, quote_literal
from pipeline.protocol.lsn import LSN
from pipeline.units import format_duration, format_time

# With all partitions: a transaction that writes to a leaf has a lock on the leaf only.
_WRITERS = f"""
WITH RECURSIVE family(root, member) AS (
    SELECT oid, oid FROM pg_catalog.unnest(%s::oid[]) oid
    UNION
    SELECT f.root, i.inhrelid FROM family f JOIN pg_catalog.pg_inherits i ON i.inhparent = f.member
)
SELECT f.root::bigint, pg_catalog.array_agg(DISTINCT l.virtualtransaction)
FROM pg_catalog.pg_locks l
JOIN family f ON f.member = l.relation
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
  AND l.database = {THIS_DATABASE}
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
GROUP BY f.root
"""
_ON_STANDBY = """
SELECT pg_catalog.txid_snapshot_xmin(s), pg_catalog.txid_snapshot_xmax(s)
FROM pg_catalog.txid_current_snapshot() s
"""
# What a role may not see of other roles' sessions is NULL.
_OPEN = """
SELECT a.pid, NULL, coalesce(a.usename::text, '?'), coalesce(a.application_name, ''),
       coalesce(a.datname::text, '?'), a.xact_start, a.state, a.backend_xid::text::bigint,
       pg_catalog.clock_timestamp()
FROM pg_catalog.pg_stat_activity a
WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
UNION ALL
SELECT NULL, p.gid::text, p.owner::text, '', p.database::text, p.prepared, NULL,
       p.transaction::text::bigint, pg_catalog.clock_timestamp()
FROM pg_catalog.pg_prepared_xacts p
ORDER BY 6, 1
"""
# Major → the first minor release in which an open transaction notices that a table was published.
_NOTICES_NEW_TABLES_SINCE = {13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
_POLL_INTERVAL = 0.01


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions that write to tables, by the table's OID; for a standby, the range of open xids."""

    by_relation: Mapping[int, frozenset[str]]
    open_xids: tuple[int, int] | None = None  # the oldest, and the next to be assigned

    def writers_of(self, relation_id: int) -> frozenset[str]:
        """Return identifiers of the transactions that write to a table; for a standby, the next xid."""
        if self.open_xids is not None:
            oldest, following = self.open_xids
            return frozenset({str(following)} if oldest < following else ())
        return self.by_relation.get(relation_id, frozenset())

    def still_open(self, before: frozenset[str], relation_id: int) -> frozenset[str]:
        """Return those of the earlier `writers_of` a table that have not ended."""
        if self.open_xids is not None:
            return frozenset(following for following in before if self.open_xids[0] < int(following))
        return before & self.writers_of(relation_id)


def read_writers(connection: Connection, relation_ids: Sequence[int]) -> OpenTransactions:
    """Return the transactions that write to the tables now."""
    with reading("the transactions that write to tables"):
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            return OpenTransactions({}, connection.execute(_ON_STANDBY).fetchone())
        rows = connection.execute(_WRITERS, (list(relation_ids),)).fetchall()
    return OpenTransactions({relation_id: frozenset(writers) for relation_id, writers in rows})


def keeps_stale_entries(server_version: int) -> bool:
    """Return whether a session may keep skipping a table that was published while a transaction wrote to it.

    Fixed in 13.21, 14.18, 15.13, 16.9 and 17.5, and in no release of 10 to 12.
    """
    major, minor = divmod(server_version, 10000)
    return major < 18 and minor < _NOTICES_NEW_TABLES_SINCE.get(major, minor + 1)


def write_wal_past_now(connection: Connection, should_stop: Callable[[], bool]) -> LSN:
    """Return an LSN after the end of every transaction that has ended, once the server can decode to it."""
    with reading("the server's WAL location"):
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or row[0]:
            return read_flush_lsn(connection)
        row = connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        # This transaction's own end writes WAL after theirs.
        connection.execute("SELECT pg_catalog.txid_current()")
    insert_lsn = LSN.parse(row[0])
    while read_flush_lsn(connection) <= insert_lsn and not should_stop():
        time.sleep(_POLL_INTERVAL)
    return insert_lsn


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has an xid, of a session (`pid`) or prepared (`gid`); `str()` names it.

    `since` and `state` are None if the role may not see them. No text of a query is read.
    """

    pid: int | None
    gid: str | None
    user: str
    application: str
    database: str
    since: datetime | None
    state: str | None
    xid: int
    read_at: datetime

    def __str__(self) -> str:
        facts = [f"user {self.user}", f"database {self.database}"]
        if self.application:
            facts.append(f"application {self.application}")
        if self.since is not None:
            facts.append(f"since {format_time(self.since)}, {format_duration(self.seconds)}")
        if self.state:
            facts.append(self.state)
        name = f"PID {self.pid}" if self.gid is None else f"prepared transaction {quote_literal(self.gid)}"
        return f"{name} ({', '.join(facts)})"

    @property
    def seconds(self) -> float:
        """The seconds that it had been open when it was read; 0 if that is not known."""
        return max(0.0, (self.read_at - self.since).total_seconds()) if self.since else 0.0


def list_open_transactions(connection: Connection) -> list[OpenTransaction]:
    """Return the transactions of all databases that have an xid, oldest first."""
    with reading("the source's open transactions"):
        return [OpenTransaction(*row) for row in connection.execute(_OPEN).fetchall()]


def read_prepared_transactions(connection: Connection) -> set[tuple[str, int]]:
    """Return GID and xid of this database's prepared transactions."""
    with reading("the source's prepared transactions"):
        rows = connection.execute(
            "SELECT gid::text, transaction::text::bigint FROM pg_catalog.pg_prepared_xacts"
            " WHERE database = pg_catalog.current_database()"
        ).fetchall()
    return {(gid, xid) for gid, xid in rows}
