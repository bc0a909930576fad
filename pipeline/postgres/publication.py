"""The publication: what it publishes, which tables the configuration matches, its creation.

An existing publication is used as it is and never altered here: a table that is added to it is published from
that moment on only, and its owner decides whether the earlier rows matter. `checks` reports missing tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.sql_text import quote_identifier, quote_literal
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Publication:
    """One row of pg_publication, and the tables that it publishes now."""

    name: str
    all_tables: bool
    operations: frozenset[str]  # of insert, update, delete, truncate
    via_root: bool
    generated_columns: bool  # stored ones, on 18 and newer
    tables: frozenset[TableName]


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Return the current state of a publication, None if it does not exist."""
    major = connection.info.server_version // 10000
    truncate = "pubtruncate" if major >= 11 else "false"
    via_root = "pubviaroot" if major >= 13 else "false"
    generated = "pubgencols <> 'n'" if major >= 18 else "false"
    row = _fetch(
        connection,
        f"SELECT puballtables, pubinsert, pubupdate, pubdelete, {truncate}, {via_root}, {generated}"
        " FROM pg_catalog.pg_publication WHERE pubname = %s",
        name,
    )
    if not row:
        return None
    all_tables, *operations, publishes_root, publishes_generated = row[0]
    tables = _fetch(
        connection,
        "SELECT schemaname::text, tablename::text FROM pg_catalog.pg_publication_tables WHERE pubname = %s",
        name,
    )
    names = ("insert", "update", "delete", "truncate")
    return Publication(
        name=name,
        all_tables=all_tables,
        operations=frozenset(n for n, is_published in zip(names, operations, strict=True) if is_published),
        via_root=publishes_root,
        generated_columns=publishes_generated,
        tables=frozenset(TableName(schema, table) for schema, table in tables),
    )


def list_configured(connection: Connection, config: Config) -> list[TableName]:
    """Return the tables that can be published and that a rule of the configuration matches, sorted.

    Temporary, unlogged and foreign tables, views and sequences have no changes in the WAL; partitioned tables
    can be published from 13 on.
    """
    kinds = "'r', 'p'" if connection.info.server_version >= 130000 else "'r'"
    rows = _fetch(
        connection,
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE c.relkind IN ({kinds}) AND c.relpersistence = 'p' AND c.oid >= 16384"
        " AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'"
        " ORDER BY 1, 2",
    )
    return [
        TableName(schema, table)
        for schema, table in rows
        if config.rule_for(TableName(schema, table)) is not None
    ]


def ensure_publication(connection: Connection, config: Config) -> tuple[Publication, bool]:
    """Return the publication, and whether this call created it; create it only if no change can be lost.

    If the slot exists already, it would decode changes from before the publication: PostgreSQL up to 17 fails
    then, and 18 skips the rows.
    """
    name = config.source.publication
    publication = read_publication(connection, name)
    if publication is not None:
        return publication, False
    plan = config.source.create.publication
    if plan == "never":
        raise SourceError(
            f"The publication {name} does not exist, and source.create.publication is never. Run"
            f" CREATE PUBLICATION {quote_identifier(name)} FOR TABLE …, before the slot is created."
        )
    slot = config.source.slot
    if _fetch(connection, "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", slot):
        raise SourceError(
            f"The publication {name} does not exist, but the slot {slot} does and cannot decode changes from"
            " before a publication. Name an existing one in source.publication or, if no change in the slot"
            f" is needed, run SELECT pg_drop_replication_slot({quote_literal(slot)}) and start again."
        )
    tables = [] if plan == "all" else list_configured(connection, config)
    if plan == "configured" and not tables:
        raise SourceError(
            f"The publication {name} would be empty: no table in the database {connection.info.dbname}"
            f" matches tables in {config.path}. Create the tables, correct their names, or set"
            " source.create.publication to all."
        )
    _create_publication(connection, name, None if plan == "all" else tables)
    publication = read_publication(connection, name)
    if publication is None:
        raise SourceError(f"The publication {name} was dropped just after its creation. Run again.")
    return publication, True


def plan_publication(name: str, tables: list[TableName] | None) -> sql.Composed:
    """Return the statement that creates the publication for the tables, or for all tables (None)."""
    if tables is None:
        return sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES").format(sql.Identifier(name))
    targets = sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in tables)
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(name), targets)


def is_covered(connection: Connection, publication: Publication, table: TableName) -> bool:
    """Return whether a table is published itself, by its partitioned table, or by all of its partitions."""
    if table in publication.tables:
        return True
    if connection.info.server_version < 130000:
        return False
    rows = _fetch(
        connection,
        "SELECT n.nspname::text, f.relname::text, family.is_leaf FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace AND s.nspname = %s AND c.relname = %s"
        " CROSS JOIN LATERAL (SELECT relid::oid, true AS is_leaf FROM pg_catalog.pg_partition_tree(c.oid)"
        "  WHERE isleaf AND relid <> c.oid"
        "  UNION ALL SELECT relid::oid, false FROM pg_catalog.pg_partition_ancestors(c.oid)) AS family"
        " JOIN pg_catalog.pg_class f ON f.oid = family.relid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = f.relnamespace",
        *table,
    )
    leaves = [(schema, name) for schema, name, is_leaf in rows if is_leaf]
    ancestors = [(schema, name) for schema, name, is_leaf in rows if not is_leaf]
    if any(ancestor in publication.tables for ancestor in ancestors):
        return True
    return bool(leaves) and all(leaf in publication.tables for leaf in leaves)


def list_without_identity(connection: Connection) -> list[TableName]:
    """Return the tables without a replica identity, on which UPDATE and DELETE fail if published."""
    rows = _fetch(
        connection,
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p')"
        " AND (c.relreplident = 'n' OR c.relreplident IN ('d', 'i') AND NOT EXISTS ("
        "  SELECT 1 FROM pg_catalog.pg_index i"
        "  WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END))",
    )
    return [TableName(schema, table) for schema, table in rows]


def list_mismatched_leaves(connection: Connection) -> list[tuple[TableName, TableName]]:
    """Return partitioned tables, each with a leaf whose replica identity lacks columns of the table's.

    Messages published via the root have the root's identity, but the old tuple in the WAL is the leaf's.
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
        " SELECT n.nspname::text, c.relname::text, s.nspname::text, leaf.relname::text"
        " FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN identity declared ON declared.oid = c.oid"
        " CROSS JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) AS t"
        " JOIN pg_catalog.pg_class leaf ON leaf.oid = t.relid AND t.isleaf AND leaf.relkind = 'r'"
        " JOIN pg_catalog.pg_namespace s ON s.oid = leaf.relnamespace"
        " JOIN identity logged ON logged.oid = leaf.oid"
        " WHERE c.relkind = 'p' AND NOT logged.is_full"
        " AND (declared.is_full OR NOT declared.columns <@ logged.columns)",
    )
    return [
        (TableName(schema, root), TableName(leaf_schema, leaf)) for schema, root, leaf_schema, leaf in rows
    ]


def list_unpublished_generated(connection: Connection, publishes_stored: bool) -> list[TableName]:
    """Return the tables whose REPLICA IDENTITY FULL has unpublished generated columns.

    From 18 on, UPDATE and DELETE fail on them. `publishes_stored` is whether the publication has stored
    generated columns; virtual ones are never published.
    """
    rows = _fetch(
        connection,
        "SELECT DISTINCT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped"
        " WHERE c.relkind IN ('r', 'p') AND c.relreplident = 'f'"
        " AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT %s)",
        publishes_stored,
    )
    return [TableName(schema, table) for schema, table in rows]


def _create_publication(connection: Connection, name: str, tables: list[TableName] | None) -> None:
    try:
        connection.execute(plan_publication(name, tables))
    except sqlstate.DuplicateObject:
        return  # Another run created it at the same time.
    except sqlstate.InsufficientPrivilege as error:
        owner = "a superuser" if tables is None else "a role that owns the tables"
        hint = plan_publication(name, tables if tables is None else tables[:1]).as_string(connection)
        raise SourceError(
            f"The role {connection.info.user} may not create the publication {name} ({describe(error)})."
            f" Run {hint}{', …' if tables and tables[1:] else ''} as {owner} with CREATE on the database."
        ) from None
    except psycopg.Error as error:
        raise SourceError(f"The publication {name} cannot be created: {describe(error)}.") from None


def _fetch(connection: Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query, parameters).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's publications: {describe(error)}.") from None
