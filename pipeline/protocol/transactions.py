"""Assemble the messages of one replication session into the events of its transactions, in order.

Rules of a session:

1. A transaction is Begin, then any number of Relation, Type, Origin, Insert, Update, Delete, Truncate and
   transactional Message, then Commit. A prepared transaction is the same between Begin Prepare and Prepare;
   Commit Prepared or Rollback Prepared follows later, perhaps in another session. For one that only locked
   rows, PostgreSQL 18 sends Prepare without Begin Prepare, and 15 to 17 send neither. Transactions never
   nest. A Message that is not transactional is sent between transactions.
2. A streamed transaction is sent in segments, each between Stream Start and Stream Stop, and ends with Stream
   Commit, Stream Prepare or Stream Abort. Segments are sent between transactions and never nest, but many
   streams may be open at once. The first segment of a transaction is marked. It is repeated when the server
   decodes the transaction again, as each poll by SQL does, and then replaces what was sent before.
3. Stream Abort also ends single subtransactions. It may name one that this session never streamed: 18 does so
   for a subtransaction that was streamed to an earlier session.
4. A relation is described before the first change that names it, and again after each change of its columns;
   each stream describes its relations itself (`_Stream`). What one session described is valid in that session
   only: a new session needs a new Assembler.
5. Changes are numbered from 0 within their transaction: Insert, Update, Delete, and Truncate once for each
   relation. Relation, Type, Origin and Message are not, because their number differs between sessions.
   Streamed changes are not numbered either, because some may still be rolled back.
6. An illegal transition or a malformed message breaks the session permanently: no transition leaves BROKEN.

`TRANSITIONS` is the table of rules 1 and 2, `Assembler` the machine. From one state between transactions to
the next, `receive_plain` takes whole transactions of Begin, changes and Commit, many at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace

from pipeline.errors import ProtocolError
from pipeline.protocol import events
from pipeline.protocol.decode import decode
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
from pipeline.protocol.plain_transactions import PlainTransactions, read_run

_ROW_TYPES = frozenset((b"I", b"U", b"D"))
_NO_TYPES: frozenset[bytes] = frozenset()
_new = tuple.__new__


class State(enum.Enum):
    """The state of a replication session between two messages."""

    IDLE = "between transactions"
    IN_TRANSACTION = "in a transaction"
    IN_PREPARED = "in a prepared transaction"
    IN_STREAM = "in a segment of a stream"
    BROKEN = "in a broken session"

    # enum.Enum hashes in Python code, and each transaction hashes two states.
    __hash__ = object.__hash__


#: State → type byte of a message → next state. A message that is missing is illegal in that state.
TRANSITIONS: dict[State, dict[str, State]] = {
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


class Assembler:
    """Assemble the messages of one replication session; `receive` takes each message in order."""

    __slots__ = (
        "_begin",
        "_description_count",
        "_end_lsn",
        "_message_count",
        "_ordinal",
        "_origin",
        "_relations",
        "_row_types",
        "_session_relations",
        "_state",
        "_stream",
        "_streamed_row_types",
        "_streams",
        "_subxid",
        "_subxid_bytes",
        "_transitions",
    )

    def __init__(self) -> None:
        """Start between transactions, with no relation described and no stream open."""
        self._session_relations = _Relations()  # described outside streams
        self._description_count = 0
        self._streams: dict[int, _Stream] = {}
        self._stream = _Stream(0)  # of the current segment, or of the last one
        self._begin: Begin | BeginPrepare = Begin(INVALID, 0, 0)
        self._end_lsn = INVALID
        self._origin: Origin | None = None
        self._ordinal = self._message_count = self._subxid = 0
        self._subxid_bytes = b""
        self._enter(State.IDLE)

    @property
    def state(self) -> State:
        """The state of the session."""
        return self._state

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction, prepared or not, has begun and not ended."""
        return self._state is State.IN_TRANSACTION or self._state is State.IN_PREPARED

    @property
    def open_streams(self) -> tuple[int, ...]:
        """The xids of the streamed transactions that have not ended."""
        return tuple(self._streams)

    def receive(self, data: bytes) -> events.Event | None:
        """Return the event of the next message, None for one without an event.

        Raises ProtocolError for a malformed or illegal message, and for every message after it.
        """
        kind = data[:1]
        if kind in self._row_types:
            if (relation := self._relations.get(data[1:5])) is not None:
                ordinal = self._ordinal
                self._ordinal = ordinal + 1
                return _new(events.Change, (ordinal, relation, self._origin, data))
        elif kind in self._streamed_row_types and (relation := self._relations.get(data[5:9])) is not None:
            if data[1:5] != self._subxid_bytes:
                self._subxid_bytes = data[1:5]
                self._subxid = int.from_bytes(self._subxid_bytes, "big")
            return _new(events.StreamedChange, (self._stream.xid, self._subxid, relation, self._origin, data))
        try:
            return self._receive(data)
        except ProtocolError as error:
            where = self._describe_state()
            self._enter(State.BROKEN)
            raise ProtocolError(
                f"{error} The replication session is broken ({where}). Start a new one."
            ) from None

    def receive_plain(
        self, messages: Sequence[bytes], kinds: bytes, first_lsn: LSN
    ) -> PlainTransactions | None:
        """Return a run of plain transactions, as `receive` would; None if that has to receive each message.

        `kinds` are the type bytes of the run, which `find_runs` found.
        """
        if self._state is not State.IDLE:
            return None
        plain = read_run(messages, kinds, self._session_relations.by_oid, first_lsn)
        if plain is not None:
            self._end_lsn = LSN(plain.end_lsns[-1])
        return plain

    def _receive(self, data: bytes) -> events.Event | None:
        if self._state is State.BROKEN:
            raise ProtocolError("A message follows one that was malformed or illegal.")
        message = decode(data, in_stream=self._state is State.IN_STREAM)
        state = self._transitions.get(chr(data[0]))
        if state is None:
            raise ProtocolError(f"{type(message).__name__} is illegal {self._state.value}.")
        event = self._handle(message)
        if state is not self._state:
            self._enter(state)
        return event

    def _handle(self, message: Message) -> events.Event | None:
        """Return the event of a message that is legal in the current state."""
        match message:
            case Begin():
                self._begin_transaction(message)
                return events.Began(message.xid, message.final_lsn, message.commit_time)
            case Commit():
                return self._commit(message)
            case BeginPrepare(lsn, end_lsn, time, xid, gid):
                self._begin_transaction(message)
                return events.BeganPrepare(gid, xid, lsn, end_lsn, time)
            case Prepare(_, lsn, end_lsn, time, xid, gid):
                self._record_end(lsn, end_lsn, "Prepare")
                if self._state is State.IDLE:
                    return None
                if self._begin != BeginPrepare(lsn, end_lsn, time, xid, gid):
                    raise ProtocolError(f"Prepare of {xid} at {lsn} differs from its Begin Prepare.")
                return events.Prepared(gid, xid, lsn, end_lsn, time, self._ordinal)
            case CommitPrepared(_, lsn, end_lsn, time, xid, gid):
                self._record_end(lsn, end_lsn, "Commit Prepared")
                return events.CommittedPrepared(gid, xid, lsn, end_lsn, time)
            case RollbackPrepared(_, prepare_end_lsn, end_lsn, time, rollback_time, xid, gid):
                self._record_end(prepare_end_lsn, end_lsn, "Rollback Prepared")
                return events.RolledBackPrepared(gid, xid, prepare_end_lsn, end_lsn, time, rollback_time)
            case StreamStart():
                return self._start_stream(message)
            case StreamStop():
                return events.StreamStopped(self._stream.xid)
            case StreamCommit(xid, _, lsn, end_lsn, time):
                relations = self._end_stream(xid, "Stream Commit").relations
                self._record_end(lsn, end_lsn, "Stream Commit")
                return events.StreamCommitted(
                    xid, lsn, end_lsn, time, self._session_relations.put_newer(relations)
                )
            case StreamPrepare(_, lsn, end_lsn, time, xid, gid):
                self._end_stream(xid, "Stream Prepare")
                self._record_end(lsn, end_lsn, "Stream Prepare")
                return events.StreamPrepared(gid, xid, lsn, end_lsn, time)
            case StreamAbort():
                return self._abort_stream(message)
            case Relation():
                return self._describe_relation(message)
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
                # receive() returns the changes of described relations itself.
                self._find_relation(message.oid, type(message).__name__)
                raise AssertionError("receive() did not return a change of a described relation")
        return None

    def _begin_transaction(self, begin: Begin | BeginPrepare) -> None:
        self._begin = begin
        self._origin = None
        self._ordinal = self._message_count = 0

    def _record_end(self, lsn: LSN, end_lsn: LSN, message_name: str) -> None:
        if end_lsn < lsn:
            raise ProtocolError(f"{message_name} at {lsn} has an earlier end LSN, {end_lsn}.")
        self._end_lsn = end_lsn

    def _commit(self, commit: Commit) -> events.Committed:
        begin = self._begin
        assert isinstance(begin, Begin)
        if commit.commit_lsn != begin.final_lsn:
            raise ProtocolError(f"Commit at {commit.commit_lsn} differs from its Begin, {begin.final_lsn}.")
        self._record_end(commit.commit_lsn, commit.end_lsn, "Commit")
        return events.Committed(
            begin.xid, commit.commit_lsn, commit.end_lsn, commit.commit_time, self._ordinal
        )

    def _start_stream(self, start: StreamStart) -> events.StreamStarted:
        if start.is_first_segment:
            # Replaces one that is open: the server sends the entire transaction again.
            self._streams[start.xid] = _Stream(start.xid)
        self._stream = self._find_stream(start.xid, "Stream Start")
        self._origin = self._stream.origin
        return events.StreamStarted(start.xid, start.is_first_segment)

    def _end_stream(self, xid: int, message_name: str) -> _Stream:
        self._find_stream(xid, message_name)
        return self._streams.pop(xid)

    def _find_stream(self, xid: int, message_name: str) -> _Stream:
        stream = self._streams.get(xid)
        if stream is None:
            raise ProtocolError(f"{message_name} names transaction {xid}, which has no first segment.")
        return stream

    def _abort_stream(self, abort: StreamAbort) -> events.StreamAborted:
        if abort.subxid == abort.xid:
            self._streams.pop(abort.xid, None)
        elif abort.xid in self._streams:
            self._streams[abort.xid].relations.clear()
        return events.StreamAborted(abort.xid, abort.subxid, abort.abort_lsn, abort.abort_time)

    def _describe_relation(self, relation: Relation) -> events.Described:
        oid = relation.oid.to_bytes(4, "big")
        self._description_count += 1
        if relation.xid is None:
            return events.Described(self._session_relations.put(oid, relation, self._description_count))
        stream = self._stream
        relation = replace(relation, xid=None)
        described = self._session_relations.by_oid.get(oid)
        if described is not None and described == relation:
            relation = described
        return events.Described(stream.relations.put(oid, relation, self._description_count), stream.xid)

    def _truncate(self, truncate: Truncate) -> events.Truncation | events.StreamedTruncation:
        relations = tuple([self._find_relation(oid, "Truncate") for oid in truncate.oids])
        options, origin = truncate.options, self._origin
        if truncate.xid is not None:
            return events.StreamedTruncation(self._stream.xid, truncate.xid, relations, options, origin)
        self._ordinal += len(relations)
        return events.Truncation(self._ordinal - len(relations), relations, options, origin)

    def _find_relation(self, oid: int, message_name: str) -> Relation:
        relation = self._relations.get(oid.to_bytes(4, "big"))
        if relation is None:
            raise ProtocolError(f"{message_name} names relation {oid}, which no Relation message described.")
        return relation

    def _emit(self, message: LogicalMessage) -> events.Emitted | events.StreamedEmitted:
        if message.transactional is (self._state is State.IDLE):
            kind = "Transactional" if message.transactional else "Non-transactional"
            raise ProtocolError(f"{kind} LogicalMessage is illegal {self._state.value}.")
        if message.xid is not None:
            return events.StreamedEmitted(self._stream.xid, message.xid, message)
        sequence = self._message_count if message.transactional else 0
        self._message_count += message.transactional
        return events.Emitted(sequence, message, message.transactional)

    def _enter(self, state: State) -> None:
        self._state = state
        self._transitions = TRANSITIONS[state]
        is_streaming = state is State.IN_STREAM
        self._row_types = _ROW_TYPES if self.in_transaction else _NO_TYPES
        self._streamed_row_types = _ROW_TYPES if is_streaming else _NO_TYPES
        self._relations = self._stream.relations.by_oid if is_streaming else self._session_relations.by_oid

    def _describe_state(self) -> str:
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


class _Relations:
    """Relation messages by OID (four bytes, as in changes), each with the number of its message."""

    __slots__ = ("by_oid", "numbers")

    def __init__(self) -> None:
        self.by_oid: dict[bytes, Relation] = {}
        self.numbers: dict[bytes, int] = {}

    def put(self, oid: bytes, relation: Relation, number: int) -> Relation:
        """Store the relation as the latest of its OID; return it, or the equal object stored before."""
        stored = self.by_oid.get(oid)
        if stored is None or stored != relation:
            self.by_oid[oid] = stored = relation
        self.numbers[oid] = number
        return stored

    def put_newer(self, others: _Relations) -> tuple[Relation, ...]:
        """Store, and return, the relations of `others` that were described later than the stored ones."""
        return tuple(
            self.put(oid, relation, others.numbers[oid])
            for oid, relation in others.by_oid.items()
            if others.numbers[oid] > self.numbers.get(oid, -1)
        )

    def clear(self) -> None:
        """Remove all."""
        self.by_oid.clear()
        self.numbers.clear()


class _Stream:
    """A streamed transaction from its first Stream Start to its end.

    Its relations are valid in the stream; once it is committed, they are valid in the session.
    """

    __slots__ = ("origin", "relations", "xid")

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.relations = _Relations()
        self.origin: Origin | None = None  # sent in the first segment, valid in all
