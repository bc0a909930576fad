"""Largest tables that a role may read, each with what a copy would read of it, for a sample.

No publication is needed: the columns are those that one with the default settings has. Only catalogs are
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.postgres.catalog import NOT_NULL
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.publication import Leaf, PublishedTable
from pipeline.postgres.published_tables import FAMILY, LOCKED
from pipeline.protocol.messages import Column, Relation
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class SampledTable:
    """A table with rows, and its size in bytes, with TOAST and without indexes."""

    table: PublishedTable
    leaf: Leaf
    bytes: int


_IS_SENT = {12: "a.attgenerated = ''", 10: "true"}
_TABLES = """
SELECT n.nspname::text, c.relname::text, c.oid::bigint, coalesce(c.relfilenode, 0)::bigint,
       size.heap_bytes / pg_catalog.current_setting('block_size')::bigint, size.bytes,
       sent.names, sent.types, sent.modifiers, sent.nullable
FROM (
    SELECT DISTINCT member.oid
    FROM ROWS FROM (pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(tables)s::text[]))
        AS names (nspname, relname)
    JOIN pg_catalog.pg_namespace n ON n.nspname = names.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = names.relname
    CROSS JOIN LATERAL {family} member
) leaf
JOIN pg_catalog.pg_class c
    ON c.oid = leaf.oid AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid NOT IN {locked}
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_catalog.pg_relation_size(c.oid) AS heap_bytes, pg_catalog.pg_table_size(c.oid) AS bytes) size
CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attnum) AS names,
           pg_catalog.array_agg(a.atttypid::bigint ORDER BY a.attnum) AS types,
           pg_catalog.array_agg(a.atttypmod ORDER BY a.attnum) AS modifiers,
           pg_catalog.array_agg(NOT {not_null} ORDER BY a.attnum) AS nullable
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {is_sent}) sent
WHERE sent.names IS NOT NULL AND size.heap_bytes > 0 AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND NOT pg_catalog.row_security_active(c.oid)
ORDER BY size.bytes DESC LIMIT %(limit)s
"""


def list_sampled(connection: Connection, names: Sequence[TableName], limit: int) -> list[SampledTable]:
    """Return the largest of the tables, and of the partitions of them, that the session may read."""
    query = _TABLES.format(
        not_null=for_server(connection, NOT_NULL),
        is_sent=for_server(connection, _IS_SENT),
        family=FAMILY,
        locked=LOCKED,
    )
    parameters = {
        "schemas": [name.schema for name in names],
        "tables": [name.table for name in names],
        "limit": limit,
    }
    with reading("the source's tables"):
        rows = connection.execute(query, parameters).fetchall()
    found = []
    for schema, table, oid, filenode, pages, size, columns, types, modifiers, nullable in rows:
        leaf = Leaf(schema, table, oid, filenode, pages)
        sent = tuple(Column(False, *each) for each in zip(columns, types, modifiers, strict=True))
        relation = Relation(oid, schema, table, "d", sent)
        found.append(SampledTable(PublishedTable(relation, tuple(nullable), None, (leaf,)), leaf, size))
    return found
