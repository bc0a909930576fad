"""The messages of one replication session in, the events of its transactions out, in order.

Rules of the session:

1. A transaction is Begin, then any Relation, Type, Origin, Insert, Update, Delete, Truncate and transactional
   Message, then Commit. A prepared one is the same between Begin Prepare and Prepare; Commit Prepared or
   Rollback Prepared comes later, perhaps in another session. Of one that only locked rows, 18 sends
   Prepare without Begin Prepare, and 15 to 17 send neither. Transactions never nest. A Message that is not
   transactional stands between them.
2. A streamed transaction comes in segments, each between Stream Start and Stream Stop, and ends with Stream
   Commit, Stream Prepare or Stream Abort. Segments stand where whole transactions stand and never nest, but
   many streams may be open. The first segment of a transaction is marked; it comes once more where the server
   begins anew, as each look by SQL makes it do, and voids what came before.
3. Stream Abort also ends single subtransactions. It may name what this session never streamed: 18 does so
   for a subtransaction that was streamed to an earlier one.
4. A relation is described before the first change that names it, and again whenever its shape changes; in
   every stream anew (`streams` says for how long). What one session described holds for that session only: a
   new session needs a new Assembler.
5. Changes are numbered from 0 within their transaction: Insert, Update, Delete, and Truncate once for each
   relation. Relation, Type, Origin and Message do not count, as their number differs between sessions.
   Streamed changes are not numbered, as some may yet be rolled back.
6. An illegal move or a malformed message breaks the session for good: BROKEN has no moves.
"""

import enum
from dataclasses import replace

from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Described,
    Emitted,
    Event,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    StreamStopped,
    Truncation,
)
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
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
    Truncate,
    Type,
    Update,
)


# Where a replication session can stand, and every legal move from there, by the type byte that makes it.
class State(enum.Enum):
    """Where a replication session stands between two messages."""

    IDLE = "between transactions"
    IN_TRANSACTION = "in a transaction"
    IN_PREPARED = "in a prepared transaction"
    IN_STREAM = "in a segment of a stream"
    BROKEN = "in a broken session"

    # The hash of enum.Enum is a Python function, and states are looked up twice in every transaction.
    __hash__ = object.__hash__


MOVES: dict[State, dict[str, State]] = {
    State.IDLE: {
        "B": State.IN_TRANSACTION,
        "M": State.IDLE,
        "S": State.IN_STREAM,
        "c": State.IDLE,
        "A": State.IDLE,
        "b": State.IN_PREPARED,
        "P": State.IDLE,
        "K": State.IDLE,
        "r": State.IDLE,
        "p": State.IDLE,
    },
    State.IN_TRANSACTION: {**dict.fromkeys("ORYIUDTM", State.IN_TRANSACTION), "C": State.IDLE},
    State.IN_PREPARED: {**dict.fromkeys("ORYIUDTM", State.IN_PREPARED), "P": State.IDLE},
    State.IN_STREAM: {**dict.fromkeys("ORYIUDTM", State.IN_STREAM), "E": State.IDLE},
    State.BROKEN: {},
}


# The relations in force in a session, and what is remembered of its open streams.
class Relations:
    """Relations by oid, as the four bytes that changes carry, each with a number that grows as they come."""

    __slots__ = ("by_oid", "numbers")

    def __init__(self) -> None:
        """Hold none."""
        self.by_oid: dict[bytes, Relation] = {}
        self.numbers: dict[bytes, int] = {}

    def put(self, oid: bytes, relation: Relation, number: int) -> Relation:
        """Hold the relation as the latest of its oid; return it, or the equal one held before."""
        known = self.by_oid.get(oid)
        if known is None or known != relation:
            self.by_oid[oid] = known = relation
        self.numbers[oid] = number
        return known

    def put_newer(self, others: "Relations") -> tuple[Relation, ...]:
        """Hold those of the others that came later than what is held, and return them."""
        return tuple(
            self.put(oid, relation, others.numbers[oid])
            for oid, relation in others.by_oid.items()
            if others.numbers[oid] > self.numbers.get(oid, -1)
        )

    def clear(self) -> None:
        """Hold none."""
        self.by_oid.clear()
        self.numbers.clear()


class Stream:
    """A transaction that is streamed: between its first Stream Start and its end."""

    __slots__ = ("origin", "relations", "xid")

    def __init__(self, xid: int) -> None:
        """Begin with nothing described."""
        self.xid = xid
        self.relations = Relations()
        self.origin: Origin | None = None  # comes in the first segment, and is meant for all


# The assembler: the messages of one replication session in, the events of its transactions out, in order.
_ROW_TYPES = frozenset((b"I", b"U", b"D"))
_NO_TYPES: frozenset[bytes] = frozenset()
_new = tuple.__new__


class Assembler:
    """The state of one replication session."""

    __slots__ = (
        "_begin",
        "_description_count",
        "_end_lsn",
        "_lasting",
        "_message_count",
        "_moves",
        "_ordinal",
        "_origin",
        "_relations",
        "_row_types",
        "_state",
        "_stream",
        "_streamed_row_types",
        "_streams",
        "_subxid",
        "_subxid_bytes",
    )

    def __init__(self) -> None:
        """Stand between transactions, with no relation described and no stream open."""
        self._lasting = Relations()  # those outside of streams
        self._description_count = 0
        self._streams: dict[int, Stream] = {}
        self._stream = Stream(0)  # that of the segment, or of the last one
        self._begin: Begin | BeginPrepare = Begin(INVALID, 0, 0)
        self._end_lsn = INVALID
        self._origin: Origin | None = None
        self._ordinal = self._message_count = self._subxid = 0
        self._subxid_bytes = b""
        self._enter(State.IDLE)

    @property
    def state(self) -> State:
        """Tell where the session stands."""
        return self._state

    @property
    def in_transaction(self) -> bool:
        """Tell whether a transaction, prepared or not, has begun and is not yet whole."""
        return self._state is State.IN_TRANSACTION or self._state is State.IN_PREPARED

    @property
    def open_streams(self) -> tuple[int, ...]:
        """Return the xids of the transactions that are streamed and have not ended."""
        return tuple(self._streams)

    def receive(self, data: bytes) -> Event | None:
        """Return what the next message means, None where nothing follows; once it raised, raise for ever."""
        kind = data[:1]
        if kind in self._row_types:
            if (relation := self._relations.get(data[1:5])) is not None:
                ordinal = self._ordinal
                self._ordinal = ordinal + 1
                return _new(Change, (ordinal, relation, self._origin, data))
        elif kind in self._streamed_row_types and (relation := self._relations.get(data[5:9])) is not None:
            if data[1:5] != self._subxid_bytes:
                self._subxid_bytes = data[1:5]
                self._subxid = int.from_bytes(self._subxid_bytes, "big")
            return _new(StreamedChange, (self._stream.xid, self._subxid, relation, self._origin, data))
        try:
            return self._receive(data)
        except ProtocolError as error:
            sentence = f"{error} ({self._place()}); this replication session is broken, start a new one"
            self._enter(State.BROKEN)
            raise ProtocolError(sentence) from None

    def _receive(self, data: bytes) -> Event | None:
        if self._state is State.BROKEN:
            raise ProtocolError("a message came after one that was malformed or illegal")
        message = decode(data, in_stream=self._state is State.IN_STREAM)
        state = self._moves.get(chr(data[0]))
        if state is None:
            raise ProtocolError(f"{type(message).__name__} is not legal {self._state.value}")
        event = self._take(message)
        if state is not self._state:
            self._enter(state)
        return event

    def _take(self, message: Message) -> Event | None:
        match message:
            case Begin():
                self._start(message)
                return Began(message.xid, message.final_lsn, message.commit_time)
            case Commit():
                return self._commit(message)
            case BeginPrepare(lsn, end_lsn, time, xid, gid):
                self._start(message)
                return BeganPrepare(gid, xid, lsn, end_lsn, time)
            case Prepare(_, lsn, end_lsn, time, xid, gid):
                self._end(lsn, end_lsn, "Prepare")
                if self._state is State.IDLE:
                    return None
                if self._begin != BeginPrepare(lsn, end_lsn, time, xid, gid):
                    raise ProtocolError(f"Prepare of {xid} at {lsn} is not what its Begin Prepare said")
                return Prepared(gid, xid, lsn, end_lsn, time, self._ordinal)
            case CommitPrepared(_, lsn, end_lsn, time, xid, gid):
                self._end(lsn, end_lsn, "Commit Prepared")
                return CommittedPrepared(gid, xid, lsn, end_lsn, time)
            case RollbackPrepared(_, prepare_end_lsn, end_lsn, time, rollback_time, xid, gid):
                self._end(prepare_end_lsn, end_lsn, "Rollback Prepared")
                return RolledBackPrepared(gid, xid, prepare_end_lsn, end_lsn, time, rollback_time)
            case StreamStart():
                return self._start_stream(message)
            case StreamStop():
                return StreamStopped(self._stream.xid)
            case StreamCommit(xid, _, lsn, end_lsn, time):
                described = self._end_stream(xid, "Stream Commit").relations
                self._end(lsn, end_lsn, "Stream Commit")
                return StreamCommitted(xid, lsn, end_lsn, time, self._lasting.put_newer(described))
            case StreamPrepare(_, lsn, end_lsn, time, xid, gid):
                self._end_stream(xid, "Stream Prepare")
                self._end(lsn, end_lsn, "Stream Prepare")
                return StreamPrepared(gid, xid, lsn, end_lsn, time)
            case StreamAbort():
                return self._abort(message)
            case Relation():
                return self._describe(message)
            case Origin():
                self._origin = message
                if self._state is State.IN_STREAM:
                    self._stream.origin = message
            case Type():
                pass
            case Truncate():
                return self._truncate(message)
            case LogicalMessage():
                return self._emit(message)
            case Insert() | Update() | Delete():
                # Those of a relation that is known never come this far.
                self._relation(message.oid, type(message).__name__)
                raise AssertionError("a change of a known relation was not handed on")
        return None

    def _start(self, begin: Begin | BeginPrepare) -> None:
        self._begin = begin
        self._origin = None
        self._ordinal = self._message_count = 0

    def _end(self, lsn: LSN, end_lsn: LSN, message_name: str) -> None:
        if end_lsn < lsn:
            raise ProtocolError(f"{message_name} at {lsn} ends before that, at {end_lsn}")
        self._end_lsn = end_lsn

    def _commit(self, commit: Commit) -> Committed:
        begin = self._begin
        assert isinstance(begin, Begin)
        if commit.commit_lsn != begin.final_lsn:
            raise ProtocolError(f"Commit is at {commit.commit_lsn}, its Begin said {begin.final_lsn}")
        self._end(commit.commit_lsn, commit.end_lsn, "Commit")
        return Committed(begin.xid, commit.commit_lsn, commit.end_lsn, commit.commit_time, self._ordinal)

    def _start_stream(self, start: StreamStart) -> StreamStarted:
        if start.is_first_segment:
            # One that is open begins anew: the server has sent all of it again from here on.
            self._streams[start.xid] = Stream(start.xid)
        self._stream = self._open_stream(start.xid, "Stream Start")
        self._origin = self._stream.origin
        return StreamStarted(start.xid, start.is_first_segment)

    def _end_stream(self, xid: int, message_name: str) -> Stream:
        self._open_stream(xid, message_name)
        return self._streams.pop(xid)

    def _open_stream(self, xid: int, message_name: str) -> Stream:
        stream = self._streams.get(xid)
        if stream is None:
            raise ProtocolError(f"{message_name} names transaction {xid}, which no first segment began")
        return stream

    def _abort(self, abort: StreamAbort) -> StreamAborted:
        if abort.subxid == abort.xid:
            self._streams.pop(abort.xid, None)
        elif abort.xid in self._streams:
            self._streams[abort.xid].relations.clear()
        return StreamAborted(abort.xid, abort.subxid, abort.abort_lsn, abort.abort_time)

    def _describe(self, relation: Relation) -> Described:
        oid = relation.oid.to_bytes(4, "big")
        self._description_count += 1
        if relation.xid is None:
            return Described(self._lasting.put(oid, relation, self._description_count))
        stream = self._stream
        relation = replace(relation, xid=None)
        lasting = self._lasting.by_oid.get(oid)
        if lasting is not None and lasting == relation:
            relation = lasting
        return Described(stream.relations.put(oid, relation, self._description_count), stream.xid)

    def _truncate(self, truncate: Truncate) -> Truncation | StreamedTruncation:
        relations = tuple([self._relation(oid, "Truncate") for oid in truncate.oids])
        options, origin = truncate.options, self._origin
        if truncate.xid is not None:
            return StreamedTruncation(self._stream.xid, truncate.xid, relations, options, origin)
        self._ordinal += len(relations)
        return Truncation(self._ordinal - len(relations), relations, options, origin)

    def _relation(self, oid: int, message_name: str) -> Relation:
        relation = self._relations.get(oid.to_bytes(4, "big"))
        if relation is None:
            raise ProtocolError(f"{message_name} names relation {oid}, which no Relation message described")
        return relation

    def _emit(self, message: LogicalMessage) -> Emitted | StreamedEmitted:
        if message.transactional is (self._state is State.IDLE):
            kind = "transactional" if message.transactional else "non-transactional"
            raise ProtocolError(f"a {kind} LogicalMessage is not legal {self._state.value}")
        if message.xid is not None:
            return StreamedEmitted(self._stream.xid, message.xid, message)
        sequence = self._message_count if message.transactional else 0
        self._message_count += message.transactional
        return Emitted(sequence, message, message.transactional)

    def _enter(self, state: State) -> None:
        self._state = state
        self._moves = MOVES[state]
        is_streaming = state is State.IN_STREAM
        self._row_types = _ROW_TYPES if self.in_transaction else _NO_TYPES
        self._streamed_row_types = _ROW_TYPES if is_streaming else _NO_TYPES
        self._relations = self._stream.relations.by_oid if is_streaming else self._lasting.by_oid

    def _place(self) -> str:
        match self._state:
            case State.IN_TRANSACTION | State.IN_PREPARED:
                begin = self._begin
                if isinstance(begin, Begin):
                    return f"in transaction {begin.xid}, committed at {begin.final_lsn}"
                return f"in transaction {begin.xid}, prepared at {begin.prepare_lsn}"
            case State.IN_STREAM:
                return f"in the stream of transaction {self._stream.xid}"
            case State.IDLE | State.BROKEN if self._end_lsn:
                return f"after the transaction that ended at {self._end_lsn}"
            case _:
                return "before the first transaction"


__all__ = [
    "MOVES",
    "Assembler",
    "Began",
    "BeganPrepare",
    "Change",
    "Committed",
    "CommittedPrepared",
    "Described",
    "Emitted",
    "Event",
    "Prepared",
    "RolledBackPrepared",
    "State",
    "StreamAborted",
    "StreamCommitted",
    "StreamPrepared",
    "StreamStarted",
    "StreamStopped",
    "StreamedChange",
    "StreamedEmitted",
    "StreamedTruncation",
    "Truncation",
]
