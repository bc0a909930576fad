"""Committed changes in, staged Parquet files out, memory bounded whatever a transaction's size.

Changes of finished transactions go to one file per batch. Changes of a transaction that outgrows a batch
before its commit go to a file of that transaction alone, whose end LSN is filled in when it is known; so do
those of a prepared one. A transaction that streams before its commit is kept by `Streams`. `seal` hands over
everything that is finished and nothing else, so a batch always ends on a transaction boundary.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.rows import (
    OtherRow,
    Rows,
    changes_table,
    message_row,
    others_table,
    prepared_row,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.staged_files import Decision, Parked, Part, Staged, StagedFile, complete, create_file
from pipeline.bronze.streamed_transactions import Streams, change_count_of
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Emitted,
    Prepared,
    StreamCommitted,
    StreamPrepared,
    Truncation,
)
from pipeline.protocol.lsn import INVALID, LSN

ROW_LIMIT = 65_536
BYTE_LIMIT = 16 << 20
OTHER_LIMIT = 4_096


class Spool:
    """Stages the changes of an assembler's events; single-threaded."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions: list[RelationVersion] = []
        self._index_of_version: dict[int, int] = {}
        self._index_of_oid: dict[int, int] = {}
        self.streams = Streams(directory, self._versions, self._index_of_oid)
        self._rows = Rows()
        self._finished_rows = 0  # how many of _rows belong to finished transactions: the first ones
        self._others: list[OtherRow] = []  # truncations and messages: rare, row by row
        self._finished_others = 0
        self._other_bytes = 0
        self._transactions: list[tuple[int, Committed]] = []  # (rows, commit) of the finished ones in _rows
        self._whole: StagedFile | None = None
        self._open: StagedFile | None = None
        self._parts: list[Part] = []
        self._tables: list[pa.Table] = []  # of finished transactions that streamed and were small
        self._table_rows = self._table_bytes = 0
        self._parked: list[Parked] = []
        self._decisions: list[Decision] = []
        self._began: Began | BeganPrepare | None = None
        self._end_lsn = INVALID
        self._transaction_count = 0
        self._change_count = 0

    @property
    def pending_rows(self) -> int:
        """Return how many committed rows `seal` would hand over."""
        staged = sum(part.row_count for part in self._parts) + (self._whole.row_count if self._whole else 0)
        parked = sum(parked.part.row_count for parked in self._parked) + len(self._decisions)
        return staged + self._finished_rows + self._finished_others + self._table_rows + parked

    @property
    def has_commits(self) -> bool:
        """Say whether a commit was received since the last seal, be it empty."""
        return self._end_lsn > INVALID

    def describe(self, version: RelationVersion, xid: int | None = None) -> None:
        """Make this version the one that later changes of its relation name: all, or those of a stream."""
        if xid is None:
            self._index_of_oid[version.relation.oid] = self._index_of(version)
        else:
            self.streams.describe(xid, version, self._index_of(version))

    def settle_stream(self, xid: int, versions: Sequence[RelationVersion]) -> None:
        """Take what a stream described, in order, as it is once the transaction is committed."""
        self.streams.settle(xid, versions, [self._index_of(version) for version in versions])

    def begin(self, began: Began | BeganPrepare) -> None:
        """Open a transaction."""
        self._began = began

    def add_change(self, change: Change) -> None:
        """Take one row message."""
        rows = self._rows
        rows.messages.append(change.data)
        rows.ordinals.append(change.ordinal)
        rows.versions.append(self._index_of_oid[change.relation.oid])
        rows.origins.append(change.origin)
        rows.byte_count += len(change.data)
        if rows.byte_count >= BYTE_LIMIT or len(rows.messages) >= ROW_LIMIT:
            self._relieve()

    def add_truncation(self, truncation: Truncation) -> None:
        """Take a Truncate: one row per relation."""
        versions = [self._versions[self._index_of_oid[relation.oid]] for relation in truncation.relations]
        self._others += truncation_rows(truncation, truncation.ordinal, versions)
        if len(self._others) >= OTHER_LIMIT:
            self._relieve()

    def add_message(self, emitted: Emitted) -> None:
        """Take a logical message; one outside any transaction is committed as it comes."""
        row = message_row(emitted.message, emitted.sequence)
        if emitted.message.transactional:
            self._others.append(row)
        else:
            self._others.insert(self._finished_others, row)
            self._finished_others += 1
            self._reach(emitted.message.lsn)
        self._other_bytes += len(emitted.message.content)
        if len(self._others) >= OTHER_LIMIT or self._other_bytes >= BYTE_LIMIT:
            self._relieve()

    def commit(self, committed: Committed) -> None:
        """Close the open transaction: its changes are in the next seal."""
        if self._open:
            self._flush_finished()
            self._spill()
            self._parts.append(complete(self._open.close(), committed.end_lsn))
            self._open = None
        else:
            if len(self._others) > self._finished_others:
                values = transaction_values(committed)
                for row in self._others[self._finished_others :]:
                    row |= values
                self._finished_others = len(self._others)
            self._transactions.append((len(self._rows.messages) - self._finished_rows, committed))
            self._finished_rows = len(self._rows.messages)
        self._began = None
        self._finish(committed.end_lsn, committed.change_count)

    def prepare(self, prepared: Prepared) -> None:
        """Close the open transaction, which is prepared: the next seal hands it over apart."""
        assert isinstance(self._began, BeganPrepare)
        self._flush_finished()
        if self._rows.messages or self._others:
            self._spill()
        file = self._open or create_file(self._directory)
        file.write(others_table([prepared_row(self._began)]))
        self._open = self._began = None
        self._parked.append(Parked(prepared.gid, prepared.xid, file.close()))
        self._reach(prepared.end_lsn)

    def commit_stream(self, committed: StreamCommitted) -> Collection[RelationVersion]:
        """Take over what is left of a transaction that streamed; return what was described in it."""
        stream = self.streams.commit(committed)
        tables = stream.finish(committed, self._versions)
        if stream.is_spilled:
            file = create_file(self._directory)
            change_count = _write(file, tables)
            self._parts.append(file.close())
        else:
            small = list(tables)
            change_count = sum(map(change_count_of, small))
            self._tables += small
            self._table_rows += sum(table.num_rows for table in small)
            self._table_bytes += sum(table.nbytes for table in small)
            if self._table_rows >= ROW_LIMIT or self._table_bytes >= BYTE_LIMIT:
                self._flush_finished()
        self._finish(committed.end_lsn, change_count)
        return stream.versions

    def skip_stream(self, committed: StreamCommitted) -> Collection[RelationVersion]:
        """Drop what is left of a transaction that streamed; return what was described in it, which holds."""
        stream = self.streams.commit(committed)
        stream.discard()
        return stream.versions

    def prepare_stream(self, prepared: StreamPrepared) -> Collection[RelationVersion]:
        """Hand over apart what is left of a stream that is prepared; return what was described in it."""
        stream = self.streams.take(prepared.xid)
        file = create_file(self._directory)
        file.write(others_table([prepared_row(prepared)]))
        _write(file, stream.finish(prepared, self._versions))
        self._parked.append(Parked(prepared.gid, prepared.xid, file.close()))
        self._reach(prepared.end_lsn)
        return stream.versions

    def decide(self, decision: Decision) -> None:
        """Take what became of a prepared transaction."""
        self._decisions.append(decision)
        if isinstance(decision, CommittedPrepared):
            self._finish(decision.end_lsn, 0)
        else:
            self._reach(decision.rollback_end_lsn)

    def _index_of(self, version: RelationVersion) -> int:
        index = self._index_of_version.setdefault(version.id, len(self._versions))
        self._versions += [version] if index == len(self._versions) else []
        return index

    def _finish(self, end_lsn: LSN, change_count: int) -> None:
        self._transaction_count += 1
        self._change_count += change_count
        self._reach(end_lsn)

    def _reach(self, lsn: LSN) -> None:
        self._end_lsn = max(self._end_lsn, lsn)

    def seal(self) -> Staged | None:
        """Hand over all that is committed; None where nothing was received at all."""
        if not self.has_commits:
            return None
        self._flush_finished()
        if self._whole:
            self._parts.append(self._whole.close())
            self._whole = None
        staged = Staged(
            parts=tuple(self._parts),
            end_lsn=self._end_lsn,
            transaction_count=self._transaction_count,
            change_count=self._change_count,
            parked=tuple(self._parked),
            decisions=tuple(self._decisions),
        )
        self._parts, self._parked, self._decisions, self._end_lsn = [], [], [], INVALID
        self._transaction_count = self._change_count = 0
        return staged

    def discard(self) -> None:
        """Drop what is staged and not handed over: the server sends it again."""
        for file in (self._whole, self._open):
            if file:
                file.discard()
        self.streams.discard()
        for part in (*self._parts, *(parked.part for parked in self._parked)):
            part.path.unlink(missing_ok=True)

    def _relieve(self) -> None:
        """Write out the finished transactions' rows, and the open one's where they alone are many."""
        self._flush_finished()
        # The open transaction of a batch of small ones has few rows yet: no file of its own for those.
        rows, others = self._rows, self._others
        if (
            len(rows.messages) > ROW_LIMIT // 2
            or rows.byte_count > BYTE_LIMIT // 2
            or len(others) > OTHER_LIMIT // 2
            or self._other_bytes > BYTE_LIMIT // 2
        ):
            self._spill()

    def _spill(self) -> None:
        """Write all rows, which are the open transaction's, to its own file."""
        assert self._began is not None
        self._open = self._open or create_file(self._directory)
        if count := len(self._rows.messages):
            self._open.write(changes_table(self._rows, self._versions, [(count, self._began)]))
        if self._others:
            values = transaction_values(self._began)
            self._open.write(others_table([row | values for row in self._others]))
        self._rows, self._others, self._other_bytes = Rows(), [], 0

    def _flush_finished(self) -> None:
        """Write the rows of finished transactions to the batch's file."""
        if self._finished_rows or self._finished_others or self._tables:
            self._whole = self._whole or create_file(self._directory)
        if count := self._finished_rows:
            assert self._whole is not None
            everything, self._rows = self._rows, Rows()
            if count < len(everything.messages):
                self._rows = everything.part(slice(count, None))
                everything = everything.part(slice(count))
            self._whole.write(changes_table(everything, self._versions, self._transactions))
        if count := self._finished_others:
            assert self._whole is not None
            self._whole.write(others_table(self._others[:count]))
            self._others = self._others[count:]
            self._other_bytes = sum(len(row.get("content", b"")) for row in self._others)
        if self._tables:
            assert self._whole is not None
            self._whole.write(pa.concat_tables(self._tables).combine_chunks())
            self._tables, self._table_rows, self._table_bytes = [], 0, 0
        self._finished_rows = self._finished_others = 0
        self._transactions = []


def _write(file: StagedFile, tables: Iterable[pa.Table]) -> int:
    """Write tables and return how many row changes they hold."""
    count = 0
    for table in tables:
        file.write(table)
        count += change_count_of(table)
    return count
