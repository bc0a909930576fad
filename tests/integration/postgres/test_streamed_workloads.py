"""Streamed and prepared transactions, put together again, are what the same WAL says in protocol version 1.

Random sessions take turns. One slot is read meanwhile by a replication session with everything
that the server has; another one afterwards, in protocol version 1. The seed is in the test's name.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from random import Random

import psycopg
import pytest

from pipeline.config.config import Protocol
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Event,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    Truncation,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Relation
from pipeline.protocol.transactions import Assembler
from tests.support.postgres.sessions import Sessions, create_tables
from tests.support.postgres.streams import Stream, kinds, prepare, read_all, start
from tests.support.servers import Database, MakeServer

Row = tuple[tuple[Relation, ...], bytes | int]
Transactions = list[tuple[LSN, LSN, list[Row]]]


class Replayed:
    """The committed transactions in the order of their commits, as whoever keeps streams would have them."""

    def __init__(self) -> None:
        self.transactions: Transactions = []
        self._rows: list[Row] = []
        self._streams: dict[int, list[tuple[int, Row]]] = {}
        self._prepared: dict[tuple[str, int], list[Row]] = {}
        self.seen: dict[str, int] = defaultdict(int)

    def take(self, event: Event | None) -> None:
        """Take one event of an assembler."""
        self.seen[type(event).__name__] += 1
        match event:
            case Began() | BeganPrepare():
                self._rows = []
            case Change(_, relation, _, data):
                self._rows.append(((relation,), data))
            case Truncation(_, relations, options, _):
                self._rows.append((relations, options))
            case Committed():
                self._commit(event, self._rows)
            case Prepared():
                self._prepared[event.gid, event.xid] = self._rows
            case StreamStarted(xid, True):
                self._streams[xid] = []
            case StreamedChange(xid, subxid, relation, _, data):
                self._streams[xid].append((subxid, ((relation,), data[:1] + data[5:])))
            case StreamedTruncation(xid, subxid, relations, options, _):
                self._streams[xid].append((subxid, (relations, options)))
            case StreamAborted(xid, subxid):
                rows = self._streams.pop(xid, None)
                if rows is not None and subxid != xid:
                    self._streams[xid] = [row for row in rows if row[0] != subxid]
            case StreamPrepared():
                self._prepared[event.gid, event.xid] = [row for _, row in self._streams.pop(event.xid)]
            case StreamCommitted():
                self._commit(event, [row for _, row in self._streams.pop(event.xid)])
            case CommittedPrepared():
                # Of one that changed nothing, the server says only what became of it.
                self._commit(event, self._prepared.pop((event.gid, event.xid), []))
            case RolledBackPrepared():
                self._prepared.pop((event.gid, event.xid), None)

    def _commit(self, event: Committed | StreamCommitted | CommittedPrepared, rows: list[Row]) -> None:
        if rows:
            self.transactions.append((event.commit_lsn, event.end_lsn, rows))


def replay(messages: Iterable[bytes]) -> Replayed:
    """Put whole sessions together."""
    assembler, replayed = Assembler(), Replayed()
    for message in messages:
        replayed.take(assembler.receive(message))
    assert assembler.open_streams == ()
    return replayed


def run_workload(database: Database, *, seed: int, steps: int, is_immediate: bool) -> None:
    """Do a workload, read it in both ways and compare them."""
    create_tables(database)
    database.run(
        f"CREATE PUBLICATION {database.name} FOR TABLE a, b, c",
    )
    if is_immediate:
        database.run(f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = 'immediate'")
    major = database.run("SHOW server_version_num")[0][0]
    has_two_phase = int(major) >= 150000
    rich = database.config(protocol=Protocol(two_phase=has_two_phase))
    plain = database.config(slot=f"{database.name}_plain", protocol=Protocol(version=1))
    prepare(rich)
    prepare(plain)
    sessions = Sessions(database, Random(seed), has_two_phase=has_two_phase)
    messages: list[bytes] = []
    with closing(start(rich)) as stream:
        for number in range(steps):
            sessions.step()
            if number % 7 == 0:
                messages += stream.read(0.0)
        sessions.finish()
        messages += read_through_checkpoint(database, stream)
    streamed, whole = replay(messages), replay(read_all(database, plain, "sql"))
    assert streamed.transactions == whole.transactions
    assert set(kinds(read_all(database, plain, "sql"))) <= set("BCRIUDTY")
    wanted = {"StreamCommitted", "StreamAborted", "StreamedChange"}
    if not is_immediate:
        wanted.add("Committed")
    if has_two_phase:
        wanted |= {"StreamPrepared", "CommittedPrepared", "RolledBackPrepared"}
    assert {name for name in wanted if not streamed.seen[name]} == set()


def read_through_checkpoint(database: Database, stream: Stream) -> list[bytes]:
    """Read all that was done, also what a rollback has not written out yet."""
    database.run("CHECKPOINT")
    target = database.flush_lsn()
    messages: list[bytes] = []
    while stream.received_lsn < target:
        stream.ping()
        messages += stream.read(0.2)
    return messages


@pytest.mark.parametrize("seed", [1, 2])
def test_streamed_transactions_are_those_of_protocol_1(database: Database, seed: int) -> None:
    run_workload(database, seed=seed, steps=500, is_immediate=seed == 2)


@pytest.mark.slow
@pytest.mark.parametrize("major", [14, 15, 16, 17, 18])
def test_streamed_transactions_are_those_of_protocol_1_on_every_major(
    make_server: MakeServer, major: int
) -> None:
    server = make_server(major=major)
    for seed in range(10, 14):
        name = f"seed_{seed}"
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        database = Database(server, name, server.conninfo_of(name))
        run_workload(database, seed=seed, steps=1500, is_immediate=major >= 16 and seed % 2 == 1)
