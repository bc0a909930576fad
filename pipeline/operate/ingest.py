"""PostgreSQL → bronze: one replication session, whole transactions, position and data in one commit.

The reading thread decodes and stages; one landing thread commits to Delta, so that reading goes on while
Spark works. The slot is told of a position only after the bronze commit that records it. A run that dies loses
nothing: the next one starts at the position that bronze holds, and the server sends the rest again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.bronze.spool import Spool, Staged
from pipeline.bronze.versions import RelationVersion, relation_version
from pipeline.config import Config
from pipeline.errors import GapError, SourceError
from pipeline.lake.bronze import Bronze
from pipeline.lake.session import start_session
from pipeline.lake.staging import Staging
from pipeline.lake.tables import Commit, Lake
from pipeline.postgres.catalog import RelationFacts, look_up
from pipeline.postgres.connection import Connection, Identity, connect, identify
from pipeline.postgres.plugin import pgoutput_options
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.slot import Slot, ensure_slot
from pipeline.postgres.slot_sql import start_slot_sql
from pipeline.postgres.stream import ChangeStream
from pipeline.postgres.walsender import start_walsender
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Relation
from pipeline.protocol.transactions import Assembler, Began, Change, Committed, Described, Emitted, Truncation

LAND_ROWS = 250_000  # land once this many rows wait…
LAND_SECONDS = 3.0  # …or the oldest has waited this long
IDLE_SECONDS = 60.0  # record an idle position this often…
IDLE_BYTES = 64 << 20  # …or after so much WAL
_READ_TIMEOUT = 0.25
_CONFIRM_TIMEOUT = 30.0

Progress = Callable[["IngestSummary"], None]


@dataclass(slots=True)
class IngestSummary:
    """What a run captured so far; `position` is what bronze holds and the slot was told."""

    pipeline: str
    slot: str
    position: LSN = INVALID
    transactions: int = 0
    changes: int = 0
    commits: int = 0
    seconds: float = 0.0
    skipped: int = 0

    def lines(self) -> list[str]:
        """Return the closing lines for people."""
        rate = self.changes / self.seconds if self.seconds else 0.0
        return [
            f"ingest {self.pipeline}: {self.changes} changes of {self.transactions} transactions in "
            f"{self.commits} commits, {self.seconds:.1f} s ({rate:.0f} changes/s)",
            f"bronze is complete up to {self.position}, acknowledged to slot {self.slot}",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "slot": self.slot,
            "position": str(self.position),
            "transactions": self.transactions,
            "changes": self.changes,
            "commits": self.commits,
            "seconds": round(self.seconds, 3),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0: an ingest that could not go on raises."""
        del strict
        return 0


def run_ingest(
    config: Config,
    *,
    trigger: str = "available-now",
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> IngestSummary:
    """Capture everything committed up to the WAL end seen at the start, or go on until `stop`."""
    stop = stop or threading.Event()
    lake = Lake(spark or start_session(f"pgdelta ingest {config.pipeline}"), config.storage.root)
    bronze = Bronze(lake, config.pipeline)
    with connect(config.source.conninfo) as connection:
        identity = identify(connection)
        target = identity.wal_flush_lsn if trigger == "available-now" else None
        ensure_publication(connection, config)
        point = bronze.point()
        slot, _ = ensure_slot(connection, config, may_create=point is None)
        if point is None:
            bronze.ensure()
            position = slot.confirmed_flush_lsn
            bronze.advance(_commit(bronze, config, identity, position, position))
        else:
            position = point.lsn
            check_continuity(bronze.metadata(), identity, slot, position)
        stream = _start_stream(config, identity, position, stop)
        try:
            capture = _Capture(config, bronze, connection, identity, stream, position, progress)
            return capture.run(target, stop)
        finally:
            stream.close()


def check_continuity(recorded: dict[str, Any], identity: Identity, slot: Slot, position: LSN) -> None:
    """Raise GapError where the slot cannot go on from the position that bronze holds."""
    for name, now in (("system_identifier", identity.system_identifier), ("database", identity.database)):
        if name in recorded and recorded[name] != now:
            raise GapError(
                f"Bronze was filled from another source ({name} {recorded[name]}, this server has {now}): "
                "correct source.conninfo, or start over with a new storage.root."
            )
    if slot.confirmed_flush_lsn > position:
        raise GapError(
            f"The slot {slot.name} stands at {slot.confirmed_flush_lsn}, ahead of bronze at {position}: "
            "what was committed between was acknowledged by somebody else, or the slot was made anew. "
            "Start over with a new storage.root."
        )


def _commit(
    bronze: Bronze, config: Config, identity: Identity, start: LSN, end: LSN, **counts: int
) -> Commit:
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


def _start_stream(config: Config, identity: Identity, position: LSN, stop: threading.Event) -> ChangeStream:
    source = config.source
    options = pgoutput_options(identity.server_version, source.protocol, source.publication)
    if source.route == "sql":
        return start_slot_sql(source.conninfo, source.slot, source.publication, options=options)
    return start_walsender(
        source.conninfo,
        source.slot,
        source.publication,
        options=options,
        start_lsn=position,
        should_stop=stop.is_set,
    )


class _Capture:
    """The loop of one run: read, assemble, stage; land and acknowledge beside it."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        connection: Connection,
        identity: Identity,
        stream: ChangeStream,
        position: LSN,
        progress: Progress | None,
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
        self._known = bronze.known_versions()
        self._new_versions: list[RelationVersion] = []
        self._is_skipping = False
        self._sealed_at = time.monotonic()
        self._landing: Future[LSN] | None = None
        self._summary = IngestSummary(config.pipeline, config.source.slot, position)

    def run(self, target: LSN | None, stop: threading.Event) -> IngestSummary:
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
        receive, add_change = self._assembler.receive, self._spool.add_change
        for message in messages:
            event = receive(message)
            if event.__class__ is Change:
                if not self._is_skipping:
                    add_change(event)
                continue
            match event:
                case Began():
                    # A commit record starts before its end, and bronze's position is at the end of one.
                    self._is_skipping = event.commit_lsn < self._position
                    self._began = event
                    self._spool.begin(event)
                case Committed():
                    if not self._is_skipping:
                        self._spool.commit(event)
                    self._is_skipping = False
                case Described():
                    self._describe(event.relation)
                case Truncation() if not self._is_skipping:
                    self._spool.add_truncation(event)
                case Emitted() if not self._is_skipping:
                    if event.in_transaction or event.message.lsn > self._position:
                        self._spool.add_message(event)

    def _describe(self, relation: Relation) -> None:
        version = relation_version(relation, self._look_up(relation), self._began.commit_lsn)
        self._spool.describe(version)
        if version.id not in self._known:
            self._known.add(version.id)
            self._new_versions.append(version)

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
        commit = _commit(self._bronze, self._config, self._identity, start, end, **counts)
        self._bronze.land(staged, self._staging.publish(staged), commit)
        self._staging.remove(staged)
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
            end = min(end, self._began.commit_lsn)
        if end <= self._position:
            return
        self._bronze.advance(_commit(self._bronze, self._config, self._identity, self._position, end))
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
