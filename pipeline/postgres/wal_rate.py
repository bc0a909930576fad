"""Rates at which a server writes WAL, from what it recorded itself, without waiting.

The rate since the last checkpoint says how busy the server is now; the one since its statistics were reset
(PostgreSQL 14 and newer) is the average of days. Two LSNs of one session are the last resort.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pipeline.postgres.connection import Connection

_LSN = (
    "CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
    " ELSE pg_catalog.pg_current_wal_lsn() END"
)
_NOW = f"SELECT ({_LSN}) - '0/0', EXTRACT(epoch FROM pg_catalog.clock_timestamp())"
_CHECKPOINT = (
    f"SELECT ({_LSN}) - redo_lsn, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - checkpoint_time)"
    " FROM pg_catalog.pg_control_checkpoint()"
)
_STATISTICS = (
    "SELECT wal_bytes, EXTRACT(epoch FROM pg_catalog.clock_timestamp() - stats_reset)"
    " FROM pg_catalog.pg_stat_wal"
)
_STATISTICS_SINCE = 140000
_SHORTEST = {"checkpoint": 30.0, "statistics": 3600.0, "session": 1.0}  # seconds


@dataclass(frozen=True, slots=True)
class WalRate:
    """Bytes of WAL in some seconds; `since` is what they began with: checkpoint, statistics or session."""

    since: str
    bytes: int
    seconds: float

    @property
    def per_second(self) -> float:
        """The rate in bytes per second."""
        return self.bytes / self.seconds


class WalMeter:
    """Measures the rate in one session, from its construction on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first = self._read(_NOW)

    def rates(self) -> list[WalRate]:
        """Return the rates of periods that are long enough to mean something, the newest period first."""
        found = [("checkpoint", self._read(_CHECKPOINT))]
        if self._connection.info.server_version >= _STATISTICS_SINCE:
            found.append(("statistics", self._read(_STATISTICS)))
        rates = _long_enough(found)
        if not rates and self._first and (now := self._read(_NOW)):
            rates = _long_enough([("session", (now[0] - self._first[0], now[1] - self._first[1]))])
        return rates

    def _read(self, query: str) -> tuple[int, float] | None:
        """Return bytes and seconds; None where the server does not give them (services differ in that)."""
        try:
            row = self._connection.execute(query.encode()).fetchone()
        except psycopg.Error:
            return None
        return (int(row[0]), float(row[1])) if row and None not in row else None


def _long_enough(found: list[tuple[str, tuple[int, float] | None]]) -> list[WalRate]:
    return [
        WalRate(since, *measured)
        for since, measured in found
        if measured is not None and measured[1] >= _SHORTEST[since] and measured[0] >= 0
    ]
