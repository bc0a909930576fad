"""SQL that prepares a source for a pipeline: what a server, a role and a database still lack.

`preparation` is pure: facts in, statements out. A statement is one line, whatever the names in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.postgres.checks.copy_checks import LeafPrivileges, list_leaves
from pipeline.postgres.checks.source_facts import SourceFacts, SourceTable
from pipeline.postgres.connection import Connection, reading
from pipeline.postgres.publication import VIA_ROOT
from pipeline.postgres.replica_identities import LackingIdentity, list_lacking_identities
from pipeline.postgres.sql_text import quote_identifier
from pipeline.table_name import TableName
from pipeline.units import format_about_duration

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DAY = 86_400
_LEAST_LIMIT = 10  # GB


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is to be done at the source: why, by whom, and the statements; some need a restart.

    `settings` are those of a managed server, which no statement changes. What `is_optional` is for a person
    to decide.
    """

    reason: str
    statements: tuple[str, ...] = ()
    needs_restart: bool = False
    settings: tuple[str, ...] = ()
    is_optional: bool = False


def read_preparation(
    connection: Connection,
    facts: SourceFacts,
    publication: str,
    tables: Sequence[SourceTable],
    left_out: Sequence[SourceTable] = (),
    wal_rate: float | None = None,
) -> list[Preparation]:
    """Return what is to be done before these tables are replicated through this publication.

    Those `left_out` may be replicated once they have a replica identity. The rate of the WAL is in bytes per
    second.
    """
    with reading("the source's privileges"):
        leaves = list_leaves(connection, sorted(table.name for table in tables), facts.role)
    lacking = list_lacking_identities(connection, sorted(table.name for table in left_out))
    return [*preparation(facts, publication, tables, leaves), *_options(facts, lacking, wal_rate)]


def preparation(
    facts: SourceFacts, publication: str, tables: Sequence[SourceTable], leaves: Sequence[LeafPrivileges]
) -> Iterator[Preparation]:
    """Yield what is to be done, in the order in which it is done."""
    role = identifier(facts.role)
    yield from _settings(facts)
    yield from _role(facts, role)
    if not facts.may_connect:
        statement = f"GRANT CONNECT ON DATABASE {identifier(facts.database)} TO {role};"
        yield Preparation("The right to connect, by the database's owner.", (statement,))
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


def _settings(facts: SourceFacts) -> Iterator[Preparation]:
    wanted = {
        "max_replication_slots": (len(facts.slots) >= facts.slot_limit, len(facts.slots) + 5),
        "max_wal_senders": (facts.walsenders >= facts.walsender_limit, facts.walsenders + 5),
    }
    raised = {name: number for name, (is_short, number) in wanted.items() if is_short}
    is_logical = facts.wal_level == "logical"
    if is_logical and not raised:
        return
    if facts.managed:
        settings = [f"{name} = {number}" for name, number in raised.items()]
        yield Preparation(
            f"Settings of the server, in the console of {facts.managed.name}, where ALTER SYSTEM is not"
            " allowed:",
            needs_restart=True,
            settings=(*(() if is_logical else (facts.managed.logical,)), *settings),
        )
        return
    level = () if is_logical else ("ALTER SYSTEM SET wal_level = 'logical';",)
    numbers = (f"ALTER SYSTEM SET {name} = {number};" for name, number in raised.items())
    yield Preparation(
        "Settings of the server, by a superuser; on a managed server, set its parameters instead.",
        (*level, *numbers),
        needs_restart=True,
    )


def _role(facts: SourceFacts, role: str) -> Iterator[Preparation]:
    """Yield the role itself, and its right to replicate."""
    is_on_rds = facts.managed is not None and facts.managed.logical.startswith("rds.")
    replicates = f"GRANT rds_replication TO {role};" if is_on_rds else f"ALTER ROLE {role} REPLICATION;"
    if not facts.role_exists:
        created = f"CREATE ROLE {role} LOGIN" + (";" if is_on_rds else " REPLICATION;")
        yield Preparation(
            "The role, by a superuser. Then give it a password, in psql by \\password and its name.",
            (created, replicates) if is_on_rds else (created,),
        )
        return
    if not facts.may_log_in:
        yield Preparation("The right to log in, by a superuser.", (f"ALTER ROLE {role} LOGIN;",))
    if not facts.may_replicate:
        advice = "" if is_on_rds else " (on RDS: GRANT rds_replication TO the role)"
        yield Preparation(f"The right to replicate, by a superuser{advice}.", (replicates,))


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


def _options(
    facts: SourceFacts, lacking: Sequence[LackingIdentity], wal_rate: float | None
) -> Iterator[Preparation]:
    """Yield what a person may want: a limit of the slot's WAL, and identities of tables that are left out."""
    if facts.limits_slots and facts.slot_wal_limit is None:
        rate = wal_rate or 0
        limit = max(_LEAST_LIMIT, 10 * -(-int(rate * _DAY) // (10 << 30)))  # a day's, by ten GB
        lasts = (
            f" {limit} GB last {format_about_duration((limit << 30) / rate)} at the rate above."
            if rate
            else ""
        )
        name = "max_slot_wal_keep_size"
        yield Preparation(
            "The slot keeps all WAL while ingest is stopped, until the disk is full. A limit protects the"
            f" server; beyond it the slot is lost, and all tables are copied again.{lasts}",
            settings=(f"{name} = {limit}GB",) if facts.managed else (),
            statements=()
            if facts.managed
            else (f"ALTER SYSTEM SET {name} = '{limit}GB';", "SELECT pg_reload_conf();"),
            is_optional=True,
        )
    if lacking:
        yield Preparation(
            "Replica identities of tables that are left out, by their owner. FULL writes each old row to the"
            " WAL; a primary key is better. Then run pgdelta init again.",
            tuple(_identity(each) for each in lacking),
            is_optional=True,
        )


def _identity(lacking: LackingIdentity) -> str:
    identity = "FULL" if lacking.index is None else f"USING INDEX {identifier(lacking.index)}"
    return f"ALTER TABLE {identifier(*lacking.name)} REPLICA IDENTITY {identity};"
