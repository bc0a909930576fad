"""The part of a table that a publication sends, and a table copy must read: columns, row filter, leaves.

The relation is described as pgoutput describes it in the stream, so that copied and streamed rows have the
same relation version. The rows of a partitioned table that is published by its root are in its leaves.
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
    """A table that has rows; a new file node means that its rows were rewritten."""

    schema_name: str
    table_name: str
    oid: int
    filenode: int
    pages: int


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of the publication; `row_filter` is SQL over its columns, `nullable` has a flag for each.

    `keys` is a condition that selects rows by their keys, None for all rows.
    """

    relation: Relation
    nullable: tuple[bool, ...]
    row_filter: str | None
    leaves: tuple[Leaf, ...]
    keys: KeyCondition | None = None

    @property
    def name(self) -> TableName:
        """Schema and table."""
        return TableName(self.relation.namespace, self.relation.name)

    @property
    def pages(self) -> int:
        """The number of pages of all leaves."""
        return sum(leaf.pages for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class Membership:
    """A table in a publication: its OID and the OID of its entry, which changes when it is added again.

    The entry may be that of its schema or of its partitioned table. A table of a FOR ALL TABLES publication
    has none (0).
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
# The newest of several: it changes when any of them was removed and added again.
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
#: Whether a column is published: from 15 on, the view lists columns, from 18 on, generated ones too.
IS_PUBLISHED = {
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
WHERE c.oid = %(oid)s::bigint::oid AND {is_published}
ORDER BY a.attnum
"""
# The key columns of an index, without INCLUDE columns.
_KEY_COLUMNS = {
    11: "(i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]",
    10: "i.indkey::pg_catalog.int2[]",
}
# Sizes are current, but file nodes are those of the session's snapshot: a table that was rewritten since has
# another one now.
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
    """Return the part of a table that the publication sends, in the session's snapshot."""
    version = connection.info.server_version
    parameters: dict[str, object] = {"publication": publication, "schema": name.schema, "table": name.table}
    is_published, key, not_null = (
        for_server(connection, each) for each in (IS_PUBLISHED, _KEY_COLUMNS, NOT_NULL)
    )
    row_filter = "p.rowfilter::text" if version >= 150000 else "NULL::text"
    try:
        with connection.transaction():
            found = connection.execute(_TABLE.format(row_filter=row_filter), parameters).fetchone()
            if found is None:
                raise SourceError(f"The table {name} is not published by {publication} any more.")
            oid, identity, row_filter = found
            parameters["oid"] = oid
            rows = connection.execute(
                _COLUMNS.format(is_published=is_published, key=key, not_null=not_null), parameters
            ).fetchall()
            leaves = connection.execute(_LEAVES, parameters).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the table {name} in the catalog: {describe(error)}.") from None
    columns = tuple(Column(is_key, column, kind, modifier) for column, kind, modifier, _, is_key in rows)
    return PublishedTable(
        Relation(oid, name.schema, name.table, identity, columns),
        tuple(is_nullable for _, _, _, is_nullable, _ in rows),
        row_filter,
        tuple(Leaf(*leaf) for leaf in leaves),
    )


def list_published(connection: Connection, publication: str) -> dict[TableName, Membership]:
    """Return the published tables, each with its membership."""
    entries = for_server(connection, _ENTRIES)
    try:
        rows = connection.execute(_PUBLISHED.format(entries=entries), (publication,)).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's publications: {describe(error)}.") from None
    return {TableName(schema, table): Membership(oid, since) for schema, table, oid, since in rows}
