"""The messages of one replication session in, the events of its transactions out, in order.

Rules of the session:

1. A transaction is Begin, then any Relation, Type, Origin, Insert, Update, Delete, Truncate and transactional
   Message, then Commit. Transactions never nest. A Message that is not transactional stands between them.
2. A relation is described before the first change that names it, and again whenever its shape changes. What
   one session described holds for that session only: a new session needs a new Assembler.
3. Changes are numbered from 0 within their transaction: Insert, Update, Delete, and Truncate once for each
   relation. Relation, Type, Origin and Message do not count, as their number differs between sessions.
4. An illegal move or a malformed message breaks the session for good: BROKEN has no moves.

Theory of operation: `MOVES` holds every legal move; what is not there is illegal. Insert, Update and Delete
are handed on undecoded, as they are nearly all there is: only their type byte and relation are looked at.
"""

import enum
from typing import NamedTuple, TypeAlias

from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)


class State(enum.Enum):
    """Where a replication session stands between two messages."""

    IDLE = "between transactions"
    IN_TRANSACTION = "in a transaction"
    BROKEN = "in a broken session"

    # The hash of enum.Enum is a Python function, and states are looked up twice in every transaction.
    __hash__ = object.__hash__


MOVES: dict[State, dict[str, State]] = {
    State.IDLE: {
        "B": State.IN_TRANSACTION,
        "M": State.IDLE,
    },
    State.IN_TRANSACTION: {
        "O": State.IN_TRANSACTION,
        "R": State.IN_TRANSACTION,
        "Y": State.IN_TRANSACTION,
        "I": State.IN_TRANSACTION,
        "U": State.IN_TRANSACTION,
        "D": State.IN_TRANSACTION,
        "T": State.IN_TRANSACTION,
        "M": State.IN_TRANSACTION,
        "C": State.IDLE,
    },
    State.BROKEN: {},
}


class Began(NamedTuple):
    """A transaction begins that was committed at `commit_lsn`."""

    xid: int
    commit_lsn: LSN
    commit_time: int


class Described(NamedTuple):
    """A Relation message came; an equal one gives the very object that was in force before."""

    relation: Relation


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


Event: TypeAlias = Began | Described | Change | Truncation | Emitted | Committed

_ROW_TYPES = {
    state: frozenset(kind.encode() for kind in moves if kind in "IUD") for state, moves in MOVES.items()
}
_new = tuple.__new__


class Assembler:
    """The state of one replication session."""

    __slots__ = (
        "_begin",
        "_end_lsn",
        "_message_count",
        "_moves",
        "_ordinal",
        "_origin",
        "_relations",
        "_row_types",
        "_state",
    )

    def __init__(self) -> None:
        """Stand between transactions, with no relation described."""
        self._relations: dict[bytes, Relation] = {}  # by oid, as the four bytes that changes carry
        self._enter(State.IDLE)
        self._begin = Begin(INVALID, 0, 0)
        self._end_lsn = INVALID
        self._origin: Origin | None = None
        self._ordinal = 0
        self._message_count = 0

    @property
    def state(self) -> State:
        """Tell where the session stands."""
        return self._state

    @property
    def in_transaction(self) -> bool:
        """Tell whether a transaction has begun and is not yet whole."""
        return self._state is State.IN_TRANSACTION

    def receive(self, data: bytes) -> Event | None:
        """Return what the next message means, None for Type and Origin; once it raised, raise for ever."""
        if data[:1] in self._row_types and (relation := self._relations.get(data[1:5])) is not None:
            ordinal = self._ordinal
            self._ordinal = ordinal + 1
            return _new(Change, (ordinal, relation, self._origin, data))
        try:
            return self._receive(data)
        except ProtocolError as error:
            sentence = f"{error} ({self._place()}); this replication session is broken, start a new one"
            self._enter(State.BROKEN)
            raise ProtocolError(sentence) from None

    def _receive(self, data: bytes) -> Event | None:
        if self._state is State.BROKEN:
            raise ProtocolError("a message came after one that was malformed or illegal")
        message = decode(data)
        state = self._moves.get(chr(data[0]))
        if state is None:
            raise ProtocolError(f"{type(message).__name__} is not legal {self._state.value}")
        event = self._take(message, data)
        if state is not self._state:
            self._enter(state)
        return event

    def _take(self, message: Message, data: bytes) -> Event | None:
        match message:
            case Begin():
                self._begin = message
                self._origin = None
                self._ordinal = self._message_count = 0
                return Began(message.xid, message.final_lsn, message.commit_time)
            case Commit():
                return self._commit(message)
            case Relation():
                return Described(self._describe(data[1:5], message))
            case Origin():
                self._origin = message
                return None
            case Type():
                return None
            case Truncate():
                relations = tuple([self._relation(oid, "Truncate") for oid in message.oids])
                truncation = Truncation(self._ordinal, relations, message.options, self._origin)
                self._ordinal += len(relations)
                return truncation
            case LogicalMessage():
                return self._emit(message)
            case Insert() | Update() | Delete():
                # Those of a relation that is known never come this far.
                self._relation(message.oid, type(message).__name__)
                raise AssertionError("a change of a known relation was not handed on")

    def _commit(self, commit: Commit) -> Committed:
        begin = self._begin
        if commit.commit_lsn != begin.final_lsn:
            raise ProtocolError(f"Commit is at {commit.commit_lsn}, its Begin said {begin.final_lsn}")
        if commit.end_lsn < commit.commit_lsn:
            raise ProtocolError(f"Commit at {commit.commit_lsn} ends before that, at {commit.end_lsn}")
        self._end_lsn = commit.end_lsn
        return Committed(begin.xid, commit.commit_lsn, commit.end_lsn, commit.commit_time, self._ordinal)

    def _describe(self, key: bytes, relation: Relation) -> Relation:
        known = self._relations.get(key)
        if known == relation and known is not None:
            return known
        self._relations[key] = relation
        return relation

    def _relation(self, oid: int, message_name: str) -> Relation:
        relation = self._relations.get(oid.to_bytes(4, "big"))
        if relation is None:
            raise ProtocolError(f"{message_name} names relation {oid}, which no Relation message described")
        return relation

    def _emit(self, message: LogicalMessage) -> Emitted:
        if message.transactional is not self.in_transaction:
            kind = "transactional" if message.transactional else "non-transactional"
            raise ProtocolError(f"a {kind} LogicalMessage is not legal {self._state.value}")
        sequence = self._message_count if message.transactional else 0
        self._message_count += message.transactional
        return Emitted(sequence, message, message.transactional)

    def _enter(self, state: State) -> None:
        self._state = state
        self._moves = MOVES[state]
        self._row_types = _ROW_TYPES[state]

    def _place(self) -> str:
        match self._state:
            case State.IDLE if self._end_lsn:
                return f"after the transaction that ended at {self._end_lsn}"
            case State.IDLE:
                return "before the first transaction"
            case State.IN_TRANSACTION:
                return f"in transaction {self._begin.xid}, committed at {self._begin.final_lsn}"
            case State.BROKEN:
                return f"after the transaction that ended at {self._end_lsn}"
