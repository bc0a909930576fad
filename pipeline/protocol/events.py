"""The events of a replication session: what the assembler makes of its messages.

There are three kinds of transactions. Committed ones are Began … Committed. Prepared ones are BeganPrepare …
Prepared and, later, CommittedPrepared or RolledBackPrepared. Streamed ones are sent before their commit:
StreamStarted … StreamStopped, any number of times and between other transactions, then StreamCommitted,
StreamPrepared or StreamAborted. The changes of the first two kinds are Change, Truncation and Emitted. Those
of streams are StreamedChange, StreamedTruncation and StreamedEmitted, which name their subtransaction and
have no ordinals: the consumer numbers those that are left when the stream is committed.

Changes carry their message undecoded, as `data`. A message of a stream has its xid after the type byte;
`data[:1] + data[5:]` is the same message outside a stream.
"""

from typing import NamedTuple, TypeAlias

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import LogicalMessage, Origin, Relation


class Began(NamedTuple):
    """Start of a transaction that was committed at `commit_lsn`."""

    xid: int
    commit_lsn: LSN
    commit_time: int


class Described(NamedTuple):
    """A Relation message; one equal to the relation described before has the same `relation` object.

    With an `xid` it was sent in the stream of that transaction and is valid there only, until StreamCommitted
    names it.
    """

    relation: Relation
    xid: int | None = None


class Change(NamedTuple):
    """An Insert, Update or Delete; `data` is the complete message, undecoded: `data[0]` is its type byte."""

    ordinal: int
    relation: Relation
    origin: Origin | None
    data: bytes


class Truncation(NamedTuple):
    """A Truncate; the relations have the ordinals `ordinal`, `ordinal` + 1 and so on."""

    ordinal: int
    relations: tuple[Relation, ...]
    options: int
    origin: Origin | None


class Emitted(NamedTuple):
    """A logical message; `sequence` counts those of its transaction from 0, and is 0 outside transactions."""

    sequence: int
    message: LogicalMessage
    in_transaction: bool


class Committed(NamedTuple):
    """End of the transaction, which is now complete; `change_count` is the number of its ordinals."""

    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    change_count: int


class StreamStarted(NamedTuple):
    """Start of a segment of the transaction `xid`; if `is_first`, discard what was received of it before."""

    xid: int
    is_first: bool


class StreamedChange(NamedTuple):
    """An Insert, Update or Delete of subtransaction `subxid`, which may be `xid` itself."""

    xid: int
    subxid: int
    relation: Relation
    origin: Origin | None
    data: bytes


class StreamedTruncation(NamedTuple):
    """A Truncate of subtransaction `subxid`."""

    xid: int
    subxid: int
    relations: tuple[Relation, ...]
    options: int
    origin: Origin | None


class StreamedEmitted(NamedTuple):
    """A transactional logical message.

    Servers up to 18 send the top-level xid as `subxid` even if a subtransaction emitted the message, so that
    the message is kept when that subtransaction is rolled back.
    """

    xid: int
    subxid: int
    message: LogicalMessage


class StreamStopped(NamedTuple):
    """End of the segment; the transaction is still open."""

    xid: int


class StreamAborted(NamedTuple):
    """Subtransaction `subxid` was rolled back: discard it or, if `subxid` is `xid`, the entire transaction.

    Discard only what was received in an open stream, nothing that was committed: 14 and 15 stream a
    transaction again that was confirmed before, and end it so. Neither xid need have been received before.
    """

    xid: int
    subxid: int
    abort_lsn: LSN | None
    abort_time: int | None


class StreamCommitted(NamedTuple):
    """The streamed transaction was committed; its `relations` are valid in the session from here on."""

    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    relations: tuple[Relation, ...]


class BeganPrepare(NamedTuple):
    """Start of a transaction that was prepared at `prepare_lsn`; its changes follow."""

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int


class Prepared(NamedTuple):
    """End of the prepared transaction, which is now complete; `change_count` is the number of its ordinals.

    Once `end_lsn` is acknowledged, the server sends Commit Prepared or Rollback Prepared only.
    """

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    change_count: int


class StreamPrepared(NamedTuple):
    """The streamed transaction was prepared; as with Prepared, its changes are not sent again."""

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int


class CommittedPrepared(NamedTuple):
    """The prepared transaction was committed.

    It had no changes if neither this nor an earlier session had its Prepared or StreamPrepared.
    """

    gid: str
    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


class RolledBackPrepared(NamedTuple):
    """The transaction whose PREPARE ended at `prepare_end_lsn` was rolled back; it may be unknown."""

    gid: str
    xid: int
    prepare_end_lsn: LSN
    rollback_end_lsn: LSN
    prepare_time: int
    rollback_time: int


StreamEvent: TypeAlias = (
    StreamStarted
    | StreamedChange
    | StreamedTruncation
    | StreamedEmitted
    | StreamStopped
    | StreamAborted
    | StreamCommitted
    | StreamPrepared
)
PrepareEvent: TypeAlias = BeganPrepare | Prepared | CommittedPrepared | RolledBackPrepared
Event: TypeAlias = Began | Described | Change | Truncation | Emitted | Committed | StreamEvent | PrepareEvent
