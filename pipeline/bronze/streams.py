"""Transactions whose end is not known yet, because they stream before their commit.

The rows of each are kept in the order in which they came, numbered by their arrival; in memory while those of
all open streams are few, else in a file of its own. What aborted subtransactions wrote is left out at the
end, and only then are the rows numbered for good: PostgreSQL streams what a rollback to a savepoint takes
back later. Nothing of an open stream outlives the session: the server streams it again.

A file is open only while it is written or read, and nothing of what is in it stays in memory: there may be
more streams than a process may have open files, each of any size and moved to disk piece by piece.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.open_stream import Description, OpenStream
from pipeline.bronze.versions import RelationVersion
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
