"""The loop of an ingest run: read, assemble and stage; land and acknowledge beside it.

The reading thread decodes and stages; one landing thread commits to Delta, so that reading goes on while
Spark works. The slot is told of a position only after the bronze commit that records it.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pipeline.bronze.spool import Spool
from pipeline.bronze.staged import Staged
from pipeline.bronze.versions import RelationVersion, relation_version
from pipeline.config import Config
from pipeline.errors import SourceError
from pipeline.lake.bronze import Bronze
from pipeline.lake.staging import Staging
from pipeline.lake.tables import Commit
from pipeline.operate.summaries import IngestProgress, IngestSummary
from pipeline.postgres.catalog import RelationFacts, look_up
from pipeline.postgres.connection import Connection, Identity, connect
from pipeline.postgres.stream import ChangeStream
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Relation
from pipeline.protocol.transactions import (
    Assembler,
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Described,
    Emitted,
    Event,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    Truncation,
)

LAND_ROWS = 250_000  # land once this many rows wait…
LAND_SECONDS = 3.0  # …or the oldest has waited this long
IDLE_SECONDS = 60.0  # record an idle position this often…
IDLE_BYTES = 64 << 20  # …or after so much WAL
_READ_TIMEOUT = 0.25
_CONFIRM_TIMEOUT = 30.0


def position_commit(
    bronze: Bronze, config: Config, identity: Identity, start: LSN, end: LSN, **counts: int
) -> Commit:
    """Return the commit that records bronze as complete up to `end`, and which source it came from."""
    metadata: dict[str, object] = {
        "slot": config.source.slot,
        "system_identifier": identity.system_identifier,
        "timeline": identity.timeline,
        "database": identity.database,
        "from_lsn": str(start),
        "to_lsn": str(end),
        **counts,
    }
    return Commit(bronze.app_id, end, metadata)


class Capture:
    """The loop of one run: read, assemble, stage; land and acknowledge beside it."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        connection: Connection,
        identity: Identity,
        stream: ChangeStream,
        position: LSN,
        progress: IngestProgress | None,
    ) -> None:
        self._config = config
        self._bronze = bronze
        self._connection = connection
        self._identity = identity
        self._stream = stream
        self._position = position
        self._progress = progress
        self._staging = Staging(bronze.lake)
        self._spool = Spool(self._staging.directory)
        self._assembler = Assembler()
        self._session = stream.session
        self._known = bronze.known_versions()
        self._new_versions: list[RelationVersion] = []
        self._is_skipping = False
        self._began_lsn = INVALID  # of the transaction under way
        self._emitted_lsn = position  # of the latest message outside transactions
        self._sealed_at = time.monotonic()
        self._landing: Future[LSN] | None = None
        self._summary = IngestSummary(config.pipeline, config.source.slot, position)

    def run(self, target: LSN | None, stop: threading.Event) -> IngestSummary:
        """Go on until everything up to the target is in bronze and acknowledged, or until `stop`."""
        started = time.monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="land") as lander:
            try:
                while not stop.is_set():
                    messages = self._stream.read(_READ_TIMEOUT)
                    if messages:
                        self._take(messages)
                    else:
                        self._stream.ping()
                    is_done = target is not None and self._stream.sent_through >= target
                    self._land_when_due(lander, is_done)
                    self._summary.seconds = time.monotonic() - started
                    if is_done:
                        break
                self._finish(lander)
            finally:
                self._spool.discard()
                self._staging.close()
        self._summary.seconds = time.monotonic() - started
        return self._summary

    def _take(self, messages: Sequence[bytes]) -> None:
        if self._stream.session != self._session:
            # The server begins anew: it describes every relation and streams every open transaction again.
            self._session = self._stream.session
            self._assembler = Assembler()
            self._spool.streams.discard()
        receive = self._assembler.receive
        add_change, add_streamed = self._spool.add_change, self._spool.streams.add_change
        for message in messages:
            event = receive(message)
            if event.__class__ is Change:
                if not self._is_skipping:
                    add_change(event)
            elif event.__class__ is StreamedChange:
                add_streamed(event)
            elif event is not None:
                self._take_other(event)

    def _take_other(self, event: Event) -> None:
        spool = self._spool
        match event:
            case Began():
                self._begin(event, event.commit_lsn)
            case Committed():
                if not self._is_skipping:
                    spool.commit(event)
                self._is_skipping = False
            case Described():
                self._describe(event)
            case Truncation() if not self._is_skipping:
                spool.add_truncation(event)
            case Emitted() if event.in_transaction:
                if not self._is_skipping:
                    spool.add_message(event)
            case Emitted():
                # A look by SQL that was too short is followed by a longer one, which begins where it did.
                if event.message.lsn > self._emitted_lsn:
                    self._emitted_lsn = event.message.lsn
                    spool.add_message(event)
            case StreamStarted() | StreamAborted() | StreamedTruncation() | StreamedEmitted():
                spool.streams.take_event(event)
            case StreamCommitted() if event.commit_lsn < self._position:
                spool.streams.drop(event.xid)
            case StreamCommitted():
                self._record(spool.commit_stream(event), event.commit_lsn)
            case BeganPrepare():
                self._begin(event, event.prepare_lsn)
            case Prepared():
                if not self._is_skipping:
                    spool.prepare(event)
                self._is_skipping = False
            case StreamPrepared() if event.prepare_lsn < self._position:
                spool.streams.drop(event.xid)
            case StreamPrepared():
                self._record(spool.prepare_stream(event), event.prepare_lsn)
            case CommittedPrepared() | RolledBackPrepared():
                spool.decide(event)

    def _begin(self, began: Began | BeganPrepare, lsn: LSN) -> None:
        # The record of a commit or a prepare starts before its end, and bronze's position is at such an end.
        self._is_skipping = lsn < self._position
        self._began_lsn = lsn
        self._spool.begin(began)

    def _describe(self, described: Described) -> None:
        relation = described.relation
        version = relation_version(relation, self._look_up(relation), self._began_lsn)
        self._spool.describe(version, described.xid)
        if described.xid is None:
            self._record([version], self._began_lsn)

    def _record(self, versions: Iterable[RelationVersion], lsn: LSN) -> None:
        """See that versions are recorded before the changes that name them; `lsn` is where they took hold."""
        for version in versions:
            if version.id not in self._known:
                self._known.add(version.id)
                self._new_versions.append(replace(version, lsn=lsn))

    def _look_up(self, relation: Relation) -> RelationFacts | None:
        """Ask the catalog; a look-up that fails is recorded as unknown, and capture goes on."""
        try:
            return look_up(self._connection, relation)
        except SourceError:
            try:
                self._connection.close()
                self._connection = connect(self._config.source.conninfo)
                return look_up(self._connection, relation)
            except SourceError:
                return None

    def _land_when_due(self, lander: ThreadPoolExecutor, is_done: bool) -> None:
        if self._landing is not None:
            if not self._landing.done():
                if is_done or self._stream.needs_acknowledgement:
                    self._settle()
                return
            self._settle()
        waited = time.monotonic() - self._sealed_at
        is_due = (
            self._spool.pending_rows >= LAND_ROWS
            or waited >= LAND_SECONDS
            or is_done
            or self._stream.needs_acknowledgement
        )
        if not is_due:
            return
        staged = (
            self._spool.seal() if self._spool.pending_rows or is_done or self._is_idle_due(waited) else None
        )
        if staged is not None:
            self._submit(lander, staged)
        elif is_done or self._is_idle_due(waited):
            self._advance_idle()

    def _is_idle_due(self, waited: float) -> bool:
        behind = self._stream.sent_through - self._position
        return behind > 0 and (
            waited >= IDLE_SECONDS or behind >= IDLE_BYTES or self._stream.needs_acknowledgement
        )

    def _submit(self, lander: ThreadPoolExecutor, staged: Staged) -> None:
        versions, self._new_versions = self._new_versions, []
        start = self._position
        self._position = max(start, staged.end_lsn)
        self._sealed_at = time.monotonic()
        self._landing = lander.submit(self._land, staged, versions, start, self._position)

    def _land(self, staged: Staged, versions: list[RelationVersion], start: LSN, end: LSN) -> LSN:
        if versions:
            self._bronze.record_relations(versions)
        counts = {"transactions": staged.transaction_count, "changes": staged.change_count}
        commit = position_commit(self._bronze, self._config, self._identity, start, end, **counts)
        prepared = self._bronze.prepared
        if staged.parked:
            move = self._staging.move
            prepared.park([(move(p.part, prepared.table), p.end_lsn) for p in staged.parked])
        if staged.decisions:
            prepared.land(staged.decisions)
        self._bronze.land([self._staging.move(p, self._bronze.changes) for p in staged.parts], commit)
        if staged.decisions:
            prepared.forget(staged.decisions)
        self._summary.transactions += staged.transaction_count
        self._summary.changes += staged.change_count
        return end

    def _settle(self) -> None:
        """Wait for the landing under way and acknowledge what it committed."""
        if self._landing is None:
            return
        end = self._landing.result()
        self._landing = None
        self._acknowledge(end)

    def _acknowledge(self, lsn: LSN) -> None:
        self._stream.acknowledge(lsn)
        self._summary.position = lsn
        self._summary.commits += 1
        if self._progress:
            self._progress(self._summary)

    def _advance_idle(self) -> None:
        """Record in bronze that nothing was committed up to here, then let the slot forget it."""
        end = self._stream.sent_through
        if self._assembler.in_transaction:
            end = min(end, self._began_lsn)
        if end <= self._position:
            return
        self._bronze.land(
            [], position_commit(self._bronze, self._config, self._identity, self._position, end)
        )
        self._position = end
        self._sealed_at = time.monotonic()
        self._acknowledge(end)

    def _finish(self, lander: ThreadPoolExecutor) -> None:
        """Land what is committed, record how far the server has read, and see it acknowledged."""
        self._settle()
        staged = self._spool.seal()
        if staged is not None:
            self._submit(lander, staged)
            self._settle()
        self._advance_idle()
        self._stream.confirm(_CONFIRM_TIMEOUT)
