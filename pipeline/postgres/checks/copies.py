"""What copies of rows from before the slot would meet: where they are read, and what the role may read.

Looked at by the session that copies, which may be another role's on a standby. A table is read from its
leaves: of a partitioned one the rights on the partitions count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.checks.tables import NAMED_TABLES, Check, list_tables
from pipeline.postgres.connection import Connection, connect, describe, identify
from pipeline.postgres.publication import Publication, list_configured
from pipeline.postgres.replication.options import quote_identifier
from pipeline.postgres.snapshot.export import COPY_SESSIONS
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What the role may do with a table that holds rows."""

    name: TableName
    is_usable: bool  # its schema
    is_readable: bool
    is_filtered: bool


_LEAVES = """
WITH RECURSIVE wanted (nspname, relname) AS (
    SELECT * FROM ROWS FROM (pg_catalog.unnest(%s::text[]), pg_catalog.unnest(%s::text[])) AS names
), family (oid, relkind) AS (
    SELECT c.oid, c.relkind FROM wanted w
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
    UNION
    SELECT c.oid, c.relkind FROM family f
    JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid AND f.relkind = 'p'
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
)
SELECT n.nspname::text, c.relname::text, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT'), pg_catalog.row_security_active(c.oid)
FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid AND f.relkind = 'r'
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


def check_copies(connection: Connection, config: Config, publication: Publication | None) -> Iterator[Check]:
    """Yield the checks of copies, where the configuration asks for them."""
    if config.source.copy != "initial":
        return
    conninfo = config.source.copying.conninfo
    published = list_configured(connection, config) if publication is None else publication.tables
    names = sorted(name for name in published if config.rule_for(name) is not None)
    if conninfo is None:
        yield from _check_rights(connection, names)
        return
    try:
        reader = connect(conninfo, application_name=COPY_SESSIONS, key=config.source.snapshot_key)
    except SourceError as error:
        yield Check("copy source", False, str(error), "Correct source.copying.conninfo, or leave it out.")
        return
    with reader:
        try:
            check = _check_place(connection, reader)
            yield check
            if check.ok:
                yield from _check_rights(reader, names)
        except (SourceError, psycopg.Error) as error:
            text = describe(error) if isinstance(error, psycopg.Error) else str(error)
            yield Check(
                "copy source",
                False,
                f"Its catalog cannot be read: {text}.",
                "Grant what it names: docs/security.md.",
            )


def _check_place(connection: Connection, reader: Connection) -> Check:
    """Return whether the session that copies is at the source, or at a standby of it."""
    source, found = identify(connection), identify(reader)
    row = reader.execute(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('hot_standby_feedback')::bool"
    ).fetchone()
    assert row is not None
    is_standby, gives_feedback = row
    fix = "Let source.copying.conninfo name the source, or a standby of it."
    if found.system_identifier != source.system_identifier:
        sentence = (
            f"Rows would be copied from another database system ({found.system_identifier}, the source is "
            f"{source.system_identifier})."
        )
        return Check("copy source", False, sentence, fix)
    if found.database != source.database:
        sentence = (
            f"Rows would be copied from the database {found.database}, the source is {source.database}."
        )
        return Check("copy source", False, sentence, fix)
    if is_standby:
        advice = (
            ""
            if gives_feedback
            else "Set hot_standby_feedback = on there, or a long max_standby_streaming_delay: replay may"
            " cancel what is read, and it begins again."
        )
        return Check("copy source", True, "Rows are copied from a standby of the source.", advice)
    if found.timeline != source.timeline:
        sentence = (
            f"Rows would be copied from a server on timeline {found.timeline}, the source is on"
            f" {source.timeline}: one of both was promoted, and they went apart."
        )
        return Check("copy source", False, sentence, fix)
    return Check("copy source", True, "Rows are copied from the source.")


def _check_rights(reader: Connection, names: list[TableName]) -> Iterator[Check]:
    """Yield whether the role sees all rows of the tables, where there are any."""
    if not names:
        return
    schemas, tables = [schema for schema, _ in names], [table for _, table in names]
    leaves = [
        _Leaf(TableName(schema, table), *facts)
        for schema, table, *facts in reader.execute(_LEAVES, (schemas, tables)).fetchall()
    ]
    user = reader.info.user
    unread = [leaf for leaf in leaves if not (leaf.is_usable and leaf.is_readable)]
    yield Check(
        "SELECT right",
        not unread,
        f"The role {user} may not read {len(unread)} of {len(leaves)} tables that are to be copied:"
        f" {list_tables(leaf.name for leaf in unread)}."
        if unread
        else f"The role {user} may read the {len(leaves)} tables that are to be copied.",
        f"Run {_grants(unread, user)}, or set source.copy to never." if unread else "",
    )
    filtered = [leaf.name for leaf in leaves if leaf.is_filtered]
    yield Check(
        "row-level security",
        not filtered,
        f"Row-level security applies to the role {user} on {len(filtered)} tables, whose copy fails"
        f" rather than leave out rows: {list_tables(filtered)}."
        if filtered
        else f"Row-level security hides no rows from the role {user}.",
        f"Run ALTER ROLE {quote_identifier(user)} BYPASSRLS as a superuser, or set source.copy to never."
        if filtered
        else "",
    )


def _grants(unread: list[_Leaf], user: str) -> str:
    """Return the statements that let the role read the tables; of many those of the first ones."""
    role = quote_identifier(user)
    schemas = sorted({leaf.name[0] for leaf in unread if not leaf.is_usable})[:NAMED_TABLES]
    tables = [leaf.name for leaf in unread if not leaf.is_readable]
    named = [name.sql for name in tables[:NAMED_TABLES]]
    more = ", …" if len(tables) > NAMED_TABLES else ""
    usage = (
        [f"GRANT USAGE ON SCHEMA {', '.join(map(quote_identifier, schemas))} TO {role}"] if schemas else []
    )
    select = [f"GRANT SELECT ON {', '.join(named)}{more} TO {role}"] if named else []
    return "; ".join([*usage, *select])
