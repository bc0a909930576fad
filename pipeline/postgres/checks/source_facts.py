"""Facts of a server and of the role there for `pgdelta init`, and the SQL that prepares it.

Only catalogs are read, and nothing is changed. `preparation` is pure: facts in, statements out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.errors import SourceError
from pipeline.postgres.checks.copy_checks import LeafPrivileges, list_leaves
from pipeline.postgres.connection import WAL_LEVEL, Connection, describe, for_server
from pipeline.postgres.matched_relations import publishes_roots, read_relations
from pipeline.postgres.publication import IS_PUBLISHABLE, VIA_ROOT
from pipeline.postgres.replica_identities import find_unsafe_identities
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName

_PARTITION = "It is a partition: silver has its rows in the table {}."
OBSTACLE = (
    "{}, so UPDATE and DELETE would fail on it at the source; add a primary key, or run ALTER TABLE …"
    " REPLICA IDENTITY FULL"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_TABLES = """
SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
       pg_catalog.pg_has_role(c.relowner, 'USAGE'),
       coalesce(pg_catalog.pg_total_relation_size(c.oid), 0),
       CASE WHEN c.reltuples > 0 THEN c.reltuples ELSE 0 END::bigint, c.relkind = 'p'
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {is_publishable}
ORDER BY 1, 2
"""
# On RDS, a role has the privilege instead of the attribute.
_MAY_REPLICATE = (
    "SELECT r.rolsuper OR r.rolreplication OR EXISTS (SELECT 1 FROM pg_catalog.pg_roles m"
    " WHERE m.rolname = 'rds_replication' AND pg_catalog.pg_has_role(m.oid, 'MEMBER'))"
    " FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
)
_SERVER = f"""
SELECT {WAL_LEVEL}, pg_catalog.current_setting('max_replication_slots')::integer,
       pg_catalog.current_setting('max_wal_senders')::integer,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),
       (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
       pg_catalog.pg_is_in_recovery(),
       ARRAY(SELECT slot_name::text FROM pg_catalog.pg_replication_slots ORDER BY 1),
       ARRAY(SELECT pubname::text FROM pg_catalog.pg_publication ORDER BY 1)
"""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that can be published; `bytes` include its indexes, `rows` are the planner's estimate.

    `obstacle` is why it should not be published as it is, "" if nothing is in the way.
    """

    name: TableName
    owner: str
    is_owned: bool
    bytes: int
    rows: int
    is_partitioned: bool
    obstacle: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A server, a database and a role on it; the sizes are in bytes.

    `passed_over` are relations that no rule with a wildcard follows, and why; some of `tables` are among
    them. `partial` says which rows of a table silver would lack.
    """

    database: str
    user: str
    version: str
    wal_level: str  # that a slot finds
    slot_limit: int
    walsender_limit: int
    walsenders: int
    is_superuser: bool
    may_create: bool  # in the database
    may_replicate: bool
    is_standby: bool
    slots: tuple[str, ...]
    publications: tuple[str, ...]
    tables: tuple[SourceTable, ...]
    passed_over: Mapping[TableName, str] = field(default_factory=dict)
    partial: Mapping[TableName, str] = field(default_factory=dict)
    publishes_roots: bool = False  # a publication may send partitioned tables under their own names


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is to be done at the source: why, by whom, and the statements; some need a restart."""

    reason: str
    statements: tuple[str, ...] = ()
    needs_restart: bool = False


def may_replicate(connection: Connection) -> bool:
    """Return whether the role may use replication slots; raise psycopg.Error."""
    row = connection.execute(_MAY_REPLICATE).fetchone()
    return row is not None and bool(row[0])


def read_facts(connection: Connection) -> SourceFacts:
    """Return the facts of the session's database and role."""
    try:
        row = connection.execute(_SERVER).fetchone()
        rows = connection.execute(
            _TABLES.format(is_publishable=for_server(connection, IS_PUBLISHABLE)), ()
        ).fetchall()
        replicates = may_replicate(connection)
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's catalog: {describe(error)}.") from None
    assert row is not None
    level, slots, senders, sending, is_superuser, may_create, is_standby, slot_names, publications = row
    obstacles = {name: OBSTACLE.format(why.value) for name, why in find_unsafe_identities(connection).items()}
    relations = read_relations(connection, Config(pipeline="init", tables=(TableRule("*.*"),)))
    obstacles |= {name: reason.why.rstrip(".") for name, reason in relations.refused().items()}
    tables = tuple(
        SourceTable(name, owner, is_owned, size, count, is_partitioned, obstacles.get(name, ""))
        for schema, table, owner, is_owned, size, count, is_partitioned in rows
        for name in (TableName(schema, table),)
    )
    passed_over = {name: str(reason) for name, reason in relations.passed_over().items()}
    passed_over |= {
        name: _PARTITION.format(member.above[-1])
        for name, member in relations.families.items()
        if member.above and name not in passed_over
    }
    return SourceFacts(
        database=connection.info.dbname,
        user=connection.info.user,
        version=(connection.info.parameter_status("server_version") or "").partition(" ")[0],
        wal_level=level,
        slot_limit=slots,
        walsender_limit=senders,
        walsenders=sending,
        is_superuser=is_superuser,
        may_create=may_create,
        may_replicate=replicates,
        is_standby=is_standby,
        slots=tuple(slot_names),
        publications=tuple(publications),
        tables=tables,
        passed_over=passed_over,
        partial=relations.notes({table.name for table in tables}),
        publishes_roots=publishes_roots(connection),
    )


def read_preparation(
    connection: Connection, facts: SourceFacts, publication: str, tables: Sequence[SourceTable]
) -> list[Preparation]:
    """Return what is to be done before these tables are replicated through this publication."""
    try:
        leaves = list_leaves(connection, sorted(table.name for table in tables))
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's privileges: {describe(error)}.") from None
    return list(preparation(facts, publication, tables, leaves))


def preparation(
    facts: SourceFacts, publication: str, tables: Sequence[SourceTable], leaves: Sequence[LeafPrivileges]
) -> Iterator[Preparation]:
    """Yield what is to be done, in the order in which it is done."""
    role = identifier(facts.user)
    settings = list(_settings(facts))
    if settings:
        yield Preparation(
            "Settings of the server, by a superuser; on a managed server, set its parameters instead.",
            tuple(settings),
            needs_restart=True,
        )
    if not facts.may_replicate:
        yield Preparation(
            "The right to replicate, by a superuser (on RDS: GRANT rds_replication TO the role).",
            (f"ALTER ROLE {role} REPLICATION;",),
        )
    grants = list(_grants(role, leaves))
    if grants:
        yield Preparation("The right to read tables, by their owner.", tuple(grants))
    if any(leaf.is_filtered for leaf in leaves):
        yield Preparation(
            "All rows of tables with row-level security, by a superuser.", (f"ALTER ROLE {role} BYPASSRLS;",)
        )
    if facts.is_standby:
        yield Preparation(
            "The server is a standby, where no publication can be created. Connect to its primary server."
        )
    elif publication not in facts.publications and not _may_publish(facts, tables):
        names = ", ".join(identifier(*table.name) for table in tables)
        option = VIA_ROOT if facts.publishes_roots else ""
        yield Preparation(
            "The publication, by a role that owns the tables and has CREATE on the database. Tables that"
            " match later are added to it by that role.",
            (f"CREATE PUBLICATION {identifier(publication)} FOR TABLE {names}{option};",),
        )


def identifier(*names: str) -> str:
    """Return a quoted identifier on one line: control characters of a name are written by their codes."""
    return ".".join(
        'U&"' + _CONTROL.sub(lambda found: f"\\+{ord(found[0]):06X}", escaped) + '"'
        if _CONTROL.search(name)
        else quote_identifier(name)
        for name in names
        for escaped in (name.replace("\\", "\\\\").replace('"', '""'),)
    )


def _settings(facts: SourceFacts) -> Iterator[str]:
    if facts.wal_level != "logical":
        yield "ALTER SYSTEM SET wal_level = 'logical';"
    if len(facts.slots) >= facts.slot_limit:
        yield f"ALTER SYSTEM SET max_replication_slots = {len(facts.slots) + 5};"
    if facts.walsenders >= facts.walsender_limit:
        yield f"ALTER SYSTEM SET max_wal_senders = {facts.walsenders + 5};"


def _grants(role: str, leaves: Sequence[LeafPrivileges]) -> Iterator[str]:
    closed = sorted({leaf.name.schema for leaf in leaves if not leaf.has_usage})
    if closed:
        yield f"GRANT USAGE ON SCHEMA {', '.join(map(identifier, closed))} TO {role};"
    unreadable: dict[str, list[TableName]] = defaultdict(list)
    for leaf in leaves:
        if not leaf.has_select:
            unreadable[leaf.name.schema].append(leaf.name)
    for names in unreadable.values():
        yield f"GRANT SELECT ON {', '.join(identifier(*name) for name in sorted(names))} TO {role};"


def _may_publish(facts: SourceFacts, tables: Sequence[SourceTable]) -> bool:
    return facts.is_superuser or (facts.may_create and all(table.is_owned for table in tables))
