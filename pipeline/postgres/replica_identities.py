"""Find tables whose replica identity makes UPDATE and DELETE fail at the source, or identify no row.

The server refuses UPDATE and DELETE on a published table that has no replica identity. From 18 on, it also
refuses them if the identity has a generated column that is not published. A partitioned table itself has no
rows: what counts is the identity of its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipeline.postgres.catalog import NOT_NULL
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.published_tables import FAMILY
from pipeline.table_name import TableName


class IdentityFault(Enum):
    """Why UPDATE and DELETE fail on a table once it is published."""

    MISSING = "no replica identity"
    GENERATED = "a replica identity with generated columns that are not published"


@dataclass(frozen=True, slots=True)
class LackingIdentity:
    """A table without replica identity, and its unique index that could be one, if it has one."""

    name: TableName
    index: str | None


#: The key columns of an index, without INCLUDE columns.
KEY_COLUMNS = {
    11: "(i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]",
    10: "i.indkey::pg_catalog.int2[]",
}
# The index of the replica identity; one of a deferrable constraint is none.
_IS_IDENTITY = (
    "i.indrelid = c.oid AND i.indimmediate AND i.indisvalid"
    " AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END"
)
_LACKS_IDENTITY = (
    f"(c.relreplident <> 'f' AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index i WHERE {_IS_IDENTITY}))"
)
# Virtual columns are never published, stored ones by a list of columns or with all others.
_HAS_UNPUBLISHED = (
    "EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped"
    " AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT EXISTS ("
    "SELECT 1 FROM pg_catalog.pg_publication p LEFT JOIN pg_catalog.pg_publication_rel r"
    " ON r.prpubid = p.oid AND r.prrelid = c.oid WHERE p.pubname = %(publication)s"
    " AND (p.pubgencols = 's' OR a.attnum = ANY (r.prattrs::pg_catalog.int2[]))))"
    " AND (c.relreplident = 'f' OR EXISTS (SELECT 1 FROM pg_catalog.pg_index i"
    f" WHERE {_IS_IDENTITY} AND a.attnum = ANY ({KEY_COLUMNS[11]}))))"
)
_FAULTS = """
SELECT n.nspname::text, c.relname::text, fault.is_missing
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_catalog.bool_or({lacks_identity}) AS is_missing,
           pg_catalog.bool_or({has_unpublished}) AS is_unpublished
    FROM {family} member JOIN pg_catalog.pg_class c ON c.oid = member.oid AND c.relkind = 'r'
) fault
WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND (fault.is_missing OR fault.is_unpublished)
"""
# Of a partitioned table, updates and deletes have the old row as the root's and the leaf's identity say.
_LACKING = """
SELECT n.nspname::text, c.relname::text, CASE WHEN leaf.is_alone THEN (
    SELECT x.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY ({key}) AND NOT {not_null})
    ORDER BY i.indnatts, 1 LIMIT 1) END
FROM (
    SELECT member.oid, c.relkind = 'r' AS is_alone
    FROM ROWS FROM (pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(tables)s::text[]))
        AS names (nspname, relname)
    JOIN pg_catalog.pg_namespace n ON n.nspname = names.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = names.relname
    CROSS JOIN LATERAL {family} member
) leaf
JOIN pg_catalog.pg_class c ON c.oid = leaf.oid AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {lacks_identity}
ORDER BY 1, 2
"""


def find_unsafe_identities(
    connection: Connection, publication: str | None = None
) -> dict[TableName, IdentityFault]:
    """Return the tables on which UPDATE and DELETE fail if the publication has them.

    Without a name, the publication is one with the default settings.
    """
    query = _FAULTS.format(
        lacks_identity=_LACKS_IDENTITY,
        has_unpublished=for_server(connection, {18: _HAS_UNPUBLISHED, 10: "false"}),
        family=FAMILY,
    )
    rows = _fetch(connection, query, {"publication": publication})
    return {
        TableName(schema, table): IdentityFault.MISSING if is_missing else IdentityFault.GENERATED
        for schema, table, is_missing in rows
    }


def list_lacking_identities(connection: Connection, names: Sequence[TableName]) -> list[LackingIdentity]:
    """Return those of the tables, and of their partitions, that have no replica identity."""
    query = _LACKING.format(
        key=for_server(connection, KEY_COLUMNS),
        not_null=for_server(connection, NOT_NULL),
        family=FAMILY,
        lacks_identity=_LACKS_IDENTITY,
    )
    parameters = {"schemas": [name.schema for name in names], "tables": [name.table for name in names]}
    rows = _fetch(connection, query, parameters) if names else []
    return [LackingIdentity(TableName(schema, table), index) for schema, table, index in rows]


def list_mismatched_leaves(connection: Connection) -> list[tuple[TableName, TableName, bool]]:
    """Return partitioned tables, each with a leaf whose replica identity lacks columns of the table's.

    The flag is whether the table has no identity at all, while the leaf has one. Messages published via the
    root have the root's identity, but the old tuple in the WAL is the leaf's.
    """
    if connection.info.server_version < 130000:
        return []
    rows = _fetch(
        connection,
        "WITH identity (oid, is_full, columns) AS ("
        " SELECT c.oid, c.relreplident = 'f', ARRAY("
        "  SELECT a.attname FROM pg_catalog.pg_index i"
        "  CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        "  WITH ORDINALITY AS k (number, rank)"
        "  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
        "  WHERE i.indrelid = c.oid AND k.rank <= i.indnkeyatts AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)"
        " FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p') AND (c.relkind = 'p' OR c.relispartition))"
        " SELECT n.nspname::text, c.relname::text, s.nspname::text, leaf.relname::text,"
        " NOT declared.is_full AND declared.columns = '{}'"
        " FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN identity declared ON declared.oid = c.oid"
        f" CROSS JOIN LATERAL {FAMILY} AS member"
        " JOIN pg_catalog.pg_class leaf ON leaf.oid = member.oid AND leaf.relkind = 'r'"
        " JOIN pg_catalog.pg_namespace s ON s.oid = leaf.relnamespace"
        " JOIN identity logged ON logged.oid = leaf.oid"
        " WHERE c.relkind = 'p' AND (NOT logged.is_full"
        " AND (declared.is_full OR NOT declared.columns <@ logged.columns)"
        " OR NOT declared.is_full AND declared.columns = '{}'"
        " AND (logged.is_full OR logged.columns <> '{}'))",
    )
    return [(TableName(*row[:2]), TableName(*row[2:4]), row[4]) for row in rows]


def _fetch(
    connection: Connection, query: str, parameters: Mapping[str, object] | None = None
) -> list[tuple[Any, ...]]:
    with reading("the source's replica identities"):
        return connection.execute(query.encode(), parameters).fetchall()
