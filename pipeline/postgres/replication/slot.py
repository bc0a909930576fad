"""Read the replication slot, decide whether it can be used, create it, and name what is wrong with it.

An existing slot is used as it is or refused. A lost slot is replaced only if the configuration allows it and
all tables are copied again, because the changes committed in between would otherwise be missing silently.

Each reason for which a slot cannot be read has its own error. The server writes messages in the language of
lc_messages, which a role may not be allowed to change. The reason is therefore found by the SQLSTATE or by a
part of the message that is not translated, and only otherwise by the English text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import errors as sqlstate
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.config.config import Config
from pipeline.errors import (
    GapError,
    PublicationGapError,
    SlotGapError,
    SlotWaitStopped,
    SourceError,
    UndecodableError,
    UnusableSlotError,
)
from pipeline.postgres.connection import Connection, describe, reading
from pipeline.postgres.replication.options import PLUGIN, negotiate
from pipeline.postgres.replication.slot_creation import create_waiting
from pipeline.postgres.replication.slot_lock import SlotInUse, retry_while_busy
from pipeline.postgres.sql_text import quote_identifier, quote_literal
from pipeline.protocol.lsn import INVALID, LSN

RESYNC_ADVICE = (
    "Set source.lost_slot to compare to copy what differs, or to resync to copy all tables again; or start"
    " over with a new storage.root."
)
REPLICATION_ADVICE = "Run ALTER ROLE {} REPLICATION as a superuser (on RDS: GRANT rds_replication TO {})."
WAL_LEVEL_ADVICE = (
    "Run ALTER SYSTEM SET wal_level = logical and restart the server (on a managed server, set its parameter"
    " for logical replication)."
)
SLOT_LIMIT_ADVICE = "Drop a slot that is not used, or raise max_replication_slots and restart the server."

_UNDEFINED_OBJECT, _NOT_IN_PREREQUISITE_STATE, _UNDEFINED_FILE = "42704", "55000", "58P01"
_INSUFFICIENT_PRIVILEGE, _DUPLICATE_OBJECT, _CONFIGURATION_LIMIT = "42501", "42710", "53400"
_WAL_FILE = re.compile(r"\b[0-9A-F]{24}\b")
# Messages of several majors that have no SQLSTATE of their own. The next run reads the catalog, too.
_LOST = ("can no longer", "has been invalidated", "has already been removed", "cannot read from logical repl")
_MISSING_PUBLICATION = ("does not exist", "skipped loading")
# Part of pg_replication_slots.invalidation_reason, or of the server's message → what to do.
_REMEDIES = (
    ("idle", "Raise idle_replication_slot_timeout above the longest pause between two runs."),
    ("rows_removed", "Set hot_standby_feedback = on at the standby."),
    ("conflict", "Set hot_standby_feedback = on at the standby."),
    ("wal_level", "Set wal_level = logical."),
)


#: Columns of pg_replication_slots that older majors lack: the column, its first major, its value before.
_COLUMNS_SINCE = (
    ("wal_status", 13, "NULL::text"),
    ("safe_wal_size", 13, "NULL::bigint"),
    ("two_phase", 14, "false"),
    ("invalidation_reason", 17, "NULL::text"),
    # A promoted standby still reports its slots as synced.
    ("synced AND pg_catalog.pg_is_in_recovery()", 17, "false"),
    ("failover", 17, "false"),
    ("inactive_since", 17, "NULL::timestamptz"),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One row of pg_replication_slots; columns that the server's major lacks are None or False.

    An LSN that the slot does not have is INVALID. `safe_wal_size` is in bytes.
    """

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    confirmed_flush_lsn: LSN
    restart_lsn: LSN
    active_pid: int | None
    wal_status: str | None = None
    safe_wal_size: int | None = None
    two_phase: bool = False
    invalidation_reason: str | None = None
    synced: bool = False
    failover: bool = False
    inactive_since: datetime | None = None

    @property
    def is_active(self) -> bool:
        """Whether a session reads the slot."""
        return self.active_pid is not None

    @property
    def is_lost(self) -> bool:
        """Whether the slot was invalidated, or WAL that it needs was removed."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


def read_slot(connection: Connection, name: str) -> Slot | None:
    """Return the current state of a slot, None if it does not exist."""
    major = connection.info.server_version // 10000
    newer = ", ".join(column if major >= since else absent for column, since, absent in _COLUMNS_SINCE)
    with reading(f"the slot {name}"):
        row = connection.execute(
            "SELECT plugin::text, database::text, temporary, confirmed_flush_lsn::text, restart_lsn::text,"
            f" active_pid, {newer} FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            (name,),
        ).fetchone()
    if row is None:
        return None
    plugin, database, temporary, confirmed_flush_lsn, restart_lsn, *newer_values = row
    return Slot(
        name,
        plugin,
        database,
        temporary,
        LSN.parse(confirmed_flush_lsn) if confirmed_flush_lsn else INVALID,
        LSN.parse(restart_lsn) if restart_lsn else INVALID,
        *newer_values,
    )


def find_slot_fault(slot: Slot, database: str) -> SourceError | None:
    """Return the reason why the slot cannot be read from `database`, None if it can; in use is no fault."""
    name = slot.name
    if slot.plugin is None:
        return SourceError(f"The slot {name} is a physical slot. Name a logical one in source.slot.")
    if slot.plugin != PLUGIN:
        return SourceError(
            f"The slot {name} uses the plugin {slot.plugin}, not {PLUGIN}. Name another one in source.slot."
        )
    if slot.database != database:
        return SourceError(
            f"The slot {name} belongs to the database {slot.database}, not {database}. Name another one in"
            " source.slot, or connect to that database."
        )
    if slot.temporary:
        return SourceError(f"The slot {name} is temporary and ends with its session. Name another one.")
    if slot.is_lost:
        return SlotGapError(f"{describe_lost_slot(name, slot.invalidation_reason)} {RESYNC_ADVICE}")
    if slot.synced:
        return SourceError(
            f"The slot {name} is a copy that this standby synchronizes for failover. Connect to the primary."
        )
    return None


def find_start_fault(slot: Slot, database: str, is_first: bool) -> SourceError | None:
    """Return the reason why a start cannot use the slot; of a lost one, what helps a lake that `is_first`."""
    if is_first and slot.is_lost:
        return SlotGapError(
            f"{describe_lost_slot(slot.name, slot.invalidation_reason)} This lake has nothing from it yet: if"
            f" no other lake needs it, run SELECT pg_drop_replication_slot({quote_literal(slot.name)}), then"
            " run again."
        )
    return find_slot_fault(slot, database)


def require_slot(connection: Connection, name: str, publication: str) -> Slot:
    """Return the slot if it can be read and its publication exists; otherwise raise the reason."""
    slot = read_slot(connection, name)
    if slot is None:
        raise GapError(
            f"The slot {name} does not exist: it was never created, or it was dropped. Check source.slot."
        )
    fault = find_slot_fault(slot, connection.info.dbname)
    if fault is not None:
        raise fault
    require_publication(connection, publication)
    return slot


def require_publication(connection: Connection, publication: str) -> None:
    """Raise SourceError if the publication does not exist."""
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    with reading("the source's publications"):
        exists = connection.execute(query, (publication,)).fetchone() is not None
    if not exists:
        # PostgreSQL up to 17 reports it at the first change only, and 18 skips the rows.
        raise SourceError(
            f"The publication {publication} does not exist in the database {connection.info.dbname}. Name an"
            " existing one in source.publication; creating it now is too late for the changes in the slot."
        )


def ensure_slot(
    connection: Connection,
    config: Config,
    *,
    may_create: bool,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Slot, bool]:
    """Return the slot, which can be read, and whether this call created it.

    A missing slot is created only if `may_create` (bronze has no offset yet) and the configuration allow it.
    The publication must exist before: a slot cannot decode changes from before its publication. Raises
    SlotWaitStopped if `should_stop` ended the wait for open transactions, which leaves no slot.
    """
    name = config.source.slot
    # Raises what the server lacks before anything is created.
    negotiated = negotiate(connection.info.server_version, config.source.protocol)
    slot = read_slot(connection, name)
    if slot is not None:
        fault = find_start_fault(slot, connection.info.dbname, may_create)
        if fault is not None:
            raise fault
        return slot, False
    if not may_create:
        raise missing_slot_error(name)
    require_creation(connection, config)
    _create_slot(connection, config, two_phase=negotiated.two_phase, should_stop=should_stop)
    slot = read_slot(connection, name)
    if slot is None:
        raise SourceError(f"The slot {name} was dropped just after its creation. Run again.")
    return slot, True


def require_creation(connection: Connection, config: Config) -> None:
    """Raise SourceError if configuration or server do not allow to create the slot."""
    name, create = config.source.slot, config.source.create
    if not create.slot:
        raise SourceError(
            f"The slot {name} does not exist, and source.create.slot is false. Run {creation_sql(name)},"
            " after the publication was created."
        )
    if create.failover and connection.info.server_version < 170000:
        raise SourceError("source.create.failover needs PostgreSQL 17 or newer. Remove it.")


def renew_slot(
    connection: Connection, config: Config, should_stop: Callable[[], bool] = lambda: False
) -> Slot:
    """Replace a slot that is lost or missing by a new one; return one that can be read as it is."""
    name = config.source.slot
    slot = read_slot(connection, name)
    if slot is not None and slot.is_lost:
        drop_slot(connection, name)
    return ensure_slot(connection, config, may_create=True, should_stop=should_stop)[0]


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot, once the session that reads it has ended."""

    def attempt() -> None:
        try:
            connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))
        except sqlstate.ObjectInUse as error:
            raise SlotInUse(describe(error)) from None
        except psycopg.Error as error:
            raise slot_error(name, error) from None

    retry_while_busy(attempt, name)


def creation_sql(name: str) -> str:
    """Return the statement that creates the slot, for a person to run."""
    return f"SELECT pg_create_logical_replication_slot({quote_literal(name)}, '{PLUGIN}')"


def _create_slot(
    connection: Connection, config: Config, *, two_phase: bool, should_stop: Callable[[], bool]
) -> None:
    name = config.source.slot
    # temporary, two_phase, failover: older majors have fewer arguments.
    arguments = "$1, $2, false, true" if two_phase else "$1, $2"
    if config.source.create.failover:
        arguments = f"$1, $2, false, {str(two_phase).lower()}, true"
    created = create_waiting(
        connection,
        f"SELECT pg_catalog.pg_create_logical_replication_slot({arguments})",
        (name, PLUGIN),
        conninfo=config.source.conninfo,
        slot=name,
        should_stop=should_stop,
    )
    if created is None:
        raise SlotWaitStopped(
            f"Stopped before the slot {name} was created: open transactions had not ended. Run again to"
            " continue."
        )
    if created.status == ExecStatus.TUPLES_OK:
        return
    diagnostic = Diagnostic(created)
    if diagnostic.sqlstate == _DUPLICATE_OBJECT:
        return  # Another run created it at the same time.
    if diagnostic.sqlstate == _INSUFFICIENT_PRIVILEGE:
        user = quote_identifier(connection.info.user)
        raise SourceError(
            f"The role {connection.info.user} may not create the slot {name}."
            f" {REPLICATION_ADVICE.format(user, user)}"
        )
    if diagnostic.sqlstate == _CONFIGURATION_LIMIT:
        raise SourceError(
            f"The slot {name} cannot be created: all replication slots are in use. {SLOT_LIMIT_ADVICE}"
        )
    raise slot_error(name, diagnostic.message_primary or describe(created.get_error_message()), diagnostic)


def describe_lost_slot(name: str, reason: str | None) -> str:
    """Return the sentences for a lost slot: the server's `reason`, and how to prevent it the next time."""
    because = f" ({reason})" if reason else ""
    remedies = (remedy for word, remedy in _REMEDIES if word in (reason or ""))
    return (
        f"The slot {name} is lost{because}: the server removed WAL that had not been read."
        f" {next(remedies, 'Raise max_slot_wal_keep_size.')}"
    )


def missing_slot_error(name: str) -> SlotGapError:
    """Return the error for a slot that does not exist, although bronze was filled from it."""
    return SlotGapError(
        f"The slot {name} does not exist any more, so the changes committed after bronze's offset cannot be"
        f" read. {RESYNC_ADVICE}"
    )


def moved_slot_error(name: str, slot_lsn: LSN, offset: LSN) -> SlotGapError:
    """Return the error for a slot that is ahead of bronze's offset."""
    return SlotGapError(
        f"The slot {name} is at {slot_lsn}, ahead of bronze at {offset}. Another reader acknowledged the"
        f" changes between them, or the slot was created again. {RESYNC_ADVICE}"
    )


def skipped_changes_error(name: str, slot_lsn: LSN, shown_lsn: LSN) -> GapError:
    """Return the error for a slot that another reader moved past what was shown of it."""
    return GapError(
        f"Another reader moved the slot {name} to {slot_lsn}, and only changes committed by {shown_lsn} were"
        " shown: the changes between them are missing. Run the command again to continue after them."
    )


def unpublished_error(name: str, message: str) -> PublicationGapError:
    """Return the error for a slot that holds changes of a time at which its publication did not exist."""
    return PublicationGapError(
        f"The slot {name} holds changes of a time without the publication ({message}), which cannot be"
        " decoded: it was dropped and created again, it was renamed, or the slot is older."
        f" {RESYNC_ADVICE}"
    )


def notice_error(name: str, notice: Diagnostic) -> SourceError | None:
    """Return an error if a notice means that rows were skipped, None for any other notice.

    From PostgreSQL 18 on, a publication that is not found is only a warning.
    """
    text = notice.message_primary or ""
    if notice.sqlstate == _NOT_IN_PREREQUISITE_STATE or "publication" in text:
        return unpublished_error(name, describe(text))
    return None


def lost_session_error(name: str, message: str) -> SourceError:
    """Return the error for a session that ended while it read the slot."""
    return SourceError(
        f"Lost the session that reads the slot {name}: {message}. No change is lost: only durable ones were"
        " acknowledged. Run again to continue."
    )


def stream_end_error(name: str, result: PGresult | None) -> SourceError:
    """Return the error for a stream that the server ended with `result`."""
    if result is None or result.status != ExecStatus.FATAL_ERROR:
        return lost_session_error(name, "the server ended the stream")
    message = describe(result.get_error_message())
    # Class 57P: the server shuts down, or the process was terminated.
    if (result.error_field(DiagnosticField.SQLSTATE) or b"").startswith(b"57P"):
        return lost_session_error(name, message)
    return slot_error(name, message, Diagnostic(result))


def slot_error(name: str, error: psycopg.Error | str, diagnostic: Diagnostic | None = None) -> SourceError:
    """Return the error for a slot that the server could not read, create or move."""
    message = describe(error)
    if isinstance(error, psycopg.Error):
        diagnostic = error.diag
    sqlstate = (diagnostic and diagnostic.sqlstate) or ""
    context = (diagnostic and diagnostic.context) or ""
    if "wal_level" in message:
        return SourceError(f"The slot {name} needs a higher wal_level. {WAL_LEVEL_ADVICE}")
    # The message about any other privilege names its function.
    lacks_privilege = sqlstate == _INSUFFICIENT_PRIVILEGE and "pg_" not in message
    if lacks_privilege or "to use replication slots" in message:
        return SourceError(f"The role may not read the slot {name}. {REPLICATION_ADVICE.format('…', '…')}")
    # Publications are the only objects that pgoutput reads by name.
    lacks_publication = sqlstate == _UNDEFINED_OBJECT and "pgoutput" in context
    if lacks_publication or (
        "publication" in message and any(part in message for part in _MISSING_PUBLICATION)
    ):
        return unpublished_error(name, message)
    if (sqlstate == _UNDEFINED_FILE and _WAL_FILE.search(message)) or any(part in message for part in _LOST):
        return UnusableSlotError(f"{describe_lost_slot(name, message)} {RESYNC_ADVICE}")
    if "could not map file" in message:
        reason = (
            f"The slot {name} cannot be decoded ({message}): a table was created or truncated in a savepoint"
            " that was rolled back, or in a transaction that was prepared and rolled back."
        )
        undecodable = UndecodableError(
            f"{reason} See docs/operations/limits.md for how to continue without two_phase."
        )
        undecodable.reason = reason
        return undecodable
    return SourceError(f"The slot {name} cannot be read: {message}.")
