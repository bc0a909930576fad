"""The replication slot: what it is now, whether it can be used, and its creation.

A slot is used as it is or refused; one that is lost is made anew only where the configuration says so and
every table is copied, because what was committed meanwhile would be missing without anybody noticing.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import errors as sqlstate

from pipeline.config.config import Config
from pipeline.errors import GapError, SlotGapError, SourceError
from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.replication.options import negotiate
from pipeline.postgres.replication.slot_errors import OR_RESYNC, lost_sentence, missing_slot, slot_failure
from pipeline.protocol.lsn import INVALID, LSN

PLUGIN = "pgoutput"

#: Columns of pg_replication_slots by the first major that has them, with what stands for them before it.
_COLUMNS_SINCE = (
    ("wal_status", 13, "NULL::text"),
    ("two_phase", 14, "false"),
    ("invalidation_reason", 17, "NULL::text"),
    # A standby that was promoted goes on saying that its slots are copies.
    ("synced AND pg_catalog.pg_is_in_recovery()", 17, "false"),
    ("failover", 17, "false"),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One row of pg_replication_slots; what the server's version does not report is None or False."""

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    confirmed_flush_lsn: LSN
    restart_lsn: LSN
    active_pid: int | None
    wal_status: str | None
    invalidation_reason: str | None
    two_phase: bool
    synced: bool
    failover: bool

    @property
    def is_lost(self) -> bool:
        """The WAL that the slot needs is gone, or the slot was invalidated."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


def read_slot(connection: Connection, name: str) -> Slot | None:
    """Return the slot of that name as it is now, or None; its state is not judged."""
    major = connection.info.server_version // 10000
    newer = ", ".join(column if major >= since else absent for column, since, absent in _COLUMNS_SINCE)
    try:
        row = connection.execute(
            "SELECT plugin::text, database::text, temporary, confirmed_flush_lsn::text, restart_lsn::text,"
            f" active_pid, {newer} FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            (name,),
        ).fetchone()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the slot {name}: {describe(error)}.") from None
    if row is None:
        return None
    plugin, database, temporary, confirmed, restart, pid, status, two_phase, reason, synced, failover = row
    return Slot(
        name=name,
        plugin=plugin,
        database=database,
        temporary=temporary,
        confirmed_flush_lsn=LSN.parse(confirmed) if confirmed else INVALID,
        restart_lsn=LSN.parse(restart) if restart else INVALID,
        active_pid=pid,
        wal_status=status,
        invalidation_reason=reason,
        two_phase=two_phase,
        synced=synced,
        failover=failover,
    )


def find_fault(slot: Slot, database: str) -> SourceError | None:
    """Return why the slot cannot be read from `database`, or None; busy is no fault."""
    name = slot.name
    if slot.plugin is None:
        return SourceError(
            f"The slot {name} is a physical one and decodes nothing: name another in source.slot."
        )
    if slot.plugin != PLUGIN:
        return SourceError(
            f"The slot {name} belongs to the plugin {slot.plugin}, not {PLUGIN}: name another in source.slot."
        )
    if slot.database != database:
        return SourceError(
            f"The slot {name} belongs to the database {slot.database}, not {database}:"
            " name another in source.slot, or connect to that database."
        )
    if slot.temporary:
        return SourceError(f"The slot {name} is temporary and ends with its session: name another.")
    if slot.is_lost:
        return SlotGapError(f"{lost_sentence(name, slot.invalidation_reason)} {OR_RESYNC}")
    if slot.synced:
        return SourceError(
            f"The slot {name} is a copy that this standby keeps for a failover: read it on the primary."
        )
    return None


def ensure_slot(connection: Connection, config: Config, *, may_create: bool) -> tuple[Slot, bool]:
    """Return the slot, fit for use, and whether it was created now.

    A missing one is created only where `may_create` (bronze holds no position yet) and the config say so. The
    publication must exist already: what the slot keeps from before it cannot be decoded.
    """
    name = config.source.slot
    database = connection.info.dbname
    # Before anything is made: what the server lacks is refused.
    negotiated = negotiate(connection.info.server_version, config.source.protocol)
    slot = read_slot(connection, name)
    if slot is not None:
        if may_create and slot.is_lost:
            raise SlotGapError(
                f"{lost_sentence(name, slot.invalidation_reason)} This lake holds nothing of it yet: where no"
                f" other lake needs it, run SELECT pg_drop_replication_slot('{name}'), then run again."
            )
        fault = find_fault(slot, database)
        if fault is not None:
            raise fault
        return slot, False
    if not may_create:
        raise missing_slot(name)
    if not config.source.create.slot:
        raise SourceError(
            f"The slot {name} does not exist and source.create.slot is false: create it with SELECT"
            f" pg_create_logical_replication_slot('{name}', '{PLUGIN}'), after the publication."
        )
    if config.source.create.failover and connection.info.server_version < 170000:
        raise SourceError("source.create.failover needs PostgreSQL 17 or newer: leave it out.")
    _create_slot(connection, name, two_phase=negotiated.two_phase, failover=config.source.create.failover)
    slot = read_slot(connection, name)
    if slot is None:
        raise SourceError(f"The slot {name} was dropped by somebody else just after its creation: run again.")
    return slot, True


def renew_slot(connection: Connection, config: Config) -> Slot:
    """Put a new slot in the place of one that is lost or gone; one that can be read stays."""
    name = config.source.slot
    slot = read_slot(connection, name)
    if slot is not None and slot.is_lost:
        try:
            connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))
        except psycopg.Error as error:
            raise slot_failure(name, error) from None
    return ensure_slot(connection, config, may_create=True)[0]


def _create_slot(connection: Connection, name: str, *, two_phase: bool, failover: bool) -> None:
    arguments = "%s, %s, false, true" if two_phase else "%s, %s"
    if failover:
        arguments = f"%s, %s, false, {str(two_phase).lower()}, true"
    try:
        connection.execute(
            f"SELECT pg_catalog.pg_create_logical_replication_slot({arguments})".encode(), (name, PLUGIN)
        ).fetchone()
    except sqlstate.DuplicateObject:
        # Another run was faster; its slot is as good.
        return
    except sqlstate.InsufficientPrivilege:
        raise SourceError(
            f"The role {connection.info.user} may not create the slot {name}: run ALTER ROLE"
            f" {connection.info.user} REPLICATION as a superuser (on RDS: GRANT rds_replication TO …)."
        ) from None
    except sqlstate.ConfigurationLimitExceeded:
        raise SourceError(
            f"The slot {name} cannot be created, all replication slots are in use: drop one that nobody"
            " reads, or raise max_replication_slots and restart the server."
        ) from None
    except psycopg.Error as error:
        raise slot_failure(name, error) from None


def check_source(connection: Connection, name: str, publication: str) -> Slot:
    """Return the slot when it and the publication are there to be read, else raise what is wrong."""
    slot = read_slot(connection, name)
    if slot is None:
        raise GapError(f"The slot {name} does not exist: it was never created, or somebody dropped it.")
    fault = find_fault(slot, connection.info.dbname)
    if fault is not None:
        raise fault
    check_publication(connection, publication)
    return slot


def check_publication(connection: Connection, publication: str) -> None:
    """Raise what is wrong where the publication is not there."""
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    try:
        has_publication = connection.execute(query, (publication,)).fetchone() is not None
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the source's publications: {describe(error)}.") from None
    if not has_publication:
        # Up to 17 the server complains at the first change only, and 18 leaves the rows out.
        raise SourceError(
            f"The publication {publication} does not exist in the database {connection.info.dbname}: name the"
            " right one in source.publication; the slot holds nothing for one that is created later."
        )


def read_walsender_timeout(session: Connection) -> float:
    """Return a replication session's own wal_sender_timeout in seconds, 0 where it is off."""
    # The cast: of an SQL_ASCII database text comes as bytes.
    row = session.execute(
        "SELECT setting::integer FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    return row[0] / 1000 if row else 0.0
