"""Find the published tables that were altered or renamed, by the xmin of their rows in the catalog.

Altering a column writes its row in `pg_attribute`, another key that in `pg_index`, another replica identity
that in `pg_class`, and another name or schema that of the row's type in `pg_type`. Other commands write these
rows too: what is found may be unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pipeline.postgres.catalog import SNAPSHOT, WRITTEN_BY
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.published_tables import PUBLISHED
from pipeline.postgres.sql_text import THIS_DATABASE

_ALTERED = f"""
WITH written AS (
    SELECT a.attrelid AS relid, {WRITTEN_BY.format(row="a", unknown=0)} AS xid
    FROM pg_catalog.pg_attribute a, {SNAPSHOT} WHERE a.attnum > 0
    UNION ALL
    SELECT i.indrelid, {WRITTEN_BY.format(row="i", unknown=0)}
    FROM pg_catalog.pg_index i, {SNAPSHOT} WHERE i.indisprimary OR i.indisreplident
    UNION ALL
    SELECT t.typrelid, {WRITTEN_BY.format(row="t", unknown=0)}
    FROM pg_catalog.pg_type t, {SNAPSHOT} WHERE t.typrelid <> 0
), altered AS (
    SELECT relid, pg_catalog.array_agg(xid ORDER BY xid) AS xids
    FROM written WHERE xid >= %(since)s GROUP BY relid
)
SELECT c.oid::bigint, c.relreplident::text, altered.xids
FROM {{published}} p
JOIN pg_catalog.pg_class c ON c.oid = p.relid
CROSS JOIN {SNAPSHOT}
LEFT JOIN altered ON altered.relid = c.oid
WHERE altered.relid IS NOT NULL OR {WRITTEN_BY.format(row="c", unknown=0)} >= %(since)s
"""
# A transaction keeps its lock until what it altered is visible, also if it is prepared.
_LOCKED = f"""
SELECT l.relation::bigint FROM pg_catalog.pg_locks l
WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted
  AND l.database = {THIS_DATABASE}
"""


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """The replica identity of a table, and the transactions that wrote rows of its columns, key and type."""

    replica_identity: str
    xids: tuple[int, ...] = ()


def read_altered(connection: Connection, publication: str, since: int) -> dict[int, AlteredTable]:
    """Return the published tables, by OID, that a transaction altered whose 64-bit id is `since` or more."""
    query = _ALTERED.format(published=for_server(connection, PUBLISHED))
    with reading("which tables were altered"):
        rows = connection.execute(query, {"publication": publication, "since": since}).fetchall()
    return {oid: AlteredTable(identity, tuple(xids or ())) for oid, identity, xids in rows}


def list_locked(connection: Connection, relation_ids: Collection[int]) -> set[int]:
    """Return those of the tables that a transaction has locked exclusively, which may be altering them."""
    with reading("the locks of tables"):
        rows = connection.execute(_LOCKED).fetchall()
    return {oid for (oid,) in rows}.intersection(relation_ids)
