"""Select the messages to show, and give each its transaction and relations: raw messages in, frames out.

`TailReader` skips messages that an earlier SQL poll returned; it recognizes transactions by their LSNs, and
streamed and prepared ones by their xids. A stream that is still open is returned again, as the server sends
it. `Selection` shows the messages of matching tables: the beginning of a frame is held back until a message
inside it is shown, and its end is shown with it. With committed transactions only, streaming is off, and a
prepared transaction is kept in memory until it is committed or rolled back. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    Origin,
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
from pipeline.table_name import TableGlob, TableName

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


class Selection:
    """Select messages in their order."""

    def __init__(self, globs: Sequence[str] = (), *, committed_only: bool = False) -> None:
        """Show the tables that one of the `schema.table` globs matches; no glob matches all."""
        self._globs = [TableGlob(glob) for glob in globs]
        self._committed_only = committed_only
        self._held_back: list[TailMessage] = []  # the beginning of a frame, and its origin
        # xids of streams and prepared transactions
        self._shown_xids: set[int] = set()
        self._hidden_xids: set[int] = set()
        self._prepared: dict[int, list[TailMessage]] = {}

    def select(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        """Yield the messages that are to be shown now, after this one was received."""
        for selected in self._select_table(tail_message) if self._globs else (tail_message,):
            if self._committed_only:
                yield from self._select_committed(selected)
            else:
                yield selected

    def _select_table(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        message = tail_message.message
        if isinstance(message, BEGINNINGS):
            self._held_back = [tail_message]
        elif isinstance(message, Origin):
            if self._held_back:
                self._held_back.append(tail_message)
            else:
                yield tail_message
        elif isinstance(message, ENDINGS):
            is_shown = not self._held_back and tail_message.frame is not None
            self._held_back = []
            if isinstance(message, Prepare):
                (self._shown_xids if is_shown else self._hidden_xids).add(message.xid)
            if is_shown:
                yield tail_message
        elif isinstance(message, StreamCommit | StreamAbort | StreamPrepare):
            if message.xid in self._shown_xids:
                yield tail_message
            elif isinstance(message, StreamPrepare):
                self._hidden_xids.add(message.xid)
        elif isinstance(message, CommitPrepared | RollbackPrepared):
            # The tables of one that was prepared in an earlier session are unknown.
            if message.xid not in self._hidden_xids:
                yield tail_message
            self._hidden_xids.discard(message.xid)
        elif any(self._matches(relation) for relation in tail_message.relations):
            yield from self._held_back
            self._held_back = []
            if tail_message.frame is not None and tail_message.frame.lsn is None:
                self._shown_xids.add(tail_message.frame.xid)
            yield tail_message

    def _matches(self, relation: Relation) -> bool:
        name = TableName(relation.namespace or "pg_catalog", relation.name)
        return any(glob.matches(name) for glob in self._globs)

    def _select_committed(self, tail_message: TailMessage) -> Iterator[TailMessage]:
        message, frame = tail_message.message, tail_message.frame
        if isinstance(message, BeginPrepare):
            self._prepared[message.xid] = [tail_message]
        elif frame is not None and frame.xid in self._prepared:
            self._prepared[frame.xid].append(tail_message)
        elif isinstance(message, CommitPrepared):
            yield from self._prepared.pop(message.xid, ())
            yield tail_message
        elif isinstance(message, RollbackPrepared):
            self._prepared.pop(message.xid, None)
        elif not isinstance(message, Prepare):
            yield tail_message
