"""Stream a temporary slot, which shows the changes committed from now on and ends with its session.

The server creates it once every transaction that was open at that moment has ended. That wait can be
cancelled, at the server too, which would otherwise keep the unfinished slot until the wait is over.
"""

from __future__ import annotations

import os
import secrets
import selectors
from collections.abc import Callable, Mapping

from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect_replication, describe
from pipeline.postgres.replication.options import PLUGIN, start_command
from pipeline.postgres.replication.slot import SLOT_LIMIT_ADVICE, slot_error
from pipeline.postgres.replication.walsender import Walsender, closed_on_failure, read_walsender_timeout
from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.lsn import LSN

_POLL_INTERVAL = 0.2
_LIMIT_EXCEEDED = "53400"


def start_temporary_slot(
    conninfo: str,
    *,
    options: Mapping[str, str],
    two_phase: bool,
    should_stop: Callable[[], bool],
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
        created = _run(session, f"{create} NOEXPORT_SNAPSHOT{kind}".encode(), should_stop)
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


def _run(session: Connection, command: bytes, should_stop: Callable[[], bool]) -> PGresult | None:
    """Run a replication command and return its result; None if `should_stop` cancelled it."""
    pgconn = session.pgconn
    pgconn.send_query(command)
    pgconn.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while True:
            pgconn.consume_input()
            if not pgconn.is_busy():
                break
            if should_stop():
                session.cancel_safe(timeout=5)
                return None
            selector.select(_POLL_INTERVAL)
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    return result


def _creation_error(message: str, diagnostic: Diagnostic) -> SourceError:
    if diagnostic.sqlstate == _LIMIT_EXCEEDED or "slots are in use" in message:
        return SourceError(
            f"A temporary slot cannot be created: all replication slots are in use. {SLOT_LIMIT_ADVICE}"
        )
    return slot_error("of this session", message, diagnostic)
