"""The loop of an ingest run: read, assemble and stage; land and acknowledge beside it.

The reading thread decodes and stages; one landing thread commits to Delta, so that reading goes on while
Spark works. The slot is told of a position only after the bronze commit that records it.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial

from pipeline.bronze.log import Bronze
from pipeline.bronze.prepared import identities
from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.spool import Spool
from pipeline.bronze.staged_files import Staged
from pipeline.bronze.staging import Staging
from pipeline.config.config import Config
from pipeline.delta.txn import TableCommit
from pipeline.errors import SourceError
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.connection import Connection, ServerIdentity
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.slot_lock import connect_with_lock
from pipeline.progress import IngestProgress, IngestSummary
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.coordinator import CopyCoordinator

LAND_ROWS = 250_000  # land once this many rows wait…
LAND_SECONDS = 3.0  # …or the oldest has waited this long
IDLE_SECONDS = 60.0  # record an idle position this often…
IDLE_BYTES = 64 << 20  # …or after so much WAL
_READ_TIMEOUT = 0.25
_REPORT_SECONDS = 1.0
_CONFIRM_TIMEOUT = 30.0


def offset_commit(
    bronze: Bronze, config: Config, identity: ServerIdentity, start: LSN, end: LSN, **facts: object
) -> TableCommit:
    """Return the commit that records bronze as complete up to `end`, and which source it came from.

    Of the facts, `prepared` counts the transactions which are prepared and not decided at `end`; `decided`
    names those that were decided since `start`: the server does not send their end again.
    """
    metadata: dict[str, object] = {
        "slot": config.source.slot,
        "system_identifier": identity.system_identifier,
        "timeline": identity.timeline,
        "database": identity.database,
        "from_lsn": str(start),
        "to_lsn": str(end),
        **facts,
    }
    return TableCommit(bronze.txn, end, metadata, expected_offset=start)


class Capture:
    """The loop of one run: read, assemble, stage; land and acknowledge beside it."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        connection: Connection,
        identity: ServerIdentity,
        stream: ChangeStream,
        summary: IngestSummary,
        copier: CopyCoordinator,
        prepared_count: int,
        progress: IngestProgress | None,
        begin_at: Callable[[LSN], ChangeStream],
    ) -> None:
        """Go on from the summary's position; initial copies are made beside it.

        `begin_at` gives another session of the stream, where the one at hand has old names.
        """
        position = summary.captured_offset
        self._copier = copier
        self._config = config
        self._bronze = bronze
        self._identity = identity
        self._stream = stream
        self._begin_at = begin_at
        self._offset = position
        self._progress = progress
        self._staging = Staging(bronze.lake)
        self._spool = Spool(self._staging.directory)
        conninfo = config.source.conninfo
        known, opens = bronze.relation_version_ids(), partial(connect_with_lock, slot=config.source.slot)
        bronze.relations.force_log()  # what is known is not recorded again
        self._intake = Decoder(self._spool, connection, conninfo, known, position, opens=opens)
        self._prepared_count = prepared_count
        self._sealed_at = time.monotonic()
        self._landing: Future[LSN] | None = None
        self._commit_time: datetime | None = None  # of the newest transaction that is being landed
        self._summary = summary

    def run(self, target: LSN | None, stop: threading.Event) -> IngestSummary:
        """Go on until everything up to the target is in bronze and acknowledged, or until `stop`."""
        started = reported = time.monotonic()
        if self._progress:
            self._progress(self._summary)
        self._copier.reach(self._offset)
        self._copier.start(self._intake.names)
        with ThreadPoolExecutor(1, thread_name_prefix="land") as lander:
            try:
                while not stop.is_set():
                    messages = self._stream.read(_READ_TIMEOUT)
                    if messages:
                        self._intake.decode(messages, self._stream.session)
                    else:
                        self._stream.ping()
                    if self._intake.names.is_due(self._offset) and self._intake.is_between_transactions:
                        self._renew(lander)
                    is_done = self._is_done(target)
                    self._land_when_due(lander, is_done)
                    now = time.monotonic()
                    self._summary.seconds = now - started
                    if self._progress and self._summary.has_copies and now - reported >= _REPORT_SECONDS:
                        reported = now
                        self._progress(self._summary)
                    if is_done:
                        break
                self._copier.close()
                self._finish(lander)
            except SourceError:
                if self._landing is not None:
                    self._landing.result()  # a commit that was refused says more than a session that is lost
                raise
            finally:
                self._copier.close()
                self._stream.close()
                self._intake.close()
                self._spool.discard()
                self._staging.close()
        self._summary.seconds = time.monotonic() - started
        return self._summary

    def _is_done(self, target: LSN | None) -> bool:
        """Say whether the stream was read up to the target and to where copies are complete."""
        if target is None or not self._copier.is_done:
            return False
        return self._stream.received_lsn >= max(target, self._copier.target)

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
        if self._stream.needs_acknowledgement:
            return True
        sent, awaited = self._stream.received_lsn, self._copier.target
        behind = sent - self._offset
        return behind > 0 and (
            waited >= IDLE_SECONDS or behind >= IDLE_BYTES or self._offset < awaited <= sent
        )

    def _submit(self, lander: ThreadPoolExecutor, staged: Staged) -> None:
        versions = self._intake.pop_versions()
        start = self._offset
        self._offset = self._intake.offset = max(start, staged.end_lsn)
        self._sealed_at = time.monotonic()
        self._commit_time = self._intake.commit_time
        self._landing = lander.submit(self._land, staged, versions, start, self._offset)

    def _land(self, staged: Staged, versions: list[RelationVersion], start: LSN, end: LSN) -> LSN:
        if versions:
            self._bronze.record_relations(versions)
        prepared = self._bronze.prepared
        if staged.parked:
            move = self._staging.move
            prepared.park([(p, move(p.part, prepared.table)) for p in staged.parked])
        if staged.decisions:
            prepared.land(staged.decisions)
        if staged.parked or staged.decisions:
            self._prepared_count = prepared.open_count(staged.decisions)
        files = [self._staging.move(part, self._bronze.changes) for part in staged.parts]
        facts: dict[str, object] = {
            "transactions": staged.transaction_count,
            "changes": staged.change_count,
        }
        decided = identities(staged.decisions)
        if decided:
            facts["decided"] = decided
        self._bronze.land(files, self._commit(start, end, **facts))
        prepared.forget(decided)
        self._summary.transactions += staged.transaction_count
        self._summary.changes += staged.change_count
        return end

    def _settle(self) -> None:
        """Wait for the landing under way and acknowledge what it committed."""
        if self._landing is None:
            return
        end = self._landing.result()
        self._landing = None
        self._summary.commit_time = self._commit_time
        self._acknowledge(end)

    def _acknowledge(self, lsn: LSN) -> None:
        self._copier.reach(lsn)
        self._let_forget(lsn)
        self._summary.captured_offset = lsn
        self._summary.commits += 1
        if self._progress:
            self._progress(self._summary)

    def _advance_idle(self) -> None:
        """Record in bronze that nothing was committed up to here, then let the slot forget it.

        Where bronze is that far already, the slot alone is behind: the run that landed this ended before it
        told the slot, or the server forgot in a crash what it was told.
        """
        end = self._intake.complete_lsn(self._stream.received_lsn)
        if end <= self._offset:
            self._let_forget(self._offset)
            return
        self._bronze.land([], self._commit(self._offset, end))
        self._offset = self._intake.offset = end
        self._sealed_at = time.monotonic()
        self._acknowledge(end)

    def _let_forget(self, lsn: LSN) -> None:
        """Acknowledge what bronze holds, as far as the slot has sent it in this run."""
        self._stream.acknowledge(min(lsn, self._stream.received_lsn))

    def _commit(self, start: LSN, end: LSN, **facts: object) -> TableCommit:
        facts["prepared"] = self._prepared_count
        return offset_commit(self._bronze, self._config, self._identity, start, end, **facts)

    def _renew(self, lander: ThreadPoolExecutor) -> None:
        """Go on in another session of the server: it describes every table anew."""
        self._finish(lander)
        self._stream.close()
        self._stream = self._begin_at(self._offset)
        self._intake.end_session()
        self._intake.names.renewed()

    def _finish(self, lander: ThreadPoolExecutor) -> None:
        """Land what is committed, record how far the server has read, and see it acknowledged."""
        self._settle()
        staged = self._spool.seal()
        if staged is not None:
            self._submit(lander, staged)
            self._settle()
        self._advance_idle()
        self._stream.confirm(_CONFIRM_TIMEOUT)
