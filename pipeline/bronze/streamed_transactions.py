"""Transactions that stream before their commit, so that their end is not known yet.

The rows of each are kept in the order of arrival: in memory while those of all open streams are few, else in
a file of its own. Rows of aborted subtransactions are left out at the end, and only then do the others get
their final numbers: PostgreSQL streams rows that a later rollback to a savepoint undoes. Nothing of an open
stream outlives the session: the server streams it again.

A file is open only while it is written or read, and nothing that is in it stays in memory: there may be more
streams than a process may have open files, each of any size, and they move to disk piece by piece.

Which columns of a table are protected may be known only when its transaction has ended, because a transaction
may alter the table. Rows of a stream with such a table stay as the server sent them until then, and are on
disk only encrypted, with a key that no other process has.
"""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.background_writer import BackgroundWriter
from pipeline.bronze.pieces import Pieces, table_of
from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.rows import (
    OtherRow,
    RowMessages,
    Transaction,
    VersionIndex,
    message_row,
    others_table,
    streamed_table,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.schema import CHANGES, STREAMED
from pipeline.protocol.events import (
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamStarted,
)

STREAM_BYTES = 16 << 20
STREAM_ROWS = 131_072
"""What all open streams together may hold in memory before the largest of them are moved to disk."""
_SUBXID = STREAMED.get_field_index("subxid")
_NONCE = Struct("<Q4x")


class Seal:
    """Encrypts what is on disk for this process only."""

    def __init__(self) -> None:
        self._count = 0

    @cached_property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, and rarely needed

        return AESGCM(AESGCM.generate_key(256))

    def close(self, content: object) -> bytes:
        """Return anything as bytes that only `open` reads."""
        nonce, self._count = _NONCE.pack(self._count), self._count + 1
        return nonce + bytes(
            self._cipher.encrypt(nonce, pickle.dumps(content, pickle.HIGHEST_PROTOCOL), None)
        )

    def open(self, sealed: memoryview) -> Any:
        """Return what was sealed; only this process can have sealed it."""
        nonce, text = bytes(sealed[: _NONCE.size]), bytes(sealed[_NONCE.size :])
        return pickle.loads(self._cipher.decrypt(nonce, text, None))


class OpenStreams:
    """The open streams of a session, for one thread; what they hold in memory is bounded."""

    def __init__(
        self, folder: Path, versions: VersionIndex, background: BackgroundWriter, *, reads_types: bool = False
    ) -> None:
        """Move what is too much for memory to files in a folder, in the background.

        If decoding `reads_types`, rows stay as they were sent until the end: the transaction may make types.
        """
        self._reads_types = reads_types
        self._folder = folder
        self._versions = versions
        self._background = background
        self._open: dict[int, OpenStream] = {}
        self._seal = Seal()
        self._bytes = self._rows = 0  # in memory, of all

    @property
    def has_open(self) -> bool:
        """Whether a transaction is streaming."""
        return bool(self._open)

    def start(self, started: StreamStarted) -> None:
        """Start a segment; the first one discards what was received of the transaction before."""
        if started.is_first:
            self.drop(started.xid)
            self._open[started.xid] = OpenStream(
                started.xid, self._versions, self._seal, self._background, is_pending=self._reads_types
            )

    def describe(self, xid: int, version: RelationVersion) -> None:
        """Make a version the one that later changes of its relation name, in this stream."""
        self._open[xid].describe(self._versions.index_of(version))

    def described(self, xid: int) -> list[RelationVersion]:
        """Return the versions that were described in a stream, in order."""
        return [each.version for each in self._open[xid].described]

    def add_change(self, change: StreamedChange) -> None:
        """Add a row message."""
        self._open[change.xid].add_change(change)
        self._rows += 1
        self._bytes += len(change.data)
        if self._bytes >= STREAM_BYTES or self._rows >= STREAM_ROWS:
            self._relieve_memory()

    def add_truncation(self, truncation: StreamedTruncation) -> None:
        """Add a Truncate."""
        self._open[truncation.xid].add_truncation(truncation)
        self._rows += len(truncation.relations)

    def add_message(self, emitted: StreamedEmitted) -> None:
        """Add a logical message."""
        self._open[emitted.xid].add_message(emitted)
        self._rows += 1
        self._bytes += len(emitted.message.content)
        if self._bytes >= STREAM_BYTES or self._rows >= STREAM_ROWS:
            self._relieve_memory()

    def abort(self, aborted: StreamAborted) -> None:
        """Drop a transaction, or what a subtransaction of it wrote; either may be unknown."""
        if aborted.xid == aborted.subxid:
            self.drop(aborted.xid)
        elif stream := self._open.get(aborted.xid):
            stream.abort(aborted.subxid)

    def commit(self, committed: StreamCommitted, described: Sequence[RelationVersion]) -> "OpenStream":
        """Remove and return a committed transaction; what was described in it holds for all from here on.

        `described` are the versions of `OpenStreams.described`, each as it is in the catalog now.
        """
        stream = self.end(committed.xid, described)
        for relation in committed.relations:
            self._versions.in_force[relation.oid] = stream.index_of_oid[relation.oid]
        return stream

    def end(self, xid: int, described: Sequence[RelationVersion]) -> "OpenStream":
        """Remove and return a transaction that is committed or prepared; `described` as for `commit`."""
        stream = self._remove(xid)
        stream.settle(described)
        return stream

    def _remove(self, xid: int) -> "OpenStream":
        stream = self._open.pop(xid)
        self._rows -= stream.row_count
        self._bytes -= stream.byte_count
        return stream

    def drop(self, xid: int) -> None:
        """Drop the rows of a transaction, if it is known."""
        if xid in self._open:
            self._remove(xid).discard()

    def discard(self) -> None:
        """Drop all: the session ended, and the next one streams them again from their beginning."""
        for xid in list(self._open):
            self.drop(xid)

    def _relieve_memory(self) -> None:
        """Move the largest streams to disk until half of the memory is free."""
        by_size = sorted(self._open.values(), key=lambda stream: (stream.byte_count, stream.row_count))
        while by_size and (self._bytes > STREAM_BYTES // 2 or self._rows > STREAM_ROWS // 2):
            stream = by_size.pop()
            self._rows -= stream.row_count
            self._bytes -= stream.byte_count
            stream.move_to_disk(self._folder)


@dataclass(slots=True)
class Description:
    """A version that holds from a row on; `settled` is the same shape as in the catalog at the commit."""

    first_row: int
    version: RelationVersion
    settled: RelationVersion


class OpenStream:
    """The rows of one top-level transaction until its outcome is known.

    Rows are numbered in the order of arrival: `ordinal` is that number until the transaction ends.
    """

    def __init__(
        self, xid: int, versions: VersionIndex, seal: Seal, background: BackgroundWriter, *, is_pending: bool
    ) -> None:
        self.xid = xid
        self.described: list[Description] = []  # in the stream, in order
        self.index_of_oid: dict[int, int] = {}  # of the versions that were described in the stream
        self._versions = versions
        self._background = background
        self._rows = RowMessages()
        self._others: list[OtherRow] = []  # truncations and logical messages
        self._other_bytes = 0
        self._next_row = 0
        self._aborted: set[int] = set()
        self._seal = seal
        self._is_pending = is_pending  # whether what decodes rows may not be known before the end
        self._settled_index: dict[int, int] = {}  # of versions that replace pending ones
        self._pieces: Pieces | None = None  # on disk
        self._is_sealed: list[bool] = []  # a piece has sealed rows as they were sent, or decoded ones

    @property
    def byte_count(self) -> int:
        """Return the size of what is held in memory."""
        return self._rows.byte_count + self._other_bytes

    @property
    def row_count(self) -> int:
        """Return how many rows are held in memory."""
        return len(self._rows.messages) + len(self._others)

    @property
    def length(self) -> int:
        """Return how many rows arrived, with those of aborted subtransactions."""
        return self._next_row

    @property
    def is_on_disk(self) -> bool:
        """Return whether a file holds rows."""
        return self._pieces is not None

    def describe(self, index: int) -> None:
        """Make a version the one that later changes of its relation name."""
        version = self._versions.all[index]
        self._is_pending |= version.is_pending
        self.described.append(Description(self._next_row, version, version))
        self.index_of_oid[version.relation.oid] = index

    def settle(self, versions: Sequence[RelationVersion]) -> None:
        """Replace the versions that were described, in order."""
        for each, version in zip(self.described, versions, strict=True):
            index = self._versions.index_of(version)
            if each.version.is_pending:
                self._settled_index[self._versions.index_of(each.version)] = index
            each.settled = version
            if version.relation.oid in self.index_of_oid:
                self.index_of_oid[version.relation.oid] = index

    def add_change(self, change: StreamedChange) -> None:
        """Add a row message."""
        oid = change.relation.oid
        index = self.index_of_oid.get(oid)
        rows = self._rows
        rows.messages.append(change.data)
        rows.ordinals.append(self._next_row)
        rows.versions.append(self._versions.in_force[oid] if index is None else index)
        rows.origins.append(change.origin)
        rows.byte_count += len(change.data)
        self._next_row += 1

    def add_truncation(self, truncation: StreamedTruncation) -> None:
        """Add a Truncate: one row per relation."""
        versions = self._versions.of(truncation.relations, self._versions.in_force | self.index_of_oid)
        self._add_others(truncation_rows(truncation, self._next_row, versions), truncation.subxid)

    def add_message(self, emitted: StreamedEmitted) -> None:
        """Add a transactional logical message."""
        self._other_bytes += len(emitted.message.content)
        self._add_others([message_row(emitted.message, self._next_row)], emitted.subxid)

    def _add_others(self, rows: list[OtherRow], subxid: int) -> None:
        self._others += [row | {"subxid": subxid} for row in rows]
        self._next_row += len(rows)

    def abort(self, subxid: int) -> None:
        """Leave out, at the end, what a subtransaction wrote; the server describes relations again."""
        self._aborted.add(subxid)
        self.index_of_oid.clear()

    def move_to_disk(self, folder: Path) -> None:
        """Begin to move what is in memory to the end of the file."""
        self._pieces = self._pieces or Pieces(folder, self.xid)
        self._is_sealed.append(self._is_pending)
        self._background.submit(partial(self._append, self._pieces, self._pop_rows(), self._is_pending))

    def _append(self, pieces: Pieces, held: tuple[RowMessages, list[OtherRow]], is_pending: bool) -> None:
        if is_pending:
            pieces.add(self._seal.close(held))
        else:
            pieces.add_table(self._decode(*held))

    def finish(self, transaction: Transaction) -> Iterator[pa.Table]:
        """Yield the rows that remain, as rows of `changes` of a transaction whose end is known.

        If rows are on disk, only in the background are all of them.
        """
        memory = [self._decode(*self._pop_rows())] if self.row_count else []
        values = transaction_values(transaction)
        next_ordinals = [0, 0]  # of changes, of logical messages
        for table in chain(self._take_pieces(), memory):
            yield _number(self._without_aborted(self._settled(table)), values, next_ordinals)
        self._forget()

    def discard(self) -> None:
        """Drop all rows."""
        self._background.settle()
        self._forget()

    def _forget(self) -> None:
        if self._pieces:
            self._pieces.remove()
        self._pieces, self._is_sealed, self._rows, self._others = None, [], RowMessages(), []

    def _take_pieces(self) -> Iterator[pa.Table]:
        if self._pieces:
            for is_sealed, piece in zip(self._is_sealed, self._pieces.take(), strict=True):
                yield self._decode(*self._seal.open(memoryview(piece))) if is_sealed else table_of(piece)

    def _pop_rows(self) -> tuple[RowMessages, list[OtherRow]]:
        """Return what is in memory, and hold none."""
        rows, others = self._rows, self._others
        self._rows, self._others, self._other_bytes = RowMessages(), [], 0
        return rows, others

    def _decode(self, rows: RowMessages, others: list[OtherRow]) -> pa.Table:
        """Return rows as Arrow; what is pending must be settled."""
        tables = []
        if rows.messages:
            if settled := self._settled_index:
                rows.versions = [settled.get(index, index) for index in rows.versions]
            tables.append(streamed_table(rows, self._versions.all, self.xid))
        if others:
            tables.append(others_table(others, STREAMED))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by("ordinal")

    def _settled(self, table: pa.Table) -> pa.Table:
        """Return rows with the settled relation versions."""
        end_of_oid: dict[int, int] = {}  # where the next description of the relation begins to hold
        for each in reversed(self.described):
            oid = each.version.relation.oid
            end, end_of_oid[oid] = end_of_oid.get(oid, self._next_row), each.first_row
            if each.settled.id == each.version.id:
                continue
            rows = table.column("ordinal")
            is_of_version = pc.and_(
                pc.equal(table.column("relation_id"), oid),
                pc.equal(table.column("relation_version"), each.version.id),
            )
            is_in_range = pc.and_(pc.greater_equal(rows, each.first_row), pc.less(rows, end))
            settled = pa.scalar(each.settled.id, pa.int64())
            ids = pc.if_else(pc.and_(is_of_version, is_in_range), settled, table.column("relation_version"))
            column = table.schema.get_field_index("relation_version")
            table = table.set_column(column, table.schema.field(column), ids)
        return table

    def _without_aborted(self, table: pa.Table) -> pa.Table:
        if self._aborted:
            aborted = pa.array(sorted(self._aborted), pa.int64())
            table = table.filter(pc.invert(pc.is_in(table.column(_SUBXID), value_set=aborted)))
        return table.remove_column(_SUBXID)


def _number(table: pa.Table, values: dict[str, Any], next_ordinals: list[int]) -> pa.Table:
    """Return rows with their ordinals and the values of their transaction; move `next_ordinals` on."""
    is_message = pc.equal(table.column("op"), "M").to_numpy()
    ordinals = np.empty(table.num_rows, np.int64)
    for kind, mask in enumerate((~is_message, is_message)):
        count = int(mask.sum())
        ordinals[mask] = np.arange(next_ordinals[kind], next_ordinals[kind] + count)
        next_ordinals[kind] += count
    replaced = {"ordinal": pa.array(ordinals)}
    for name, value in values.items():
        replaced[name] = pa.repeat(pa.scalar(value, CHANGES.field(name).type), table.num_rows)
    for name, array in replaced.items():
        column = CHANGES.get_field_index(name)
        table = table.set_column(column, CHANGES.field(column), array)
    return table
