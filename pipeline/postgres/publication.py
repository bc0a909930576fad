"""Read the publication, with its tables, columns and row filters, or create it.

An existing publication is used as it is. One that the pipeline creates has a comment by which later runs know
it as theirs: `unpublished_tables` adds tables to it, and reports which ones another publication lacks.

A published table is described as pgoutput describes it in the stream, so that copied and streamed rows have
the same relation version: its columns, its row filter, and the leaves that contain the rows if a partitioned
table is published by its root.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.config.config import Config
from pipeline.errors import NotPublishedError, SlotGapError, SourceError, TableLockedError
from pipeline.postgres.catalog import NOT_NULL
from pipeline.postgres.connection import Connection, describe, for_server, limit_lock_time, reading
from pipeline.postgres.key_conditions import KeyCondition
from pipeline.postgres.matched_relations import publishes_roots, read_relations
from pipeline.postgres.published_tables import FAMILY, IS_LOGGED, IS_PUBLISHED, PUBLISHED, PUBLISHED_TABLE
from pipeline.postgres.relation_kinds import MatchedRelations
from pipeline.postgres.replica_identities import KEY_COLUMNS, find_unsafe_identities
from pipeline.postgres.replication.slot import find_slot_fault, read_slot
from pipeline.postgres.sql_text import quote_identifier, quote_literal
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
    has_toast: bool = True  # values outside of its pages


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

    def with_columns(self, positions: Sequence[int]) -> PublishedTable:
        """Return the table with some of its columns."""
        columns = tuple(self.relation.columns[i] for i in positions)
        nullable = tuple(self.nullable[i] for i in positions)
        return replace(self, relation=replace(self.relation, columns=columns), nullable=nullable)

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
SELECT n.nspname::text, c.relname::text, c.oid::bigint, coalesce({entries}, 0)
FROM {published} p
JOIN pg_catalog.pg_class c ON c.oid = p.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
_ENTRY = """(
    SELECT r.oid::bigint FROM pg_catalog.pg_publication_rel r
    WHERE r.prpubid = p.pubid AND r.prrelid = c.oid
)"""
# The newest of several: it changes when any of them was removed and added again.
_ENTRY_OF_FAMILY = """(
    SELECT max(r.oid::bigint) FROM pg_catalog.pg_publication_rel r
    WHERE r.prpubid = p.pubid
      AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))
)"""
_ENTRY_OF_SCHEMA = """(
    SELECT max(s.oid::bigint) FROM pg_catalog.pg_publication_namespace s
    WHERE s.pnpubid = p.pubid AND (s.pnnspid = n.oid OR s.pnnspid IN (
        SELECT a.relnamespace FROM pg_catalog.pg_partition_ancestors(c.oid) t
        JOIN pg_catalog.pg_class a ON a.oid = t.relid))
)"""
_ENTRIES = {15: f"{_ENTRY_OF_FAMILY}, {_ENTRY_OF_SCHEMA}", 13: _ENTRY_OF_FAMILY, 10: _ENTRY}
_IS_USERS = f"{IS_LOGGED} AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'"
#: The first server version that has FOR TABLES IN SCHEMA.
PUBLISHES_SCHEMAS = 150000
#: What CREATE PUBLICATION ends with, so that the rows of partitioned tables are sent under their names.
VIA_ROOT = " WITH (publish_via_partition_root = true)"
#: Whether the table `c` of the schema `n` can be published: temporary, unlogged and foreign tables, views and
#: sequences have no changes in the WAL.
IS_PUBLISHABLE = {13: f"c.relkind IN ('r', 'p') AND {_IS_USERS}", 10: f"c.relkind = 'r' AND {_IS_USERS}"}
_OID = """
SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s
"""
_TABLE = """
SELECT c.relreplident::text, {row_filter} FROM {published} p JOIN pg_catalog.pg_class c ON c.oid = p.relid
"""
_COLUMNS = """
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, NOT {not_null},
       c.relreplident = 'f' OR coalesce(a.attnum = ANY ({key}), false)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN {published} p ON p.relid = c.oid
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE c.oid = %(oid)s::bigint::oid AND {is_published}
ORDER BY a.attnum
"""
# Unlogged partitions have rows that no message changes. Sizes are current, but file nodes are those of the
# session's snapshot: a table that was rewritten since has another one now.
_LEAVES = f"""
SELECT n.nspname::text, leaf.relname::text, leaf.oid::bigint, leaf.relfilenode::bigint,
       coalesce(pg_catalog.pg_relation_size(leaf.oid), 0) / pg_catalog.current_setting('block_size')::bigint,
       coalesce(pg_catalog.pg_relation_size(leaf.reltoastrelid), 0) > 0
FROM pg_catalog.pg_class c
CROSS JOIN LATERAL {FAMILY} AS member
JOIN pg_catalog.pg_class leaf ON leaf.oid = member.oid AND leaf.relkind = 'r' AND leaf.relpersistence = 'p'
JOIN pg_catalog.pg_namespace n ON n.oid = leaf.relnamespace
WHERE c.oid = %(oid)s::bigint::oid
ORDER BY leaf.oid
"""


def describe_published(connection: Connection, publication: str, name: TableName) -> PublishedTable:
    """Return the part of a table that the publication sends, in the session's snapshot.

    Raises NotPublishedError, and TableLockedError if another session has locked the table exclusively. Locks
    are waited for a short time only until the transaction in progress ends.
    """
    version = connection.info.server_version
    parameters: dict[str, Any] = {"publication": publication, **name._asdict()}
    published, is_published, key, not_null = (
        for_server(connection, each) for each in (PUBLISHED_TABLE, IS_PUBLISHED, KEY_COLUMNS, NOT_NULL)
    )
    row_filter = "pg_catalog.pg_get_expr(p.qual, p.relid)" if version >= 150000 else "NULL::text"
    try:
        with connection.transaction():
            limit_lock_time(connection)
            (parameters["oid"],) = connection.execute(_OID, parameters).fetchone() or (None,)
            found = connection.execute(
                _TABLE.format(published=published, row_filter=row_filter), parameters
            ).fetchone()
            if found is None:
                raise NotPublishedError(
                    f"The table {name} is not published by {publication} any more. Once it is published "
                    "again, it is copied."
                )
            identity, row_filter = found
            rows = connection.execute(
                _COLUMNS.format(published=published, is_published=is_published, key=key, not_null=not_null),
                parameters,
            ).fetchall()
            leaves = connection.execute(_LEAVES, parameters).fetchall()
    except sqlstate.LockNotAvailable:
        raise TableLockedError(name) from None
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the table {name} in the catalog: {describe(error)}.") from None
    columns = tuple(Column(is_key, column, kind, modifier) for column, kind, modifier, _, is_key in rows)
    return PublishedTable(
        Relation(parameters["oid"], name.schema, name.table, identity, columns),
        tuple(is_nullable for _, _, _, is_nullable, _ in rows),
        row_filter,
        tuple(Leaf(*leaf) for leaf in leaves),
    )


def list_published(connection: Connection, publication: str) -> dict[TableName, Membership]:
    """Return the published tables, each with its membership."""
    published, entries = (for_server(connection, each) for each in (PUBLISHED, _ENTRIES))
    with reading("the source's publications"):
        rows = connection.execute(
            _PUBLISHED.format(published=published, entries=entries), {"publication": publication}
        ).fetchall()
    return {TableName(schema, table): Membership(oid, since) for schema, table, oid, since in rows}


@dataclass(frozen=True, slots=True)
class Publication:
    """One row of pg_publication, and the tables that it publishes now.

    `is_owned` is whether the session's role may alter it.
    """

    name: str
    all_tables: bool
    operations: frozenset[str]  # of insert, update, delete, truncate
    via_root: bool
    tables: frozenset[TableName]
    comment: str | None = None
    is_owned: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """What a publication is created for: all tables, or schemas with all of their tables, and tables."""

    tables: tuple[TableName, ...] = ()
    schemas: tuple[str, ...] = ()
    all_tables: bool = False

    @property
    def requires(self) -> str | None:
        """The clause for which PostgreSQL requires a superuser."""
        return "FOR ALL TABLES" if self.all_tables else "FOR TABLES IN SCHEMA" if self.schemas else None


def managed_comment(pipeline: str) -> str:
    """Return the comment of a publication that the pipeline created and may alter."""
    return f"managed by pgdelta, pipeline {pipeline}"


def read_publication(connection: Connection, name: str) -> Publication | None:
    """Return the current state of a publication, None if it does not exist."""
    major = connection.info.server_version // 10000
    truncate = "pubtruncate" if major >= 11 else "false"
    via_root = "pubviaroot" if major >= 13 else "false"
    row = _fetch(
        connection,
        f"SELECT puballtables, pubinsert, pubupdate, pubdelete, {truncate}, {via_root},"
        " pg_catalog.obj_description(oid, 'pg_publication'), pg_catalog.pg_has_role(pubowner, 'USAGE')"
        " FROM pg_catalog.pg_publication WHERE pubname = %s",
        name,
    )
    if not row:
        return None
    all_tables, *operations, publishes_root, comment, is_owned = row[0]
    tables = list_published(connection, name)
    names = ("insert", "update", "delete", "truncate")
    return Publication(
        name=name,
        all_tables=all_tables,
        operations=frozenset(n for n, is_published in zip(names, operations, strict=True) if is_published),
        via_root=publishes_root,
        tables=frozenset(tables),
        comment=comment,
        is_owned=is_owned,
    )


def list_publishable(connection: Connection) -> list[TableName]:
    """Return the tables that can be published, sorted. Partitioned tables can be from 13 on."""
    rows = _fetch(
        connection,
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE {for_server(connection, IS_PUBLISHABLE)} ORDER BY 1, 2",
    )
    return [TableName(schema, table) for schema, table in rows]


def sends_roots(connection: Connection, config: Config, publication: Publication | None = None) -> bool:
    """Return whether the publication sends partitioned tables under their own names, or will once created."""
    if publication is not None:
        return publication.via_root
    return config.source.create.via_partition_root is not False and publishes_roots(connection)


def list_configured(connection: Connection, config: Config, *, via_root: bool) -> list[TableName]:
    """Return the tables that can be followed and that a rule of the configuration matches, sorted.

    With `via_root` those are left out that are partitions of others of them.
    """
    names, relations = _list_matching(connection, config)
    return relations.without_partitions(names) if via_root else names


def list_followed(
    connection: Connection, config: Config, publication: Publication | None
) -> frozenset[TableName]:
    """Return the tables of the publication or, if there is none, those that it will be created for."""
    if publication is not None:
        return publication.tables
    return frozenset(list_configured(connection, config, via_root=sends_roots(connection, config)))


def _list_matching(connection: Connection, config: Config) -> tuple[list[TableName], MatchedRelations]:
    relations = read_relations(connection, config)
    odd = relations.refused().keys() | relations.passed_over().keys()
    names = list_publishable(connection)
    return [name for name in names if config.rule_for(name) is not None and name not in odd], relations


def list_whole_schemas(connection: Connection, config: Config) -> list[str]:
    """Return the schemas whose tables a rule of the configuration matches whatever their names, sorted.

    Servers that do not publish schemas are refused.
    """
    if connection.info.server_version < PUBLISHES_SCHEMAS:
        raise SourceError(
            "source.create.publication is schemas, and PostgreSQL publishes schemas from 15 on. Set it to"
            " configured."
        )
    rows = _fetch(
        connection,
        "SELECT n.nspname::text FROM pg_catalog.pg_namespace n WHERE n.nspname <> 'information_schema'"
        " AND n.nspname NOT LIKE 'pg\\_%%' ORDER BY 1",
    )
    return [schema for (schema,) in rows if any(rule.matches_schema(schema) for rule in config.tables)]


def plan_scope(connection: Connection, config: Config) -> Scope | None:
    """Return what the configured plan creates the publication for, None if no table matches.

    Tables on which UPDATE and DELETE would fail are left out. If there are any, the other tables of their
    schemas, or of the database, are published one by one.
    """
    plan = config.source.create.publication
    matching, relations = _list_matching(connection, config)
    matching = list_publishable(connection) if plan == "all" else matching
    unsafe = set(matching) & find_unsafe_identities(connection).keys()
    if plan == "all" and not unsafe:
        return Scope(all_tables=True)
    whole = list_whole_schemas(connection, config) if plan == "schemas" else []
    schemas = [schema for schema in whole if all(name.schema != schema for name in unsafe)]
    if not matching and not schemas:
        return None
    own = relations.without_partitions(matching) if sends_roots(connection, config) else matching
    tables = (name for name in own if name not in unsafe and name.schema not in schemas)
    return Scope(tuple(tables), tuple(schemas))


def list_existing(connection: Connection, names: Collection[TableName]) -> set[TableName]:
    """Return those of the tables that exist."""
    if not names:
        return set()
    rows = _fetch(
        connection,
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY (%s::text[]) AND c.relname = ANY (%s::text[])",
        *(list(each) for each in zip(*names, strict=True)),
    )
    return {TableName(schema, table) for schema, table in rows} & set(names)


def ensure_publication(connection: Connection, config: Config) -> tuple[Publication, bool]:
    """Return the publication, and whether this call created it; create it only if no change can be lost.

    If the slot exists already, it would decode changes from before the publication: PostgreSQL up to 17 fails
    then, and 18 warns and skips the rows. Either is a gap, which `source.lost_slot` may close.
    """
    name = config.source.publication
    publication = read_publication(connection, name)
    if publication is not None:
        return publication, False
    _create_publication(connection, config, plan_missing_publication(connection, config))
    publication = read_publication(connection, name)
    if publication is None:
        raise SourceError(f"The publication {name} was dropped just after its creation. Run again.")
    return publication, True


def plan_missing_publication(connection: Connection, config: Config) -> Scope:
    """Return what the publication that does not exist is created for; raise SourceError if it may not be."""
    name, plan = config.source.publication, config.source.create.publication
    if config.source.create.via_partition_root and not publishes_roots(connection):
        raise SourceError(
            "source.create.via_partition_root is true, and PostgreSQL publishes partitioned tables from 13"
            " on. Remove it: their partitions are tables then."
        )
    if plan == "never":
        raise SourceError(
            f"The publication {name} does not exist, and source.create.publication is never. Run"
            f" CREATE PUBLICATION {quote_identifier(name)} FOR TABLE …, before the slot is created."
        )
    slot = read_slot(connection, config.source.slot)
    fault = None if slot is None else find_slot_fault(slot, connection.info.dbname)
    if fault is not None and not isinstance(fault, SlotGapError):
        raise fault  # whatever the publication is
    if slot is not None and config.source.lost_slot == "stop":
        raise SourceError(
            f"The publication {name} does not exist, but the slot {slot.name} does and cannot decode changes"
            " from before a publication. Name an existing one in source.publication; or set source.lost_slot"
            " to compare, and ingest creates the publication and copies what differs; or, if no change in the"
            f" slot is needed, run SELECT pg_drop_replication_slot({quote_literal(slot.name)}) and start"
            " again."
        )
    scope = plan_scope(connection, config)
    if scope is None:
        raise SourceError(
            f"The publication {name} would be empty: no table in the database {connection.info.dbname}"
            f" matches tables in {config.path}. Create the tables, correct their names, or set"
            " source.create.publication to all."
        )
    return scope


def plan_publication(name: str, scope: Scope, *, via_root: bool) -> sql.Composed:
    """Return the statement that creates the publication."""
    create = sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name))
    targets = [sql.SQL("ALL TABLES")] if scope.all_tables else targets_of(scope)
    created = create + sql.SQL(" FOR ") + sql.SQL(", ").join(targets) if targets else create
    return created + sql.SQL(VIA_ROOT) if via_root else created


def targets_of(scope: Scope) -> list[sql.Composed]:
    """Return the schemas and the tables as statements about publications name them."""
    named = {
        "TABLES IN SCHEMA": [sql.Identifier(schema) for schema in scope.schemas],
        "TABLE": [sql.Identifier(*table) for table in scope.tables],
    }
    return [
        sql.SQL(kind) + sql.SQL(" ") + sql.SQL(", ").join(names) for kind, names in named.items() if names
    ]


def _create_publication(connection: Connection, config: Config, scope: Scope) -> None:
    name, via_root = config.source.publication, sends_roots(connection, config)
    try:
        with connection.transaction():
            limit_lock_time(connection)
            connection.execute(plan_publication(name, scope, via_root=via_root))
            connection.execute(
                sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
                    sql.Identifier(name), sql.Literal(managed_comment(config.pipeline))
                )
            )
    except sqlstate.DuplicateObject:
        return  # Another run created it at the same time.
    except sqlstate.LockNotAvailable:
        raise SourceError(
            f"The publication {name} cannot be created: another session has locked a table that it is to have"
            " (ALTER TABLE, VACUUM and CREATE INDEX do; see pg_locks). Run again when that session is done."
        ) from None
    except sqlstate.InsufficientPrivilege as error:
        owner = "a superuser" if scope.requires else "a role that owns the tables"
        short = scope if scope.requires else Scope(scope.tables[:1])
        hint = plan_publication(name, short, via_root=False).as_string(connection)
        hint += ("" if short == scope else ", …") + (VIA_ROOT if via_root else "")
        raise SourceError(
            f"The role {connection.info.user} may not create the publication {name} ({describe(error)})."
            f" Run {hint} as {owner} with CREATE on the database."
        ) from None
    except psycopg.Error as error:
        raise SourceError(f"The publication {name} cannot be created: {describe(error)}.") from None


def _fetch(connection: Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    with reading("the source's publications"):
        return connection.execute(query, parameters).fetchall()
