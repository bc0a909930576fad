"""What the assembler tells of a replication session: the events of its transactions.

Three kinds of transactions come: whole ones (Began … Committed), prepared ones (BeganPrepare … Prepared, and
later CommittedPrepared or RolledBackPrepared), and streamed ones, whose changes come before it is known
whether they will be committed (StreamStarted … StreamStopped, many times and between those of others, then
StreamCommitted, StreamPrepared or StreamAborted). The changes of the first two are Change, Truncation and
Emitted; of the last StreamedChange, StreamedTruncation and StreamedEmitted, which say their subtransaction
and have no ordinals: who keeps them numbers what is left of them when they are committed.

Messages are handed on undecoded, as `data`. One from a stream has its xid behind the type byte: without it,
`data[:1] + data[5:]`, it is what would have come outside of a stream.
"""

from typing import NamedTuple, TypeAlias

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import LogicalMessage, Origin, Relation


class Began(NamedTuple):
    """A transaction begins that was committed at `commit_lsn`."""

    xid: int
    commit_lsn: LSN
    commit_time: int


class Described(NamedTuple):
    """A Relation message came; an equal one gives the very object that was in force before.

    With an `xid` it came in the stream of that transaction and holds there only, until StreamCommitted says
    that it holds for all.
    """

    relation: Relation
    xid: int | None = None


class Change(NamedTuple):
    """An Insert, Update or Delete; `data` is the whole message, undecoded: `data[0]` is its type byte."""

    ordinal: int
    relation: Relation
    origin: Origin | None
    data: bytes


class Truncation(NamedTuple):
    """A Truncate; `relations` have the ordinals from `ordinal` on, in their order."""

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
    """The transaction that began is whole; `change_count` is how many ordinals it used."""

    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    change_count: int


class StreamStarted(NamedTuple):
    """A segment of the transaction `xid` begins; where `is_first`, whatever was kept of `xid` is void."""

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

    Servers up to 18 name the transaction itself as its `subxid`, also where a subtransaction emitted it: it
    stays when that one is rolled back.
    """

    xid: int
    subxid: int
    message: LogicalMessage


class StreamStopped(NamedTuple):
    """The segment ends; nothing is decided yet."""

    xid: int


class StreamAborted(NamedTuple):
    """What subtransaction `subxid` did is void; where it is `xid` itself, the whole transaction is.

    Only what is kept of an open stream is meant, never what was committed: 14 and 15 stream a transaction
    again that was confirmed before, and end it so. Neither transaction nor subtransaction need be known.
    """

    xid: int
    subxid: int
    abort_lsn: LSN | None
    abort_time: int | None


class StreamCommitted(NamedTuple):
    """The streamed transaction is whole; `relations`, described in it, hold for all from here on."""

    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    relations: tuple[Relation, ...]


class BeganPrepare(NamedTuple):
    """A transaction begins that was prepared at `prepare_lsn`; its changes follow as those of others do."""

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int


class Prepared(NamedTuple):
    """The prepared transaction that began is all there; `change_count` is how many ordinals it used.

    Once `end_lsn` is acknowledged, the server sends nothing more of it than what became of it.
    """

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    change_count: int


class StreamPrepared(NamedTuple):
    """The streamed transaction is prepared: what is kept of it is to be kept for good, as with Prepared."""

    gid: str
    xid: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int


class CommittedPrepared(NamedTuple):
    """The prepared transaction is committed.

    It changed nothing if neither Prepared nor StreamPrepared ever came, in this or an earlier session.
    """

    gid: str
    xid: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


class RolledBackPrepared(NamedTuple):
    """The transaction whose PREPARE ended at `prepare_end_lsn` is rolled back; it need not be known."""

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
