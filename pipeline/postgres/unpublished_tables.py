"""Find the tables that match the configuration and are not published, and add those that ingest may add.

Also generated columns that are not published. `checks`, `status` and ingest use the same function, so that
they say the same. Only a publication that the pipeline created is altered, and only by `add_tables`; no table
is ever removed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe, for_server, limit_lock_time, reading
from pipeline.postgres.publication import (
    IS_PUBLISHABLE,
    PUBLISHES_SCHEMAS,
    Publication,
    Scope,
    list_configured,
    list_publishable,
    list_whole_schemas,
    managed_comment,
    sends_roots,
    targets_of,
)
from pipeline.postgres.published_tables import FAMILY, IS_PUBLISHED, PUBLISHED
from pipeline.postgres.relation_kinds import MatchedRelations, Reason
from pipeline.postgres.replica_identities import IdentityFault, find_unsafe_identities
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName

_MEANWHILE = (sqlstate.UndefinedTable, sqlstate.InvalidSchemaName, sqlstate.DuplicateObject)

# A table is published itself, with its partitioned table or schema, or by all of its partitions.
_COVERED = """
WITH RECURSIVE covered (oid, is_entry) AS (
    SELECT entry.oid, true FROM ({entries}) entry (oid)
    UNION
    SELECT i.inhrelid, false FROM covered f JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid
)
SELECT c.oid::bigint, n.nspname::text, c.relname::text, pg_catalog.pg_has_role(c.relowner, 'USAGE'),
       {by_leaves}
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {is_publishable} AND """
_IS_COVERED = (
    "EXISTS (SELECT 1 FROM covered WHERE covered.oid = c.oid AND (covered.is_entry OR c.relispartition))"
)
_UNPUBLISHED = f"{_COVERED}NOT {_IS_COVERED} ORDER BY 2, 3"
# The entries of FOR ALL TABLES are the tables that it excludes (EXCEPT, from 19 on).
_EXCLUDED = f"{_COVERED}{_IS_COVERED} ORDER BY 2, 3"
_ENTRIES = (
    "SELECT r.prrelid FROM pg_catalog.pg_publication p"
    " JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = %(publication)s"
)
_ENTRIES_BY_SCHEMA = (
    f"{_ENTRIES} UNION SELECT t.oid FROM pg_catalog.pg_publication p"
    " JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid"
    " JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid AND t.relkind IN ('r', 'p')"
    " WHERE p.pubname = %(publication)s"
)
_SCHEMAS = (
    "SELECT n.nspname::text FROM pg_catalog.pg_publication p"
    " JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid"
    " JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = %s"
)
# No schema is added to a publication that has a list of columns.
_MAY_ADD_SCHEMAS = (
    "SELECT u.rolsuper AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication p"
    " JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prattrs IS NOT NULL"
    " WHERE p.pubname = %s) FROM pg_catalog.pg_roles u WHERE u.rolname = current_user"
)
_BY_LEAVES = (
    "(c.relkind = 'p' AND (SELECT pg_catalog.bool_and(covered.oid IS NOT NULL)"
    f" FROM {FAMILY} member JOIN pg_catalog.pg_class leaf ON leaf.oid = member.oid AND leaf.relkind = 'r'"
    " AND leaf.relpersistence = 'p'"
    " LEFT JOIN covered ON covered.oid = leaf.oid) IS TRUE)"
)
_PARTS = {
    15: {"entries": _ENTRIES_BY_SCHEMA, "by_leaves": _BY_LEAVES},
    13: {"entries": _ENTRIES, "by_leaves": _BY_LEAVES},
    10: {"entries": _ENTRIES, "by_leaves": "false"},
}
_GENERATED = """
SELECT n.nspname::text, c.relname::text, pg_catalog.array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN {published} p ON p.relid = c.oid
WHERE a.attgenerated <> '' AND NOT a.attisdropped AND ({is_published}) IS NOT TRUE
GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class _Table:
    relation_id: int
    name: TableName
    is_owned: bool
    is_in_parts: bool  # all of its partitions are published


def find_unpublished(
    connection: Connection,
    config: Config,
    publication: Publication | None,
    relations: MatchedRelations,
) -> dict[TableName, Reason | None]:
    """Return the tables that match the configuration and are not published, each with why it is not added.

    The reason is None if ingest adds the table. A publication that does not exist will lack what ingest
    leaves out when it creates it. Relations that are not followed are left out.
    """
    if publication is None:
        return _find_left_out(connection, config, relations)
    if publication.all_tables:
        excluded = _exclusion_reason(publication.name)
        tables = _list(connection, publication)
        return {table.name: excluded for table in tables if config.rule_for(table.name) is not None}
    refusal = _refusal(connection, config, publication)
    takes_all = not refusal and config.source.create.publication == "all"
    odd = {*relations.refused(publication.tables)}
    if not takes_all:
        odd.update(relations.passed_over(publication.tables))
    # A root that ingest adds has the rows of its partitions from then on.
    is_whole = publication.via_root and not refusal
    found = {
        t.name: t
        for t in _list(connection, publication)
        if t.name not in odd
        and (takes_all or config.rule_for(t.name) is not None)
        and (is_whole or not t.is_in_parts)
    }
    names = relations.without_partitions(found.keys()) if publication.via_root else found.keys()
    tables = [found[name] for name in names]
    if not tables:
        return {}
    faults: Mapping[TableName, IdentityFault] = {}
    if not refusal and publication.operations & {"update", "delete"}:
        faults = find_unsafe_identities(connection, publication.name)
    reasons: dict[TableName, Reason | None] = {}
    for table in tables:
        reason = refusal
        if not reason and not table.is_owned:
            reason = Reason(
                f"The role {connection.info.user} does not own it.",
                f"Grant the owner's role to {connection.info.user}, or run {_addition(publication.name)} as a"
                " superuser.",
            )
        elif not reason and (fault := faults.get(table.name)):
            reason = _identity_reason(fault, publication.name)
        reasons[table.name] = reason
    return reasons


def _find_left_out(
    connection: Connection, config: Config, relations: MatchedRelations
) -> dict[TableName, Reason | None]:
    """Return the tables that match, and that ingest leaves out of the publication when it creates it."""
    name, plan = config.source.publication, config.source.create.publication
    if plan == "never":
        return {}
    via_root = sends_roots(connection, config)
    if plan != "all":
        matching = list_configured(connection, config, via_root=via_root)
    else:
        matching = list_publishable(connection)
        matching = relations.without_partitions(matching) if via_root else matching
    faults = find_unsafe_identities(connection)
    return {table: _identity_reason(faults[table], name) for table in matching if table in faults}


def _exclusion_reason(publication: str) -> Reason:
    """Return the reason for a table that a publication for all tables excludes."""
    return Reason(
        f"The publication {publication} excludes it (EXCEPT).",
        f"Run ALTER PUBLICATION {quote_identifier(publication)} SET ALL TABLES with an EXCEPT that lacks it,"
        " or leave it out of tables.",
    )


def _identity_reason(fault: IdentityFault, publication: str) -> Reason:
    why = f"It has {fault.value}, so UPDATE and DELETE would fail on it at the source."
    if fault is IdentityFault.GENERATED:
        change = f"ALTER PUBLICATION {quote_identifier(publication)} SET (publish_generated_columns = stored)"
        return Reason(why, f"Set another replica identity, or run {change} if they are stored.")
    return Reason(
        why,
        "Add a primary key that is not deferrable, run ALTER TABLE … REPLICA IDENTITY FULL, or run"
        f" {_addition(publication)} if it is only inserted into.",
    )


def list_generated(connection: Connection, publication: str) -> dict[TableName, list[str]]:
    """Return the generated columns that the publication does not send, or would not if it had the table."""
    if connection.info.server_version < 120000:
        return {}
    published, is_published = (for_server(connection, each) for each in (PUBLISHED, IS_PUBLISHED))
    query = _GENERATED.format(published=published, is_published=is_published)
    with reading("the source's generated columns"):
        rows = connection.execute(query.encode(), {"publication": publication}).fetchall()
    return {TableName(schema, table): columns for schema, table, columns in rows}


def unpublished_sentence(reason: Reason | None) -> str:
    """Return the sentence about one table, given the reason of `find_unpublished`."""
    return f"It matches the configuration and is not published. {reason or 'The next ingest adds it.'}"


def unfollowed_sentence(reason: Reason) -> str:
    """Return the sentence about a relation that a rule matches and that is not followed."""
    return f"It matches the configuration and is not followed. {reason}"


def add_tables(
    connection: Connection, publication: str, tables: Sequence[TableName]
) -> tuple[list[TableName], dict[TableName, Reason]]:
    """Add tables to a publication; return those that were added, and why others were not.

    A table that was dropped meanwhile, or that another session added, is left out of both.
    """
    if not tables:
        return [], {}
    error = _add(connection, publication, Scope(tuple(tables)))
    if error is None:
        return list(tables), {}
    if len(tables) > 1:  # one of them is the reason
        added: list[TableName] = []
        failed: dict[TableName, Reason] = {}
        for table in tables:
            more, why = add_tables(connection, publication, [table])
            added += more
            failed |= why
        return added, failed
    if isinstance(error, _MEANWHILE):
        return [], {}
    if isinstance(error, sqlstate.LockNotAvailable):
        return [], {tables[0]: Reason("Another session has it locked.", "Ingest tries again.")}
    reason = Reason(f"The source refused it: {describe(error)}.", f"Run {_addition(publication)}.")
    return [], {tables[0]: reason}


def add_schemas(
    connection: Connection,
    config: Config,
    publication: Publication | None,
    unpublished: Mapping[TableName, Reason | None],
) -> list[str]:
    """Add whole schemas to the pipeline's own publication; return those that were added.

    With `source.create.publication: schemas`, those are added that the configuration matches whole and that
    have no table for whose absence `find_unpublished` has a reason. Their tables are added one by one where
    PostgreSQL adds no schema: before 15, for a role that is no superuser, and next to a list of columns.
    """
    if config.source.create.publication != "schemas" or connection.info.server_version < PUBLISHES_SCHEMAS:
        return []
    if publication is None or publication.all_tables or _refusal(connection, config, publication):
        return []
    refused = {table.schema for table, reason in unpublished.items() if reason is not None}
    with reading("the source's publications"):
        [(may_add,)] = connection.execute(_MAY_ADD_SCHEMAS, (publication.name,)).fetchall()
        published = {schema for (schema,) in connection.execute(_SCHEMAS, (publication.name,))}
    if not may_add:
        return []
    wanted = set(list_whole_schemas(connection, config)) - published - refused
    return [
        schema
        for schema in sorted(wanted)
        if _add(connection, publication.name, Scope(schemas=(schema,))) is None
    ]


def group_by_reason(unpublished: Mapping[TableName, Reason | None]) -> dict[Reason | None, list[TableName]]:
    """Return the tables of each reason, sorted."""
    grouped: dict[Reason | None, list[TableName]] = {}
    for name in sorted(unpublished):
        grouped.setdefault(unpublished[name], []).append(name)
    return grouped


def _refusal(connection: Connection, config: Config, publication: Publication) -> Reason | None:
    """Return why ingest does not alter the publication, None if it does."""
    name, fix = publication.name, f"Run {_addition(publication.name)}, or leave them out of tables."
    if (publication.comment or "").partition("; ")[0] != managed_comment(config.pipeline):
        return Reason(
            f"The publication {name} was not created by this pipeline, which does not alter it.", fix
        )
    if config.source.create.publication == "never":
        return Reason(f"source.create.publication is never, so the publication {name} is not altered.", fix)
    if not publication.is_owned:
        return Reason(f"The role {connection.info.user} does not own the publication {name}.", fix)
    return None


def _addition(publication: str) -> str:
    return f"ALTER PUBLICATION {quote_identifier(publication)} ADD TABLE …"


def _list(connection: Connection, publication: Publication) -> list[_Table]:
    major = connection.info.server_version // 10000
    parts = next(parts for first, parts in _PARTS.items() if major >= first)
    text = _EXCLUDED if publication.all_tables else _UNPUBLISHED
    query = text.format(is_publishable=for_server(connection, IS_PUBLISHABLE), **parts)
    with reading("the source's publications"):
        rows = connection.execute(query, {"publication": publication.name}).fetchall()
    return [_Table(oid, TableName(schema, table), *facts) for oid, schema, table, *facts in rows]


def _add(connection: Connection, publication: str, scope: Scope) -> psycopg.Error | None:
    """Add tables or schemas in one transaction; return why that failed, None if it did not."""
    targets = sql.SQL(", ").join(targets_of(scope))
    statement = sql.SQL("ALTER PUBLICATION {} ADD {}").format(sql.Identifier(publication), targets)
    try:
        with connection.transaction():
            limit_lock_time(connection)
            connection.execute(statement)
    except psycopg.Error as error:
        if connection.closed:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        return error
    return None
