"""A slot for one session: made to look at what comes from now on, and gone with the session.

The server makes it only when every transaction that was open at that moment has ended. That wait can be
broken off; the server is then told, or it would keep the half-made slot until the wait is over.
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
from pipeline.postgres.replication.options import quote_identifier, start_command
from pipeline.postgres.replication.slot import PLUGIN, read_walsender_timeout
from pipeline.postgres.replication.slot_errors import slot_failure
from pipeline.postgres.replication.walsender import Walsender, closed_on_failure
from pipeline.protocol.lsn import LSN

_LOOK_INTERVAL = 0.2
_LIMIT_EXCEEDED = "53400"


def start_temporary(
    conninfo: str,
    *,
    options: Mapping[str, str],
    two_phase: bool,
    should_stop: Callable[[], bool],
    application_name: str,
) -> Walsender | None:
    """Return the running stream of a new temporary slot, None where it was to stop before there was one."""
    name = f"pgdelta_{os.getpid()}_{secrets.token_hex(4)}"
    session = connect_replication(conninfo, application_name=application_name)
    with closed_on_failure(session, name, conninfo):
        timeout = read_walsender_timeout(session)
        kind = " TWO_PHASE" if two_phase else ""
        # The form without parentheses is the one that every major takes.
        create = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} TEMPORARY LOGICAL {PLUGIN}"
        made = _run(session, f"{create} NOEXPORT_SNAPSHOT{kind}".encode(), should_stop)
        if made is None:
            session.close()
            return None
        if made.status != ExecStatus.TUPLES_OK:
            raise _refusal(describe(made.get_error_message(), conninfo), Diagnostic(made))
        position = LSN.parse((made.get_value(0, 1) or b"").decode())
        result = session.pgconn.exec_(start_command(name, position, options))
        if result.status != ExecStatus.COPY_BOTH:
            text = describe(result.get_error_message(), conninfo)
            raise slot_failure(name, text, Diagnostic(result))
    return Walsender(session, conninfo=conninfo, slot=name, start_lsn=position, timeout=timeout)


def _run(session: Connection, command: bytes, should_stop: Callable[[], bool]) -> PGresult | None:
    """Run a replication command and return its result, None where it was broken off."""
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
            selector.select(_LOOK_INTERVAL)
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    return result


def _refusal(text: str, diagnostic: Diagnostic) -> SourceError:
    if diagnostic.sqlstate == _LIMIT_EXCEEDED or "slots are in use" in text:
        return SourceError(
            "A temporary slot cannot be created, all replication slots are in use: drop one that nobody"
            " reads, or raise max_replication_slots and restart the server."
        )
    return slot_failure("of this session", text, diagnostic)
