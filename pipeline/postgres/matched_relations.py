"""Read from the catalog what the relations are that are not just ordinary tables.

Ordinary tables have no row unless a rule is for a union, so that the cost follows what is odd or partitioned.
Partitions are read with the tables that they are partitions of, on all levels.
"""

from __future__ import annotations

from pipeline.config.config import Config
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.postgres.relation_kinds import (
    FIRST_WITH_ROOTS,
    CatalogFacts,
    FamilyMember,
    MatchedRelations,
)
from pipeline.table_name import TableName

_RELATIONS = """
WITH RECURSIVE heir (parent, oid) AS (
    SELECT i.inhparent, i.inhrelid FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class parent ON parent.oid = i.inhparent AND parent.relkind IN ('r', 'f')
    UNION
    SELECT heir.parent, i.inhrelid FROM heir JOIN pg_catalog.pg_inherits i ON i.inhparent = heir.oid
), relation AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relispartition,
           {access_method} AS access_method, e.extname, {is_hypertable} AS is_hypertable
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
        AND d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'e'
        AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
    LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
    WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relpersistence <> 't'
      AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
      AND (c.relkind <> 'S' OR n.nspname || '.' || c.relname = ANY (%(names)s::text[]))
), odd AS (
    SELECT * FROM relation r
    WHERE r.relkind NOT IN ('r', 'p') OR r.relkind = 'p' AND {is_odd_root}
       OR r.relpersistence = 'u' OR r.access_method IS NOT NULL OR r.extname IS NOT NULL OR r.is_hypertable
       OR r.oid IN (SELECT heir.parent FROM heir) OR %(has_union)s
), root (leaf, oid) AS (
    SELECT odd.oid, i.inhparent FROM odd
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = odd.oid WHERE odd.relispartition
    UNION
    SELECT root.leaf, i.inhparent FROM root JOIN pg_catalog.pg_inherits i ON i.inhrelid = root.oid
)
SELECT o.nspname::text, o.relname::text, o.relkind::text, o.relpersistence = 'u', o.access_method,
       o.extname::text, o.is_hypertable,
       (SELECT pg_catalog.array_agg(ARRAY[n.nspname::text, c.relname::text])
        FROM heir JOIN pg_catalog.pg_class c ON c.oid = heir.oid AND c.relpersistence <> 't'
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE heir.parent = o.oid),
       (SELECT pg_catalog.array_agg(ARRAY[n.nspname::text, c.relname::text])
        FROM root JOIN pg_catalog.pg_class c ON c.oid = root.oid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE root.leaf = o.oid)
FROM odd o ORDER BY 1, 2
"""
_FAMILIES = """
WITH RECURSIVE above (member, oid, level) AS (
    SELECT i.inhrelid, i.inhparent, 1 FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
    UNION ALL
    SELECT a.member, i.inhparent, a.level + 1 FROM above a
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.oid
)
SELECT n.nspname::text, c.relname::text, c.relkind = 'p',
       pg_catalog.array_agg(ARRAY[s.nspname::text, t.relname::text] ORDER BY a.level)
       FILTER (WHERE a.oid IS NOT NULL)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN above a ON a.member = c.oid
LEFT JOIN pg_catalog.pg_class t ON t.oid = a.oid
LEFT JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND (c.relkind = 'p' OR c.relispartition)
GROUP BY c.oid, 1, 2, 3 ORDER BY 1, 2
"""
# Access methods by another name may have heap's functions.
_ACCESS_METHOD = {
    12: """(SELECT m.amname::text FROM pg_catalog.pg_am m WHERE m.oid = c.relam AND c.relkind = 'r'
                AND m.amhandler <> 'pg_catalog.heap_tableam_handler'::pg_catalog.regproc)""",
    10: "NULL::text",
}
_HAS_HYPERTABLES = """
SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = '_timescaledb_catalog' AND c.relname = 'hypertable'
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
"""
_IS_HYPERTABLE = """EXISTS (SELECT FROM _timescaledb_catalog.hypertable h
                WHERE h.schema_name = n.nspname AND h.table_name = c.relname)"""


def read_relations(connection: Connection, config: Config) -> MatchedRelations:
    """Return what the relations are that the configuration's rules match; raise SourceError."""
    names = [name for rule in config.tables for name in rule.exact_names]
    has_union = any(rule.is_union for rule in config.tables)
    with reading("the source's relations"):
        has_hypertables = connection.execute(_HAS_HYPERTABLES).fetchone() is not None
        query = _RELATIONS.format(
            access_method=for_server(connection, _ACCESS_METHOD),
            is_hypertable=_IS_HYPERTABLE if has_hypertables else "false",
            is_odd_root=for_server(connection, {13: "false", 10: "true"}),
        )
        rows = connection.execute(query, {"names": names, "has_union": has_union}).fetchall()
        members = connection.execute(_FAMILIES).fetchall() if publishes_roots(connection) else []
    facts = [
        CatalogFacts(
            TableName(schema, table),
            relkind,
            is_unlogged,
            access_method,
            extension,
            is_hypertable,
            tuple(TableName(*name) for name in heirs or ()),
            tuple(TableName(*name) for name in roots or ()),
        )
        for schema, table, relkind, is_unlogged, access_method, extension, is_hypertable, heirs, roots in rows
    ]
    families = {
        TableName(schema, table): FamilyMember(is_partitioned, [TableName(*name) for name in above or ()])
        for schema, table, is_partitioned, above in members
    }
    return MatchedRelations(facts, config, connection.info.server_version, families)


def publishes_roots(connection: Connection) -> bool:
    """Return whether the server can publish partitioned tables."""
    return connection.info.server_version >= FIRST_WITH_ROOTS
