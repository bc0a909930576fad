"""Where a replication session can stand, and every legal move from there, by the type byte that makes it.

What is not in `MOVES` is illegal. Segments of streams stand where whole transactions stand, between others;
which streams are open is no state, but what the assembler remembers.
"""

import enum


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
