"""Taking what was acknowledged off a slot by SQL; a slot that is busy is tried again for a while.

`advance` is pg_replication_slot_advance (11 and newer). `discard` is for PostgreSQL 10: a `get` that throws
its rows away. It ends at the first record that reaches its LSN, so all that it can reach must have been
received.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.stream.peek import literal_array
from pipeline.postgres.stream.slot_failures import busy_failure, is_busy, slot_failure
from pipeline.protocol.lsn import LSN

#: Seconds between two tries for a slot that another session holds.
BUSY_INTERVAL = 0.5


def advance(connection: Connection, slot: str, target: LSN, *, busy_timeout: float) -> None:
    """Move the slot to `target`, and make sure that it stands there."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            row = connection.execute(
                "SELECT end_lsn::text FROM pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)",
                (slot, str(target)),
            ).fetchone()
            break
        except sqlstate.ObjectInUse as error:
            if time.monotonic() >= deadline:
                raise busy_failure(slot, describe(error), busy_timeout) from None
            time.sleep(BUSY_INTERVAL)
        except psycopg.Error as error:
            raise slot_failure(slot, error) from None
    if row is None or LSN.parse(row[0]) < target:
        raise SourceError(
            f"The slot {slot} was to advance to {target} and stands at {row and row[0]}: the server's WAL"
            " ends before it. Check that this is the server that was read before."
        )


def discard(
    connection: Connection, slot: str, target: LSN, options: Mapping[str, str], *, busy_timeout: float
) -> None:
    """Move the slot of a PostgreSQL 10 to `target`, over a session with the encoding that decoding needs."""
    query = sql.SQL(
        "SELECT pg_catalog.count(*) FROM"
        " pg_catalog.pg_logical_slot_get_binary_changes({}, {}, NULL, VARIADIC {})"
    ).format(sql.Literal(slot), sql.Literal(str(target)), literal_array(options))
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            result = connection.pgconn.exec_(query.as_bytes(connection))
        except psycopg.Error as error:
            raise slot_failure(slot, error) from None
        if result.status == ExecStatus.TUPLES_OK:
            return
        text = describe(result.get_error_message())
        if not is_busy(result):
            raise slot_failure(slot, text, Diagnostic(result))
        if time.monotonic() >= deadline:
            raise busy_failure(slot, text, busy_timeout)
        time.sleep(BUSY_INTERVAL)
