"""Copy tables under one snapshot: readers stage chunks, and bronze commits them in their order.

Readers are threads, each with its own session, that stage one chunk at a time as a file. `CopySpool` turns
the blocks of rows that a reader returns into rows of `bronze/changes`, with op `R` at the LSN of the
snapshot; its memory is limited to one row group. Each commit records how many chunks bronze has, so a run
that ends early loses only the chunks in progress. A table that cannot be copied stops no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.decode import decode_copied
from pipeline.bronze.columnar.protected_values import row_rules
from pipeline.bronze.copy_states import Chunk, Comparison, CopyState, SnapshotChunks
from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFile, StagedFileWriter, StagingFolder
from pipeline.bronze.writer import BronzeWriter
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.txn import TableCommit
from pipeline.errors import PgdeltaError, SourceError, report_error
from pipeline.postgres.publication import PublishedTable
from pipeline.postgres.snapshot.export import SnapshotLost, SourceSnapshot
from pipeline.postgres.snapshot.read_table import Block, CopyReader, LeafPages
from pipeline.progress import CopyProgress
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.gap_verdicts import AdoptedRows, is_adopted

GROUP_BYTES = 8 << 20
_GROUP_ROWS = 262_144
_PAUSE = 0.1  # seconds


@dataclass(slots=True)
class TableCopy:
    """A table that is copied under the snapshot; `failure` is why it is not any more."""

    state: CopyState
    table: PublishedTable
    header: CopyHeader
    snapshot: SnapshotChunks
    progress: CopyProgress
    request_ids: tuple[str, ...] = ()
    comparison: Comparison | None = None  # that found the keys to copy
    adopted: AdoptedRows | None = None  # rows that are not read from the source
    landed: int = 0  # of the snapshot's chunks
    staged: dict[int, StagedFile | None] = field(default_factory=dict)
    failure: SourceError | None = None

    @property
    def is_landed(self) -> bool:
        """Return whether everything is in bronze."""
        return self.landed == len(self.snapshot.chunks)


ChunkTask = tuple[TableCopy, int]
"""A table and the number of the chunk to read."""
ChunkResult = tuple[TableCopy, int, StagedFile | None]


class _Ended(Exception):
    """The pool ends before the chunk does."""


class Throttle:
    """Keeps what all readers read together below a rate in bytes a second; 0 is no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, byte_count: int, stop: threading.Event) -> None:
        """Wait until so many bytes may be read."""
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
        writer: BronzeWriter,
        staging: StagingFolder,
        conninfo: str,
        snapshot: SourceSnapshot,
        tables: Sequence[TableCopy],
        *,
        reader_count: int,
        throttle: Throttle,
        stop: threading.Event,
        spool_limit: int = 0,
    ) -> None:
        """Read with so many readers; none reads while files of `spool_limit` bytes wait for a commit."""
        self._writer = writer
        self._staging = staging
        self._conninfo = conninfo
        self._snapshot = snapshot
        self._tables = tables
        self._reader_count = reader_count
        self._throttle = throttle
        self._stop = stop
        self._spool_limit = spool_limit
        self._is_landing = False
        self._ending = threading.Event()  # the snapshot is lost, or no result is needed any more
        self._ordinal = 0
        self._ordinal_lock = threading.Lock()
        self._lost: SnapshotLost | None = None
        self._unconnected: SourceError | None = None

    def run(self) -> Iterator[TableCopy]:
        """Yield each table once it is in bronze or failed; raise SnapshotLost if others cannot continue."""
        tasks: queue.SimpleQueue[ChunkTask] = queue.SimpleQueue()
        results: queue.SimpleQueue[ChunkResult | None] = queue.SimpleQueue()
        for table in self._tables:
            if table.is_landed:
                yield table
            for number in range(len(table.snapshot.chunks)):
                tasks.put((table, number))
        open_tables = [table for table in self._tables if not table.is_landed]
        with ThreadPoolExecutor(self._reader_count, thread_name_prefix="copy") as pool:
            readers = [pool.submit(self._read, tasks, results) for _ in range(self._reader_count)]
            try:
                yield from self._land(open_tables, results, readers)
            finally:
                self._ending.set()
        for reader in readers:
            reader.result()
        if self._lost:
            raise self._lost
        if self._unconnected and any(not (t.is_landed or t.failure) for t in self._tables):
            raise self._unconnected

    def _land(
        self,
        open_tables: list[TableCopy],
        results: queue.SimpleQueue[ChunkResult | None],
        readers: Sequence[Future[None]],
    ) -> Iterator[TableCopy]:
        running = len(readers)
        while open_tables and running:
            items = [results.get()]
            with suppress(queue.Empty):
                while True:
                    items.append(results.get_nowait())
            running -= items.count(None)
            for item in items:
                if item is not None:
                    table, number, file = item
                    table.staged[number] = file
            self._is_landing = True
            self._land_in_order([table for table in open_tables if table.failure is None])
            self._is_landing = False
            for table in [t for t in open_tables if t.is_landed or t.failure]:
                open_tables.remove(table)
                yield table

    def _land_in_order(self, tables: Sequence[TableCopy]) -> None:
        """Land all that is staged and follows what is landed, in one commit."""
        bronze = self._writer.bronze
        files, commits, landed = [], [], []
        for table in tables:
            rows, count = 0, table.landed
            while count in table.staged:
                file = table.staged.pop(count)
                if file is not None:
                    files.append(self._staging.move(file, bronze.changes))
                    rows += file.data.row_count
                count += 1
            if count > table.landed:
                before = table.snapshot.chunks_before
                commits.append(
                    TableCommit(
                        bronze.copy_txn(table.state.name),
                        LSN(before + count),
                        {"operation": "copy"},
                        expected_offset=LSN(before + table.landed),
                    )
                )
                landed.append((table, count, rows))
        if commits:
            self._writer.commit(files, *commits)
        for table, count, rows in landed:
            table.landed = count
            table.state.row_count += rows
            table.progress.landed(count, table.state.row_count)

    def _read(
        self, tasks: queue.SimpleQueue[ChunkTask], results: queue.SimpleQueue[ChunkResult | None]
    ) -> None:
        """Stage chunks until there are no more, in one reader."""
        reader: CopyReader | None = None
        try:
            while not self._is_ending:
                # without a landing under way, what is staged may wait for a chunk that is not read yet
                while self._is_full() and (self._is_landing or not results.empty()):
                    if self._stop.wait(_PAUSE) or self._is_ending:
                        return
                try:
                    task = tasks.get_nowait()
                except queue.Empty:
                    return
                table, number = task
                if table.failure is not None:
                    continue
                if reader is None:
                    try:
                        reader = CopyReader(self._conninfo)
                    except SourceError as error:  # the others continue, and read this chunk too
                        tasks.put(task)
                        self._unconnected = error
                        return
                file = None
                try:
                    file = self._stage(reader, table, table.snapshot.chunks[number])
                except SnapshotLost as lost:
                    self._lost = lost
                    self._ending.set()
                    return
                except SourceError as error:
                    table.failure = error
                except _Ended:
                    return
                except (PgdeltaError, OSError, MemoryError):  # of the lake or the machine, for all tables
                    raise
                except Exception as error:  # the others are copied all the same
                    table.failure = SourceError(report_error(error))
                results.put((table, number, file))
        finally:
            if reader is not None:
                reader.close()
            results.put(None)

    def _stage(self, reader: CopyReader, table: TableCopy, chunk: Chunk) -> StagedFile | None:
        spool = CopySpool(self._staging.path, table.header)
        table.progress.begin()
        try:
            if table.adopted is not None and is_adopted(chunk):
                texts = table.adopted.read(chunk.first_page)
                spool.add_texts(texts, self._next_ordinals(len(texts)))
                table.progress.adopt(len(texts))
                return spool.finish()
            leaf = next(leaf for leaf in table.table.leaves if leaf.oid == chunk.relation_id)
            pages = LeafPages(leaf, chunk.first_page, chunk.end_page)
            for block in reader.read(self._snapshot, table.table, pages):
                spool.add(block, self._next_ordinals(block.row_count))
                table.progress.read(block.row_count, block.byte_count)
                self._throttle.wait(block.byte_count, self._stop)
                if self._is_ending:
                    raise _Ended
        except BaseException:
            spool.discard()
            raise
        table.progress.chunks_read += 1
        return spool.finish()

    def _is_full(self) -> bool:
        return bool(self._spool_limit) and self._staging.size() >= self._spool_limit

    @property
    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._ending.is_set()

    def _next_ordinals(self, row_count: int) -> int:
        """Return the first of so many ordinals: rows of one snapshot are counted together, across tables."""
        with self._ordinal_lock:
            first = self._ordinal
            self._ordinal += row_count
        return first


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """What all rows of a copy share in bronze: the copy, the relation version and the snapshot's LSN."""

    copy_id: int
    version: RelationVersion
    lsn: LSN
    taken_at: datetime


class CopySpool:
    """Stages the rows of one chunk in a file."""

    def __init__(self, folder: Path, header: CopyHeader) -> None:
        self._header = header
        self._file = StagedFileWriter(folder)
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, block: Block, first_ordinal: int) -> None:
        """Add a block of rows, whose ordinals count from the one given."""
        table = block_table(block, self._header, first_ordinal)
        self._tables.append(table)
        self._rows += block.row_count
        self._bytes += block.byte_count
        if self._bytes >= GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._flush()

    def add_texts(self, new: pa.Array, first_ordinal: int) -> None:
        """Add rows, each an array of texts, whose ordinals count from the one given."""
        raw = pa.nulls(len(new), CHANGES.field("raw_new").type)
        self._tables.append(_changes(new, raw, self._header, first_ordinal))
        self._rows += len(new)
        self._bytes += new.nbytes

    def finish(self) -> StagedFile | None:
        """Return the file; None if there are no rows."""
        with crash_step(CrashStep.STAGE_COPIED_ROWS):
            self._flush()
            if self._file.row_count == 0:
                self._file.discard()
                return None
            return self._file.close()

    def discard(self) -> None:
        """Remove the file."""
        self._file.discard()

    def _flush(self) -> None:
        if self._tables:
            self._file.write(pa.concat_tables(self._tables))
        self._tables, self._rows, self._bytes = [], 0, 0


def block_table(block: Block, header: CopyHeader, first_ordinal: int) -> pa.Table:
    """Return the rows of a block as `bronze/changes` has them."""
    width = len(header.version.relation.columns)
    count, protection = block.row_count, header.version.protection
    of_row = np.zeros(count, np.int32)
    new, raw = decode_copied(block, width, row_rules(of_row, [protection and protection.of_kept()]))
    return _changes(new, raw, header, first_ordinal)


def _changes(new: pa.Array, raw: pa.Array, header: CopyHeader, first_ordinal: int) -> pa.Table:
    """Return rows of `bronze/changes` with these tuples."""
    count, relation = len(new), header.version.relation
    columns: dict[str, pa.Array] = {
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + count)),
        "new": new,
        "raw_new": raw,
    }
    same = {
        "commit_lsn": header.lsn,
        "end_lsn": header.lsn,
        "commit_time": header.taken_at,
        "op": "R",
        "relation_id": relation.oid,
        "relation_version": header.version.id,
        "schema_name": header.version.schema_name,
        "table_name": header.version.table_name,
        "copy_id": header.copy_id,
    }
    for column in CHANGES:
        if column.name in same:
            columns[column.name] = pa.repeat(pa.scalar(same[column.name], column.type), count)
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in CHANGES]
    return pa.Table.from_arrays(arrays, schema=CHANGES)
