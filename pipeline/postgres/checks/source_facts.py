"""Facts of a server, a database and a role for `pgdelta init`, from catalogs alone; nothing is changed.

The role is the one that the pipeline will use. One that does not exist yet has the rights of PUBLIC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.postgres.connection import WAL_LEVEL, Connection, for_server, reading
from pipeline.postgres.matched_relations import publishes_roots, read_relations
from pipeline.postgres.publication import IS_PUBLISHABLE
from pipeline.postgres.published_tables import FAMILY, LOCKED
from pipeline.postgres.replica_identities import find_unsafe_identities
from pipeline.table_name import TableName

_PARTITION = "It is a partition: silver has its rows in the table {}."
OBSTACLE = (
    "{}, so UPDATE and DELETE would fail on it at the source; add a primary key, or run ALTER TABLE …"
    " REPLICA IDENTITY FULL"
)


class ManagedServer(NamedTuple):
    """A service that runs servers, and its setting for logical replication."""

    name: str
    logical: str


_TABLES = """
SELECT n.nspname::text, c.relname::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
       EXISTS (SELECT 1 FROM pg_catalog.pg_roles r
               WHERE r.rolname = %(role)s AND pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE')),
       leaves.bytes, leaves.table_bytes, leaves.row_count, c.relkind = 'p'
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(pg_catalog.sum(
               CASE WHEN leaf.is_locked THEN leaf.planned ELSE pg_catalog.pg_total_relation_size(leaf.oid) END
           ), 0)::bigint AS bytes,
           coalesce(pg_catalog.sum(
               CASE WHEN leaf.is_locked THEN leaf.planned ELSE pg_catalog.pg_table_size(leaf.oid) END
           ), 0)::bigint AS table_bytes,
           coalesce(pg_catalog.sum(leaf.reltuples) FILTER (WHERE leaf.reltuples > 0), 0)::bigint AS row_count
    FROM (
        SELECT leaf.oid, leaf.reltuples, leaf.oid IN {locked} AS is_locked,
               leaf.relpages::bigint * pg_catalog.current_setting('block_size')::bigint AS planned
        FROM {family} member
        JOIN pg_catalog.pg_class leaf
            ON leaf.oid = member.oid AND leaf.relkind = 'r' AND leaf.relpersistence = 'p'
    ) leaf
) leaves
WHERE {is_publishable}
ORDER BY 1, 2
"""
# On RDS, a role has the privilege instead of the attribute.
_MAY_REPLICATE = (
    "SELECT r.rolsuper OR r.rolreplication OR EXISTS (SELECT 1 FROM pg_catalog.pg_roles m"
    " WHERE m.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, m.oid, 'MEMBER'))"
    " FROM pg_catalog.pg_roles r WHERE r.rolname = coalesce(%(role)s::text, current_user)"
)
_SERVER = f"""
SELECT {WAL_LEVEL}, pg_catalog.current_setting('max_replication_slots')::integer,
       pg_catalog.current_setting('max_wal_senders')::integer,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),
       (SELECT pg_catalog.pg_size_bytes(s.setting || s.unit) FROM pg_catalog.pg_settings s
        WHERE s.name = 'max_slot_wal_keep_size' AND s.setting <> '-1'),
       coalesce(given.rolsuper, false), coalesce(given.rolcanlogin, false), given.rolname IS NOT NULL,
       pg_catalog.has_database_privilege(
           coalesce(given.rolname, 'public'), pg_catalog.current_database(), 'CREATE'),
       pg_catalog.has_database_privilege(
           coalesce(given.rolname, 'public'), pg_catalog.current_database(), 'CONNECT'),
       pg_catalog.pg_is_in_recovery(),
       ARRAY(SELECT slot_name::text FROM pg_catalog.pg_replication_slots ORDER BY 1),
       ARRAY(SELECT pubname::text FROM pg_catalog.pg_publication ORDER BY 1),
       ARRAY(SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY (%(administrators)s)),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class
        WHERE relpersistence = 't' AND relkind IN ('r', 'p'))
FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_roles given ON given.rolname = %(role)s
"""
#: Settings of managed servers that are no superuser's to change: the role of their administrators → theirs.
MANAGED: Mapping[str, ManagedServer] = {
    "rds_superuser": ManagedServer("Amazon RDS or Aurora", "rds.logical_replication = 1"),
    "cloudsqlsuperuser": ManagedServer("Cloud SQL", "cloudsql.logical_decoding = on"),
    "alloydbsuperuser": ManagedServer("AlloyDB", "alloydb.logical_decoding = on"),
    "azure_pg_admin": ManagedServer("Azure Database for PostgreSQL", "wal_level = logical"),
}


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that can be published; `bytes` are with its indexes, `table_bytes` without.

    Those of a partitioned table are those of its partitions, those of a table that a session has locked the
    planner's, like `rows`. `obstacle` is why it should not be published as it is, "" for no reason.
    """

    name: TableName
    owner: str
    is_owned: bool
    bytes: int
    table_bytes: int
    rows: int
    is_partitioned: bool
    obstacle: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A server, a database and a role on it; the sizes are in bytes.

    `passed_over` are relations that no rule with a wildcard follows, and why; some of `tables` are among
    them. `partial` says which rows of a table silver would lack. The rights are those of `role`, which the
    pipeline will use. `slot_wal_limit` is None if a slot keeps all WAL.
    """

    database: str
    user: str  # of the session
    role: str
    version: str
    wal_level: str  # that a slot finds
    slot_limit: int
    walsender_limit: int
    walsenders: int
    is_superuser: bool
    role_exists: bool
    may_log_in: bool
    may_connect: bool  # to the database
    may_create: bool  # in the database
    may_replicate: bool
    is_standby: bool
    slots: tuple[str, ...]
    publications: tuple[str, ...]
    tables: tuple[SourceTable, ...]
    passed_over: Mapping[TableName, str] = field(default_factory=dict)
    partial: Mapping[TableName, str] = field(default_factory=dict)
    roots: Mapping[TableName, TableName] = field(default_factory=dict)  # of partitions
    publishes_roots: bool = False  # a publication may send partitioned tables under their own names
    slot_wal_limit: int | None = None
    limits_slots: bool = True  # the server has max_slot_wal_keep_size
    managed: ManagedServer | None = None
    temporary_tables: int = 0


def may_replicate(connection: Connection, role: str | None = None) -> bool:
    """Return whether a role, by default the session's, may use replication slots; raise psycopg.Error."""
    row = connection.execute(_MAY_REPLICATE, {"role": role}).fetchone()
    return row is not None and bool(row[0])


def read_facts(connection: Connection, role: str | None = None) -> SourceFacts:
    """Return the facts of the session's database and of a role, by default the session's."""
    user = connection.info.user
    parameters = {"role": role or user, "administrators": list(MANAGED)}
    with reading("the source's catalog"):
        row = connection.execute(_SERVER, parameters).fetchone()
        rows = connection.execute(
            _TABLES.format(
                is_publishable=for_server(connection, IS_PUBLISHABLE), family=FAMILY, locked=LOCKED
            ),
            parameters,
        ).fetchall()
        replicates = may_replicate(connection, role or user)
    assert row is not None
    level, slots, senders, sending, slot_wal, *rights, is_standby, slot_names, publications = row[:-2]
    administrators, temporary_tables = row[-2:]
    is_superuser, may_log_in, exists, may_create, may_connect = rights
    obstacles = {name: OBSTACLE.format(why.value) for name, why in find_unsafe_identities(connection).items()}
    relations = read_relations(connection, Config(pipeline="init", tables=(TableRule("*.*"),)))
    obstacles |= {name: reason.why.rstrip(".") for name, reason in relations.refused().items()}
    tables = tuple(
        SourceTable(name, owner, is_owned, size, table_size, count, is_root, obstacles.get(name, ""))
        for schema, table, owner, is_owned, size, table_size, count, is_root in rows
        for name in (TableName(schema, table),)
    )
    passed_over = {name: str(reason) for name, reason in relations.passed_over().items()}
    roots = {name: member.above[-1] for name, member in relations.families.items() if member.above}
    passed_over = {name: _PARTITION.format(root) for name, root in roots.items()} | passed_over
    return SourceFacts(
        database=connection.info.dbname,
        user=user,
        role=role or user,
        version=(connection.info.parameter_status("server_version") or "").partition(" ")[0],
        wal_level=level,
        slot_limit=slots,
        walsender_limit=senders,
        walsenders=sending,
        is_superuser=is_superuser,
        role_exists=exists,
        may_log_in=may_log_in,
        may_connect=may_connect,
        may_create=may_create,
        may_replicate=replicates,
        is_standby=is_standby,
        slots=tuple(slot_names),
        publications=tuple(publications),
        tables=tables,
        passed_over=passed_over,
        partial=relations.notes({table.name for table in tables}),
        roots=roots,
        publishes_roots=publishes_roots(connection),
        slot_wal_limit=slot_wal,
        limits_slots=connection.info.server_version >= 130000,
        managed=next((MANAGED[name] for name in administrators), None),
        temporary_tables=temporary_tables,
    )
