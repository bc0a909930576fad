"""Stream a temporary slot, which shows the changes committed from now on and ends with its session."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping

from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import connect_replication, describe
from pipeline.postgres.replication.options import PLUGIN, start_command
from pipeline.postgres.replication.slot import SLOT_LIMIT_ADVICE, slot_error
from pipeline.postgres.replication.slot_creation import create_waiting
from pipeline.postgres.replication.walsender import Walsender, closed_on_failure, read_walsender_timeout
from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.lsn import LSN

_LIMIT_EXCEEDED = "53400"


def start_temporary_slot(
    conninfo: str,
    *,
    options: Mapping[str, str],
    two_phase: bool,
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
    application_name: str,
) -> Walsender | None:
    """Return the running stream of a new temporary slot; None if `should_stop` was true before it existed."""
    name = f"pgdelta_{os.getpid()}_{secrets.token_hex(4)}"
    session = connect_replication(conninfo, application_name=application_name)
    with closed_on_failure(session, name, conninfo):
        timeout = read_walsender_timeout(session)
        kind = " TWO_PHASE" if two_phase else ""
        # Every major accepts the syntax without parentheses.
        create = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} TEMPORARY LOGICAL {PLUGIN}"
        created = create_waiting(
            session,
            f"{create} NOEXPORT_SNAPSHOT{kind}",
            conninfo=conninfo,
            slot=name,
            should_stop=should_stop,
            report=report,
        )
        if created is None:
            session.close()
            return None
        if created.status != ExecStatus.TUPLES_OK:
            raise _creation_error(describe(created.get_error_message(), conninfo), Diagnostic(created))
        start_lsn = LSN.parse((created.get_value(0, 1) or b"").decode())
        result = session.pgconn.exec_(start_command(name, start_lsn, options))
        if result.status != ExecStatus.COPY_BOTH:
            message = describe(result.get_error_message(), conninfo)
            raise slot_error(name, message, Diagnostic(result))
    return Walsender(session, conninfo=conninfo, slot=name, start_lsn=start_lsn, timeout=timeout)


def _creation_error(message: str, diagnostic: Diagnostic) -> SourceError:
    if diagnostic.sqlstate == _LIMIT_EXCEEDED or "slots are in use" in message:
        return SourceError(
            f"A temporary slot cannot be created: all replication slots are in use. {SLOT_LIMIT_ADVICE}"
        )
    return slot_error("of this session", message, diagnostic)
