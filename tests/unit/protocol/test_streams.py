"""Streams: segments of many transactions between each other, each with its own relations and its own end."""

from dataclasses import replace

import pytest

from pipeline.errors import ProtocolError
from pipeline.protocol.events import (
    Change,
    Described,
    Event,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    StreamStopped,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
)
from pipeline.protocol.transactions import Assembler, State
from tests.support.protocol.encode import encode

KEY = Column(True, "id", 23, -1)
T = Relation(7, "public", "t", "d", (KEY,))
WIDER = Relation(7, "public", "t", "d", (KEY, Column(False, "v", 25, -1)))
WIDEST = Relation(7, "public", "t", "d", (KEY, Column(False, "v", 25, -1), Column(False, "w", 25, -1)))
INSERT = Insert(7, (b"1",))
BEGIN = Begin(LSN(100), 5, 731)
COMMIT = Commit(0, LSN(100), LSN(148), 5)
STOP = StreamStop()
ORIGIN = Origin(LSN(0), "north")


def start(xid: int, *, first: bool = False) -> StreamStart:
    return StreamStart(xid, first)


def commit(xid: int) -> StreamCommit:
    return StreamCommit(xid, 0, LSN(200), LSN(248), 6)


def inside(xid: int, message: Relation | Insert | Delete | Truncate | Type | LogicalMessage) -> Message:
    return replace(message, xid=xid)


def receive_all(assembler: Assembler, *messages: Message) -> list[Event | None]:
    return [assembler.receive(encode(message)) for message in messages]


def assembler_of(*messages: Message) -> Assembler:
    """Return an assembler that has received these."""
    assembler = Assembler()
    receive_all(assembler, *messages)
    return assembler


def relation_of(assembler: Assembler, *messages: Message) -> Relation:
    """Return the relation of the last of these messages, a change."""
    event = receive_all(assembler, *messages)[-1]
    assert isinstance(event, Change | StreamedChange)
    return event.relation


def test_events_of_a_stream_in_order() -> None:
    inserted, deleted = inside(901, INSERT), inside(900, Delete(7, "K", (b"1",)))
    emitted = LogicalMessage(True, LSN(9), "p", b"x", 900)
    events = receive_all(
        Assembler(),
        start(900, first=True),
        inside(900, Type(99, "public", "mood")),
        inside(901, T),
        inserted,
        deleted,
        inside(901, Truncate((7, 7), 1)),
        emitted,
        STOP,
        StreamAbort(900, 901, LSN(150), 5),
        start(900),
        STOP,
        commit(900),
    )
    assert events == [
        StreamStarted(900, True),
        None,
        Described(T, 900),
        StreamedChange(900, 901, T, None, encode(inserted)),
        StreamedChange(900, 900, T, None, encode(deleted)),
        StreamedTruncation(900, 901, (T, T), 1, None),
        StreamedEmitted(900, 900, emitted),
        StreamStopped(900),
        StreamAborted(900, 901, LSN(150), 5),
        StreamStarted(900, False),
        StreamStopped(900),
        StreamCommitted(900, LSN(200), LSN(248), 6, ()),
    ]
    assert [type(event) for event in events if event] == [
        StreamStarted, Described, StreamedChange, StreamedChange, StreamedTruncation, StreamedEmitted,
        StreamStopped, StreamAborted, StreamStarted, StreamStopped, StreamCommitted,
    ]  # fmt: skip


def test_a_streamed_change_without_its_xid_is_an_ordinary_one() -> None:
    assembler = assembler_of(start(900, first=True), inside(900, T))
    event = assembler.receive(encode(inside(2**32 - 1, INSERT)))
    assert isinstance(event, StreamedChange)
    assert event.subxid == 2**32 - 1
    assert event.data[:1] + event.data[5:] == encode(INSERT)


def test_a_streamed_change_is_handed_on_as_the_bytes_that_came() -> None:
    assembler = assembler_of(start(900, first=True), inside(900, T))
    data = encode(inside(900, INSERT))
    event = assembler.receive(data)
    assert isinstance(event, StreamedChange)
    assert event.data is data


def test_streams_take_turns_and_whole_transactions_come_between() -> None:
    assembler = Assembler()
    first = (start(900, first=True), inside(900, T), inside(901, INSERT), STOP)
    second = (start(910, first=True), inside(910, T), inside(910, INSERT), STOP)
    receive_all(assembler, *first, *second, BEGIN, T, INSERT, COMMIT)
    assert list(assembler.open_streams) == [900, 910]
    events = receive_all(
        assembler, start(900), inside(902, INSERT), STOP, start(910), inside(910, INSERT), STOP
    )
    changes = [event for event in events if isinstance(event, StreamedChange)]
    assert [(change.xid, change.subxid) for change in changes] == [(900, 902), (910, 910)]
    receive_all(assembler, commit(910), commit(900))
    assert len(assembler.open_streams) == 0
    assert assembler.state is State.IDLE


def test_relations_of_a_stream_hold_in_it_alone_until_it_is_committed() -> None:
    assembler = assembler_of(BEGIN, T, COMMIT, start(900, first=True), inside(900, WIDER))
    assert relation_of(assembler, inside(900, INSERT)) == WIDER
    assert relation_of(assembler, STOP, BEGIN, INSERT) == T
    assert relation_of(assembler, COMMIT, start(900), inside(900, INSERT)) == WIDER
    committed = receive_all(assembler, STOP, commit(900))[-1]
    assert isinstance(committed, StreamCommitted)
    assert committed.relations == (WIDER,)
    assert relation_of(assembler, BEGIN, INSERT) == WIDER


def test_relations_of_a_stream_have_no_xid() -> None:
    assembler = assembler_of(start(900, first=True))
    (described,) = receive_all(assembler, inside(901, T))
    assert described == Described(T, 900)


def test_a_relation_that_a_stream_repeats_is_the_same_object() -> None:
    assembler = Assembler()
    messages = (BEGIN, T, COMMIT, start(900, first=True), inside(900, T), inside(901, T))
    described = [event for event in receive_all(assembler, *messages) if isinstance(event, Described)]
    assert len({id(event.relation) for event in described}) == 1


def test_a_stream_does_not_see_what_was_described_outside_of_it() -> None:
    assembler = assembler_of(BEGIN, T, COMMIT, start(900, first=True))
    with pytest.raises(ProtocolError, match="Insert names relation 7, which no Relation message described"):
        receive_all(assembler, inside(900, INSERT))


@pytest.mark.parametrize("abort", [StreamAbort(900, 900), StreamAbort(900, 901), StreamAbort(900, 999)])
def test_relations_of_a_stream_are_forgotten_when_any_of_it_is_rolled_back(abort: StreamAbort) -> None:
    assembler = assembler_of(BEGIN, T, COMMIT, start(900, first=True), inside(901, WIDER), STOP, abort)
    assert relation_of(assembler, BEGIN, INSERT) == T
    receive_all(assembler, COMMIT)
    receive_all(assembler, start(900, first=abort.subxid == 900))
    with pytest.raises(ProtocolError, match="which no Relation message described"):
        receive_all(assembler, inside(900, INSERT))


def test_relations_from_before_a_subtransactions_end_do_not_last() -> None:
    assembler = assembler_of(start(900, first=True), inside(901, WIDER), STOP, StreamAbort(900, 901))
    assert receive_all(assembler, commit(900)) == [StreamCommitted(900, LSN(200), LSN(248), 6, ())]
    with pytest.raises(ProtocolError, match="which no Relation message described"):
        receive_all(assembler, BEGIN, INSERT)


def test_relations_of_a_stream_that_is_prepared_do_not_last() -> None:
    assembler = assembler_of(BEGIN, T, COMMIT, start(900, first=True), inside(900, WIDER), STOP)
    prepare = StreamPrepare(0, LSN(200), LSN(248), 6, 900, "gid")
    assert receive_all(assembler, prepare) == [StreamPrepared("gid", 900, LSN(200), LSN(248), 6)]
    assert assembler.open_streams == ()
    assert relation_of(assembler, BEGIN, INSERT) == T


def test_an_older_relation_of_a_stream_does_not_replace_one_of_the_session() -> None:
    assembler = assembler_of(start(900, first=True), inside(900, T), STOP, BEGIN, WIDER, COMMIT)
    assert receive_all(assembler, commit(900)) == [StreamCommitted(900, LSN(200), LSN(248), 6, ())]
    assert relation_of(assembler, BEGIN, INSERT) == WIDER


@pytest.mark.parametrize("order", [(900, 910), (910, 900)])
def test_of_two_streams_the_later_description_lasts(order: tuple[int, int]) -> None:
    assembler = assembler_of(
        *(BEGIN, T, COMMIT, start(900, first=True), inside(900, WIDER), STOP),
        *(start(910, first=True), inside(910, WIDEST), STOP),
    )
    receive_all(assembler, *[commit(xid) for xid in order])
    assert relation_of(assembler, BEGIN, INSERT) == WIDEST


def test_origin_of_the_first_segment_is_that_of_all_of_its_stream_alone() -> None:
    def origins(*messages: Message) -> list[Origin | None]:
        events = receive_all(assembler, *messages)
        return [e.origin for e in events if isinstance(e, Change | StreamedChange | StreamedTruncation)]

    assembler = assembler_of(start(900, first=True), ORIGIN, inside(900, T))
    assert origins(inside(900, INSERT), inside(900, Truncate((7,), 0)), STOP) == [ORIGIN, ORIGIN]
    south = Origin(LSN(5), "south")
    assert origins(BEGIN, T, INSERT, south, INSERT, COMMIT) == [None, south]
    assert origins(start(910, first=True), inside(910, T), inside(910, INSERT), STOP) == [None]
    assert origins(start(900), inside(900, INSERT), STOP) == [ORIGIN]
    assert origins(BEGIN, INSERT, COMMIT) == [None]
    assert origins(start(900, first=True), inside(900, T), inside(900, INSERT)) == [None]


def test_a_first_segment_of_an_open_stream_restarts_it() -> None:
    assembler = assembler_of(start(900, first=True), ORIGIN, inside(900, WIDER), STOP)
    assert receive_all(assembler, start(900, first=True)) == [StreamStarted(900, True)]
    assert assembler.open_streams == (900,)
    with pytest.raises(ProtocolError, match="which no Relation message described"):
        receive_all(assembler, inside(900, INSERT))


def test_an_abort_may_name_what_was_never_streamed() -> None:
    assembler = Assembler()
    assert receive_all(assembler, StreamAbort(5, 5), StreamAbort(5, 6, LSN(9), 1)) == [
        StreamAborted(5, 5, None, None),
        StreamAborted(5, 6, LSN(9), 1),
    ]
    assert assembler.open_streams == ()


def test_fifty_streams_are_open_at_once() -> None:
    assembler = Assembler()
    xids = range(1000, 1050)
    for xid in xids:
        receive_all(assembler, start(xid, first=True), inside(xid, T), inside(xid, INSERT), STOP)
    assert assembler.open_streams == tuple(xids)
    for xid in reversed(xids):
        receive_all(assembler, start(xid), inside(xid, INSERT), STOP, commit(xid))
    assert assembler.open_streams == ()


@pytest.mark.parametrize(
    ("messages", "fault", "where"),
    [
        (
            (start(900),),
            "Stream Start names transaction 900, which has no first segment.",
            "before the first transaction",
        ),
        (
            (commit(900),),
            "Stream Commit names transaction 900, which has no first segment.",
            "before the first transaction",
        ),
        (
            (BEGIN, COMMIT, StreamPrepare(0, LSN(1), LSN(2), 3, 900, "gid")),
            "Stream Prepare names transaction 900, which has no first segment.",
            "after the transaction that ended at 0/94",
        ),
        (
            (start(900, first=True), STOP, commit(900), start(900)),
            "Stream Start names transaction 900, which has no first segment.",
            "after the transaction that ended at 0/F8",
        ),
        (
            (start(900, first=True), STOP, StreamCommit(900, 0, LSN(9), LSN(8), 1)),
            "Stream Commit at 0/9 has an earlier end LSN, 0/8.",
            "before the first transaction",
        ),
        (
            (start(900, first=True), start(910, first=True)),
            "StreamStart is illegal in a segment of a stream.",
            "in the stream of transaction 900",
        ),
        (
            (start(900, first=True), BEGIN),
            "Begin is illegal in a segment of a stream.",
            "in the stream of transaction 900",
        ),
        (
            (start(900, first=True), commit(900)),
            "StreamCommit is illegal in a segment of a stream.",
            "in the stream of transaction 900",
        ),
        (
            (start(900, first=True), StreamAbort(900, 900)),
            "StreamAbort is illegal in a segment of a stream.",
            "in the stream of transaction 900",
        ),
        (
            (start(900, first=True), LogicalMessage(False, LSN(9), "p", b"", 900)),
            "Non-transactional LogicalMessage is illegal in a segment of a stream.",
            "in the stream of transaction 900",
        ),
        (
            (start(900, first=True), inside(900, Truncate((7,), 0))),
            "Truncate names relation 7, which no Relation message described.",
            "in the stream of transaction 900",
        ),
        ((STOP,), "StreamStop is illegal between transactions.", "before the first transaction"),
        (
            (BEGIN, start(900, first=True)),
            "StreamStart is illegal in a transaction.",
            "in transaction 731, committed at 0/64",
        ),
    ],
)
def test_error_states_what_and_where_and_what_to_do(
    messages: tuple[Message, ...], fault: str, where: str
) -> None:
    assembler = assembler_of(*messages[:-1])
    with pytest.raises(ProtocolError) as caught:
        receive_all(assembler, messages[-1])
    assert str(caught.value) == f"{fault} The replication session is broken ({where}). Start a new one."
    assert assembler.state is State.BROKEN
