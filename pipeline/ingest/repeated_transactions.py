"""Compare the transactions that a slot behind bronze sends again with those that bronze has.

After a run that ended before its acknowledgement, or a crash of the server, a slot is behind bronze, and the
server sends the same transactions again. A server that was restored to an earlier state has its slot of then,
and its WAL has other transactions at LSNs that bronze has passed: capture would skip them silently.
Transactions are the same if commit LSN, xid and commit time are. A slot that was created again on a restored
server may be younger than all of them, but it is not where an ingest of the lake has left a slot. Nothing is
acknowledged or written.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from typing import NamedTuple

from pipeline.bronze.erasures import erasures_in
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.log import user_metadata_of
from pipeline.errors import RestoredSourceError, SlotWaitStopped
from pipeline.postgres.connection import ServerIdentity
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.protocol import events
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS
from pipeline.protocol.transactions import Assembler

_ADVICE = (
    "Run pgdelta move-source, or set source.lost_slot to compare: all tables are then compared with the"
    " server, and only what differs is copied."
)
_READ_TIMEOUT = 0.25  # seconds
_ONE_POLL = 2**31 - 1  # messages: the next poll would move the slot


class Transaction(NamedTuple):
    """A committed transaction; the time is in microseconds since 1970."""

    commit_lsn: int
    xid: int
    commit_time: int


class SentTransactions:
    """The committed transactions of one replication session, and which of them are known to have changes."""

    def __init__(self) -> None:
        self.end_lsns: dict[Transaction, LSN] = {}
        self.with_changes: set[Transaction] = set()
        self._assembler = Assembler()
        self._streams: dict[int, Counter[int]] = {}  # changes by subtransaction
        self._prepared: dict[tuple[str, int], int] = {}  # changes

    def receive(self, message: bytes) -> None:
        """Receive the next message of the session."""
        event = self._assembler.receive(message)
        if event is not None and event.__class__ is not events.Change:
            self._handle(event)

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                self._add(event, event.change_count)
            case events.StreamStarted(is_first=True):
                self._streams[event.xid] = Counter()
            case events.StreamedChange() | events.StreamedTruncation():
                self._streams.setdefault(event.xid, Counter())[event.subxid] += 1
            case events.StreamAborted():
                if event.subxid == event.xid:
                    self._streams.pop(event.xid, None)
                elif event.xid in self._streams:
                    del self._streams[event.xid][event.subxid]
            case events.StreamCommitted():
                self._add(event, self._streams.pop(event.xid, Counter()).total())
            case events.Prepared():
                self._prepared[event.gid, event.xid] = event.change_count
            case events.StreamPrepared():
                self._prepared[event.gid, event.xid] = self._streams.pop(event.xid, Counter()).total()
            case events.CommittedPrepared():
                self._add(event, self._prepared.pop((event.gid, event.xid), 0))
            case _:
                pass

    def _add(
        self, event: events.Committed | events.StreamCommitted | events.CommittedPrepared, change_count: int
    ) -> None:
        time = event.commit_time + POSTGRES_EPOCH_MICROSECONDS
        transaction = Transaction(event.commit_lsn, event.xid, time)
        self.end_lsns[transaction] = event.end_lsn
        if change_count:
            self.with_changes.add(transaction)


def check_repeated(
    config: Config,
    bronze: Bronze,
    slot: Slot,
    identity: ServerIdentity,
    offset: LSN,
    stop: threading.Event,
) -> None:
    """Raise RestoredSourceError if a slot behind bronze's offset sends other transactions than bronze has.

    Not compared is what lies before the last gap, or was compacted by the retention.
    """
    gaps = bronze.copies.read().gaps
    since = max(bronze.bases.read().lsn, gaps[-1].end if gaps else INVALID)
    start = max(slot.confirmed_flush_lsn, since)
    if start >= offset:
        return
    # The functions of the route `sql` may leave a slot at the end of a record, after the LSN asked for.
    if config.source.route == "walsender" and slot.confirmed_flush_lsn > since:
        _require_acknowledged(bronze, slot)
    with closing(_start_stream(config, identity, offset)) as stream:
        sent = _read_sent(stream, offset, stop, slot.name)
    known = _read_transactions(bronze, start, offset)
    repeated = {each for each in sent.end_lsns if start <= each.commit_lsn < offset}
    missing = known - repeated
    unknown = (repeated & sent.with_changes) - known
    if unknown:  # commits of bronze that erased rows count them by the end of their transaction
        commits = bronze.changes.newest_commits()
        erased = erasures_in(user_metadata_of(commit) for commit in commits).changes
        unknown = {each for each in unknown if not erased[sent.end_lsns[each]]}
    if missing or unknown:
        first = min(missing | unknown)
        what = f"transaction {first.xid}, committed at {LSN(first.commit_lsn)}"
        found = f"bronze has {what}, and the server does not"
        if first in unknown:
            found = f"the server has {what}, and bronze, which is complete up to {offset}, does not"
        raise RestoredSourceError(
            f"The server was restored to an earlier state and has gone on from there: {found}. {_ADVICE}"
        )


def _require_acknowledged(bronze: Bronze, slot: Slot) -> None:
    """Raise RestoredSourceError if a slot is between two offsets of bronze: no ingest left it there."""
    for commit in bronze.changes.newest_commits():
        if (recorded := user_metadata_of(commit).get("to_lsn")) is None:
            continue
        lsn = LSN.parse(recorded)
        if lsn < slot.confirmed_flush_lsn:
            raise RestoredSourceError(
                f"The slot {slot.name} is at {slot.confirmed_flush_lsn}, where no ingest of this lake has "
                "left it: another program created or moved it, and the server may have been restored to an "
                f"earlier state. {_ADVICE}"
            )
        if lsn == slot.confirmed_flush_lsn:
            return


def _start_stream(config: Config, identity: ServerIdentity, end_lsn: LSN) -> ChangeStream:
    """Return the stream of the slot from its own LSN, at least up to an LSN."""
    source = config.source
    options = pgoutput_options(identity.server_version, source.protocol, source.publication, source.route)
    if source.route == "sql":
        return start_sql_stream(
            source.conninfo,
            source.slot,
            source.publication,
            options=options,
            end_lsn=lambda: end_lsn,
            poll_messages=_ONE_POLL,
        )
    return start_walsender(source.conninfo, source.slot, source.publication, options=options)


def _read_sent(stream: ChangeStream, end_lsn: LSN, stop: threading.Event, slot: str) -> SentTransactions:
    """Return what the slot sends up to an LSN (inclusive)."""
    sent = SentTransactions()
    while stream.received_lsn < end_lsn:
        if stop.is_set():
            raise SlotWaitStopped(f"Stopped while the slot {slot} was compared with bronze. Run again.")
        messages = stream.read(_READ_TIMEOUT)
        for message in messages:
            sent.receive(message)
        if not messages:
            stream.ping()
    return sent


def _read_transactions(bronze: Bronze, start: LSN, end_lsn: LSN) -> set[Transaction]:
    """Return the transactions of bronze that were committed at `start` or later and ended by `end_lsn`."""
    sql = "SELECT DISTINCT commit_lsn, xid, unix_micros(commit_time) FROM {changes} "
    sql += f"WHERE commit_lsn >= {int(start)}"
    columns = ("op", "end_lsn", "commit_lsn", "xid", "commit_time")
    return {Transaction(*row) for row in bronze.select(sql, columns, start, end_lsn)}
