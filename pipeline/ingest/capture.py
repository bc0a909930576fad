"""The loop of an ingest run: read, decode and stage; commit and acknowledge.

One thread reads the stream, decodes and stages; another one commits what is staged, so that reading continues
while Delta works. An LSN is acknowledged to the slot only after the bronze commit that records it.

The way of a message to its bronze commit: `ChangeStream.read` gives bytes, `Decoder.decode` turns them into
events and puts their rows into the `Spool`, `Spool.seal` returns `StagedTransactions`, and
`BronzeWriter.land` commits these.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial

from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.spool import Spool
from pipeline.bronze.staged_files import StagingFolder
from pipeline.bronze.staged_transactions import StagedTransactions
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.errors import SourceError
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.connection import Connection
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.slot_lock import connect_with_lock
from pipeline.progress import IngestProgress, IngestSummary
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.coordinator import CopyCoordinator

LAND_ROWS = 250_000  # land once this many rows wait…
LAND_SECONDS = 0.2  # …or some wait, this long after the last landing began…
_MAX_LAND_SECONDS = 0.7  # …or up to this, so that landings take no more than half of the time
IDLE_SECONDS = 60.0  # record an idle offset this often…
IDLE_BYTES = 64 << 20  # …or after so much WAL
_READ_TIMEOUT = 0.25
_BUSY_SECONDS = 0.02  # after which to see whether a large transaction is written
_MEASURE_SECONDS = 1.0
_REPORT_SECONDS = 1.0
_CONFIRM_TIMEOUT = 30.0
_COLLECTION = 100_000  # new objects between two searches for reference cycles


class Capture:
    """Captures the stream from the summary's offset on, while tables are copied."""

    def __init__(
        self,
        config: Config,
        writer: BronzeWriter,
        connection: Connection,
        stream: ChangeStream,
        summary: IngestSummary,
        copier: CopyCoordinator,
        state: CaptureState,
        protection: ColumnProtection,
        progress: IngestProgress | None,
        start_stream: Callable[[LSN], ChangeStream],
    ) -> None:
        """Read `stream`; `start_stream` starts another session when a name in this one is old."""
        self._writer = writer
        self._stream = stream
        self._start_stream = start_stream
        self._copier = copier
        self._state = state
        self._summary = summary
        self._progress = progress
        bronze = writer.bronze
        self._staging = StagingFolder(bronze.lake)
        recorded = bronze.relation_version_ids(summary.captured_offset)
        bronze.relations.force_log()  # a version that is recorded already is not recorded again
        self._spool = Spool(
            self._staging.path,
            summary.captured_offset,
            recorded,
            reads_types=config.source.protocol.binary,
        )
        self._decoder = Decoder(
            self._spool,
            connection,
            config.source.conninfo,
            state,
            protection,
            connect=partial(connect_with_lock, slot=config.source.slot),
        )
        self._sealed_at = time.monotonic()
        self._landing: tuple[StagedTransactions, Future[None]] | None = None
        self._land_seconds = LAND_SECONDS
        self._spool_limit = config.ingest.spool_limit
        self._measured_at = 0.0  # the size of what is staged
        self._is_full = False

    def run(self, target: LSN | None, stop: threading.Event) -> IngestSummary:
        """Continue until everything up to the target is in bronze and acknowledged, or until `stop`."""
        started = reported = time.monotonic()
        if self._progress:
            self._progress(self._summary)
        self._state.set_captured_offset(self._spool.offset)
        self._state.interrupt = self._interrupt
        self._copier.start()
        with _fewer_collections(), ThreadPoolExecutor(1, thread_name_prefix="land") as lander:
            try:
                while not stop.is_set():
                    messages = self._read()
                    if messages:
                        self._decoder.decode(messages, self._stream.session)
                    else:
                        self._stream.ping()
                    if (
                        self._state.is_session_due(self._spool.offset)
                        and self._decoder.is_between_transactions
                    ):
                        self._start_session(lander)
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
                    self._landing[1].result()  # a refused commit explains more than a lost session
                raise
            finally:
                self._copier.close()
                self._stream.close()
                self._decoder.close()
                self._spool.discard()
                self._staging.close()
        self._summary.seconds = time.monotonic() - started
        return self._summary

    def _read(self) -> list[bytes]:
        """Return the next messages; none while what is staged is too much and cannot be landed yet.

        The stream keeps its session meanwhile, and the server waits.
        """
        now, is_busy = time.monotonic(), self._spool.is_busy
        may_grow = self._is_landing or is_busy
        if self._spool_limit and may_grow and now - self._measured_at >= _MEASURE_SECONDS:
            self._measured_at, self._is_full = now, self._staging.size() >= self._spool_limit
        if self._is_full and self._landing is not None and self._is_landing:
            wait([self._landing[1]], _READ_TIMEOUT)
            return []
        if self._is_full and is_busy:
            self._spool.wait_while_busy(_READ_TIMEOUT)
            return []
        self._is_full = False
        timeout = _READ_TIMEOUT
        if self._spool.pending_rows and not self._is_landing:
            soonest = _BUSY_SECONDS if is_busy else 0.0
            timeout = min(timeout, max(soonest, self._sealed_at + self._land_seconds - now))
        return self._stream.read(timeout)

    def _interrupt(self) -> None:
        self._stream.interrupt()

    @property
    def _is_landing(self) -> bool:
        return self._landing is not None and not self._landing[1].done()

    def _is_done(self, target: LSN | None) -> bool:
        """Return whether the stream was read up to the target and the LSN that completes the copies."""
        if target is None or not self._copier.is_done:
            return False
        return self._stream.received_lsn >= max(target, self._state.required_lsn)

    def _land_when_due(self, lander: ThreadPoolExecutor, is_done: bool) -> None:
        if self._is_landing:
            if is_done or self._stream.needs_acknowledgement:
                self._settle()
            return
        self._settle()
        waited = time.monotonic() - self._sealed_at
        must_land = is_done or self._stream.needs_acknowledgement or self._is_offset_required
        pending_rows = self._spool.pending_rows
        is_due = pending_rows >= LAND_ROWS or waited >= self._land_seconds
        if not must_land and (not is_due or self._spool.is_busy):
            return
        is_idle_due = must_land or self._is_idle_due(waited)
        staged = self._spool.seal() if pending_rows or is_idle_due else None
        if staged is not None:
            self._submit(lander, staged)
        elif is_idle_due:
            self._advance_idle()

    def _is_idle_due(self, waited: float) -> bool:
        """Return whether it is time to record an offset, though nothing was committed."""
        behind = self._stream.received_lsn - self._spool.offset
        return behind > 0 and (waited >= IDLE_SECONDS or behind >= IDLE_BYTES or self._is_offset_required)

    @property
    def _is_offset_required(self) -> bool:
        """Return whether copies wait for an offset up to which the stream was read."""
        return self._spool.offset < self._state.required_lsn <= self._stream.received_lsn

    def _submit(self, lander: ThreadPoolExecutor, staged: StagedTransactions) -> None:
        self._sealed_at = time.monotonic()
        landing = lander.submit(self._writer.land, staged, self._staging)
        landing.add_done_callback(partial(self._end_landing, self._sealed_at))
        self._landing = staged, landing

    def _end_landing(self, began: float, _: Future[None]) -> None:
        self._land_seconds = land_interval(time.monotonic() - began)
        self._interrupt()

    def _settle(self) -> None:
        """Wait for the landing in progress and acknowledge what it committed."""
        if self._landing is None:
            return
        staged, landing = self._landing
        landing.result()
        self._landing = None
        self._acknowledge(staged)

    def _acknowledge(self, staged: StagedTransactions) -> None:
        self._state.set_captured_offset(staged.end_lsn)
        with crash_step(CrashStep.ACKNOWLEDGE):
            self._acknowledge_received(staged.end_lsn)
        summary = self._summary
        summary.captured_offset, summary.commit_time = staged.end_lsn, staged.commit_time
        summary.transactions += staged.transaction_count
        summary.changes += staged.change_count
        summary.commits += 1
        if self._progress:
            self._progress(summary)

    def _advance_idle(self) -> None:
        """Record that nothing was committed up to the received LSN, and acknowledge it.

        If bronze is at this LSN already, only the slot is behind: the run that committed it died before the
        acknowledgement, or the server lost the acknowledgement in a crash.
        """
        staged = self._spool.seal_empty(self._decoder.complete_lsn(self._stream.received_lsn))
        if staged is None:
            self._acknowledge_received(self._spool.offset)
            return
        self._writer.land(staged, self._staging)
        self._sealed_at = time.monotonic()
        self._acknowledge(staged)

    def _acknowledge_received(self, lsn: LSN) -> None:
        """Acknowledge the offset of bronze, at most up to what the slot has sent in this run."""
        self._stream.acknowledge(min(lsn, self._stream.received_lsn))

    def _start_session(self, lander: ThreadPoolExecutor) -> None:
        """Continue in another session of the server: it describes every table again."""
        self._finish(lander)
        self._stream.close()
        self._stream = self._start_stream(self._spool.offset)
        self._decoder.end_session()
        self._state.start_session()

    def _finish(self, lander: ThreadPoolExecutor) -> None:
        """Land what is committed, and record and acknowledge the LSN up to which the server has read."""
        self._settle()
        staged = self._spool.seal()
        if staged is not None:
            self._submit(lander, staged)
            self._settle()
        self._advance_idle()
        self._stream.confirm(_CONFIRM_TIMEOUT)


def land_interval(seconds: float) -> float:
    """Return after how long the next landing begins, given how long the last one took."""
    return max(LAND_SECONDS, min(2 * seconds, _MAX_LAND_SECONDS))


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Let Python search for reference cycles less often, and not among the objects that there are already.

    Messages have none, and many wait at a time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTION, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
