"""The status of a pipeline's source: its slot, the WAL kept for it, and how much more may be kept.

Read in a session of its own and within a few seconds, for reports. An unreachable source is a SourceError.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import (
    Connection,
    connect,
    describe,
    limit_connect_time,
    limit_statement_time,
    read_flush_lsn,
)
from pipeline.postgres.replication.slot import Slot, read_slot
from pipeline.protocol.lsn import LSN

QUERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The server at `now`, by its own clock.

    `keep_size` is max_slot_wal_keep_size in bytes, None for no limit.
    """

    now: datetime
    wal_lsn: LSN
    keep_size: int | None
    slot: Slot | None

    @property
    def retained_size(self) -> int | None:
        """The bytes of WAL that the server keeps for the slot; None without a slot or a restart_lsn."""
        if self.slot is None or not self.slot.restart_lsn:
            return None
        return max(0, self.wal_lsn - self.slot.restart_lsn)

    @property
    def safe_size(self) -> int | None:
        """The bytes that may be written before WAL that the slot needs can be removed; None for no limit."""
        return None if self.slot is None else self.slot.safe_wal_size


def read_source_status(config: Config, seconds: float = QUERY_SECONDS) -> SourceStatus:
    """Return the status of the pipeline's source; raise SourceError if that takes 2 × `seconds`."""
    results: list[SourceStatus] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            conninfo = limit_connect_time(config.source.conninfo, seconds)
            with connect(conninfo) as connection:
                results.append(_read_status(connection, config.source.slot, seconds))
        except BaseException as error:
            failures.append(error)

    # libpq limits the time to connect only: a thread can be abandoned when the link hangs later.
    thread = threading.Thread(target=read, name="source status", daemon=True)
    thread.start()
    thread.join(2 * seconds)
    if failures:
        raise failures[0]
    if not results:
        raise SourceError(
            f"The source did not answer within {2 * seconds:.0f} s. Check that it can be reached."
        )
    return results[0]


def _read_status(connection: Connection, slot_name: str, seconds: float) -> SourceStatus:
    try:
        limit_statement_time(connection, seconds)
        [(now, megabytes)] = connection.execute(
            "SELECT pg_catalog.clock_timestamp(), (SELECT setting FROM pg_catalog.pg_settings"
            " WHERE name = 'max_slot_wal_keep_size')"
        ).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the settings of the server: {describe(error)}.") from None
    keep_size = None if megabytes is None or int(megabytes) < 0 else int(megabytes) << 20
    slot = read_slot(connection, slot_name)
    return SourceStatus(now, read_flush_lsn(connection), keep_size, slot)
