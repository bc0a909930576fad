"""Events of transactions in, staged files of complete transactions out; memory is bounded.

The rows of finished transactions go to one file per batch. A transaction that outgrows a batch before its
commit has a file of its own, whose end LSN is filled in when it is known; so has a prepared one. One that
streams before its commit is kept by `OpenStreams`. `seal` hands over everything that is finished and nothing
else, so a batch always ends on a transaction boundary.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.rows import (
    OtherRow,
    RowMessages,
    Transactions,
    VersionIndex,
    changes_table,
    message_row,
    others_table,
    prepared_row,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.staged_files import StagedFile, StagedFileWriter
from pipeline.bronze.streamed_transactions import OpenStreams
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Emitted,
    Prepared,
    RolledBackPrepared,
    StreamCommitted,
    StreamPrepared,
    Truncation,
)
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import POSTGRES_EPOCH
from pipeline.protocol.plain_transactions import PlainTransactions

ROW_LIMIT = 65_536
BYTE_LIMIT = 16 << 20
OTHER_LIMIT = 4_096
MAX_RECORDED_IDS = 65_536  # of relation versions

PreparedOutcome: TypeAlias = CommittedPrepared | RolledBackPrepared


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """The file of a prepared transaction, which is kept apart until its outcome is known."""

    gid: str
    xid: int
    file: StagedFile


@dataclass(frozen=True, slots=True)
class StagedTransactions:
    """Complete transactions that end after `start_lsn` (exclusive), up to `end_lsn` (inclusive).

    `versions` must be recorded before `files`, whose rows name them. `outcomes` are those of prepared
    transactions, in the order of the stream. `commit_time` is that of the newest transaction so far, None if
    there is none or Python's calendar does not have it.
    """

    start_lsn: LSN
    end_lsn: LSN
    files: tuple[StagedFile, ...] = ()
    versions: tuple[RelationVersion, ...] = ()
    prepared: tuple[PreparedFile, ...] = ()
    outcomes: tuple[PreparedOutcome, ...] = ()
    transaction_count: int = 0
    change_count: int = 0
    commit_time: datetime | None = None


class Spool:
    """Stages the events of one run of ingest; single-threaded.

    `offset` is the LSN up to which everything is handed over.
    """

    def __init__(
        self, folder: Path, offset: LSN = INVALID, recorded_version_ids: Collection[int] = ()
    ) -> None:
        """Stage files in a folder; relation versions that are recorded already are not handed over."""
        self.offset = offset
        self._folder = folder
        self._versions = VersionIndex()
        self._recorded_version_ids = set(recorded_version_ids)
        self._new_versions: list[RelationVersion] = []
        self.streams = OpenStreams(folder, self._versions)
        self._rows = RowMessages()
        self._finished_rows = 0  # how many of _rows belong to finished transactions: the first ones
        self._others: list[OtherRow] = []  # truncations and logical messages: rare, row by row
        self._finished_others = 0
        self._other_bytes = 0
        self._transactions = Transactions()  # the finished ones in _rows
        self._streamed: list[pa.Table] = []  # of finished transactions that streamed and were small
        self._streamed_rows = self._streamed_bytes = 0
        self._batch_file: StagedFileWriter | None = None  # of finished transactions
        self._open_file: StagedFileWriter | None = None  # of the open transaction, which outgrew a batch
        self._files: list[StagedFile] = []
        self._prepared: list[PreparedFile] = []
        self._outcomes: list[PreparedOutcome] = []
        self._began: Began | BeganPrepare | None = None
        self._end_lsn = INVALID
        self._transaction_count = self._change_count = 0
        self._commit_time: int | None = None  # of the newest transaction, in microseconds since 2000-01-01

    @property
    def pending_rows(self) -> int:
        """Return how many rows and outcomes `seal` would hand over."""
        staged = sum(file.data.row_count for file in (*self._files, *(p.file for p in self._prepared)))
        staged += self._batch_file.row_count if self._batch_file else 0
        return (
            staged + self._finished_rows + self._finished_others + self._streamed_rows + len(self._outcomes)
        )

    @property
    def has_commits(self) -> bool:
        """Return whether a transaction ended since the last seal, even an empty one."""
        return self._end_lsn > INVALID

    def describe(self, version: RelationVersion, xid: int | None = None) -> None:
        """Make a version the one that later changes of its relation name: all changes, or those of a stream.

        One of a stream is handed over once the stream ends well.
        """
        if xid is None:
            self._versions.in_force[version.relation.oid] = self._versions.index_of(version)
            self._record([version], version.lsn)
        else:
            self.streams.describe(xid, version)

    def begin(self, began: Began | BeganPrepare) -> None:
        """Begin a transaction."""
        self._began = began

    def add_change(self, change: Change) -> None:
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
        self._transaction_count += len(plain.xids)
        self._change_count += len(plain.changes)
        self._commit_time = plain.commit_times[-1]
        self._extend_to(LSN(max(plain.end_lsns)))
        if rows.byte_count >= BYTE_LIMIT or len(rows.messages) >= ROW_LIMIT:
            self._write_finished()

    def add_truncation(self, truncation: Truncation) -> None:
        """Add a Truncate: one row per relation."""
        versions = self._versions.of(truncation.relations, self._versions.in_force)
        self._others += truncation_rows(truncation, truncation.ordinal, versions)
        if len(self._others) >= OTHER_LIMIT:
            self._relieve_memory()

    def add_message(self, emitted: Emitted) -> None:
        """Add a logical message; one outside any transaction is finished at once."""
        row = message_row(emitted.message, emitted.sequence)
        if emitted.message.transactional:
            self._others.append(row)
        else:
            self._others.insert(self._finished_others, row)
            self._finished_others += 1
            self._extend_to(emitted.message.lsn)
        self._other_bytes += len(emitted.message.content)
        if len(self._others) >= OTHER_LIMIT or self._other_bytes >= BYTE_LIMIT:
            self._relieve_memory()

    def commit(self, committed: Committed) -> None:
        """Finish the open transaction: its changes are in the next seal."""
        if self._open_file:
            self._write_finished()
            self._files.append(self._write_open().close().with_end_lsn(committed.end_lsn))
            self._open_file = None
        else:
            if len(self._others) > self._finished_others:
                values = transaction_values(committed)
                for row in self._others[self._finished_others :]:
                    row |= values
                self._finished_others = len(self._others)
            self._transactions.append(len(self._rows.messages) - self._finished_rows, committed)
            self._finished_rows = len(self._rows.messages)
        self._began = None
        self._count(committed, committed.change_count)

    def prepare(self, prepared: Prepared) -> None:
        """Finish the open transaction, which is prepared: the next seal hands it over apart."""
        assert isinstance(self._began, BeganPrepare)
        self._write_finished()
        file = self._write_open()
        file.write(others_table([prepared_row(self._began)]))
        self._open_file = self._began = None
        self._prepared.append(PreparedFile(prepared.gid, prepared.xid, file.close()))
        self._extend_to(prepared.end_lsn)

    def commit_stream(self, committed: StreamCommitted, described: Sequence[RelationVersion]) -> None:
        """Finish a transaction that streamed; `described` are the versions for `OpenStreams.commit`."""
        stream = self.streams.commit(committed, described)
        self._record(described, committed.commit_lsn)
        tables = stream.finish(committed)
        if stream.is_on_disk:
            file = StagedFileWriter(self._folder)
            change_count = _write(file, tables)
            self._files.append(file.close())
        else:
            small = list(tables)
            change_count = sum(map(_change_count, small))
            self._streamed += small
            self._streamed_rows += sum(table.num_rows for table in small)
            self._streamed_bytes += sum(table.nbytes for table in small)
            if self._streamed_rows >= ROW_LIMIT or self._streamed_bytes >= BYTE_LIMIT:
                self._write_finished()
        self._count(committed, change_count)

    def skip_stream(self, committed: StreamCommitted, described: Sequence[RelationVersion]) -> None:
        """Drop the rows of a transaction that streamed and is in bronze already; its descriptions hold."""
        self.streams.commit(committed, described).discard()
        self._record(described, committed.commit_lsn)

    def prepare_stream(self, prepared: StreamPrepared, described: Sequence[RelationVersion]) -> None:
        """Finish a transaction that streamed and is prepared: the next seal hands it over apart."""
        self._record(described, prepared.prepare_lsn)
        stream = self.streams.end(prepared.xid, described)
        file = StagedFileWriter(self._folder)
        file.write(others_table([prepared_row(prepared)]))
        _write(file, stream.finish(prepared))
        self._prepared.append(PreparedFile(prepared.gid, prepared.xid, file.close()))
        self._extend_to(prepared.end_lsn)

    def end_prepared(self, outcome: PreparedOutcome) -> None:
        """Add the outcome of a prepared transaction."""
        self._outcomes.append(outcome)
        if isinstance(outcome, CommittedPrepared):
            self._count(outcome, 0)
        else:
            self._extend_to(outcome.rollback_end_lsn)

    def seal(self) -> StagedTransactions | None:
        """Hand over everything that is finished and move the offset to its end; None if nothing ended."""
        if not self.has_commits:
            return None
        with crash_step(CrashStep.SEAL_CHANGES):
            self._write_finished()
            if self._batch_file:
                self._files.append(self._batch_file.close())
                self._batch_file = None
        staged = StagedTransactions(
            start_lsn=self.offset,
            end_lsn=max(self.offset, self._end_lsn),
            files=tuple(self._files),
            versions=tuple(self._new_versions),
            prepared=tuple(self._prepared),
            outcomes=tuple(self._outcomes),
            transaction_count=self._transaction_count,
            change_count=self._change_count,
            commit_time=self._newest_commit_time(),
        )
        self._files, self._new_versions, self._prepared, self._outcomes = [], [], [], []
        self.offset, self._end_lsn = staged.end_lsn, INVALID
        self._transaction_count = self._change_count = 0
        self._forget_old_versions()
        return staged

    def _forget_old_versions(self) -> None:
        """Forget relation versions that no change can name any more: a run may see any number of them."""
        has_rows = bool(self._rows.messages or self._others or self._open_file or self._began)
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
        """Drop what is not handed over: the server sends it again."""
        for writer in (self._batch_file, self._open_file):
            if writer:
                writer.discard()
        self.streams.discard()
        for file in (*self._files, *(prepared.file for prepared in self._prepared)):
            file.path.unlink(missing_ok=True)

    def _record(self, versions: Iterable[RelationVersion], lsn: LSN) -> None:
        """Hand versions over with the next seal, as in force from `lsn` on, unless they are recorded."""
        for version in versions:
            if version.id not in self._recorded_version_ids:
                self._recorded_version_ids.add(version.id)
                self._new_versions.append(replace(version, lsn=lsn))

    def _count(self, committed: Committed | StreamCommitted | CommittedPrepared, change_count: int) -> None:
        self._transaction_count += 1
        self._change_count += change_count
        self._commit_time = committed.commit_time
        self._extend_to(committed.end_lsn)

    def _extend_to(self, lsn: LSN) -> None:
        self._end_lsn = max(self._end_lsn, lsn)

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
            or len(others) > OTHER_LIMIT // 2
            or self._other_bytes > BYTE_LIMIT // 2
        ):
            self._write_open()

    def _write_open(self) -> StagedFileWriter:
        """Write all rows in memory, which are the open transaction's, to its own file."""
        assert self._began is not None
        self._open_file = self._open_file or StagedFileWriter(self._folder)
        if count := len(self._rows.messages):
            self._open_file.write(
                changes_table(self._rows, self._versions.all, Transactions.of(count, self._began))
            )
        if self._others:
            values = transaction_values(self._began)
            self._open_file.write(others_table([row | values for row in self._others]))
        self._rows, self._others, self._other_bytes = RowMessages(), [], 0
        return self._open_file

    def _write_finished(self) -> None:
        """Write the rows of finished transactions to the batch's file."""
        if not (self._finished_rows or self._finished_others or self._streamed):
            self._transactions = Transactions()
            return
        self._batch_file = self._batch_file or StagedFileWriter(self._folder)
        if count := self._finished_rows:
            rows, self._rows = self._rows, RowMessages()
            if count < len(rows.messages):
                self._rows = rows.part(slice(count, None))
                rows = rows.part(slice(count))
            self._batch_file.write(changes_table(rows, self._versions.all, self._transactions))
        if count := self._finished_others:
            self._batch_file.write(others_table(self._others[:count]))
            self._others = self._others[count:]
            self._other_bytes = sum(len(row.get("content", b"")) for row in self._others)
        if self._streamed:
            self._batch_file.write(pa.concat_tables(self._streamed).combine_chunks())
            self._streamed, self._streamed_rows, self._streamed_bytes = [], 0, 0
        self._finished_rows = self._finished_others = 0
        self._transactions = Transactions()


def _write(file: StagedFileWriter, tables: Iterable[pa.Table]) -> int:
    """Write tables and return how many changes they hold."""
    count = 0
    for table in tables:
        file.write(table)
        count += _change_count(table)
    return count


def _change_count(table: pa.Table) -> int:
    """Return how many rows have an ordinal of their transaction: all but logical messages."""
    return int(table.num_rows - (pc.sum(pc.equal(table.column("op"), "M")).as_py() or 0))
