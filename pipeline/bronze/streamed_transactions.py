"""Transactions that stream before their commit, so that their end is not known yet.

The rows of each are kept in the order of arrival: in memory while those of all open streams are few, else in
a file of its own. Rows of aborted subtransactions are left out at the end, and only then do the others get
their final numbers: PostgreSQL streams rows that a later rollback to a savepoint undoes. Nothing of an open
stream outlives the session: the server streams it again.

A file is open only while it is written or read, and nothing that is in it stays in memory: there may be more
streams than a process may have open files, each of any size, and they move to disk piece by piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

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
from pipeline.bronze.staged_files import damaged_file
from pipeline.protocol.events import (
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamStarted,
)

STREAM_BYTES = 32 << 20
STREAM_ROWS = 131_072
"""What all open streams together may hold in memory before the largest of them are moved to disk."""
_SUBXID = STREAMED.get_field_index("subxid")
_COMPRESSED = ipc.IpcWriteOptions(compression="lz4")
_SIZE = Struct("<Q")  # bytes of a piece
_CHECKSUM = Struct("<I")  # CRC-32 of size and piece, so that zeros are no piece


class OpenStreams:
    """The open streams of a session; what they hold in memory is bounded. Single-threaded."""

    def __init__(self, folder: Path, versions: VersionIndex) -> None:
        self._folder = folder
        self._versions = versions
        self._open: dict[int, OpenStream] = {}
        self._bytes = self._rows = 0  # in memory, of all

    @property
    def has_open(self) -> bool:
        """Whether a transaction is streaming."""
        return bool(self._open)

    def start(self, started: StreamStarted) -> None:
        """Start a segment; the first one discards what was received of the transaction before."""
        if started.is_first:
            self.drop(started.xid)
            self._open[started.xid] = OpenStream(started.xid, self._versions)

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
        stream = self.remove(committed.xid)
        stream.settle(described)
        for relation in committed.relations:
            self._versions.in_force[relation.oid] = stream.index_of_oid[relation.oid]
        return stream

    def remove(self, xid: int) -> "OpenStream":
        """Remove and return a transaction that has ended."""
        stream = self._open.pop(xid)
        self._rows -= stream.row_count
        self._bytes -= stream.byte_count
        return stream

    def drop(self, xid: int) -> None:
        """Drop the rows of a transaction, if it is known."""
        if xid in self._open:
            self.remove(xid).discard()

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

    def __init__(self, xid: int, versions: VersionIndex) -> None:
        self.xid = xid
        self.described: list[Description] = []  # in the stream, in order
        self.index_of_oid: dict[int, int] = {}  # of the versions that were described in the stream
        self._versions = versions
        self._rows = RowMessages()
        self._others: list[OtherRow] = []  # truncations and logical messages
        self._other_bytes = 0
        self._next_row = 0
        self._aborted: set[int] = set()
        self._file: Path | None = None  # pieces: each an Arrow stream after its size and checksum
        self._piece_count = 0

    @property
    def byte_count(self) -> int:
        """Return the size of what is held in memory."""
        return self._rows.byte_count + self._other_bytes

    @property
    def row_count(self) -> int:
        """Return how many rows are held in memory."""
        return len(self._rows.messages) + len(self._others)

    @property
    def is_on_disk(self) -> bool:
        """Return whether a file holds rows."""
        return self._file is not None

    def describe(self, index: int) -> None:
        """Make a version the one that later changes of its relation name."""
        version = self._versions.all[index]
        self.described.append(Description(self._next_row, version, version))
        self.index_of_oid[version.relation.oid] = index

    def settle(self, versions: Sequence[RelationVersion]) -> None:
        """Replace the versions that were described, in order."""
        for each, version in zip(self.described, versions, strict=True):
            each.settled = version
            if version.relation.oid in self.index_of_oid:
                self.index_of_oid[version.relation.oid] = self._versions.index_of(version)

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
        """Move what is in memory to the end of the file."""
        self._file = self._file or folder / f"{uuid4().hex}.arrow"
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, STREAMED, options=_COMPRESSED) as writer:
            writer.write_table(self._pop_rows())
        piece = memoryview(sink.getvalue())
        with self._file.open("ab") as file:
            size = _SIZE.pack(len(piece))
            file.write(size + _CHECKSUM.pack(crc32(piece, crc32(size))))
            file.write(piece)
        self._piece_count += 1

    def finish(self, transaction: Transaction) -> Iterator[pa.Table]:
        """Yield the rows that remain, as rows of `changes` of a transaction whose end is known."""
        memory = [self._pop_rows()] if self.row_count else []
        values = transaction_values(transaction)
        next_ordinals = [0, 0]  # of changes, of logical messages
        for table in chain(self._read_file(), memory):
            yield _number(self._without_aborted(self._settled(table)), values, next_ordinals)
        self.discard()

    def discard(self) -> None:
        """Drop all rows."""
        if self._file:
            self._file.unlink(missing_ok=True)
        self._file, self._piece_count, self._rows, self._others = None, 0, RowMessages(), []

    def _read_file(self) -> Iterator[pa.Table]:
        if self._file:
            with pa.OSFile(str(self._file)) as file:
                for _ in range(self._piece_count):
                    with ipc.open_stream(self._read_piece(file)) as reader:
                        yield reader.read_all()

    def _read_piece(self, file: pa.OSFile) -> pa.Buffer:
        head, checksum = file.read(_SIZE.size), file.read(_CHECKSUM.size)
        if len(checksum) == _CHECKSUM.size:
            [size] = _SIZE.unpack(head)
            if size <= file.size() - file.tell():
                piece = file.read_buffer(size)
                if crc32(piece, crc32(head)) == _CHECKSUM.unpack(checksum)[0]:
                    return piece
        raise damaged_file(f"{self._file} of the open transaction {self.xid}")

    def _pop_rows(self) -> pa.Table:
        """Return what is in memory, and hold none."""
        tables = []
        if self._rows.messages:
            tables.append(streamed_table(self._rows, self._versions.all, self.xid))
        if self._others:
            tables.append(others_table(self._others, STREAMED))
        self._rows, self._others, self._other_bytes = RowMessages(), [], 0
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
