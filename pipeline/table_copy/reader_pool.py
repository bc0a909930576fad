"""One snapshot and all that is copied under it: readers side by side, ranges landed in their order.

Readers are threads, each with a session of its own, that stage one range of pages at a time as a file. What
is staged lands in the order of the ranges, each with the count of ranges that are in bronze then: a run that
ends early lost no more than the ranges under way. A table that cannot be copied stops no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import (
    ABANDONED,
    COMPLETE,
    DROPPED,
    READING,
    CopyState,
    PageRange,
    SnapshotRanges,
    key_range_rows,
)
from pipeline.bronze.log import Bronze
from pipeline.bronze.staged_files import Part
from pipeline.bronze.staging import Staging
from pipeline.delta.txn import TableCommit
from pipeline.errors import SourceError
from pipeline.postgres.published_tables import PublishedTable
from pipeline.postgres.snapshot.export import RowsMoved, Snapshot, SnapshotLost
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.progress import CopyProgress
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.rows import CopyHeader, CopySpool
from pipeline.table_name import TableName

# The rows of `bronze/copies`, one for each thing that happens to a copy.
Row = dict[str, object]


def dropped_row(copies: CopyHistory, name: TableName, lsn: LSN) -> Row:
    """Say that a table is not there; whoever asked for it waits no longer."""
    last = copies.last(name)
    is_begun = last is not None and last.state == READING
    state = last if last is not None and is_begun else CopyState(copies.next_id(), name, DROPPED)
    requests = [request.id for request in copies.open_requests().get(name, [])]
    sentence = f"{name} is not published (any more)"
    return {**_identity(state), "state": DROPPED, "lsn": lsn, "requests": requests, "sentence": sentence}


def reading_row(table: TableCopy) -> Row:
    """Say that a table is read, under which snapshot, and what."""
    reading = table.snapshot
    return {
        **_identity(table.state),
        "relation_id": table.table.relation.oid,
        "membership": table.state.membership,
        "relation_version": table.place.version.id,
        "state": READING,
        "lsn": reading.lsn,
        "running": list(reading.running),
        "ranges_before": reading.ranges_before,
        "ranges": [asdict(each) for each in reading.ranges],
        "key_ranges": key_range_rows(table.state.key_ranges),
        "requests": list(table.state.requests),
    }


def complete_row(table: TableCopy, late: Sequence[LSN]) -> Row:
    """Say that all was read, and which transactions before it the snapshot lacks."""
    state = table.state
    return {
        **_identity(state),
        "state": COMPLETE,
        "late": [int(lsn) for lsn in late],
        "row_count": state.row_count,
        "requests": list(state.requests),
    }


def abandoned_row(state: CopyState, sentence: str) -> Row:
    """Say why what was read does not count."""
    return {**_identity(state), "state": ABANDONED, "requests": list(state.requests), "sentence": sentence}


def _identity(state: CopyState) -> Row:
    return {"copy_id": state.id, "schema_name": state.name[0], "table_name": state.name[1]}


@dataclass(slots=True)
class TableCopy:
    """A table that is copied under this round's snapshot; `failure` says why it is not any more."""

    state: CopyState
    table: PublishedTable
    place: CopyHeader
    snapshot: SnapshotRanges
    progress: CopyProgress
    landed: int = 0  # of the reading's ranges
    staged: dict[int, Part | None] = field(default_factory=dict)
    failure: SourceError | None = None

    @property
    def is_read(self) -> bool:
        """Say whether everything is in bronze."""
        return self.landed == len(self.snapshot.ranges)


class _Ended(Exception):
    """The round ends before the range does."""


class Throttle:
    """Keeps what all readers take together below a rate in bytes a second; 0 is no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, byte_count: int, stop: threading.Event) -> None:
        """Wait until so many bytes may have come."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + byte_count / self._rate
            wait = self._free_at - now
        stop.wait(wait)


class ReaderPool:
    """Reads and lands the tables of one snapshot."""

    def __init__(
        self,
        bronze: Bronze,
        staging: Staging,
        conninfo: str,
        snapshot: Snapshot,
        tables: Sequence[TableCopy],
        *,
        reader_count: int,
        throttle: Throttle,
        stop: threading.Event,
    ) -> None:
        self._bronze = bronze
        self._staging = staging
        self._conninfo = conninfo
        self._snapshot = snapshot
        self._tables = tables
        self._reader_count = reader_count
        self._throttle = throttle
        self._stop = stop
        self._ending = threading.Event()  # of this round: the snapshot is gone, or the run ends
        self._ordinal = 0
        self._ordinal_lock = threading.Lock()
        self._lost: SnapshotLost | None = None
        self._unconnected: SourceError | None = None

    def run(self) -> Iterator[TableCopy]:
        """Give each table once it is in bronze or failed; raise SnapshotLost where others cannot go on."""
        work: queue.SimpleQueue[tuple[TableCopy, int] | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[TableCopy, int, Part | None] | None] = queue.SimpleQueue()
        for table in self._tables:
            if table.is_read:
                yield table
            for number in range(len(table.snapshot.ranges)):
                work.put((table, number))
        open_tables = [table for table in self._tables if not table.is_read]
        with ThreadPoolExecutor(self._reader_count, thread_name_prefix="copy") as pool:
            readers = [pool.submit(self._read, work, done) for _ in range(self._reader_count)]
            try:
                yield from self._land(open_tables, done, readers)
            finally:
                self._ending.set()
        for reader in readers:
            reader.result()
        if self._lost:
            raise self._lost
        if self._unconnected and any(not (t.is_read or t.failure) for t in self._tables):
            raise self._unconnected

    def _land(
        self,
        open_tables: list[TableCopy],
        done: queue.SimpleQueue[tuple[TableCopy, int, Part | None] | None],
        readers: Sequence[Future[None]],
    ) -> Iterator[TableCopy]:
        running = len(readers)
        while open_tables and running:
            items = [done.get()]
            with suppress(queue.Empty):
                while True:
                    items.append(done.get_nowait())
            running -= items.count(None)
            for item in items:
                if item is not None:
                    table, number, part = item
                    table.staged[number] = part
            self._land_in_order([table for table in open_tables if table.failure is None])
            for table in [t for t in open_tables if t.is_read or t.failure]:
                open_tables.remove(table)
                yield table

    def _land_in_order(self, tables: Sequence[TableCopy]) -> None:
        """Land all that is staged and follows what is landed, by one commit."""
        files, commits, rows_of = [], [], []
        for table in tables:
            rows, count = 0, table.landed
            while count in table.staged:
                part = table.staged.pop(count)
                if part is not None:
                    files.append(self._staging.move(part, self._bronze.changes))
                    rows += part.row_count
                count += 1
            if count > table.landed:
                app_id = self._bronze.copy_txn(table.state.id)
                before = table.snapshot.ranges_before
                facts = {"operation": "copy"}
                commits.append(
                    TableCommit(
                        app_id, LSN(before + count), facts, expected_offset=LSN(before + table.landed)
                    )
                )
                rows_of.append((table, count, rows))
        if commits:
            self._bronze.land(files, *commits)
        for table, count, rows in rows_of:
            table.landed = count
            table.state.row_count += rows
            table.progress.landed(count, table.state.row_count)

    def _read(
        self,
        work: queue.SimpleQueue[tuple[TableCopy, int] | None],
        done: queue.SimpleQueue[tuple[TableCopy, int, Part | None] | None],
    ) -> None:
        """Stage ranges until there are no more, by one reader."""
        reader: CopyReader | None = None
        try:
            while not (self._stop.is_set() or self._ending.is_set()):
                try:
                    item = work.get_nowait()
                except queue.Empty:
                    return
                assert item is not None
                table, number = item
                if table.failure is not None:
                    continue
                if reader is None:
                    try:
                        reader = CopyReader(self._conninfo)
                    except SourceError as error:  # the others go on, and read this range too
                        work.put(item)
                        self._unconnected = error
                        return
                try:
                    part = self._stage(reader, table, table.snapshot.ranges[number])
                except RowsMoved as moved:
                    table.failure = moved
                    part = None
                except SnapshotLost as lost:
                    self._lost = lost
                    self._ending.set()
                    return
                except SourceError as error:
                    table.failure = error
                    part = None
                except _Ended:
                    return
                done.put((table, number, part))
        finally:
            if reader is not None:
                reader.close()
            done.put(None)

    def _stage(self, reader: CopyReader, table: TableCopy, pages: PageRange) -> Part | None:
        leaf = next(leaf for leaf in table.table.leaves if leaf.oid == pages.relation_id)
        spool = CopySpool(self._staging.directory, table.place)
        table.progress.begin()
        try:
            for block in reader.read(
                self._snapshot, table.table, LeafPages(leaf, pages.first_page, pages.end_page)
            ):
                spool.add(block, self._number(block.row_count))
                table.progress.read(block.row_count, block.byte_count)
                self._throttle.wait(block.byte_count, self._stop)
                if self._stop.is_set() or self._ending.is_set():
                    raise _Ended
        except BaseException:
            spool.discard()
            raise
        table.progress.ranges_read += 1
        return spool.finish()

    def _number(self, row_count: int) -> int:
        """Give so many ordinals: rows of one snapshot have a common count, across tables."""
        with self._ordinal_lock:
            first = self._ordinal
            self._ordinal += row_count
        return first
