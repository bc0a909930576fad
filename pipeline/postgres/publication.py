"""The publication: what it publishes, which tables the configuration asks for, and its creation.

An existing publication is used as it is and never altered: a table added to it later is published from that
moment on only, and whether its earlier rows matter is for its owner to decide. `checks` reports what is
missing.
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
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Publication:
    """One row of pg_publication, and the tables it covers at this moment."""

    name: str
    all_tables: bool
    operations: frozenset[str]  # of insert, update, delete, truncate
    via_root: bool
    generated_columns: bool  # stored ones, on 18 and newer
    tables: frozenset[TableName]


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Return the publication of that name as it is now, or None."""
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

    Temporary, unlogged and foreign tables, views and sequences never reach the log; partitioned tables can be
    named from 13 on.
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
    """Return the publication and whether it was created now; create it only where that loses nothing.

    With a slot already there, a publication made now would not exist at the positions that the slot still
    decodes: PostgreSQL up to 17 then fails, 18 leaves the rows out.
    """
    name = config.source.publication
    publication = read_publication(connection, name)
    if publication is not None:
        return publication, False
    plan = config.source.create.publication
    if plan == "never":
        raise SourceError(
            f"The publication {name} does not exist and source.create.publication is never:"
            f" run CREATE PUBLICATION {_quote(connection, name)} FOR TABLE …, before the slot is created."
        )
    slot = config.source.slot
    if _fetch(connection, "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", slot):
        raise SourceError(
            f"The publication {name} does not exist but the slot {slot} does, and cannot decode what came"
            " before a publication: name the right one in source.publication, or, if nothing in the slot is"
            f" needed, run SELECT pg_drop_replication_slot('{slot}') and start again."
        )
    tables = [] if plan == "all" else list_configured(connection, config)
    if plan == "configured" and not tables:
        raise SourceError(
            f"The publication {name} would be empty: no table in the database {connection.info.dbname}"
            f" matches tables in {config.path}; create the tables first, correct their names, or set"
            " source.create.publication to all."
        )
    _create_publication(connection, name, None if plan == "all" else tables)
    publication = read_publication(connection, name)
    if publication is None:
        raise SourceError(f"The publication {name} was dropped by somebody else just now: run again.")
    return publication, True


def plan_publication(name: str, tables: list[TableName] | None) -> sql.Composed:
    """Return the statement that creates the publication, for these tables or (None) for all."""
    if tables is None:
        return sql.SQL("CREATE PUBLICATION {} FOR ALL TABLES").format(sql.Identifier(name))
    targets = sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in tables)
    return sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(name), targets)


def is_covered(connection: Connection, publication: Publication, table: TableName) -> bool:
    """Tell whether a table is published by itself, by its root, or through all of its partitions."""
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
    """Return the tables of the database on which a published UPDATE or DELETE fails."""
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


def list_blind_leaves(connection: Connection) -> list[tuple[str, str, str, str]]:
    """Return schema and name of partitioned tables, and of each leaf that logs less than they say.

    The message of a root names the root's identity; what is logged of an old row follows the leaf's.
    """
    if connection.info.server_version < 130000:
        return []
    rows = _fetch(
        connection,
        "WITH identity (oid, is_full, columns) AS ("
        " SELECT c.oid, c.relreplident = 'f', ARRAY("
        "  SELECT a.attname FROM pg_catalog.pg_index i"
        "  CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
        "  WITH ORDINALITY AS k (number, place)"
        "  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
        "  WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indimmediate AND i.indisvalid"
        "  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)"
        " FROM pg_catalog.pg_class c WHERE c.relkind IN ('r', 'p') AND (c.relkind = 'p' OR c.relispartition))"
        " SELECT n.nspname::text, c.relname::text, s.nspname::text, leaf.relname::text"
        " FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN identity wanted ON wanted.oid = c.oid"
        " CROSS JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) AS t"
        " JOIN pg_catalog.pg_class leaf ON leaf.oid = t.relid AND t.isleaf AND leaf.relkind = 'r'"
        " JOIN pg_catalog.pg_namespace s ON s.oid = leaf.relnamespace"
        " JOIN identity logged ON logged.oid = leaf.oid"
        " WHERE c.relkind = 'p' AND NOT logged.is_full"
        " AND (wanted.is_full OR NOT wanted.columns <@ logged.columns)",
    )
    return [(schema, root, leaf_schema, leaf) for schema, root, leaf_schema, leaf in rows]


def list_unpublished_generated(connection: Connection, has_stored: bool) -> list[TableName]:
    """Return the tables with REPLICA IDENTITY FULL on which, from 18 on, UPDATE and DELETE fail.

    `has_stored` says whether stored generated columns are published; virtual ones never are.
    """
    rows = _fetch(
        connection,
        "SELECT DISTINCT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped"
        " WHERE c.relkind IN ('r', 'p') AND c.relreplident = 'f'"
        " AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT %s)",
        has_stored,
    )
    return [TableName(schema, table) for schema, table in rows]


def _create_publication(connection: Connection, name: str, tables: list[TableName] | None) -> None:
    try:
        connection.execute(plan_publication(name, tables))
    except sqlstate.DuplicateObject:
        # Another run was faster; its publication is as good.
        return
    except sqlstate.InsufficientPrivilege as error:
        need = "a superuser" if tables is None else "a role that owns the tables"
        hint = plan_publication(name, tables if tables is None else tables[:1]).as_string(connection)
        raise SourceError(
            f"The role {connection.info.user} may not create the publication {name} ({describe(error)}):"
            f" let {need} with CREATE on the database run {hint}{', …' if tables and tables[1:] else ''}"
        ) from None
    except psycopg.Error as error:
        raise SourceError(f"The publication {name} cannot be created: {describe(error)}.") from None


def _fetch(connection: Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query, parameters).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's publications: {describe(error)}.") from None


def _quote(connection: Connection, name: str) -> str:
    return sql.Identifier(name).as_string(connection)
