"""What the start of a pipeline would meet at the source, looked at without changing anything.

Each check is a name, whether it passed, a sentence, and what to do where something is to be done. A passed
check with a `fix` is advice. Nothing here creates, and nothing prints: the command does.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SlotGapError, SourceError
from pipeline.postgres.checks.copies import check_copies
from pipeline.postgres.checks.tables import Check, check_tables, list_tables
from pipeline.postgres.connection import Connection, connect, connect_replication, describe
from pipeline.postgres.publication import (
    Publication,
    is_covered,
    list_configured,
    read_publication,
)
from pipeline.postgres.replication.options import negotiate, quote_identifier
from pipeline.postgres.replication.slot import find_fault, read_slot
from pipeline.table_name import TableName

__all__ = ["Check", "run_checks"]

_ROWS_BEFORE = {
    "initial": "the rows that they have are copied",
    "never": "what was written to them before is not sent",
}


def run_checks(config: Config) -> list[Check]:
    """Return every check that can be made, in the order in which a start would meet them."""
    try:
        connection = connect(config.source.conninfo)
    except SourceError as error:
        return [Check("connection", False, str(error), "Correct source.conninfo, or start the server.")]
    with connection:
        try:
            return list(_check_source(connection, config))
        except (SourceError, psycopg.Error) as error:
            text = describe(error) if isinstance(error, psycopg.Error) else str(error)
            return [
                Check(
                    "catalog",
                    False,
                    f"The catalog cannot be read: {text}.",
                    "Grant what it names: docs/security.md.",
                )
            ]


def _check_source(connection: Connection, config: Config) -> Iterator[Check]:
    info = connection.info
    yield Check("connection", True, f"Connected to the database {info.dbname} as {info.user}.")
    yield _check_version(connection, config)
    yield _check_wal_level(connection)
    yield _check_replication_right(connection)
    if config.source.route == "walsender":
        yield _check_walsender(connection, config)
    publication = read_publication(connection, config.source.publication)
    yield from _check_publication(connection, config, publication)
    yield from check_tables(connection, config, publication)
    yield from check_copies(connection, config, publication)
    yield _check_slot(connection, config)
    yield _check_wal_kept(connection)
    yield _check_encoding(connection)


def _check_version(connection: Connection, config: Config) -> Check:
    info, source = connection.info, config.source
    try:
        asked = negotiate(info.server_version, source.protocol, source.route)
    except SourceError as error:
        return Check("server version", False, str(error), "Correct that in source.protocol.")
    name = info.parameter_status("server_version")
    return Check("server version", True, f"The server is PostgreSQL {name} and will be asked for {asked}.")


def _check_wal_level(connection: Connection) -> Check:
    level = _setting(connection, "wal_level")
    fix = (
        ""
        if level == "logical"
        else "Run ALTER SYSTEM SET wal_level = logical and restart the server"
        " (on a managed server, set its parameter for logical replication)."
    )
    return Check("wal_level", level == "logical", f"wal_level is {level}.", fix)


def _check_replication_right(connection: Connection) -> Check:
    # RDS keeps the attribute to itself and gives the right through a role.
    query = (
        "SELECT r.rolsuper OR r.rolreplication OR EXISTS (SELECT 1 FROM pg_catalog.pg_roles m"
        " WHERE m.rolname = 'rds_replication' AND pg_catalog.pg_has_role(m.oid, 'MEMBER'))"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
    )
    user = connection.info.user
    if _value(connection, query):
        return Check("replication right", True, f"The role {user} may replicate.")
    fix = f"Run ALTER ROLE {quote_identifier(user)} REPLICATION as a superuser."
    return Check("replication right", False, f"The role {user} may not use replication slots.", fix)


def _check_walsender(connection: Connection, config: Config) -> Check:
    try:
        with connect_replication(config.source.conninfo):
            pass
    except SourceError as error:
        return Check("walsender", False, str(error), "Correct that, or set source.route to sql.")
    timeout = _setting(connection, "wal_sender_timeout")
    limit = _setting(connection, "max_wal_senders")
    sentence = f"A replication session opens (max_wal_senders {limit}, wal_sender_timeout {timeout} ms)."
    return Check("walsender", True, sentence)


def _check_publication(
    connection: Connection, config: Config, publication: Publication | None
) -> Iterator[Check]:
    name = config.source.publication
    tables = list_configured(connection, config)
    if publication is None:
        yield _check_missing_publication(connection, config, tables)
        return
    yield Check("publication", True, f"The publication {name} exists.")
    wanted = ["insert", "update", "delete"]
    if connection.info.server_version >= 110000:
        wanted.append("truncate")
    left_out = [operation for operation in wanted if operation not in publication.operations]
    # What PostgreSQL 10 has no message for.
    told = "" if "truncate" in wanted else " but TRUNCATE: pgdelta resync copies a table that was emptied"
    yield Check(
        "published operations",
        not left_out,
        f"The publication {name} leaves out {', '.join(left_out)}: silver goes another way than the source."
        if left_out
        else f"The publication {name} publishes every operation{told}.",
        f"Run ALTER PUBLICATION {quote_identifier(name)} SET (publish = '{', '.join(wanted)}')."
        if left_out
        else "",
    )
    missing = [table for table in tables if not is_covered(connection, publication, table)]
    if not missing:
        sentence = f"The publication {name} covers the {len(tables)} tables that the configuration matches."
        yield Check("published tables", True, sentence)
        return
    targets = ", ".join(f"{quote_identifier(schema)}.{quote_identifier(table)}" for schema, table in missing)
    yield Check(
        "published tables",
        False,
        f"The publication {name} lacks {len(missing)} of {len(tables)} configured tables:"
        f" {list_tables(missing)}.",
        f"Run ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {targets}"
        f" ({_ROWS_BEFORE[config.source.copy]}), or take them out of tables.",
    )


def _check_missing_publication(connection: Connection, config: Config, tables: list[TableName]) -> Check:
    name = config.source.publication
    plan = config.source.create.publication
    if read_slot(connection, config.source.slot) is not None:
        return Check(
            "publication",
            False,
            f"The publication {name} does not exist, but the slot {config.source.slot} does.",
            f"Name the right one in source.publication, or drop the slot {config.source.slot} if nothing in"
            " it is needed: it cannot decode what came before a publication.",
        )
    if plan == "never":
        fix = f"Run CREATE PUBLICATION {quote_identifier(name)} FOR TABLE …, before the slot is created."
        return Check("publication", False, f"The publication {name} does not exist.", fix)
    if plan == "configured" and not tables:
        fix = f"Create the tables, correct tables in {config.path}, or set source.create.publication to all."
        return Check("publication", False, "No table in the database matches the configuration.", fix)
    scope = "all tables" if plan == "all" else f"{len(tables)} tables ({list_tables(tables)})"
    refusal = _find_creation_refusal(connection, plan, tables)
    if refusal:
        fix = f"Grant that, or let a role that may run CREATE PUBLICATION {quote_identifier(name)} …."
        return Check("publication", False, f"The publication {name} cannot be created: {refusal}.", fix)
    return Check("publication", True, f"The publication {name} will be created for {scope}.")


def _find_creation_refusal(connection: Connection, plan: str, tables: list[TableName]) -> str:
    user = connection.info.user
    if _value(connection, "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"):
        return ""
    may_create = "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
    if not _value(connection, may_create):
        return f"{user} has no CREATE on the database"
    if plan == "all":
        return f"FOR ALL TABLES takes a superuser, and {user} is none"
    foreign = [
        table
        for table in tables
        if not _value(
            connection,
            "SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            *table,
        )
    ]
    return f"{user} does not own {list_tables(foreign)}" if foreign else ""


def _check_slot(connection: Connection, config: Config) -> Check:
    name = config.source.slot
    slot = read_slot(connection, name)
    if slot is None:
        limit = int(_setting(connection, "max_replication_slots"))
        used = _value(connection, "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots")
        if not config.source.create.slot:
            fix = f"Run SELECT pg_create_logical_replication_slot('{name}', 'pgoutput'), publication first."
            return Check("slot", False, f"The slot {name} does not exist.", fix)
        if isinstance(used, int) and used >= limit:
            fix = "Drop a slot that nobody reads, or raise max_replication_slots and restart the server."
            return Check("slot", False, f"All {limit} replication slots are in use.", fix)
        sentence = f"The slot {name} will be created, unless bronze holds a position: then it is missing."
        return Check("slot", True, sentence)
    fault = find_fault(slot, connection.info.dbname)
    if isinstance(fault, SlotGapError) and config.source.lost_slot == "resync":
        return Check("slot", True, f"The slot {name} is lost; ingest makes it anew and copies all tables.")
    if fault is not None:
        return Check("slot", False, str(fault), "Do what the sentence says.")
    position = f"The slot {name} stands at {slot.confirmed_flush_lsn}"
    if slot.active_pid is not None:
        return Check("slot", True, f"{position}, read by process {slot.active_pid}.", "Run one at a time.")
    is_changed = config.source.protocol.two_phase and not slot.two_phase
    advice = "Mind that reading it with two_phase makes it a two-phase slot for good." if is_changed else ""
    return Check("slot", True, f"{position} and is free.", advice)


def _check_wal_kept(connection: Connection) -> Check:
    if connection.info.server_version < 130000:
        sentence = "The server keeps all WAL that the slot needs."
        return Check("kept WAL", True, sentence, "Watch the disk: a stopped ingest lets it fill up.")
    size = _setting(connection, "max_slot_wal_keep_size")
    if size == "-1":
        advice = "Watch the disk, or set max_slot_wal_keep_size: a stopped ingest lets the disk fill up."
        return Check("kept WAL", True, "max_slot_wal_keep_size is unlimited.", advice)
    sentence = f"max_slot_wal_keep_size is {size} MB: an ingest that falls behind by more loses the slot."
    return Check("kept WAL", True, sentence)


def _check_encoding(connection: Connection) -> Check:
    encoding = _setting(connection, "server_encoding")
    text = "its bytes as they are" if encoding == "SQL_ASCII" else "UTF-8"
    return Check("encoding", True, f"The database's encoding is {encoding}; text comes as {text}.")


def _setting(connection: Connection, name: str) -> str:
    return str(_value(connection, "SELECT setting FROM pg_catalog.pg_settings WHERE name = %s", name))


def _value(connection: Connection, query: str, *parameters: str) -> object:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
