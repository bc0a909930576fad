"""Read a slot for people: raw messages in, each with its transaction and its relations out.

No I/O. A slot that is polled by SQL sends the same messages with every poll; those that were returned for an
earlier poll are skipped here. Transactions are recognized by their LSNs, streamed and prepared ones by their
xids. A stream that is still open is returned again, as the server sends it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.protocol.decode import decode
from pipeline.protocol.events import Change, Described, Event, StreamedChange, StreamedTruncation, Truncation
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from pipeline.protocol.transactions import Assembler, State

BEGINNINGS = (Begin, BeginPrepare, StreamStart)
ENDINGS = (Commit, Prepare, StreamStop)
"""The messages that close a frame; a Prepare may be sent without one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The transaction that a message belongs to; a segment of a stream has no LSN and no time yet."""

    xid: int
    lsn: LSN | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class TailMessage:
    """One message, the frame that it opens, closes or is inside of, and the relations that it names."""

    message: Message
    frame: Frame | None
    relations: tuple[Relation, ...] = ()

    @property
    def is_inside(self) -> bool:
        """Whether the message is between the beginning and the end of its frame."""
        return self.frame is not None and not isinstance(self.message, BEGINNINGS + ENDINGS)


class TailReader:
    """Read the messages of one slot, through any number of the server's decoding sessions."""

    def __init__(self) -> None:
        self._assembler = Assembler()
        self._session = 0
        self._frame: Frame | None = None
        self._is_repeated = False  # the frame was returned in an earlier session
        # What was returned: in all sessions, and in earlier ones.
        self._end_lsn = self._earlier_end_lsn = INVALID  # of transactions
        self._emitted_lsn = self._earlier_emitted_lsn = INVALID  # of messages outside transactions
        self._ended_xids: set[int] = set()  # of streams and prepared transactions
        self._earlier_xids: frozenset[int] = frozenset()

    def read(self, data: bytes, session: int) -> TailMessage | None:
        """Return the next message, None if it was returned before; raise ProtocolError if it is malformed."""
        if session != self._session:
            self._start_session(session)
        is_streaming = self._assembler.state is State.IN_STREAM
        event = self._assembler.receive(data)
        message = decode(data, in_stream=is_streaming)
        self._open_frame(message)
        frame, is_repeated = self._frame, self._is_repeated
        if frame is None:
            is_repeated = self._is_repeated_outside(message)
        self._close_frame(message)
        return None if is_repeated else TailMessage(message, frame, _relations(event))

    def _start_session(self, session: int) -> None:
        self._session = session
        self._assembler = Assembler()
        self._frame, self._is_repeated = None, False
        self._earlier_end_lsn, self._earlier_emitted_lsn = self._end_lsn, self._emitted_lsn
        self._earlier_xids = frozenset(self._ended_xids)

    def _open_frame(self, message: Message) -> None:
        match message:
            case Begin(lsn, time, xid):
                self._frame = Frame(xid, lsn, time)
                self._is_repeated = lsn < self._earlier_end_lsn
            case BeginPrepare(lsn, _, time, xid):
                self._frame = Frame(xid, lsn, time)
                self._is_repeated = xid in self._earlier_xids
            case StreamStart(xid):
                self._frame = Frame(xid)
                self._is_repeated = xid in self._earlier_xids

    def _is_repeated_outside(self, message: Message) -> bool:
        match message:
            case LogicalMessage():
                return message.lsn <= self._earlier_emitted_lsn
            case StreamAbort():
                return message.xid in self._earlier_xids
        return end_lsn_of(message) <= self._earlier_end_lsn

    def _close_frame(self, message: Message) -> None:
        self._end_lsn = max(self._end_lsn, end_lsn_of(message))
        match message:
            case LogicalMessage() if self._frame is None:
                self._emitted_lsn = max(self._emitted_lsn, message.lsn)
            case StreamCommit() | StreamPrepare() | Prepare():
                self._ended_xids.add(message.xid)
            case StreamAbort() if message.xid == message.subxid:
                self._ended_xids.add(message.xid)
        if isinstance(message, ENDINGS):
            self._frame, self._is_repeated = None, False


def end_lsn_of(message: Message) -> LSN:
    """Return the end LSN of the transaction that the message ends, INVALID if it ends none."""
    match message:
        case Commit() | StreamCommit() | Prepare() | StreamPrepare() | CommitPrepared():
            return message.end_lsn
        case RollbackPrepared():
            return message.rollback_end_lsn
    return INVALID


def lsn_of(message: Message) -> LSN:
    """Return the LSN of the WAL record of the message, INVALID if the message does not have it.

    For a rollback it is the end of the record: its start is not sent.
    """
    match message:
        case Begin():
            return message.final_lsn
        case Commit() | StreamCommit() | CommitPrepared():
            return message.commit_lsn
        case BeginPrepare() | Prepare() | StreamPrepare():
            return message.prepare_lsn
        case RollbackPrepared():
            return message.rollback_end_lsn
        case StreamAbort():
            return message.abort_lsn or INVALID
        case LogicalMessage():
            return message.lsn
    return INVALID


def is_after(message: Message, end_lsn: LSN) -> bool:
    """Return whether the WAL record of the message is after everything that ended up to `end_lsn`."""
    if isinstance(message, RollbackPrepared):
        return message.rollback_end_lsn > end_lsn
    return lsn_of(message) >= end_lsn


def _relations(event: Event | None) -> tuple[Relation, ...]:
    match event:
        case Change() | StreamedChange() | Described():
            return (event.relation,)
        case Truncation() | StreamedTruncation():
            return event.relations
    return ()
