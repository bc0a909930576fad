"""Run a statement that creates a slot, name the transactions that it waits for, and end it when asked to.

The server creates a slot once every transaction has ended that had written when that began, in any database
and also prepared ones. It keeps waiting when its client has gone, and so keeps the client's locks. A second
session, opened before, therefore lists the transactions and ends the first one if a cancel does not.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Iterable, Sequence

import psycopg
from psycopg.pq.abc import PGresult

from pipeline.errors import NOTICES, SourceError
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.open_transactions import OpenTransaction, list_open_transactions
from pipeline.units import format_duration

FIRST_REPORT = 3.0  # seconds
_LONGEST_PAUSE = 600.0
_CANCEL_SECONDS = 0.7
_POLL_INTERVAL = 0.2
_NAMED = 5
# The server then notices that its client is gone. 10 to 13 lack the setting, and not every system allows it.
_NOTICE_CLIENTS = (
    "SELECT pg_catalog.set_config(name, '1s', false) FROM pg_catalog.pg_settings"
    " WHERE name = 'client_connection_check_interval'"
)


def create_waiting(
    session: Connection,
    command: str,
    parameters: Sequence[str] | None = None,
    *,
    conninfo: str,
    slot: str,
    should_stop: Callable[[], bool],
    report: Callable[[str], None] = NOTICES.info,
) -> PGresult | None:
    """Return the result of the command; None if `should_stop` ended it, which leaves neither slot nor wait.

    `report` gets a sentence about what it waits for after three seconds, and again after growing pauses.
    """
    pgconn = session.pgconn
    with connect(conninfo) as watch:
        started_at = time.monotonic()
        next_report = started_at + FIRST_REPORT
        before = {each.xid for each in list_open_transactions(watch)}
        if parameters is None:  # a walsender does not accept the extended protocol
            pgconn.send_query(command.encode())
        else:
            with contextlib.suppress(psycopg.Error):
                session.execute(_NOTICE_CLIENTS.encode())
            pgconn.send_query_params(command.encode(), [each.encode() for each in parameters])
        pgconn.flush()
        while not _is_done(session, _POLL_INTERVAL):
            now = time.monotonic()
            if should_stop():
                return _end(session, watch)
            if now >= next_report:
                next_report = now + min(now - started_at + FIRST_REPORT, _LONGEST_PAUSE)
                with contextlib.suppress(SourceError):
                    found = list_open_transactions(watch)
                    report(_sentence(slot, now - started_at, [each for each in found if each.xid in before]))
                    before = {each.xid for each in found}
    result = _result(session)
    if result is None:
        raise SourceError(f"Lost the session that creates the slot {slot}. Run again.")
    return result


def name_transactions(transactions: Iterable[OpenTransaction]) -> str:
    """Return the transactions, of many only the oldest ones."""
    names = [str(each) for each in transactions]
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _sentence(slot: str, seconds: float, found: Sequence[OpenTransaction]) -> str:
    waited = f"has waited {format_duration(seconds)}"
    if not found:
        return (
            f"The creation of the slot {slot} {waited}, and no open transaction is seen that it waits for. A"
            " standby waits for its primary: run SELECT pg_log_standby_snapshot() there."
        )
    return (
        f"The creation of the slot {slot} {waited} for transactions to end: {name_transactions(found)}. End"
        " them (pg_terminate_backend, ROLLBACK PREPARED), or wait."
    )


def _is_done(session: Connection, seconds: float) -> bool:
    """Return whether the command has ended within some seconds, or the session has."""
    pgconn = session.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        selector.select(seconds)
    with contextlib.suppress(psycopg.Error):
        pgconn.consume_input()
        return not pgconn.is_busy()
    return True


def _result(session: Connection) -> PGresult | None:
    result = session.pgconn.get_result()
    while session.pgconn.get_result() is not None:
        pass
    return result


def _end(session: Connection, watch: Connection) -> PGresult | None:
    """Cancel the command, else terminate its session; return the result if it was completed before."""
    with contextlib.suppress(psycopg.Error):
        session.cancel_safe(timeout=_CANCEL_SECONDS)
    if not _is_done(session, _CANCEL_SECONDS):
        with contextlib.suppress(psycopg.Error):
            watch.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (session.info.backend_pid,))
        session.close()
        return None
    result = _result(session)
    return result if result is not None and result.status == psycopg.pq.ExecStatus.TUPLES_OK else None
