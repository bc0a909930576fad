"""Raw messages of a slot in, what a person is to be shown of them out: each with its place and its tables.

Pure: no server, no output. A slot that is looked at by SQL tells everything anew with each look; what an
earlier one has told is passed over here. Transactions are known again by their positions, streams and
prepared transactions by their xids. A stream that is still open is shown anew, as the server sends it.
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
"""What closes a frame; a Prepare may come without one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a message stands in: a transaction, or a segment of a stream, of which no LSN is known yet."""

    xid: int
    lsn: LSN | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True)
class TailMessage:
    """One message, the frame that it stands in, opens or closes, and the tables that it speaks of."""

    message: Message
    frame: Frame | None
    relations: tuple[Relation, ...] = ()

    @property
    def is_inside(self) -> bool:
        """Tell whether the message stands between the beginning and the end of its frame."""
        return self.frame is not None and not isinstance(self.message, BEGINNINGS + ENDINGS)


class TailReader:
    """Reads the messages of one slot, through one session of the server or many."""

    def __init__(self) -> None:
        """Begin before everything."""
        self._assembler = Assembler()
        self._session = 0
        self._frame: Frame | None = None
        self._is_known = False  # what stands in the frame was told by an earlier session
        self._through = self._known_through = INVALID  # the end of what was told; of that by earlier sessions
        self._emitted = self._known_emitted = INVALID  # the same for messages outside transactions
        self._ended: set[int] = set()  # xids of streams and prepared transactions
        self._known_ended: frozenset[int] = frozenset()

    def read(self, data: bytes, session: int) -> TailMessage | None:
        """Return what the next message says, None where it was told before; raise ProtocolError if broken."""
        if session != self._session:
            self._begin_session(session)
        is_streaming = self._assembler.state is State.IN_STREAM
        event = self._assembler.receive(data)
        message = decode(data, in_stream=is_streaming)
        self._open(message)
        frame, is_known = self._frame, self._is_known
        if frame is None:
            is_known = self._is_outside_known(message)
        self._close(message)
        return None if is_known else TailMessage(message, frame, _relations(event))

    def _begin_session(self, session: int) -> None:
        self._session = session
        self._assembler = Assembler()
        self._frame, self._is_known = None, False
        self._known_through, self._known_emitted = self._through, self._emitted
        self._known_ended = frozenset(self._ended)

    def _open(self, message: Message) -> None:
        match message:
            case Begin(lsn, time, xid):
                self._frame = Frame(xid, lsn, time)
                self._is_known = lsn < self._known_through
            case BeginPrepare(lsn, _, time, xid):
                self._frame = Frame(xid, lsn, time)
                self._is_known = xid in self._known_ended
            case StreamStart(xid):
                self._frame = Frame(xid)
                self._is_known = xid in self._known_ended

    def _is_outside_known(self, message: Message) -> bool:
        match message:
            case LogicalMessage():
                return message.lsn <= self._known_emitted
            case StreamAbort():
                return message.xid in self._known_ended
        return end_of(message) <= self._known_through

    def _close(self, message: Message) -> None:
        self._through = max(self._through, end_of(message))
        match message:
            case LogicalMessage() if self._frame is None:
                self._emitted = max(self._emitted, message.lsn)
            case StreamCommit() | StreamPrepare() | Prepare():
                self._ended.add(message.xid)
            case StreamAbort() if message.xid == message.subxid:
                self._ended.add(message.xid)
        if isinstance(message, ENDINGS):
            self._frame, self._is_known = None, False


def end_of(message: Message) -> LSN:
    """Return where the transaction that the message ends is at its end, INVALID where it ends none."""
    match message:
        case Commit() | StreamCommit() | Prepare() | StreamPrepare() | CommitPrepared():
            return message.end_lsn
        case RollbackPrepared():
            return message.rollback_end_lsn
    return INVALID


def place_of(message: Message) -> LSN:
    """Return where the record that the message tells of begins, INVALID where it does not say.

    Of what is rolled back that is the end: where it begins is not sent.
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


def is_past(message: Message, lsn: LSN) -> bool:
    """Tell whether the record that the message tells of stands behind what ends at or before `lsn`."""
    if isinstance(message, RollbackPrepared):
        return message.rollback_end_lsn > lsn
    return place_of(message) >= lsn


def _relations(event: Event | None) -> tuple[Relation, ...]:
    match event:
        case Change() | StreamedChange() | Described():
            return (event.relation,)
        case Truncation() | StreamedTruncation():
            return event.relations
    return ()
