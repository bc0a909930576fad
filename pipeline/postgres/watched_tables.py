"""Read the files of published tables and of partitions below them, and what happened to their rows.

No message carries what ALTER TABLE does to rows when it rewrites a table, so that another file node is the
only trace. VACUUM FULL, CLUSTER, a tablespace and others give a table another file node, too, and keep its
rows. Under `publish_via_partition_root` the server sends nothing for ATTACH, DETACH, DROP and TRUNCATE of a
partition either (measured on 13 to 18).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.errors import SourceError
from pipeline.key_ranges import KeyRange
from pipeline.postgres.catalog import SNAPSHOT, WRITTEN_BY
from pipeline.postgres.connection import (
    Connection,
    describe,
    for_server,
    limit_lock_time,
    read_flush_lsn,
    reading,
)
from pipeline.postgres.partition_bounds import read_bounds
from pipeline.postgres.published_tables import PUBLISHED
from pipeline.postgres.watched_types import WatchedType, read_watched_types
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_MAX_ROWS = 100_000  # that are inspected for an old one
_OLDEST_AGE = 1 << 31  # xids repeat
_XID_MASK = 0xFFFFFFFF
# In CREATE TABLE … PARTITION OF, so many commands lie between the table's columns and its row in pg_inherits,
# on every version; CREATE TABLE and ALTER TABLE … ATTACH PARTITION in one transaction are 5 or more apart.
_COMMANDS_OF_CREATION = 2

_STATE = """
SELECT p.oid::bigint, p.xmin::text::bigint,
       pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot()),
       pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()),
       (SELECT pg_catalog.bool_and(operation.value::boolean)
        FROM pg_catalog.jsonb_each_text(pg_catalog.to_jsonb(p)) operation
        WHERE operation.key IN ('pubinsert', 'pubupdate', 'pubdelete', 'pubtruncate'))
FROM pg_catalog.pg_publication p WHERE p.pubname = %s
"""
_TABLES = """
WITH RECURSIVE family (root, oid, is_partitioned, parent, attached_by, command) AS (
    SELECT c.oid, c.oid, c.relkind = 'p', NULL::oid, NULL::bigint, NULL::bigint
    FROM {published} p JOIN pg_catalog.pg_class c ON c.oid = p.relid AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT f.root, i.inhrelid, f.is_partitioned, i.inhparent, i.xmin::text::bigint, i.cmin::text::bigint
    FROM family f JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid AND f.is_partitioned
)
SELECT f.root::bigint, f.oid::bigint, n.nspname::text, c.relname::text, f.is_partitioned, f.parent::bigint,
       f.attached_by, c.relfilenode::bigint, c.xmin::text::bigint,
       a.xmin::text::bigint = f.attached_by AND f.command - a.cmin::text::bigint = %(commands)s
       AND c.relfilenode IN (0, c.oid),
       {generated},
       a.xmin::text::bigint = f.attached_by OR f.command = 0,
       pg_catalog.pg_get_expr(c.relpartbound, 0), {columns}
FROM family f
JOIN pg_catalog.pg_class c
    ON c.oid = f.oid AND (f.parent IS NULL OR c.relkind = 'p' OR c.relpersistence = 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1 AND f.parent IS NOT NULL
ORDER BY f.oid
"""
# The row of a system column in pg_attribute never changes after CREATE TABLE.
# Bounds have no columns, and with the table's OID 18 would wait for its lock.
# Of a table whose rows have a key; NULL in place of what is no column, or is ordered or compared otherwise
# than silver does.
_COLUMNS = """ARRAY(SELECT CASE WHEN o.opcdefault AND {is_usable} THEN k.attname::text END
             FROM pg_catalog.pg_partitioned_table t
             CROSS JOIN pg_catalog.generate_series(0, t.partnatts - 1) n
             JOIN pg_catalog.pg_opclass o ON o.oid = t.partclass[n]
             LEFT JOIN pg_catalog.pg_collation l ON l.oid = t.partcollation[n]
             LEFT JOIN pg_catalog.pg_attribute k ON k.attrelid = t.partrelid AND k.attnum = t.partattrs[n]
             AND k.attnum > 0 WHERE t.partrelid = f.parent AND EXISTS (
                 SELECT FROM pg_catalog.pg_class r JOIN pg_catalog.pg_index i ON i.indrelid = r.oid
                 WHERE r.oid = f.root
                 AND CASE r.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
             ) ORDER BY n)"""
_BY_BYTES = "(l.oid IS NULL OR l.collname IN ('C', 'POSIX'))"
_IS_USABLE = {
    12: f"CASE t.partstrat WHEN 'l' THEN coalesce(l.collisdeterministic, true) ELSE {_BY_BYTES} END",
    10: f"(t.partstrat = 'l' OR {_BY_BYTES})",
}
_GENERATED = {
    12: """ARRAY(SELECT g.attnum::bigint FROM pg_catalog.pg_attribute g
             WHERE f.parent IS NULL AND g.attrelid = c.oid AND g.attgenerated <> '')""",
    10: "ARRAY[]::bigint[]",
}
_NEW_COLUMNS = f"""
SELECT a.attnum::bigint FROM pg_catalog.pg_attribute a, {SNAPSHOT}
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.atthasmissing
  AND {WRITTEN_BY.format(row="a", unknown=0)} >= %s
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A published table, whose `parent_id` is None, or a partition below it, as the catalog has it.

    `generated` has the attribute numbers of a published table's generated columns. `is_alone` is whether no
    transaction but the one that attached it could write to the partition while that one went on. `ranges`
    have its rows among those of its parent, None if its bounds do not give them.
    """

    root_id: int
    relation_id: int
    name: TableName
    ranges: tuple[KeyRange, ...] | None
    is_partitioned: bool
    parent_id: int | None
    attached_by: int | None
    filenode: int
    row_xmin: int
    is_born: bool | None
    generated: Sequence[int]
    is_alone: bool | None


@dataclass(frozen=True, slots=True)
class WatchedTables:
    """The publication's OID and xmin, the oldest open xid and the next one, the WAL's end, and the tables.

    The xids have epochs. The LSN is later than all commits that the catalog shows. `is_whole` is whether all
    operations are published. `types` are those of the tables' columns that may change their texts, by OID.
    """

    publication_id: int
    publication_xmin: int
    oldest_xid: int
    next_xid: int
    is_whole: bool
    lsn: LSN
    members: tuple[Member, ...]
    types: Mapping[int, WatchedType]


def read_watched_tables(connection: Connection, publication: str) -> WatchedTables | None:
    """Return the catalog's state as of one snapshot, None if the publication does not exist."""
    with reading("the source's tables and types"), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        state = connection.execute(_STATE, (publication,)).fetchone()
        parameters = {"publication": publication, "commands": _COMMANDS_OF_CREATION}
        columns = _COLUMNS.format(is_usable=for_server(connection, _IS_USABLE))
        published, generated = for_server(connection, PUBLISHED), for_server(connection, _GENERATED)
        rows = connection.execute(
            _TABLES.format(published=published, generated=generated, columns=columns), parameters
        ).fetchall()
        types = read_watched_types(connection, publication)
    if state is None:
        return None
    members = (
        Member(root, oid, TableName(schema, table), read_bounds(bounds or "", columns), *facts)
        for root, oid, schema, table, *facts, bounds, columns in rows
    )
    publication_id, xmin, oldest_xid, next_xid, is_whole = state
    lsn = read_flush_lsn(connection)
    return WatchedTables(publication_id, xmin, oldest_xid, next_xid, is_whole, lsn, tuple(members), types)


def list_existing_columns(connection: Connection, relation_id: int) -> set[int]:
    """Return the attribute numbers of a table's columns."""
    with reading("the columns of a table"):
        rows = connection.execute(
            "SELECT attnum::bigint FROM pg_catalog.pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
            (relation_id,),
        ).fetchall()
    return {number for (number,) in rows}


def list_new_columns(connection: Connection, relation_id: int, since: int) -> set[int]:
    """Return the attribute numbers of a table's columns that a transaction from `since` on (64 bits) wrote.

    Those with a value for older rows are left out: the catalog still has it. Only from PostgreSQL 11 on.
    """
    with reading("the columns of a table"):
        rows = connection.execute(_NEW_COLUMNS, (relation_id, since)).fetchall()
    return {number for (number,) in rows}


def list_with_pages(connection: Connection, relation_ids: Collection[int]) -> set[int]:
    """Return those of the relations that have pages, or are locked; the others have no rows."""
    try:
        with connection.transaction():
            limit_lock_time(connection)
            rows = connection.execute(
                "SELECT oid::bigint FROM pg_catalog.unnest(%s::oid[]) oid"
                " WHERE pg_catalog.pg_relation_size(oid) > 0",
                (list(relation_ids),),
            ).fetchall()
    except sqlstate.LockNotAvailable:
        if len(relation_ids) == 1:
            return set(relation_ids)
        return {oid for each in relation_ids for oid in list_with_pages(connection, [each])}
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the sizes of tables: {describe(error)}.") from None
    return {oid for (oid,) in rows}


def count_by_xid(connection: Connection, name: TableName) -> Mapping[int, int] | None:
    """Return how many rows of a table each transaction wrote, by xid; None if that cannot be read now."""
    query = sql.SQL(
        "SELECT t.xmin::text::bigint, pg_catalog.count(*) FROM ONLY {} t GROUP BY 1 LIMIT {}"
    ).format(sql.Identifier(*name), sql.Literal(_MAX_ROWS + 1))
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            limit_lock_time(connection)
            found: dict[int, int] = dict(connection.execute(query).fetchall())
    except psycopg.Error as error:
        if connection.closed:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        return None
    return found if len(found) <= _MAX_ROWS else None


def kept_rows(connection: Connection, name: TableName, oldest_xid: int) -> bool | None:
    """Return whether a table has a row from before an xid, so that it was not truncated since.

    All transactions before `oldest_xid` had ended when it was read. False means that there is no proof: the
    first rows are newer, there are none, or the role may not read them. None means that the table is locked.
    """
    old = sql.SQL(
        "SELECT EXISTS (SELECT 1 FROM (SELECT t.xmin FROM ONLY {} t LIMIT {}) first"
        " WHERE pg_catalog.age(first.xmin) > pg_catalog.age(%s::text::xid))"
    ).format(sql.Identifier(*name), sql.Literal(_MAX_ROWS))
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            limit_lock_time(connection)
            now = connection.execute(
                "SELECT pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot())"
            ).fetchone()
            if now is None or not 0 <= now[0] - oldest_xid < _OLDEST_AGE:
                return False
            found = connection.execute(old, (str(oldest_xid & _XID_MASK),)).fetchone()
    except sqlstate.LockNotAvailable:
        return None
    except psycopg.Error as error:
        if connection.closed:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        return False
    return found is not None and bool(found[0])
