"""Check the table copies: whether their server is the source or a standby of it, and what the role may read.

The checks use the conninfo of the copies, which may have another role and a standby. A partitioned table is
read from its leaves, so that the privileges on these count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.checks.table_checks import (
    NAMED_TABLES,
    Check,
    decide,
    list_identifiers,
    list_tables,
    unreadable,
)
from pipeline.postgres.connection import Connection, connect, identify
from pipeline.postgres.publication import Publication, list_followed
from pipeline.postgres.snapshot.export import COPY_SESSIONS
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class LeafPrivileges:
    """The privileges of the role on a table that has rows."""

    name: TableName
    has_usage: bool  # on its schema
    has_select: bool
    is_filtered: bool  # by row-level security


_LEAVES = """
WITH RECURSIVE published (nspname, relname) AS (
    SELECT * FROM ROWS FROM (
        pg_catalog.unnest(%(schemas)s::text[]), pg_catalog.unnest(%(tables)s::text[])) AS names
), family (oid, relkind) AS (
    SELECT c.oid, c.relkind FROM published p
    JOIN pg_catalog.pg_namespace n ON n.nspname = p.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.relname
    UNION
    SELECT c.oid, c.relkind FROM family f
    JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid AND f.relkind = 'p'
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
)
SELECT n.nspname::text, c.relname::text, {privileges}
FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid AND f.relkind = 'r' AND c.relpersistence = 'p'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""
_OF_SESSION = (
    "pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),"
    " pg_catalog.row_security_active(c.oid)"
)
# A role that does not exist yet has the privileges of PUBLIC.
_GRANTEE = "coalesce((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.rolname = %(role)s), 'public')"
_OF_ROLE = (
    f"pg_catalog.has_schema_privilege({_GRANTEE}, n.oid, 'USAGE'),"
    f" pg_catalog.has_table_privilege({_GRANTEE}, c.oid, 'SELECT'),"
    " c.relrowsecurity AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = %(role)s"
    " AND (r.rolsuper OR r.rolbypassrls"
    " OR NOT c.relforcerowsecurity AND pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE')))"
)


def check_copies(connection: Connection, config: Config, publication: Publication | None) -> Iterator[Check]:
    """Yield the checks of table copies, if the configuration has them on."""
    if config.source.copy != "initial":
        return
    conninfo = config.source.copying.conninfo
    followed = list_followed(connection, config, publication)
    names = sorted(name for name in followed if config.rule_for(name) is not None)
    if conninfo is None:
        yield from _check_privileges(connection, names)
        return
    try:
        reader = connect(conninfo, application_name=COPY_SESSIONS, key=config.source.snapshot_key)
    except SourceError as error:
        yield Check("copy source", False, str(error), "Correct source.copying.conninfo, or remove it.")
        return
    with reader:
        try:
            check = _check_server(connection, reader)
            yield check
            if check.ok:
                yield from _check_privileges(reader, names)
        except (SourceError, psycopg.Error) as error:
            yield unreadable("copy source", "Its catalog", error)


def _check_server(connection: Connection, reader: Connection) -> Check:
    """Return whether the server of the copies is the source or a standby of it."""
    source, copy_source = identify(connection), identify(reader)
    row = reader.execute(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('hot_standby_feedback')::bool"
    ).fetchone()
    assert row is not None
    is_standby, sends_feedback = row
    fix = "Set source.copying.conninfo to the source, or to a standby of it."
    if copy_source.system_identifier != source.system_identifier:
        sentence = (
            f"Rows would be copied from another database system ({copy_source.system_identifier}; the source"
            f" is {source.system_identifier})."
        )
        return Check("copy source", False, sentence, fix)
    if copy_source.database != source.database:
        sentence = (
            f"Rows would be copied from the database {copy_source.database}, but the source is"
            f" {source.database}."
        )
        return Check("copy source", False, sentence, fix)
    if is_standby:
        advice = (
            "Set hot_standby_feedback = on at the standby, or a long max_standby_streaming_delay. Otherwise"
            " replay may cancel a copy, which then starts again."
        )
        sentence = "Rows are copied from a standby of the source."
        return Check("copy source", True, sentence, "" if sends_feedback else advice)
    if copy_source.timeline != source.timeline:
        sentence = (
            f"Rows would be copied from a server on timeline {copy_source.timeline}, but the source is on"
            f" {source.timeline}: one of them was promoted, and they have diverged."
        )
        return Check("copy source", False, sentence, fix)
    return Check("copy source", True, "Rows are copied from the source.")


def _check_privileges(reader: Connection, names: list[TableName]) -> Iterator[Check]:
    """Yield whether the role can read all rows of the tables, if there are any."""
    if not names:
        return
    leaves = list_leaves(reader, names)
    user = reader.info.user
    unreadable = [leaf for leaf in leaves if not (leaf.has_usage and leaf.has_select)]
    yield decide(
        "SELECT right",
        not unreadable,
        passed=f"The role {user} may read all tables that are to be copied, and their partitions.",
        failed=f"The role {user} may not read {len(unreadable)} of "
        f"{format_count(len(leaves), 'table')} to copy: {list_tables(leaf.name for leaf in unreadable)}.",
        fix=f"Run {_grants(unreadable, user)}, or set source.copy to never.",
    )
    filtered = [leaf.name for leaf in leaves if leaf.is_filtered]
    yield decide(
        "row-level security",
        not filtered,
        passed=f"Row-level security hides no rows from the role {user}.",
        failed=f"Row-level security applies to the role {user} on "
        f"{format_count(len(filtered), 'table')}, whose copy will"
        f" fail rather than skip rows: {list_tables(filtered)}.",
        fix=f"Run ALTER ROLE {quote_identifier(user)} BYPASSRLS as a superuser, or set source.copy to never.",
    )


def list_leaves(reader: Connection, names: list[TableName], role: str | None = None) -> list[LeafPrivileges]:
    """Return the privileges of a role, by default the session's, on tables, of partitioned ones on leaves.

    Raises psycopg.Error.
    """
    query = _LEAVES.format(privileges=_OF_SESSION if role is None else _OF_ROLE)
    schemas, tables = [schema for schema, _ in names], [table for _, table in names]
    return [
        LeafPrivileges(TableName(schema, table), *facts)
        for schema, table, *facts in reader.execute(
            query, {"schemas": schemas, "tables": tables, "role": role}
        ).fetchall()
    ]


def _grants(unreadable: list[LeafPrivileges], user: str) -> str:
    """Return the statements that allow the role to read the tables, of many those for the first ones."""
    role = quote_identifier(user)
    schemas = sorted({leaf.name.schema for leaf in unreadable if not leaf.has_usage})[:NAMED_TABLES]
    tables = [leaf.name for leaf in unreadable if not leaf.has_select]
    statements = []
    if schemas:
        statements.append(f"GRANT USAGE ON SCHEMA {', '.join(map(quote_identifier, schemas))} TO {role}")
    if tables:
        statements.append(f"GRANT SELECT ON {list_identifiers(tables)} TO {role}")
    return "; ".join(statements)
