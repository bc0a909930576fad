"""Transactions whose end is not known yet, because they stream before their commit.

The rows of each are kept in the order in which they came, numbered by their arrival; in memory while those of
all open streams are few, else in a file of its own. What aborted subtransactions wrote is left out at the
end, and only then are the rows numbered for good: PostgreSQL streams what a rollback to a savepoint takes
back later. Nothing of an open stream outlives the session: the server streams it again.

A file is open only while it is written or read, and nothing of what is in it stays in memory: there may be
more streams than a process may have open files, each of any size and moved to disk piece by piece.
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

from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.rows import (
    OtherRow,
    Rows,
    Transaction,
    message_row,
    others_table,
    streamed_table,
    transaction_values,
    truncation_rows,
)
from pipeline.bronze.schema import CHANGES, STREAMED
from pipeline.bronze.staged_files import DAMAGE
from pipeline.errors import SpoolError
from pipeline.protocol.events import (
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamStarted,
)

# One transaction whose end is not known yet: its rows, in memory or in a file of its own.
_SUBXID = STREAMED.get_field_index("subxid")
_COMPRESSED = ipc.IpcWriteOptions(compression="lz4")
_SIZE = Struct("<Q")  # bytes of a piece
_CHECKSUM = Struct("<I")  # CRC-32 of both, so that zeros are no piece


@dataclass(slots=True)
class Description:
    """A version that holds from the row on that arrives next; `settled` is what it is once that is known."""

    arrival: int
    version: RelationVersion
    settled: RelationVersion


class OpenStream:
    """The rows of one top-level transaction, until it is known what becomes of them."""

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.described: list[Description] = []  # inside the stream, in order
        self.index_of_oid: dict[int, int] = {}  # into the spool's list of versions
        self.rows = Rows()
        self._others: list[OtherRow] = []
        self._other_bytes = 0
        self.arrivals = 0
        self._aborted: set[int] = set()
        self._file: Path | None = None  # pieces, each a table as Arrow's stream behind its size and checksum
        self._piece_count = 0

    @property
    def versions(self) -> list[RelationVersion]:
        """Return the relation versions that were described inside the stream, each once."""
        return list({each.settled.id: each.settled for each in self.described}.values())

    @property
    def byte_count(self) -> int:
        """Return the size of what is held in memory."""
        return self.rows.byte_count + self._other_bytes

    @property
    def row_count(self) -> int:
        """Return how many rows are held in memory."""
        return len(self.rows.messages) + len(self._others)

    @property
    def is_spilled(self) -> bool:
        """Say whether a file of its own holds rows."""
        return self._file is not None

    def add_change(self, change: StreamedChange, version: int) -> None:
        """Take one row message of the relation version with this index."""
        rows = self.rows
        rows.messages.append(change.data)
        rows.ordinals.append(self.arrivals)
        rows.versions.append(version)
        rows.origins.append(change.origin)
        rows.byte_count += len(change.data)
        self.arrivals += 1

    def add_truncation(self, truncation: StreamedTruncation, versions: list[RelationVersion]) -> None:
        """Take a Truncate: one row per relation."""
        self._add_others(truncation_rows(truncation, self.arrivals, versions), truncation.subxid)

    def add_message(self, emitted: StreamedEmitted) -> None:
        """Take a transactional logical message."""
        self._other_bytes += len(emitted.message.content)
        self._add_others([message_row(emitted.message, self.arrivals)], emitted.subxid)

    def _add_others(self, rows: list[OtherRow], subxid: int) -> None:
        for row in rows:
            self._others.append(row | {"subxid": subxid})
            self.arrivals += 1

    def abort(self, subxid: int) -> None:
        """Leave out, at the end, what the subtransaction wrote; what was described is described again."""
        self._aborted.add(subxid)
        self.index_of_oid.clear()

    def spill(self, directory: Path, versions: list[RelationVersion]) -> None:
        """Move what is in memory to the end of the file."""
        self._file = self._file or directory / f"{uuid4().hex}.arrow"
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, STREAMED, options=_COMPRESSED) as writer:
            writer.write_table(self._take(versions))
        piece = memoryview(sink.getvalue())
        with self._file.open("ab") as file:
            size = _SIZE.pack(len(piece))
            file.write(size + _CHECKSUM.pack(crc32(piece, crc32(size))))
            file.write(piece)
        self._piece_count += 1

    def finish(self, transaction: Transaction, versions: list[RelationVersion]) -> Iterator[pa.Table]:
        """Give the rows that remain, as rows of `changes` of a transaction whose end is known."""
        memory = [self._take(versions)] if self.row_count else []
        values = transaction_values(transaction)
        next_ordinals = [0, 0]  # of rows, of messages
        for table in chain(self._read_file(), memory):
            yield self._numbered(self._survivors(self._settled(table)), values, next_ordinals)
        self.discard()

    def discard(self) -> None:
        """Drop all rows."""
        if self._file:
            self._file.unlink(missing_ok=True)
        self._file, self._piece_count, self.rows, self._others = None, 0, Rows(), []

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
        raise SpoolError(
            f"The staged file {self._file}, of the open transaction {self.xid}, is not as it was written"
            f"{DAMAGE}"
        )

    def _take(self, versions: list[RelationVersion]) -> pa.Table:
        tables = []
        if self.rows.messages:
            tables.append(streamed_table(self.rows, versions, self.xid))
        if self._others:
            tables.append(others_table(self._others, STREAMED))
        self.rows, self._others, self._other_bytes = Rows(), [], 0
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by("ordinal")

    def _survivors(self, table: pa.Table) -> pa.Table:
        if self._aborted:
            lost = pc.is_in(table.column(_SUBXID), value_set=pa.array(sorted(self._aborted), pa.int64()))
            table = table.filter(pc.invert(lost))
        return table.remove_column(_SUBXID)

    def _settled(self, table: pa.Table) -> pa.Table:
        """Return rows, numbered by their arrival, with the versions that hold now that all is known."""
        until: dict[int, int] = {}  # where the rows of a relation are of its next description, by oid
        for each in reversed(self.described):
            oid = each.version.relation.oid
            end, until[oid] = until.get(oid, self.arrivals), each.arrival
            if each.settled.id == each.version.id:
                continue
            arrivals = table.column("ordinal")
            of_version = pc.and_(
                pc.equal(table.column("relation_id"), oid),
                pc.equal(table.column("relation_version"), each.version.id),
            )
            arrived = pc.and_(pc.greater_equal(arrivals, each.arrival), pc.less(arrivals, end))
            found = pa.scalar(each.settled.id, pa.int64())
            ids = pc.if_else(pc.and_(of_version, arrived), found, table.column("relation_version"))
            place = table.schema.get_field_index("relation_version")
            table = table.set_column(place, table.schema.field(place), ids)
        return table

    @staticmethod
    def _numbered(table: pa.Table, values: dict[str, Any], next_ordinals: list[int]) -> pa.Table:
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
            position = CHANGES.get_field_index(name)
            table = table.set_column(position, CHANGES.field(position), array)
        return table


STREAM_BYTES = 32 << 20
STREAM_ROWS = 131_072
"""What all open streams together may hold in memory before the largest of them is moved to disk."""


class Streams:
    """The open streams of a session, those in memory kept within bounds; single-threaded."""

    def __init__(
        self, directory: Path, versions: list[RelationVersion], index_of_oid: dict[int, int]
    ) -> None:
        """Share the spool's versions, and the indexes of those that hold outside of streams."""
        self._directory = directory
        self._versions = versions
        self._index_of_oid = index_of_oid
        self._open: dict[int, OpenStream] = {}
        self._bytes = self._rows = 0

    def start(self, started: StreamStarted) -> None:
        """Begin a segment; where it is the first, drop what came of the transaction before."""
        if started.is_first:
            self.drop(started.xid)
            self._open[started.xid] = OpenStream(started.xid)

    def describe(self, xid: int, version: RelationVersion, index: int) -> None:
        """Make this version the one that later changes of its relation name, in this stream."""
        stream = self._open[xid]
        # In place of an equal one from before, which may share all that it holds.
        version = self._versions[index] if self._versions[index].id == version.id else version
        stream.described.append(Description(stream.arrivals, version, version))
        stream.index_of_oid[version.relation.oid] = index

    def described(self, xid: int) -> list[RelationVersion]:
        """Return the versions that were described in a stream, in order."""
        return [each.version for each in self._open[xid].described]

    def settle(self, xid: int, versions: Sequence[RelationVersion], indexes: Sequence[int]) -> None:
        """Take other versions, with their indexes, for those that were described in a stream."""
        stream = self._open[xid]
        for each, version, index in zip(stream.described, versions, indexes, strict=True):
            each.settled = version
            if version.relation.oid in stream.index_of_oid:
                stream.index_of_oid[version.relation.oid] = index

    def add_change(self, change: StreamedChange) -> None:
        """Take one row message."""
        stream = self._open[change.xid]
        oid = change.relation.oid
        index = stream.index_of_oid.get(oid)
        stream.add_change(change, self._index_of_oid[oid] if index is None else index)
        self._rows += 1
        self._bytes += len(change.data)
        if self._bytes >= STREAM_BYTES or self._rows >= STREAM_ROWS:
            self._relieve()

    def add_truncation(self, truncation: StreamedTruncation) -> None:
        """Take a Truncate."""
        stream = self._open[truncation.xid]
        indexes = self._index_of_oid | stream.index_of_oid
        versions = [self._versions[indexes[relation.oid]] for relation in truncation.relations]
        stream.add_truncation(truncation, versions)
        self._rows += len(versions)

    def add_message(self, emitted: StreamedEmitted) -> None:
        """Take a logical message."""
        self._open[emitted.xid].add_message(emitted)
        self._rows += 1
        self._bytes += len(emitted.message.content)
        if self._bytes >= STREAM_BYTES or self._rows >= STREAM_ROWS:
            self._relieve()

    def abort(self, aborted: StreamAborted) -> None:
        """Drop a transaction, or what a subtransaction of it wrote; neither need be known."""
        if aborted.xid == aborted.subxid:
            self.drop(aborted.xid)
        elif stream := self._open.get(aborted.xid):
            stream.abort(aborted.subxid)

    def take(self, xid: int) -> OpenStream:
        """Hand over a transaction that has ended."""
        stream = self._open.pop(xid)
        self._rows -= stream.row_count
        self._bytes -= stream.byte_count
        return stream

    def commit(self, committed: StreamCommitted) -> OpenStream:
        """Hand over a transaction that is committed: what was described in it holds outside of it."""
        stream = self.take(committed.xid)
        for relation in committed.relations:
            self._index_of_oid[relation.oid] = stream.index_of_oid[relation.oid]
        return stream

    def drop(self, xid: int) -> None:
        """Forget a transaction, if it is known."""
        if xid in self._open:
            self.take(xid).discard()

    def discard(self) -> None:
        """Forget all: the session ended, and the next one streams them again from their beginning."""
        for xid in list(self._open):
            self.drop(xid)

    def _relieve(self) -> None:
        """Move the largest streams to disk until half of the memory is free."""
        by_size = sorted(self._open.values(), key=lambda stream: (stream.byte_count, stream.row_count))
        while by_size and (self._bytes > STREAM_BYTES // 2 or self._rows > STREAM_ROWS // 2):
            stream = by_size.pop()
            self._rows -= stream.row_count
            self._bytes -= stream.byte_count
            stream.spill(self._directory, self._versions)


def change_count_of(table: pa.Table) -> int:
    """Return how many of the rows have an ordinal of their transaction: all but logical messages."""
    return int(table.num_rows - (pc.sum(pc.equal(table.column("op"), "M")).as_py() or 0))
