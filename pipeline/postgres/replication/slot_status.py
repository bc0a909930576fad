"""Read the status of a pipeline's source: its slot, the WAL retained for it, and the end of its WAL.

`read_source_status` reads it once for reports, in its own session and within a few seconds; an unreachable
source is a SourceError. `WalEnd` polls the end of the WAL during a run, to report how far bronze is behind.
The keepalives of a walsender are no substitute: they contain the LSN that the server has decoded to. A source
that does not answer ends no run; the end of its WAL is then unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import psycopg

from pipeline.config.alerts import HELD_WAL_LIMIT
from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import (
    Connection,
    ServerIdentity,
    connect,
    identify,
    limit_connect_time,
    limit_statement_time,
    read_flush_lsn,
    read_idle_timeout,
    reading,
    shut_down_sessions,
)
from pipeline.postgres.idle_rules import read_idle_rules
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.partition_names import find_unfollowed
from pipeline.postgres.publication import read_publication
from pipeline.postgres.replication.slot import Slot, read_slot
from pipeline.postgres.replication.wal_holder import WalHolder, find_wal_holder
from pipeline.postgres.unpublished_tables import (
    find_unpublished,
    unfollowed_sentence,
    unpublished_sentence,
)
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

QUERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The server at `now`, by its own clock.

    `keep_size` is max_slot_wal_keep_size in bytes, None for no limit. `unpublished` are the tables that match
    the configuration and are not published, each with a sentence. `holder` is what keeps the slot's
    restart_lsn back, None if that retains little. A slot that has no reader for `idle_timeout` is lost.
    `partial` says which rows of a table silver lacks; `passed_over` are relations that a wildcard matches and
    that are not followed, and why; `idle_rules` has a sentence for each rule that no table follows. `refusal`
    is why ingest would not continue from bronze with this server and slot, by their states alone.
    """

    now: datetime
    wal_lsn: LSN
    keep_size: int | None
    slot: Slot | None
    unpublished: Mapping[TableName, str] = field(default_factory=dict)
    holder: WalHolder | None = None
    idle_timeout: timedelta | None = None
    partial: Mapping[TableName, str] = field(default_factory=dict)
    passed_over: Mapping[TableName, str] = field(default_factory=dict)
    idle_rules: tuple[str, ...] = ()
    identity: ServerIdentity | None = None
    refusal: str | None = None

    @property
    def retained_size(self) -> int | None:
        """The bytes of WAL that the server keeps for the slot; None without a slot or a restart_lsn."""
        if self.slot is None or not self.slot.restart_lsn:
            return None
        return max(0, self.wal_lsn - self.slot.restart_lsn)

    @property
    def idle_seconds_left(self) -> float | None:
        """Until when the slot needs a reader; None if it has one, or needs none."""
        slot = self.slot
        if self.idle_timeout is None or slot is None or slot.is_active or slot.inactive_since is None:
            return None
        return (slot.inactive_since + self.idle_timeout - self.now) / timedelta(seconds=1)

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
                results.append(_read_status(connection, config, seconds))
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


def _read_status(connection: Connection, config: Config, seconds: float) -> SourceStatus:
    with reading("the settings of the server"):
        limit_statement_time(connection, seconds)
        [(now, megabytes)] = connection.execute(
            "SELECT pg_catalog.clock_timestamp(), (SELECT setting FROM pg_catalog.pg_settings"
            " WHERE name = 'max_slot_wal_keep_size')"
        ).fetchall()
    keep_size = None if megabytes is None or int(megabytes) < 0 else int(megabytes) << 20
    slot = read_slot(connection, config.source.slot)
    publication, relations = (
        read_publication(connection, config.source.publication),
        read_relations(connection, config),
    )
    published = publication.tables if publication else frozenset()
    found = find_unpublished(connection, config, publication, relations)
    unfollowed = find_unfollowed(connection, config, publication, relations, found)
    unpublished = {name: unpublished_sentence(reason) for name, reason in found.items()} | {
        name: unfollowed_sentence(reason)
        for name, reason in {**unfollowed.refused, **unfollowed.unusable}.items()
    }
    end = read_flush_lsn(connection)
    holder = find_wal_holder(connection, slot, end, config.alerts.held_wal_limit)
    return SourceStatus(
        now,
        end,
        keep_size,
        slot,
        unpublished,
        holder,
        read_idle_timeout(connection),
        partial=relations.notes(published),
        passed_over={name: str(why) for name, why in unfollowed.passed_over.items()},
        idle_rules=read_idle_rules(connection, config, relations, published),
        identity=identify(connection),
    )


POLL_INTERVAL = 10.0  # seconds
LONGEST_AGE = 60.0
_APPLICATION_NAME = "pgdelta wal end"
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SourceWal:
    """The end of the source's WAL, and of its slot the bytes retained for it and left until its limit.

    The sizes are None if there is no slot or no limit. `holder` is as in `SourceStatus`.
    """

    lsn: LSN
    retained_size: int | None = None
    safe_size: int | None = None
    holder: WalHolder | None = None


class WalEnd:
    """Poll the end of the WAL, and what a slot retains, in a session and a thread, until `close`."""

    def __init__(
        self,
        conninfo: str,
        slot: str | None = None,
        *,
        held_limit: int = HELD_WAL_LIMIT,
        interval: float = POLL_INTERVAL,
        longest_age: float = LONGEST_AGE,
    ) -> None:
        self._conninfo = limit_connect_time(conninfo, QUERY_SECONDS)
        self._slot = slot
        self._held_limit = held_limit
        self._interval = interval
        self._longest_age = longest_age
        self._answer: tuple[float, SourceWal] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wal end", daemon=True)
        self._thread.start()

    @property
    def wal(self) -> SourceWal | None:
        """The newest answer, None if it is older than `longest_age` seconds."""
        answer = self._answer
        return answer[1] if answer and time.monotonic() - answer[0] <= self._longest_age else None

    @property
    def lsn(self) -> LSN | None:
        """The end of the WAL by the newest answer, None if that is too old."""
        wal = self.wal
        return None if wal is None else wal.lsn

    def close(self) -> None:
        """End the thread; a query that hangs is abandoned."""
        self._is_closing.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            shut_down_sessions(_APPLICATION_NAME)
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            with (
                suppress(SourceError, psycopg.Error),
                closing(connect(self._conninfo, application_name=_APPLICATION_NAME)) as connection,
            ):
                limit_statement_time(connection, QUERY_SECONDS)
                while not self._is_closing.is_set():
                    self._answer = time.monotonic(), self._read(connection)
                    self._is_closing.wait(self._interval)
            self._is_closing.wait(self._interval)

    def _read(self, connection: Connection) -> SourceWal:
        slot = None if self._slot is None else read_slot(connection, self._slot)
        end = read_flush_lsn(connection)
        if slot is None:
            return SourceWal(end)
        retained = max(0, end - slot.restart_lsn) if slot.restart_lsn else None
        holder = find_wal_holder(connection, slot, end, self._held_limit)
        return SourceWal(end, retained, slot.safe_wal_size, holder)
