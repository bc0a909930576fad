"""The source's side of a pipeline: how its slot stands, what WAL it keeps, and how much more it may keep."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import conninfo as conninfo_syntax

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect, describe, read_flush_lsn
from pipeline.protocol.lsn import LSN

QUERY_SECONDS = 5.0

#: Columns of pg_replication_slots by the first major that has them, with what stands for them before it.
_COLUMNS_SINCE = (
    ("wal_status", 13, "NULL::text"),
    ("safe_wal_size", 13, "NULL::bigint"),
    ("invalidation_reason", 17, "NULL::text"),
)


@dataclass(frozen=True, slots=True)
class SlotState:
    """How a slot stands; None is what the server's version does not report, or what the slot has not.

    `retained` are the bytes of WAL that the server keeps for it. `safe` are the bytes that may still be
    written before WAL which it needs can go, where max_slot_wal_keep_size sets a limit.
    """

    name: str
    is_active: bool
    restart_lsn: LSN | None
    confirmed_flush_lsn: LSN | None
    wal_status: str | None
    invalidation_reason: str | None
    retained: int | None
    safe: int | None

    @property
    def is_lost(self) -> bool:
        """The WAL that the slot needs is gone, or the slot was invalidated."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class SourceState:
    """The server as of `now`, which is its own clock's; `keep_size` is in bytes, None for no limit."""

    now: datetime
    wal_lsn: LSN
    keep_size: int | None
    slot: SlotState | None


def query_source(config: Config, seconds: float = QUERY_SECONDS) -> SourceState:
    """Return how the pipeline's source stands; raise SourceError where it does not say so in time."""
    found: list[SourceState] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            with connect(hurried(config.source.conninfo, seconds)) as connection:
                found.append(read_source(connection, config.source.slot, seconds))
        except BaseException as error:
            failed.append(error)

    # A link that stands still would keep this thread waiting: libpq bounds the connection only.
    asking = threading.Thread(target=ask, name="ask-source", daemon=True)
    asking.start()
    asking.join(2 * seconds)
    if failed:
        raise failed[0]
    if not found:
        raise SourceError(
            f"The source did not answer within {2 * seconds:.0f} s. Check that it can be reached."
        )
    return found[0]


def read_source(connection: Connection, slot_name: str, seconds: float = QUERY_SECONDS) -> SourceState:
    """Return how server and slot stand; the session's statements may take so long from now on."""
    major = connection.info.server_version // 10000
    newer = ", ".join(column if major >= since else absent for column, since, absent in _COLUMNS_SINCE)
    try:
        bound_statements(connection, seconds)
        slots = connection.execute(
            "SELECT active, restart_lsn::text, confirmed_flush_lsn::text,"
            f" {newer} FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
            (slot_name,),
        ).fetchall()
        settings = connection.execute(
            "SELECT pg_catalog.clock_timestamp(), (SELECT setting FROM pg_catalog.pg_settings"
            " WHERE name = 'max_slot_wal_keep_size')"
        ).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the slot {slot_name}: {describe(error)}.") from None
    wal_lsn = read_flush_lsn(connection)
    [(now, megabytes)] = settings
    keep_size = None if megabytes is None or int(megabytes) < 0 else int(megabytes) << 20
    slot = None
    for active, restart, confirmed, wal_status, safe, reason in slots:
        restart_lsn = LSN.parse(restart) if restart else None
        slot = SlotState(
            name=slot_name,
            is_active=active,
            restart_lsn=restart_lsn,
            confirmed_flush_lsn=LSN.parse(confirmed) if confirmed else None,
            wal_status=wal_status,
            invalidation_reason=reason,
            retained=None if restart_lsn is None else max(0, wal_lsn - restart_lsn),
            safe=safe,
        )
    return SourceState(now, wal_lsn, keep_size, slot)


def bound_statements(connection: Connection, seconds: float) -> None:
    """Let the session's statements take so long from now on; raise psycopg.Error where that is refused."""
    limit = f"{seconds * 1000:.0f}"
    connection.execute("SELECT pg_catalog.set_config('statement_timeout', %s, false)", (limit,))


def hurried(conninfo: str, seconds: float) -> str:
    """Return the conninfo with a short time to connect; one that cannot be parsed is refused by `connect`."""
    try:
        # libpq takes whole seconds, two at the least
        return conninfo_syntax.make_conninfo(conninfo, connect_timeout=max(2, round(seconds)))
    except psycopg.Error:
        return conninfo
