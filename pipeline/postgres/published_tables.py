"""What a publication sends of a table, as a copy of its rows has to bring it: columns, row filter, leaves.

The relation is described as pgoutput would describe it in the stream, so that rows that are copied and rows
that are streamed belong to the same relation version. Of a partitioned table that is published by its root
the rows lie in its leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.catalog import NOT_NULL
from pipeline.postgres.connection import Connection, describe, for_server
from pipeline.postgres.key_conditions import KeyCondition
from pipeline.protocol.messages import Column, Relation
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows; a file node that changes means that they were written anew."""

    schema_name: str
    table_name: str
    oid: int
    filenode: int
    pages: int


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One name of the publication; `row_filter` is SQL over its columns, `nullable` says it of each.

    `keys` is a condition where only some of its rows are wanted.
    """

    relation: Relation
    nullable: tuple[bool, ...]
    row_filter: str | None
    leaves: tuple[Leaf, ...]
    keys: KeyCondition | None = None

    @property
    def name(self) -> TableName:
        """Return schema and table."""
        return TableName(self.relation.namespace, self.relation.name)

    @property
    def pages(self) -> int:
        """Return how many pages all leaves have."""
        return sum(leaf.pages for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class Membership:
    """A table in a publication: its oid, and that of the entry, which is another once it is added again.

    The entry may be that of its schema, or of a table that it is a partition of. What is published with all
    tables of the database has none (0).
    """

    relation_id: int
    entry: int


_PUBLISHED = """
SELECT p.schemaname::text, p.tablename::text, c.oid::bigint, coalesce({entries}, 0)
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_publication owner ON owner.pubname = p.pubname
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s
"""
_ENTRY = """(
    SELECT r.oid::bigint FROM pg_catalog.pg_publication_rel r
    WHERE r.prpubid = owner.oid AND r.prrelid = c.oid
)"""
# Of several the newest: it is another one where any of them was taken away and added again.
_ENTRY_OF_FAMILY = """(
    SELECT max(r.oid::bigint) FROM pg_catalog.pg_publication_rel r
    WHERE r.prpubid = owner.oid
      AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))
)"""
_ENTRY_OF_SCHEMA = """(
    SELECT max(s.oid::bigint) FROM pg_catalog.pg_publication_namespace s
    WHERE s.pnpubid = owner.oid AND (s.pnnspid = n.oid OR s.pnnspid IN (
        SELECT a.relnamespace FROM pg_catalog.pg_partition_ancestors(c.oid) t
        JOIN pg_catalog.pg_class a ON a.oid = t.relid))
)"""
_ENTRIES = {15: f"{_ENTRY_OF_FAMILY}, {_ENTRY_OF_SCHEMA}", 13: _ENTRY_OF_FAMILY, 10: _ENTRY}
# Which columns are sent: from 15 on the view names them, from 18 on also generated ones.
IS_SENT = {
    18: "CASE WHEN p.attnames IS NULL THEN a.attgenerated = '' ELSE a.attname = ANY (p.attnames) END",
    15: "a.attgenerated = '' AND (p.attnames IS NULL OR a.attname = ANY (p.attnames))",
    12: "a.attgenerated = ''",
    10: "true",
}
_TABLE = """
SELECT c.oid::bigint, c.relreplident::text, {row_filter}
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %(publication)s AND p.schemaname = %(schema)s AND p.tablename = %(table)s
"""
_COLUMNS = """
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, NOT {not_null},
       c.relreplident = 'f' OR coalesce(a.attnum = ANY ({key}), false)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_publication_tables p
    ON p.pubname = %(publication)s AND p.schemaname = %(schema)s AND p.tablename = %(table)s
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE c.oid = %(oid)s::bigint::oid AND {is_sent}
ORDER BY a.attnum
"""
# The columns of an index, without those that it only includes.
_KEY_COLUMNS = {
    11: "(i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]",
    10: "i.indkey::pg_catalog.int2[]",
}
# Sizes are those of now, whatever snapshot the session has; file nodes are those that the snapshot sees, so
# that a table which was written anew since is found.
_LEAVES = """
WITH RECURSIVE family (oid) AS (
    SELECT %(oid)s::bigint::oid
    UNION ALL
    SELECT i.inhrelid FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid
)
SELECT n.nspname::text, c.relname::text, c.oid::bigint, c.relfilenode::bigint,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::bigint
FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid AND c.relkind = 'r'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.oid
"""


def describe_published(connection: Connection, publication: str, name: TableName) -> PublishedTable:
    """Return what the publication sends of a table, as the session's snapshot has it."""
    version = connection.info.server_version
    parameters: dict[str, object] = {"publication": publication, "schema": name[0], "table": name[1]}
    is_sent, key, not_null = (for_server(connection, each) for each in (IS_SENT, _KEY_COLUMNS, NOT_NULL))
    row_filter = "p.rowfilter::text" if version >= 150000 else "NULL::text"
    try:
        with connection.transaction():
            found = connection.execute(_TABLE.format(row_filter=row_filter), parameters).fetchone()
            if found is None:
                raise SourceError(f"{name} is not published by {publication} any more.")
            oid, identity, row_filter = found
            parameters["oid"] = oid
            columns = connection.execute(
                _COLUMNS.format(is_sent=is_sent, key=key, not_null=not_null), parameters
            ).fetchall()
            leaves = connection.execute(_LEAVES, parameters).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read what {name} is: {describe(error)}.") from None
    sent = tuple(Column(is_key, column, kind, modifier) for column, kind, modifier, _, is_key in columns)
    return PublishedTable(
        Relation(oid, name[0], name[1], identity, sent),
        tuple(row[3] for row in columns),
        row_filter,
        tuple(Leaf(*leaf) for leaf in leaves),
    )


def list_published(connection: Connection, publication: str) -> dict[TableName, Membership]:
    """Return what is published, by schema and table."""
    entries = for_server(connection, _ENTRIES)
    try:
        rows = connection.execute(_PUBLISHED.format(entries=entries), (publication,)).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's publications: {describe(error)}.") from None
    return {TableName(schema, table): Membership(oid, since) for schema, table, oid, since in rows}
