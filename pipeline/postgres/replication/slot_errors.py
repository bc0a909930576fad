"""What the server says where a slot cannot be read, in one sentence with what to do.

The server speaks the language of its lc_messages, which a role may not change: where an SQLSTATE, or what no
language translates, tells what is meant, that decides; English texts do so besides.
"""

from __future__ import annotations

import re

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.errors import GapError, SlotBusyError, SlotGapError, SourceError
from pipeline.postgres.connection import describe
from pipeline.protocol.lsn import LSN

OR_RESYNC = "Set source.lost_slot to resync to copy all tables anew, or start over with a new storage.root."

_BUSY = b"55006"
_UNDEFINED_OBJECT, _NOT_IN_PREREQUISITE_STATE, _UNDEFINED_FILE = "42704", "55000", "58P01"
_INSUFFICIENT_PRIVILEGE = "42501"
_WAL_FILE = re.compile(r"\b[0-9A-F]{24}\b")
# Texts of several majors; none of them has an SQLSTATE of its own. The next run asks the catalog besides.
_LOST = ("can no longer", "has been invalidated", "has already been removed", "cannot read from logical repl")
_MISSING_PUBLICATION = ("does not exist", "skipped loading")
# By what pg_replication_slots.invalidation_reason, or the server's detail, says; WAL that was removed else.
_REMEDIES = (
    ("idle", "Raise idle_replication_slot_timeout above the longest pause between two runs."),
    ("rows_removed", "Set hot_standby_feedback = on at the standby."),
    ("conflict", "Set hot_standby_feedback = on at the standby."),
    ("wal_level", "Set wal_level = logical."),
)


def lost_sentence(name: str, reason: str | None) -> str:
    """Say that a slot is lost, and what keeps the next one from it; `reason` is in the server's words."""
    told = (remedy for word, remedy in _REMEDIES if word in (reason or ""))
    because = f" ({reason})" if reason else ""
    return f"The slot {name} is lost{because}: the server no longer keeps what was not read yet. " + next(
        told, "Raise max_slot_wal_keep_size."
    )


def missing_slot(name: str) -> SlotGapError:
    """Return one sentence for a slot that is not there any more, and which bronze was filled from."""
    return SlotGapError(
        f"The slot {name} is gone, and bronze holds a position of it: what was committed since cannot"
        f" be read any more. {OR_RESYNC}"
    )


def moved_slot(name: str, slot_lsn: LSN, offset: LSN) -> SlotGapError:
    """Return one sentence for a slot that stands beyond bronze's position."""
    return SlotGapError(
        f"The slot {name} stands at {slot_lsn}, ahead of bronze at {offset}: what was committed between was"
        f" acknowledged by somebody else, or the slot was made anew. {OR_RESYNC}"
    )


def moved_on(name: str, slot_lsn: LSN, shown: LSN) -> GapError:
    """Return one sentence for a slot that another reader moved beyond what was shown of it."""
    return GapError(
        f"The slot {name} was moved on to {slot_lsn} by another reader, and only what was committed by"
        f" {shown} had been shown: what lies between was not."
    )


def slot_failure(name: str, error: psycopg.Error | str, diagnostic: Diagnostic | None = None) -> SourceError:
    """Return one sentence for what the server said when it could not read the slot."""
    text = describe(error)
    if isinstance(error, psycopg.Error):
        diagnostic = error.diag
    sqlstate = (diagnostic and diagnostic.sqlstate) or ""
    context = (diagnostic and diagnostic.context) or ""
    if "wal_level" in text:
        return SourceError(
            f"The slot {name} cannot be used, the server's wal_level is too low: run ALTER SYSTEM SET"
            " wal_level = logical (on a managed server, set its parameter for logical replication) and"
            " restart the server."
        )
    # Another right than that to replicate names what it is for, a function.
    lacks_right = sqlstate == _INSUFFICIENT_PRIVILEGE and "pg_" not in text
    if lacks_right or "to use replication slots" in text:
        return SourceError(
            f"The role in use may not read the slot {name}: run ALTER ROLE … REPLICATION as a superuser"
            " (on RDS: GRANT rds_replication TO …)."
        )
    # The plugin itself misses something: of what it is given there is nothing but publications.
    lacks_publication = sqlstate == _UNDEFINED_OBJECT and "pgoutput" in context
    if lacks_publication or ("publication" in text and any(sign in text for sign in _MISSING_PUBLICATION)):
        return _came_too_late(name, text)
    if sqlstate == _UNDEFINED_FILE and _WAL_FILE.search(text):
        return GapError(f"{lost_sentence(name, text)} {OR_RESYNC}")
    if any(sign in text for sign in _LOST):
        return GapError(f"{lost_sentence(name, text)} {OR_RESYNC}")
    if "could not map file" in text:
        return SourceError(
            f"The slot {name} cannot be decoded ({text}): a transaction that was prepared, and rolled back"
            " before it was read, made this file. docs/limits.md says how to go on without two_phase."
        )
    return SourceError(f"The slot {name} cannot be read: {text}.")


def left_out(name: str, notice: Diagnostic) -> SourceError | None:
    """Return one sentence where a notice says that rows were left out, None where it says something else.

    From 18 on a publication that is not found is a warning only.
    """
    text = notice.message_primary or ""
    if notice.sqlstate == _NOT_IN_PREREQUISITE_STATE or "publication" in text:
        return _came_too_late(name, describe(text))
    return None


def _came_too_late(name: str, text: str) -> SourceError:
    return SourceError(
        f"The slot {name} holds changes from before the publication existed ({text}): they cannot be"
        " decoded. If nothing of them is needed, drop the slot and start over; create a publication"
        " before its slot."
    )


def lost_session(name: str, text: str) -> SourceError:
    """Return one sentence for a session that ended while it read the slot."""
    return SourceError(
        f"Lost the session that reads the slot {name}: {text}. Nothing was acknowledged that is not kept; run"
        " again to go on from there."
    )


def is_busy(result: PGresult) -> bool:
    """Tell whether the server refused because another session holds the slot."""
    return result.error_field(DiagnosticField.SQLSTATE) == _BUSY


def end_failure(name: str, result: PGresult | None) -> SourceError:
    """Return one sentence for a stream that the server ended."""
    if result is None or result.status != ExecStatus.FATAL_ERROR:
        return lost_session(name, "the server ended the stream")
    text = describe(result.get_error_message())
    # Class 57P: a shutdown, or somebody ended the process.
    if (result.error_field(DiagnosticField.SQLSTATE) or b"").startswith(b"57P"):
        return lost_session(name, text)
    return slot_failure(name, text, Diagnostic(result))


def busy_failure(name: str, text: str, seconds: float) -> SlotBusyError:
    """Return one sentence for a slot that another session kept; `text` names the process."""
    return SlotBusyError(
        f"The slot {name} is busy and stayed so for {seconds:.0f} seconds ({text}): stop the other reader,"
        " or end its process with pg_terminate_backend."
    )
