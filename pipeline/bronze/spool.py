"""Events of transactions in, staged files of complete transactions out; memory is bounded.

The rows of finished transactions go to one file per batch, and to another one after each commit of a
transaction that has a file of its own: files are not mixed in the order of rows. A transaction that outgrows
a batch before its commit is kept in pieces until its end LSN is known, and then has such a file; so has a
prepared one. One that streams before its commit is kept by `OpenStreams`. `seal` hands over everything that
is finished and nothing else, so a batch always ends on a transaction boundary.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.background_writer import BackgroundWriter
from pipeline.bronze.pieces import Pieces, table_of
from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.rows import (
    OtherRow,
    RowMessages,
    Transaction,
    Transactions,
    VersionIndex,
    changes_table,
    ended_table,
    message_row,
    others_table,
    prepared_row,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.staged_files import StagedFile, StagedFileWriter
from pipeline.bronze.staged_transactions import PreparedFile, PreparedOutcome, StagedTransactions
from pipeline.bronze.streamed_transactions import OpenStreams
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.protocol import events
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH
from pipeline.protocol.plain_transactions import PlainTransactions

ROW_LIMIT = 65_536
BYTE_LIMIT = 8 << 20
OTHER_LIMIT = 4_096
MAX_RECORDED_IDS = 65_536  # of relation versions

HandOver: TypeAlias = Callable[[StagedFile, int], None]  # of a file that is written, with its changes


@dataclass(slots=True)
class _Finished:
    """What the next seal hands over; `row_count` is that of its files, which may still be written."""

    files: list[StagedFile] = field(default_factory=list)
    versions: list[RelationVersion] = field(default_factory=list)
    prepared: list[PreparedFile] = field(default_factory=list)
    outcomes: list[PreparedOutcome] = field(default_factory=list)
    end_lsn: LSN = INVALID
    row_count: int = 0
    transaction_count: int = 0
    change_count: int = 0
    changes_of_streams: list[int] = field(default_factory=list)  # in files, besides `change_count`

    def add_stream(self, file: StagedFile, change_count: int) -> None:
        """Add a file of a transaction that streamed; another thread may do so."""
        self.files.append(file)
        self.changes_of_streams.append(change_count)

    def discard(self) -> None:
        """Remove the files."""
        for file in (*self.files, *(prepared.file for prepared in self.prepared)):
            file.path.unlink(missing_ok=True)


@dataclass(slots=True)
class _OtherRows:
    """Truncations and logical messages: rare, row by row. The first ones belong to finished transactions."""

    rows: list[OtherRow] = field(default_factory=list)
    finished: int = 0
    byte_count: int = 0  # of the contents of messages

    def finish(self, committed: events.Committed) -> None:
        """Complete the rows of a transaction that ends."""
        if len(self.rows) > self.finished:
            values = transaction_values(committed)
            for row in self.rows[self.finished :]:
                row |= values
            self.finished = len(self.rows)

    def take_finished(self) -> list[OtherRow]:
        """Return the rows of finished transactions, and keep the others."""
        taken, self.rows, self.finished = self.rows[: self.finished], self.rows[self.finished :], 0
        self.byte_count = sum(len(row.get("content", b"")) for row in self.rows)
        return taken


@dataclass(slots=True)
class _SmallStreams:
    """The rows of finished transactions that streamed and were small."""

    tables: list[pa.Table] = field(default_factory=list)
    row_count: int = 0
    byte_count: int = 0

    def add(self, tables: Sequence[pa.Table]) -> None:
        self.tables += tables
        self.row_count += sum(table.num_rows for table in tables)
        self.byte_count += sum(table.nbytes for table in tables)


class Spool:
    """Stages the events of one run of ingest, for one thread; rows are written by two others.

    One writes what arrives, the other a large transaction that has ended. `offset` is the LSN up to which
    everything is handed over.
    """

    def __init__(
        self,
        folder: Path,
        offset: LSN = INVALID,
        recorded_version_ids: Collection[int] = (),
        *,
        reads_types: bool = False,
    ) -> None:
        """Stage files in a folder; relation versions that are recorded already are not handed over.

        If decoding `reads_types` of the source, as values in binary format need, the caller's thread does it.
        """
        self.offset = offset
        self._folder = folder
        self._versions = VersionIndex()
        self._recorded_version_ids = set(recorded_version_ids)
        self._background = BackgroundWriter(has_thread=not reads_types)
        self._apart = BackgroundWriter(has_thread=not reads_types)  # transactions with a file of their own
        self.streams = OpenStreams(folder, self._versions, self._background, reads_types=reads_types)
        self._rows = RowMessages()
        self._finished_rows = 0  # how many of _rows belong to finished transactions: the first ones
        self._transactions = Transactions()  # the finished ones in _rows
        self._others = _OtherRows()
        self._streamed = _SmallStreams()
        self._batch: StagedFileWriter | None = None  # of finished transactions
        self._open: Pieces | None = None  # of a transaction that outgrew a batch
        self._next = _Finished()
        self._began: events.Began | events.BeganPrepare | None = None
        self._commit_time: int | None = None  # of the newest transaction, in microseconds since 2000-01-01

    @property
    def pending_rows(self) -> int:
        """Return how many rows and outcomes `seal` would hand over."""
        in_memory = self._finished_rows + self._others.finished + self._streamed.row_count
        return self._next.row_count + in_memory

    @property
    def is_busy(self) -> bool:
        """Return whether a large transaction that ended is still being written: `seal` would wait for it."""
        return self._apart.is_busy

    def wait_while_busy(self, timeout: float) -> None:
        """Wait until no large transaction is being written, for so many seconds at most."""
        self._apart.settle(timeout)

    @property
    def has_commits(self) -> bool:
        """Return whether a transaction ended since the last seal, even an empty one."""
        return self._next.end_lsn > INVALID

    def describe(self, version: RelationVersion, xid: int | None = None) -> None:
        """Make a version the one that later changes of its relation name: all changes, or those of a stream.

        One of a stream is handed over once the stream ends well.
        """
        if xid is None:
            self._versions.in_force[version.relation.oid] = self._versions.index_of(version)
            self._record([version], version.lsn)
        else:
            self.streams.describe(xid, version)

    def begin(self, began: events.Began | events.BeganPrepare) -> None:
        """Begin a transaction."""
        self._began = began

    def add_change(self, change: events.Change) -> None:
        """Add a row message."""
        rows = self._rows
        rows.messages.append(change.data)
        rows.ordinals.append(change.ordinal)
        rows.versions.append(self._versions.in_force[change.relation.oid])
        rows.origins.append(change.origin)
        rows.byte_count += len(change.data)
        if rows.byte_count >= BYTE_LIMIT or len(rows.messages) >= ROW_LIMIT:
            self._relieve_memory()

    def add_transactions(self, plain: PlainTransactions) -> None:
        """Add whole transactions: their changes are in the next seal. None is open."""
        rows = self._rows
        assert len(rows.messages) == self._finished_rows
        in_force = self._versions.in_force
        version_of = {oid: in_force[int.from_bytes(oid, "big")] for oid in set(plain.oids)}
        rows.messages += plain.changes
        rows.ordinals += chain.from_iterable(map(range, plain.change_counts))
        rows.versions += map(version_of.__getitem__, plain.oids)
        rows.origins += repeat(None, len(plain.changes))
        rows.byte_count += sum(map(len, plain.changes))
        self._transactions.extend(plain)
        self._finished_rows = len(rows.messages)
        self._next.transaction_count += len(plain.xids)
        self._next.change_count += len(plain.changes)
        self._commit_time = plain.commit_times[-1]
        self._extend_to(LSN(max(plain.end_lsns)))
        if rows.byte_count >= BYTE_LIMIT or len(rows.messages) >= ROW_LIMIT:
            self._write_finished()

    def add_truncation(self, truncation: events.Truncation) -> None:
        """Add a Truncate: one row per relation."""
        versions = self._versions.of(truncation.relations, self._versions.in_force)
        self._others.rows += truncation_rows(truncation, truncation.ordinal, versions)
        if len(self._others.rows) >= OTHER_LIMIT:
            self._relieve_memory()

    def add_message(self, emitted: events.Emitted) -> None:
        """Add a logical message; one outside any transaction is finished at once."""
        row, others = message_row(emitted.message, emitted.sequence), self._others
        if emitted.message.transactional:
            others.rows.append(row)
        else:
            others.rows.insert(others.finished, row)
            others.finished += 1
            self._extend_to(emitted.message.lsn)
        others.byte_count += len(emitted.message.content)
        if len(others.rows) >= OTHER_LIMIT or others.byte_count >= BYTE_LIMIT:
            self._relieve_memory()

    def commit(self, committed: events.Committed) -> None:
        """Finish the open transaction: its changes are in the next seal."""
        if self._open:
            self._end_batch_file()
            files = self._next.files
            self._finish_open(committed, lambda file, _: files.append(file))
        else:
            self._others.finish(committed)
            self._transactions.append(len(self._rows.messages) - self._finished_rows, committed)
            self._finished_rows = len(self._rows.messages)
        self._began = None
        self._count(committed, committed.change_count)

    def prepare(self, prepared: events.Prepared) -> None:
        """Finish the open transaction, which is prepared: the next seal hands it over apart."""
        assert isinstance(self._began, events.BeganPrepare)
        self._others.rows.append(prepared_row(self._began))
        self._finish_open(self._began, self._hand_over_prepared(prepared))
        self._began = None
        self._extend_to(prepared.end_lsn)

    def commit_stream(self, committed: events.StreamCommitted, described: Sequence[RelationVersion]) -> None:
        """Finish a transaction that streamed; `described` are the versions for `OpenStreams.commit`."""
        stream = self.streams.commit(committed, described)
        self._record(described, committed.commit_lsn)
        tables = stream.finish(committed)
        if stream.is_on_disk:
            change_count = 0  # known when the file is written
            self._end_batch_file()
            self._write_apart(tables, stream.length, self._next.add_stream)
        else:
            small = list(tables)
            change_count = sum(map(_change_count, small))
            self._streamed.add(small)
            if self._streamed.row_count >= ROW_LIMIT or self._streamed.byte_count >= BYTE_LIMIT:
                self._write_finished()
        self._count(committed, change_count)

    def skip_stream(self, committed: events.StreamCommitted, described: Sequence[RelationVersion]) -> None:
        """Drop the rows of a transaction that streamed and is in bronze already; its descriptions hold."""
        self.streams.commit(committed, described).discard()
        self._record(described, committed.commit_lsn)

    def prepare_stream(self, prepared: events.StreamPrepared, described: Sequence[RelationVersion]) -> None:
        """Finish a transaction that streamed and is prepared: the next seal hands it over apart."""
        self._record(described, prepared.prepare_lsn)
        stream = self.streams.end(prepared.xid, described)
        tables = chain([others_table([prepared_row(prepared)])], stream.finish(prepared))
        self._write_apart(tables, stream.length + 1, self._hand_over_prepared(prepared))
        self._extend_to(prepared.end_lsn)

    def end_prepared(self, outcome: PreparedOutcome) -> None:
        """Add the outcome of a prepared transaction."""
        self._next.outcomes.append(outcome)
        self._next.row_count += 1
        if isinstance(outcome, events.CommittedPrepared):
            self._count(outcome, 0)
        else:
            self._extend_to(outcome.rollback_end_lsn)

    def seal(self) -> StagedTransactions | None:
        """Hand over everything that is finished and move the offset to its end; None if nothing ended."""
        if not self.has_commits:
            return None
        with crash_step(CrashStep.SEAL_CHANGES):
            self._write_finished()
            self._background.flush()
            self._apart.flush()
            if self._batch:
                self._next.files.append(self._batch.close())
                self._batch = None
        finished, self._next = self._next, _Finished()
        staged = StagedTransactions(
            start_lsn=self.offset,
            end_lsn=max(self.offset, finished.end_lsn),
            files=tuple(finished.files),
            versions=tuple(finished.versions),
            prepared=tuple(finished.prepared),
            outcomes=tuple(finished.outcomes),
            transaction_count=finished.transaction_count,
            change_count=finished.change_count + sum(finished.changes_of_streams),
            commit_time=self._newest_commit_time(),
        )
        self.offset = staged.end_lsn
        self._forget_old_versions()
        return staged

    def _forget_old_versions(self) -> None:
        """Forget relation versions that no change can name any more: a run may see any number of them."""
        has_rows = bool(self._rows.messages or self._others.rows or self._open or self._began)
        if not (has_rows or self.streams.has_open):
            self._versions.forget_old()
        if len(self._recorded_version_ids) > MAX_RECORDED_IDS:
            # what is recorded once more does no harm; those of open streams are not recorded yet
            self._recorded_version_ids &= {version.id for version in self._versions.all}

    def seal_empty(self, end_lsn: LSN) -> StagedTransactions | None:
        """Move the offset over WAL without any transaction; None if it is there already."""
        if end_lsn <= self.offset:
            return None
        start_lsn, self.offset = self.offset, end_lsn
        return StagedTransactions(start_lsn, end_lsn, commit_time=self._newest_commit_time())

    def discard(self) -> None:
        """Drop what is not handed over, and take nothing more: the server sends it again."""
        self._background.close()
        self._apart.close()
        if self._batch:
            self._batch.discard()
        if self._open:
            self._open.remove()
        self.streams.discard()
        self._next.discard()

    def _record(self, versions: Iterable[RelationVersion], lsn: LSN) -> None:
        """Hand versions over with the next seal, as in force from `lsn` on, unless they are recorded."""
        for version in versions:
            if version.id not in self._recorded_version_ids:
                self._recorded_version_ids.add(version.id)
                self._next.versions.append(replace(version, lsn=lsn))

    def _count(
        self,
        committed: events.Committed | events.StreamCommitted | events.CommittedPrepared,
        change_count: int,
    ) -> None:
        self._next.transaction_count += 1
        self._next.change_count += change_count
        self._commit_time = committed.commit_time
        self._extend_to(committed.end_lsn)

    def _extend_to(self, lsn: LSN) -> None:
        self._next.end_lsn = max(self._next.end_lsn, lsn)

    def _newest_commit_time(self) -> datetime | None:
        if self._commit_time is None:
            return None
        try:
            return POSTGRES_EPOCH + timedelta(microseconds=self._commit_time)
        except OverflowError:  # Python's calendar is shorter than the protocol's
            return None

    def _relieve_memory(self) -> None:
        """Write the finished transactions' rows, and the open one's if they alone are many."""
        self._write_finished()
        # The open transaction of a batch of small ones has few rows yet: no file of its own for those.
        rows, others = self._rows, self._others
        if (
            len(rows.messages) > ROW_LIMIT // 2
            or rows.byte_count > BYTE_LIMIT // 2
            or len(others.rows) > OTHER_LIMIT // 2
            or others.byte_count > BYTE_LIMIT // 2
        ):
            self._write_open()

    def _write_open(self) -> None:
        """Begin to write all rows in memory, which are the open transaction's, to disk."""
        assert self._began is not None
        self._open = self._open or Pieces(self._folder, self._began.xid)
        count, tables = self._take_open(self._began)
        self._open.row_count += count
        self._background.submit(partial(_each, tables, self._open.add_table))

    def _finish_open(self, ended: Transaction, hand_over: HandOver) -> None:
        """Begin to write the open transaction, which ended, to a file of its own."""
        self._write_finished()
        pieces, self._open = self._open, None
        count, tables = self._take_open(ended)
        if pieces is not None:
            count += pieces.row_count
            end_lsn = transaction_values(ended)["end_lsn"]
            tables = chain((ended_table(table_of(piece), end_lsn) for piece in pieces.take()), tables)
        self._write_apart(tables, count, hand_over)

    def _write_apart(self, tables: Iterable[pa.Table], row_count: int, hand_over: HandOver) -> None:
        """Begin to write rows of a transaction that ended to a file of its own."""
        self._next.row_count += row_count
        folder = self._folder
        self._apart.submit_after(
            self._background, lambda: hand_over(*_write(StagedFileWriter(folder), tables))
        )

    def _end_batch_file(self) -> None:
        """Go on with the batch in another file, after a transaction that was committed and has its own."""
        self._write_finished()
        batch, self._batch, files = self._batch, None, self._next.files
        if batch is not None:
            self._background.submit(lambda: files.append(batch.close()))

    def _hand_over_prepared(self, prepared: events.Prepared | events.StreamPrepared) -> HandOver:
        apart, gid, xid = self._next.prepared, prepared.gid, prepared.xid
        return lambda file, _: apart.append(PreparedFile(gid, xid, file))

    def _take_open(self, transaction: Transaction) -> tuple[int, Iterator[pa.Table]]:
        """Return how many rows are in memory, which are the open transaction's, and these rows."""
        values = transaction_values(transaction)
        rows, others = self._rows, [row | values for row in self._others.rows]
        self._rows, self._others = RowMessages(), _OtherRows()
        transactions = Transactions.of(len(rows.messages), transaction)
        tables = _tables(rows, self._versions.all, transactions, others)
        return len(rows.messages) + len(others), tables

    def _write_finished(self) -> None:
        """Begin to write the rows of finished transactions to the batch's file."""
        count, transactions = self._finished_rows, self._transactions
        others, streamed = self._others.take_finished(), self._streamed
        self._finished_rows, self._transactions, self._streamed = 0, Transactions(), _SmallStreams()
        if not (count or others or streamed.tables):
            return
        rows, self._rows = self._rows, RowMessages()
        if count < len(rows.messages):
            self._rows = rows.part(slice(count, None))
            rows = rows.part(slice(count))
        self._batch = self._batch or StagedFileWriter(self._folder)
        self._next.row_count += count + len(others) + streamed.row_count
        # to `all` others are added, but none changes its index
        tables = _tables(rows, self._versions.all, transactions, others, streamed.tables)
        self._background.submit(partial(_each, tables, self._batch.write))


def _tables(
    rows: RowMessages,
    versions: Sequence[RelationVersion],
    transactions: Transactions,
    others: Sequence[OtherRow],
    streamed: Sequence[pa.Table] = (),
) -> Iterator[pa.Table]:
    """Yield rows as tables, which are decoded when they are taken."""
    if rows.messages:
        yield changes_table(rows, versions, transactions)
    if others:
        yield others_table(others)
    if streamed:
        yield pa.concat_tables(streamed).combine_chunks()


def _each(tables: Iterable[pa.Table], write: Callable[[pa.Table], None]) -> None:
    for table in tables:
        write(table)


def _write(writer: StagedFileWriter, tables: Iterable[pa.Table]) -> tuple[StagedFile, int]:
    """Write tables, and return the file and how many changes it holds."""
    count = 0
    for table in tables:
        writer.write(table)
        count += _change_count(table)
    return writer.close(), count


def _change_count(table: pa.Table) -> int:
    """Return how many rows have an ordinal of their transaction: all but logical messages."""
    return int(table.num_rows - (pc.sum(pc.equal(table.column("op"), "M")).as_py() or 0))
