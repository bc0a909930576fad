"""Committed changes in, staged Parquet files out, memory bounded whatever a transaction's size.

Changes of finished transactions go to one file per batch. Changes of a transaction that outgrows a batch
before its commit go to a file of that transaction alone, whose end LSN is filled in when it is known. `seal`
hands over everything that is committed and nothing else, so a batch always ends on a transaction boundary.
"""

from pathlib import Path

from pipeline.bronze.rows import (
    OtherRow,
    Rows,
    changes_table,
    message_row,
    others_table,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.staged import Part, Staged, StagedFile, complete, create_file
from pipeline.bronze.versions import RelationVersion
from pipeline.protocol.lsn import INVALID
from pipeline.protocol.transactions import Began, Change, Committed, Emitted, Truncation

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
        self._rows = Rows()
        self._finished_rows = 0  # how many of _rows belong to finished transactions: the first ones
        self._others: list[OtherRow] = []  # truncations and messages: rare, row by row
        self._finished_others = 0
        self._other_bytes = 0
        self._transactions: list[tuple[int, Committed]] = []  # (rows, commit) of the finished ones in _rows
        self._whole: StagedFile | None = None
        self._open: StagedFile | None = None
        self._parts: list[Part] = []
        self._began: Began | None = None
        self._end_lsn = INVALID
        self._transaction_count = 0
        self._change_count = 0

    @property
    def pending_rows(self) -> int:
        """Return how many committed rows `seal` would hand over."""
        staged = sum(part.row_count for part in self._parts) + (self._whole.row_count if self._whole else 0)
        return staged + self._finished_rows + self._finished_others

    @property
    def has_commits(self) -> bool:
        """Say whether a commit was received since the last seal, be it empty."""
        return self._end_lsn > INVALID

    def describe(self, version: RelationVersion) -> None:
        """Make this version the one that later changes of its relation name."""
        index = self._index_of_version.setdefault(version.id, len(self._versions))
        if index == len(self._versions):
            self._versions.append(version)
        self._index_of_oid[version.relation.oid] = index

    def begin(self, began: Began) -> None:
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
        self._others += truncation_rows(truncation, versions)
        if len(self._others) >= OTHER_LIMIT:
            self._relieve()

    def add_message(self, emitted: Emitted) -> None:
        """Take a logical message; one outside any transaction is committed as it comes."""
        row = message_row(emitted)
        if emitted.message.transactional:
            self._others.append(row)
        else:
            self._others.insert(self._finished_others, row)
            self._finished_others += 1
            self._end_lsn = max(self._end_lsn, emitted.message.lsn)
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
        self._end_lsn = committed.end_lsn
        self._transaction_count += 1
        self._change_count += committed.change_count

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
        )
        self._parts, self._end_lsn = [], INVALID
        self._transaction_count = self._change_count = 0
        return staged

    def discard(self) -> None:
        """Drop what is staged and not handed over: the server sends it again."""
        for file in (self._whole, self._open):
            if file:
                file.discard()
        for part in self._parts:
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
        if self._finished_rows or self._finished_others:
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
        self._finished_rows = self._finished_others = 0
        self._transactions = []
