"""Recognise a pooler that gives each transaction another session of the server.

The pipeline's locks and settings last as long as a session. Behind such a pooler they would stay in sessions
of other programs, and be missing in its own. Nothing that outlives a transaction is done to find it out.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg

from pipeline.errors import SourceError

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_PID = b"SELECT pg_catalog.pg_backend_pid()"
_ROUNDS = 4


def refuse_shared_sessions(connection: Session, conninfo: str) -> None:
    """Raise SourceError if a pooler shares the connection's session; raise psycopg.Error.

    A pooler gives its clients process IDs of its own. With one session per client, no other client is in this
    client's session. Otherwise the session of the last statement is most often the first one to be free.
    """
    pid = _read_pid(connection)
    if pid == connection.info.backend_pid:
        return
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as other:
        if any(_is_shared(connection, other, pid) for _ in range(_ROUNDS)):
            raise SourceError(
                "source.conninfo leads to a pooler that shares sessions between its clients, by transaction"
                " or statement. The pipeline's locks and settings need sessions of their own. Connect to the"
                " server itself, or to a pool with pool_mode = session."
            )


def _is_shared(connection: Session, other: Session, pid: int) -> bool:
    """Return whether another client got the session, or this one another session meanwhile."""
    try:
        with other.transaction():
            return _read_pid(other) == pid or _read_pid(connection) != pid
    except psycopg.errors.ProtocolViolation:
        return True  # a pooler that shares sessions by statement has no transactions


def _read_pid(connection: Session) -> int:
    row = connection.execute(_PID).fetchone()
    assert row is not None
    return int(row[0])
