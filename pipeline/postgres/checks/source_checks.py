"""Check the source for `pgdelta check`: server, privileges, publication, tables and slot.

Each check has a name, whether it passed, a sentence and, if something is to be done, what to do. Nothing is
created and nothing printed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SlotGapError, SourceError
from pipeline.postgres.checks.copy_checks import check_copies
from pipeline.postgres.checks.source_facts import may_replicate
from pipeline.postgres.checks.table_checks import (
    Check,
    check_relations,
    check_tables,
    decide,
    list_tables,
    refused,
    unreadable,
)
from pipeline.postgres.connection import (
    WAL_LEVEL,
    Connection,
    connect,
    connect_replication,
    newer_server_sentence,
    read_flush_lsn,
)
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.open_transactions import list_open_transactions
from pipeline.postgres.publication import (
    Publication,
    Scope,
    list_configured,
    plan_missing_publication,
    read_publication,
    sends_roots,
)
from pipeline.postgres.relation_kinds import MatchedRelations
from pipeline.postgres.replication.options import negotiate
from pipeline.postgres.replication.slot import (
    REPLICATION_ADVICE,
    SLOT_LIMIT_ADVICE,
    WAL_LEVEL_ADVICE,
    Slot,
    find_slot_fault,
    find_start_fault,
    read_slot,
    require_creation,
)
from pipeline.postgres.replication.slot_creation import FIRST_REPORT, name_transactions
from pipeline.postgres.replication.wal_holder import find_wal_holder
from pipeline.postgres.sql_text import quote_identifier
from pipeline.postgres.unpublished_tables import find_unpublished, group_by_reason
from pipeline.table_name import TableName
from pipeline.units import format_count, format_names

__all__ = ["Check", "run_checks"]

# source.copy → what happens to rows from before the table was published
_EARLIER_ROWS = {
    "initial": "their existing rows are copied",
    "never": "their existing rows are not sent",
}
_LEAST_SESSIONS = 4  # of an ingest that copies: of the stream, the catalog, a snapshot and its rows
_UPGRADE = "Upgrade pgdelta if a release was tested with it; run pgdelta reconcile after the first runs."
# operation → what silver does if it is not published
_UNPUBLISHED_OPERATIONS = {
    "insert": "lack rows that the source inserted",
    "update": "keep old values of rows that the source updated",
    "delete": "keep rows that the source deleted",
    "truncate": "keep rows that the source truncated",
}


def run_checks(config: Config, *, is_first: bool = True) -> list[Check]:
    """Return every check that can be made, in the order in which a start depends on them.

    Unless the start `is_first`, the lake has an offset, and the slot must exist.
    """
    try:
        connection = connect(config.source.conninfo)
    except SourceError as error:
        return [refused("connection", error)]
    with connection:
        try:
            return list(_check_source(connection, config, is_first))
        except (SourceError, psycopg.Error) as error:
            return [unreadable("catalog", "The catalog", error)]


def _check_source(connection: Connection, config: Config, is_first: bool) -> Iterator[Check]:
    info = connection.info
    yield Check("connection", True, f"Connected to the database {info.dbname} as {info.user}.")
    yield _check_version(connection, config)
    encoding = _check_encoding(connection)
    if not encoding.ok:
        yield encoding
        return
    yield _check_wal_level(connection)
    yield _check_replication_right(connection)
    yield from _check_session_limits(connection, config)
    if config.source.route == "walsender":
        yield _check_walsender(connection, config)
    publication = read_publication(connection, config.source.publication)
    relations = read_relations(connection, config)
    yield from _check_publication(connection, config, publication, relations)
    yield from check_relations(connection, config, publication, relations)
    yield from check_tables(connection, config, publication)
    yield from check_copies(connection, config, publication)
    yield from _check_slot(connection, config, is_first)
    yield from _check_wal_holder(connection, config)
    yield _check_wal_kept(connection)
    yield encoding


def _check_version(connection: Connection, config: Config) -> Check:
    info, source = connection.info, config.source
    try:
        negotiated = negotiate(info.server_version, source.protocol, source.route)
    except SourceError as error:
        return Check("server version", False, str(error), "Correct source.protocol.")
    name = info.parameter_status("server_version")
    sentence = f"The server is PostgreSQL {name}, which will be read with {negotiated}."
    if newer := newer_server_sentence(info.server_version):
        return Check("server version", True, f"{sentence} {newer}", _UPGRADE)
    return Check("server version", True, sentence)


def _check_wal_level(connection: Connection) -> Check:
    setting, level = _setting(connection, "wal_level"), str(_value(connection, f"SELECT {WAL_LEVEL}"))
    sentence = f"wal_level is {setting}."
    if level != setting:
        sentence = f"wal_level is {setting}; for the slot it is {level} (effective_wal_level)."
    return decide("wal_level", level == "logical", passed=sentence, failed=sentence, fix=WAL_LEVEL_ADVICE)


def _check_replication_right(connection: Connection) -> Check:
    user = connection.info.user
    role = quote_identifier(user)
    return decide(
        "replication right",
        may_replicate(connection),
        passed=f"The role {user} may use replication slots.",
        failed=f"The role {user} may not use replication slots.",
        fix=REPLICATION_ADVICE.format(role, role),
    )


def _check_session_limits(connection: Connection, config: Config) -> Iterator[Check]:
    """Yield a failure if the role or the database may not have the sessions of an ingest that copies."""
    if config.source.copy != "initial":
        return
    limits = connection.execute(
        "SELECT 'ROLE', rolname::text, rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user"
        " AND NOT rolsuper UNION ALL SELECT 'DATABASE', d.datname::text, d.datconnlimit"
        " FROM pg_catalog.pg_database d, pg_catalog.pg_roles r WHERE r.rolname = current_user"
        " AND NOT r.rolsuper AND d.datname = pg_catalog.current_database()"
    ).fetchall()
    for kind, name, limit in limits:
        if 0 <= limit < _LEAST_SESSIONS:
            sentence = f"The {kind.lower()} {name} may have {format_count(limit, 'session')}. Ingest needs"
            change = f"ALTER {kind} {quote_identifier(name)} CONNECTION LIMIT {_LEAST_SESSIONS}"
            fix = f"Run {change} or more: other commands need their own."
            yield Check("session limit", False, f"{sentence} {_LEAST_SESSIONS} to copy tables.", fix)


def _check_walsender(connection: Connection, config: Config) -> Check:
    try:
        with connect_replication(config.source.conninfo):
            pass
    except SourceError as error:
        return Check("walsender", False, str(error), "Correct this, or set source.route to sql.")
    timeout = _setting(connection, "wal_sender_timeout")
    limit = _setting(connection, "max_wal_senders")
    sentence = (
        f"A replication session can be opened (max_wal_senders {limit}, wal_sender_timeout {timeout} ms)."
    )
    return Check("walsender", True, sentence)


def _check_publication(
    connection: Connection, config: Config, publication: Publication | None, relations: MatchedRelations
) -> Iterator[Check]:
    name = config.source.publication
    via_root = sends_roots(connection, config, publication)
    tables = list_configured(connection, config, via_root=via_root)
    if publication is None:
        yield _check_missing_publication(connection, config)
        yield from _check_published(connection, config, None, relations, tables)
        return
    yield Check("publication", True, f"The publication {name} exists.")
    # PostgreSQL 10 has no message for TRUNCATE.
    has_truncate = connection.info.server_version >= 110000
    required = [operation for operation in _UNPUBLISHED_OPERATIONS if has_truncate or operation != "truncate"]
    unpublished = [operation for operation in required if operation not in publication.operations]
    effects = " and ".join(_UNPUBLISHED_OPERATIONS[operation] for operation in unpublished)
    exception = "" if has_truncate else " but TRUNCATE: run pgdelta resync for a table that was truncated"
    yield decide(
        "published operations",
        not unpublished,
        passed=f"The publication {name} publishes every operation{exception}.",
        failed=f"The publication {name} does not publish {', '.join(unpublished).upper()}, so silver will"
        f" {effects}.",
        fix=f"Run ALTER PUBLICATION {quote_identifier(name)} SET (publish = '{', '.join(required)}').",
    )
    yield from _check_published(connection, config, publication, relations, tables)


def _check_published(
    connection: Connection,
    config: Config,
    publication: Publication | None,
    relations: MatchedRelations,
    tables: Collection[TableName],
) -> Iterator[Check]:
    """Yield whether every matching table is published; a check for each reason why one is not."""
    name = config.source.publication
    unpublished = find_unpublished(connection, config, publication, relations)
    reasons, table_count = group_by_reason(unpublished), len({*tables, *unpublished})
    added = reasons.pop(None, [])
    if added:
        yield Check(
            "published tables",
            True,
            f"The next ingest adds {format_count(len(added), 'table')} to the publication {name}: "
            f"{list_tables(added)}.",
        )
    for reason, missing in reasons.items():
        if reason is not None:
            targets = ", ".join(quote_identifier(*table) for table in missing)
            lacks = "will not have" if publication is None else "does not have"
            yield Check(
                "published tables",
                False,
                f"The publication {name} {lacks} {len(missing)} of "
                f"{format_count(table_count, 'table')} that the"
                f" configuration matches: {list_tables(missing)}. {reason.why}",
                reason.fix_for(f"{targets} ({_EARLIER_ROWS[config.source.copy]})"),
            )
    if publication is not None and not added and not reasons:
        sentence = (
            f"The publication {name} has every table that the configuration matches "
            f"({format_count(table_count, 'table')})."
        )
        yield Check("published tables", True, sentence)


def _check_missing_publication(connection: Connection, config: Config) -> Check:
    name = config.source.publication
    try:
        scope = plan_missing_publication(connection, config)
    except SourceError as error:
        return refused("publication", error)
    refusal = _find_creation_refusal(connection, scope)
    if refusal:
        fix = f"Grant that, or run CREATE PUBLICATION {quote_identifier(name)} FOR … as a role that may."
        return Check("publication", False, f"The publication {name} cannot be created: {refusal}.", fix)
    return Check("publication", True, f"The publication {name} will be created for {_name_scope(scope)}.")


def _name_scope(scope: Scope) -> str:
    if scope.all_tables:
        return "all tables"
    schemas = [f"all tables of {', '.join(scope.schemas)}"] if scope.schemas else []
    tables = (
        [f"{format_count(len(scope.tables), 'table')} ({list_tables(scope.tables)})"] if scope.tables else []
    )
    return " and ".join(schemas + tables) or "no table yet"


def _find_creation_refusal(connection: Connection, scope: Scope) -> str:
    user = connection.info.user
    if _value(connection, "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"):
        return ""
    may_create = "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
    if not _value(connection, may_create):
        return f"{user} lacks CREATE on the database"
    if scope.requires:
        return f"{scope.requires} requires a superuser, which {user} is not"
    not_owned = [
        table
        for table in scope.tables
        if not _value(
            connection,
            "SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            *table,
        )
    ]
    return f"{user} does not own {list_tables(not_owned)}" if not_owned else ""


def _check_slot(connection: Connection, config: Config, is_first: bool) -> Iterator[Check]:
    slot = read_slot(connection, config.source.slot)
    if slot is not None:
        if not is_first and find_slot_fault(slot, connection.info.dbname):
            return  # the check of the lake with its source has it
        yield _check_existing_slot(connection, config, slot, is_first)
    elif is_first or config.source.lost_slot != "stop":
        yield _check_creation(connection, config)
        yield from _check_open_transactions(connection, config)


def _check_creation(connection: Connection, config: Config) -> Check:
    """Return whether the slot can be created."""
    name = config.source.slot
    limit = int(_setting(connection, "max_replication_slots"))
    used = _value(connection, "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots")
    try:
        require_creation(connection, config)
    except SourceError as error:
        return refused("slot", error)
    if isinstance(used, int) and used >= limit:
        return Check("slot", False, f"All {limit} replication slots are in use.", SLOT_LIMIT_ADVICE)
    return Check("slot", True, f"The slot {name} will be created.")


def _check_existing_slot(connection: Connection, config: Config, slot: Slot, is_first: bool) -> Check:
    name = slot.name
    fault = find_start_fault(slot, connection.info.dbname, is_first and config.source.lost_slot == "stop")
    if isinstance(fault, SlotGapError) and config.source.lost_slot != "stop":
        copies = "copy all tables"
        if config.source.lost_slot == "compare":
            copies = "copy what differs"
        return Check("slot", True, f"The slot {name} is lost; ingest will create a new one and {copies}.")
    if fault is not None:
        return refused("slot", fault)
    state = f"The slot {name} is at {slot.confirmed_flush_lsn}"
    if slot.is_active:
        return Check("slot", True, f"{state} and read by process {slot.active_pid}.")
    is_changed = config.source.protocol.two_phase and not slot.two_phase
    advice = "Reading it with two_phase makes it a two-phase slot permanently." if is_changed else ""
    return Check("slot", True, f"{state} and free.", advice)


def _check_open_transactions(connection: Connection, config: Config) -> Iterator[Check]:
    """Yield a failure if transactions are open whose end the creation of the slot waits for."""
    found = list_open_transactions(connection)
    found = [each for each in found if each.since is None or each.seconds >= FIRST_REPORT]
    if found:
        sentence = f"The slot {config.source.slot} can be created once these transactions have ended: "
        advice = "End them (COMMIT, pg_terminate_backend, ROLLBACK PREPARED), or the start waits."
        yield Check("open transactions", False, f"{sentence}{name_transactions(found)}.", advice)


def _check_wal_holder(connection: Connection, config: Config) -> Iterator[Check]:
    slot, limit = read_slot(connection, config.source.slot), config.alerts.held_wal_limit
    holder = find_wal_holder(connection, slot, read_flush_lsn(connection), limit)
    if holder is not None:
        yield Check("held WAL", False, holder.sentence, "Follow the sentence.")


def _check_wal_kept(connection: Connection) -> Check:
    if connection.info.server_version < 130000:
        sentence = "The server keeps all WAL that the slot needs."
        advice = "Monitor disk space: while ingest is stopped, WAL accumulates."
        return Check("kept WAL", True, sentence, advice)
    size = _setting(connection, "max_slot_wal_keep_size")
    if size == "-1":
        advice = (
            "Monitor disk space, or set max_slot_wal_keep_size: while ingest is stopped, WAL accumulates."
        )
        return Check("kept WAL", True, "max_slot_wal_keep_size is unlimited.", advice)
    sentence = f"max_slot_wal_keep_size is {size} MB: if ingest falls behind by more, the slot is lost."
    return Check("kept WAL", True, sentence)


# A name in hexadecimal is UTF-8 if it is a sequence of these.
_UTF8 = (
    "[0-7].|(c[2-9a-f]|d.)[89ab].|e0[ab].[89ab].|e[1-9abcef][89ab].[89ab].|ed[89].[89ab]."
    "|f0[9ab].[89ab].[89ab].|f[1-3][89ab].[89ab].[89ab].|f48.[89ab].[89ab]."
)
_OTHER_NAMES = f"""
SELECT name.kind, name.oid, pg_catalog.convert_to(name.whole, 'SQL_ASCII') FROM (
    SELECT 'schema', oid::bigint, nspname::text, nspname::text FROM pg_catalog.pg_namespace
    UNION ALL
    SELECT 'relation', c.oid::bigint, c.relname::text, n.nspname || '.' || c.relname
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind NOT IN ('i', 'I')
    UNION ALL
    SELECT 'column of the relation', c.oid::bigint, a.attname::text, a.attname::text
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    WHERE c.relkind NOT IN ('i', 'I')
    UNION ALL
    SELECT 'type', t.oid::bigint, t.typname::text, t.typname::text FROM pg_catalog.pg_type t
    WHERE t.typtype <> 'c' AND t.typelem = 0
    UNION ALL
    SELECT 'publication', oid::bigint, pubname::text, pubname::text FROM pg_catalog.pg_publication
) AS name (kind, oid, name, whole)
WHERE pg_catalog.encode(pg_catalog.convert_to(name.name, 'SQL_ASCII'), 'hex') !~ '^({_UTF8})*$'
ORDER BY 1, 2
"""


def _check_encoding(connection: Connection) -> Check:
    """Return whether the names in the database can be read: in an SQL_ASCII database they are any bytes."""
    encoding = _setting(connection, "server_encoding")
    sentence = f"The database's encoding is {encoding}; text is sent as"
    if encoding != "SQL_ASCII":
        return Check("encoding", True, f"{sentence} UTF-8.")
    found = [
        f"{name.decode('utf-8', 'backslashreplace')} ({kind} {oid})"
        for kind, oid, name in connection.execute(_OTHER_NAMES.encode()).fetchall()
    ]
    return decide(
        "encoding",
        not found,
        passed=f"{sentence} unchanged bytes.",
        failed=f"Names in the database are not UTF-8, so no run can read them: {format_names(found)}.",
        fix="Rename them (ALTER … RENAME), in a session with client_encoding SQL_ASCII.",
    )


def _setting(connection: Connection, name: str) -> str:
    return str(_value(connection, "SELECT setting FROM pg_catalog.pg_settings WHERE name = %s", name))


def _value(connection: Connection, query: str, *parameters: str) -> object:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
