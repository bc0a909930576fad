"""The assembler: legal messages give events, illegal ones break the session for good."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.protocol import messages as wire
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
    Truncation,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.transactions import TRANSITIONS, Assembler, State
from tests.support.protocol.encode import encode
from tests.support.protocol.golden import CAPTURES, Capture

T = wire.Relation(7, "public", "t", "d", (wire.Column(True, "id", 23, -1),))
U = wire.Relation(8, "public", "u", "f", (wire.Column(True, "id", 23, -1),))
BEGIN = wire.Begin(LSN(100), 5, 731)
COMMIT = wire.Commit(0, LSN(100), LSN(148), 5)
INSERT = wire.Insert(7, (b"1",))
UPDATE = wire.Update(7, None, None, (wire.UNCHANGED_TOAST,))
DELETE = wire.Delete(8, "O", (b"1",))
ORIGIN = wire.Origin(LSN(9), "north")
INSIDE = wire.LogicalMessage(True, LSN(90), "p", b"x")
OUTSIDE = wire.LogicalMessage(False, LSN(90), "p", b"x")
TYPE = wire.Type(99, "public", "mood")
BEGIN_PREPARE = wire.BeginPrepare(LSN(100), LSN(148), 5, 731, "gid")
PREPARE = wire.Prepare(0, LSN(100), LSN(148), 5, 731, "gid")
COMMIT_PREPARED = wire.CommitPrepared(0, LSN(200), LSN(248), 6, 731, "gid")
ROLLBACK_PREPARED = wire.RollbackPrepared(0, LSN(148), LSN(248), 5, 6, 731, "gid")
STREAM_START = wire.StreamStart(900, True)
STREAM_COMMIT = wire.StreamCommit(900, 0, LSN(200), LSN(248), 6)
STREAM_PREPARE = wire.StreamPrepare(0, LSN(200), LSN(248), 6, 900, "gid")

OF_EACH_TYPE: dict[str, wire.Message] = {
    "B": BEGIN,
    "C": COMMIT,
    "O": ORIGIN,
    "R": T,
    "Y": TYPE,
    "I": INSERT,
    "U": UPDATE,
    "D": DELETE,
    "T": wire.Truncate((7,), 0),
    "M": INSIDE,
    "S": STREAM_START,
    "E": wire.StreamStop(),
    "c": STREAM_COMMIT,
    "A": wire.StreamAbort(900, 901),
    "b": BEGIN_PREPARE,
    "P": PREPARE,
    "K": COMMIT_PREPARED,
    "r": ROLLBACK_PREPARED,
    "p": STREAM_PREPARE,
}
LEGAL = {
    State.IDLE: "BMScAbPKrp",
    State.IN_TRANSACTION: "CORYIUDTM",
    State.IN_PREPARED: "PORYIUDTM",
    State.IN_STREAM: "EORYIUDTM",
    State.BROKEN: "",
}
BEGINS = {"B": State.IN_TRANSACTION, "b": State.IN_PREPARED, "S": State.IN_STREAM}
XID_IN_STREAM = 902


def receive_all(assembler: Assembler, *messages: wire.Message) -> list[Event | None]:
    return [assembler.receive(encode(message)) for message in messages]


def as_in(state: State, message: wire.Message) -> wire.Message:
    """Return the message with an xid where it has one in this state."""
    has_xid = state is State.IN_STREAM and type(message).__name__ in (
        *("Relation", "Type", "Insert", "Update", "Delete", "Truncate", "LogicalMessage"),
    )
    return replace(message, xid=XID_IN_STREAM) if has_xid else message  # type: ignore[arg-type]


def assembler_in(state: State) -> Assembler:
    """Return an assembler that knows both tables, has a stream open and is in this state."""
    assembler = Assembler()
    receive_all(assembler, wire.Begin(LSN(10), 1, 1), T, U, wire.Commit(0, LSN(10), LSN(20), 1))
    described = [as_in(State.IN_STREAM, relation) for relation in (T, U)]
    receive_all(assembler, STREAM_START, *described)
    if state is State.IN_STREAM:
        return assembler
    receive_all(assembler, wire.StreamStop())
    if state is State.IN_PREPARED:
        receive_all(assembler, BEGIN_PREPARE)
    elif state is not State.IDLE:
        receive_all(assembler, BEGIN)
    if state is State.BROKEN:
        with pytest.raises(ProtocolError):
            receive_all(assembler, BEGIN)
    assert assembler.state is state
    return assembler


def test_transitions_are_those_of_the_protocol() -> None:
    assert {state: "".join(sorted(kinds)) for state, kinds in TRANSITIONS.items()} == {
        state: "".join(sorted(kinds)) for state, kinds in LEGAL.items()
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("kind", OF_EACH_TYPE)
def test_every_transition_is_made_or_breaks_the_session(state: State, kind: str) -> None:
    assembler = assembler_in(state)
    message = OUTSIDE if (state, kind) == (State.IDLE, "M") else as_in(state, OF_EACH_TYPE[kind])
    if kind in LEGAL[state]:
        receive_all(assembler, message)
        after = BEGINS.get(kind, State.IDLE if kind in "CPE" else state)
        assert assembler.state is after
        assert assembler.in_transaction is (after in (State.IN_TRANSACTION, State.IN_PREPARED))
        assert assembler.open_streams == (() if kind in "cp" else (900,))
    else:
        with pytest.raises(ProtocolError):
            receive_all(assembler, message)
        assert assembler.state is State.BROKEN
        assert not assembler.in_transaction


@pytest.mark.parametrize(
    ("state", "kind"), [(state, kind) for state, kinds in LEGAL.items() for kind in kinds]
)
def test_message_that_is_cut_short_breaks_the_session(state: State, kind: str) -> None:
    message = OUTSIDE if (state, kind) == (State.IDLE, "M") else as_in(state, OF_EACH_TYPE[kind])
    data = encode(message)
    for length in range(len(data)):
        assembler = assembler_in(state)
        if kind in "IUD" and length >= (9 if state is State.IN_STREAM else 5):
            continue  # handed on undecoded: who decodes it finds it
        with pytest.raises(ProtocolError):
            assembler.receive(data[:length])
        assert assembler.state is State.BROKEN


def test_broken_is_for_good() -> None:
    assembler = assembler_in(State.BROKEN)
    for message in [COMMIT, BEGIN, T, INSERT, OUTSIDE, *OF_EACH_TYPE.values()] * 2:
        with pytest.raises(ProtocolError, match="Start a new one"):
            receive_all(assembler, message)
        assert assembler.state is State.BROKEN


def test_events_of_a_transaction_in_order() -> None:
    events = receive_all(Assembler(), BEGIN, TYPE, T, INSERT, U, DELETE, UPDATE, COMMIT)
    assert events == [
        Began(731, LSN(100), 5),
        None,
        Described(T),
        Change(0, T, None, encode(INSERT)),
        Described(U),
        Change(1, U, None, encode(DELETE)),
        Change(2, T, None, encode(UPDATE)),
        Committed(731, LSN(100), LSN(148), 5, 3),
    ]
    assert [type(event) for event in events if event] == [
        Began, Described, Change, Described, Change, Change, Committed,
    ]  # fmt: skip


def test_a_prepared_transaction_has_usual_events_between_its_begin_and_end() -> None:
    assembler = assembler_in(State.IDLE)
    events = receive_all(
        assembler, BEGIN_PREPARE, T, INSERT, wire.Truncate((7, 8), 0), INSIDE, PREPARE, COMMIT_PREPARED
    )
    assert events == [
        BeganPrepare("gid", 731, LSN(100), LSN(148), 5),
        Described(T),
        Change(0, T, None, encode(INSERT)),
        Truncation(1, (T, U), 0, None),
        Emitted(0, INSIDE, in_transaction=True),
        Prepared("gid", 731, LSN(100), LSN(148), 5, 3),
        CommittedPrepared("gid", 731, LSN(200), LSN(248), 6),
    ]
    assert [type(event) for event in events] == [
        BeganPrepare, Described, Change, Truncation, Emitted, Prepared, CommittedPrepared,
    ]  # fmt: skip


def test_what_became_of_a_prepared_transaction_may_come_in_another_session() -> None:
    assert receive_all(Assembler(), ROLLBACK_PREPARED, COMMIT_PREPARED, COMMIT_PREPARED) == [
        RolledBackPrepared("gid", 731, LSN(148), LSN(248), 5, 6),
        *[CommittedPrepared("gid", 731, LSN(200), LSN(248), 6)] * 2,
    ]


def test_an_empty_prepared_transaction_may_come_without_its_begin() -> None:
    assembler = assembler_in(State.IDLE)
    empty = replace(PREPARE, gid="empty")
    events = receive_all(assembler, BEGIN, INSERT, COMMIT, empty, BEGIN_PREPARE, PREPARE)
    assert events[3] is None
    assert events[-1] == Prepared("gid", 731, LSN(100), LSN(148), 5, 0)


def test_relations_of_a_prepared_transaction_hold_for_all_at_once() -> None:
    wider = wire.Relation(7, "public", "t", "d", (*T.columns, wire.Column(False, "v", 25, -1)))
    assembler = assembler_in(State.IDLE)
    events = receive_all(assembler, BEGIN_PREPARE, wider, PREPARE, BEGIN, INSERT)
    assert isinstance(events[-1], Change)
    assert events[-1].relation == wider


def test_ordinals_do_not_count_relations_types_origins_and_messages() -> None:
    def numbered(*messages: wire.Message) -> list[int]:
        assembler = assembler_in(State.IN_TRANSACTION)
        events = receive_all(assembler, *messages)
        return [event.ordinal for event in events if isinstance(event, Change | Truncation)]

    assert numbered(INSERT, UPDATE, DELETE) == [0, 1, 2]
    assert numbered(T, TYPE, INSERT, ORIGIN, T, UPDATE, INSIDE, U, TYPE, INSIDE, DELETE) == [0, 1, 2]


def test_truncate_counts_once_for_each_relation() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    events = receive_all(
        assembler, INSERT, ORIGIN, wire.Truncate((8, 7), 3), INSERT, wire.Truncate((7,), 0), COMMIT
    )
    assert events[2] == Truncation(1, (U, T), 3, ORIGIN)
    assert isinstance(events[3], Change)
    assert events[3].ordinal == 3
    assert events[4] == Truncation(4, (T,), 0, ORIGIN)
    assert isinstance(events[5], Committed)
    assert events[5].change_count == 5


def test_transaction_without_changes_has_a_commit() -> None:
    assert receive_all(Assembler(), BEGIN, COMMIT)[1] == Committed(731, LSN(100), LSN(148), 5, 0)


def test_ordinals_and_sequences_begin_again_with_each_transaction() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    receive_all(assembler, INSERT, INSIDE, INSIDE, COMMIT, BEGIN)
    assert receive_all(assembler, INSERT, INSIDE) == [
        Change(0, T, None, encode(INSERT)),
        Emitted(0, INSIDE, in_transaction=True),
    ]


def test_origin_is_the_latest_of_the_transaction_and_ends_with_it() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    south = wire.Origin(LSN(10), "south")
    events = receive_all(
        assembler, INSERT, ORIGIN, INSERT, south, INSERT, wire.Truncate((7,), 0), COMMIT, BEGIN, INSERT
    )
    origins = [event.origin for event in events if isinstance(event, Change | Truncation)]
    assert origins == [None, ORIGIN, south, south, None]


def test_messages_have_a_sequence_of_their_own() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    events = receive_all(assembler, INSIDE, INSERT, INSIDE, COMMIT, OUTSIDE, OUTSIDE)
    assert [event for event in events if isinstance(event, Emitted)] == [
        Emitted(0, INSIDE, in_transaction=True),
        Emitted(1, INSIDE, in_transaction=True),
        Emitted(0, OUTSIDE, in_transaction=False),
        Emitted(0, OUTSIDE, in_transaction=False),
    ]


def test_changes_have_the_relation_as_it_was_described_last() -> None:
    wider = wire.Relation(7, "public", "t", "d", (*T.columns, wire.Column(False, "v", 25, -1)))
    assembler = assembler_in(State.IN_TRANSACTION)
    events = receive_all(assembler, INSERT, wider, INSERT, COMMIT, BEGIN, INSERT)
    assert [event.relation for event in events if isinstance(event, Change)] == [T, wider, wider]


def test_repeated_relation_is_described_as_the_same_object() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    first, again, change = receive_all(assembler, T, T, INSERT)
    assert isinstance(first, Described)
    assert isinstance(again, Described)
    assert isinstance(change, Change)
    assert first.relation is again.relation is change.relation


def test_relations_last_for_one_session_only() -> None:
    receive_all(assembler_in(State.IN_TRANSACTION), INSERT, COMMIT)
    with pytest.raises(ProtocolError, match="relation 7, which no Relation message described"):
        receive_all(Assembler(), BEGIN, INSERT)


def test_change_is_handed_on_as_the_bytes_that_came() -> None:
    assembler = assembler_in(State.IN_TRANSACTION)
    data = encode(INSERT)
    event = assembler.receive(data)
    assert isinstance(event, Change)
    assert event.data is data


@pytest.mark.parametrize(
    ("messages", "fault", "where"),
    [
        ((INSERT,), "Insert is illegal between transactions.", "before the first transaction"),
        ((BEGIN, BEGIN), "Begin is illegal in a transaction.", "in transaction 731, committed at 0/64"),
        (
            (BEGIN, COMMIT, COMMIT),
            "Commit is illegal between transactions.",
            "after the transaction that ended at 0/94",
        ),
        (
            (BEGIN, wire.Truncate((7,), 0)),
            "Truncate names relation 7, which no Relation message described.",
            "in transaction 731, committed at 0/64",
        ),
        (
            (BEGIN, wire.Commit(0, LSN(101), LSN(148), 5)),
            "Commit at 0/65 differs from its Begin, 0/64.",
            "in transaction 731, committed at 0/64",
        ),
        (
            (BEGIN, wire.Commit(0, LSN(100), LSN(99), 5)),
            "Commit at 0/64 has an earlier end LSN, 0/63.",
            "in transaction 731, committed at 0/64",
        ),
        (
            (BEGIN_PREPARE, COMMIT),
            "Commit is illegal in a prepared transaction.",
            "in transaction 731, prepared at 0/64",
        ),
        (
            (BEGIN_PREPARE, replace(PREPARE, gid="dig")),
            "Prepare of 731 at 0/64 differs from its Begin Prepare.",
            "in transaction 731, prepared at 0/64",
        ),
        (
            (BEGIN, PREPARE),
            "Prepare is illegal in a transaction.",
            "in transaction 731, committed at 0/64",
        ),
        (
            (replace(COMMIT_PREPARED, end_lsn=LSN(1)),),
            "Commit Prepared at 0/C8 has an earlier end LSN, 0/1.",
            "before the first transaction",
        ),
        (
            (BEGIN, OUTSIDE),
            "Non-transactional LogicalMessage is illegal in a transaction.",
            "in transaction 731, committed at 0/64",
        ),
        (
            (INSIDE,),
            "Transactional LogicalMessage is illegal between transactions.",
            "before the first transaction",
        ),
    ],
)
def test_error_states_what_and_where_and_what_to_do(
    messages: tuple[wire.Message, ...], fault: str, where: str
) -> None:
    assembler = Assembler()
    receive_all(assembler, *messages[:-1])
    with pytest.raises(ProtocolError) as caught:
        receive_all(assembler, messages[-1])
    assert str(caught.value) == f"{fault} The replication session is broken ({where}). Start a new one."
    assert assembler.state is State.BROKEN


def test_malformed_change_of_an_unknown_relation_is_named_as_malformed() -> None:
    with pytest.raises(ProtocolError, match="Insert message: tag at byte 5"):
        assembler_in(State.IN_TRANSACTION).receive(b"I\0\0\0\x63X")


@given(st.sampled_from(CAPTURES), st.lists(st.integers(0, 40), max_size=5))
def test_split_or_whole_the_events_are_the_same(capture: Capture, cuts: list[int]) -> None:
    stream = [row.data for row in capture.messages]
    whole = Assembler()
    expected = [whole.receive(data) for data in stream]
    split = Assembler()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    batches = [stream[start:end] for start, end in pairwise(places)]
    # Each batch's bytes are its own, as those of another read from the connection are.
    events = [split.receive(bytes(bytearray(data))) for batch in batches for data in batch]
    assert events == expected
    assert split.state is whole.state is State.IDLE
