"""Errors about a slot: one for each reason for which it cannot be read, with what to do.

The server writes its messages in the language of lc_messages, which a role may not be allowed to change. The
reason is therefore taken from the SQLSTATE, or from a part of the message that is not translated, where one
of them is specific enough; otherwise from the English text.
"""

from __future__ import annotations

import re

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.errors import GapError, SlotGapError, SourceError
from pipeline.postgres.connection import describe
from pipeline.protocol.lsn import LSN

RESYNC_ADVICE = (
    "Set source.lost_slot to resync to copy all tables again, or start over with a new storage.root."
)
REPLICATION_ADVICE = "Run ALTER ROLE {} REPLICATION as a superuser (on RDS: GRANT rds_replication TO {})."
WAL_LEVEL_ADVICE = (
    "Run ALTER SYSTEM SET wal_level = logical and restart the server (on a managed server, set its parameter"
    " for logical replication)."
)
SLOT_LIMIT_ADVICE = "Drop a slot that is not used, or raise max_replication_slots and restart the server."

_UNDEFINED_OBJECT, _NOT_IN_PREREQUISITE_STATE, _UNDEFINED_FILE = "42704", "55000", "58P01"
_INSUFFICIENT_PRIVILEGE = "42501"
_WAL_FILE = re.compile(r"\b[0-9A-F]{24}\b")
# Messages of several majors, none of which has an SQLSTATE of its own. The next run reads the catalog, too.
_LOST = ("can no longer", "has been invalidated", "has already been removed", "cannot read from logical repl")
_MISSING_PUBLICATION = ("does not exist", "skipped loading")
# Part of pg_replication_slots.invalidation_reason, or of the server's message → what to do.
_REMEDIES = (
    ("idle", "Raise idle_replication_slot_timeout above the longest pause between two runs."),
    ("rows_removed", "Set hot_standby_feedback = on at the standby."),
    ("conflict", "Set hot_standby_feedback = on at the standby."),
    ("wal_level", "Set wal_level = logical."),
)


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


def unpublished_error(name: str, message: str) -> SourceError:
    """Return the error for a slot that holds changes from before its publication was created."""
    return SourceError(
        f"The slot {name} holds changes from before the publication existed ({message}), which cannot be"
        " decoded. If none of them are needed, drop the slot and start over. Create a publication before its"
        " slot."
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
    # The only objects that pgoutput looks up are publications.
    lacks_publication = sqlstate == _UNDEFINED_OBJECT and "pgoutput" in context
    if lacks_publication or (
        "publication" in message and any(part in message for part in _MISSING_PUBLICATION)
    ):
        return unpublished_error(name, message)
    if (sqlstate == _UNDEFINED_FILE and _WAL_FILE.search(message)) or any(part in message for part in _LOST):
        return GapError(f"{describe_lost_slot(name, message)} {RESYNC_ADVICE}")
    if "could not map file" in message:
        return SourceError(
            f"The slot {name} cannot be decoded ({message}), because of a transaction that was prepared and"
            " rolled back before it was read. See docs/limits.md for how to continue without two_phase."
        )
    return SourceError(f"The slot {name} cannot be read: {message}.")
