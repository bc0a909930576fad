"""Messages of real servers decode to their meaning; damaged ones raise ProtocolError."""

from collections import Counter
from random import Random

import pytest

from pipeline.errors import ProtocolError
from pipeline.protocol import messages as wire
from pipeline.protocol.decode import decode
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    Event,
    Prepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamPrepared,
    Truncation,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.transactions import Assembler, State
from tests.support.captures.scenarios import SCENARIOS
from tests.support.protocol.encode import encode
from tests.support.protocol.golden import CAPTURES, MARKED, Capture
from tests.support.protocol.meaning import describe, qualified_name

every_capture = pytest.mark.parametrize("capture", CAPTURES, ids=str)


def decode_all(capture: Capture) -> list[wire.Message]:
    """Decode the messages of a capture, those of streams as such."""
    messages: list[wire.Message] = []
    in_stream = False
    for row in capture.messages:
        messages.append(decode(row.data, in_stream=in_stream))
        in_stream = {"S": True, "E": False}.get(chr(row.data[0]), in_stream)
    return messages


@every_capture
def test_messages_have_their_meaning(capture: Capture) -> None:
    names: dict[int, str] = {}
    xids: dict[int, int] = {}
    descriptions = []
    for message in decode_all(capture):
        if isinstance(message, wire.Relation):
            assert message.oid in names or qualified_name(message) == capture.relations[message.oid]
            names[message.oid] = qualified_name(message)
        descriptions.append(describe(message, names, capture.types, xids))
    assert descriptions == list(capture.scenario.meaning)


@every_capture
def test_lsns_xids_and_times_are_those_of_the_servers_functions(capture: Capture) -> None:
    begin = wire.Begin(LSN(0), 0, 0)
    for row, message in zip(capture.messages, decode_all(capture), strict=True):
        if row.lsn is None or row.xid is None:
            continue
        match message:
            case wire.Begin() as begin:
                assert begin.xid == row.xid
                assert begin.commit_time == capture.commit_times[row.xid]
            case wire.Commit() as commit:
                assert commit.commit_lsn == begin.final_lsn
                assert commit.end_lsn == row.lsn
                assert commit.commit_time == begin.commit_time
            case wire.LogicalMessage():
                assert message.lsn == row.lsn
            case wire.StreamStart():
                assert message.xid == row.xid
            case wire.StreamCommit() | wire.CommitPrepared():
                assert (message.xid, message.end_lsn) == (row.xid, row.lsn)
                assert message.commit_time == capture.commit_times[row.xid]
                assert message.commit_lsn < message.end_lsn
            case wire.StreamAbort():
                assert message.subxid == row.xid
                assert message.abort_lsn in (None, row.lsn)
            case wire.BeginPrepare():
                assert message.xid == row.xid
                assert row.lsn < message.prepare_lsn < message.end_lsn
            case wire.Prepare() | wire.StreamPrepare():
                assert (message.xid, message.end_lsn) == (row.xid, row.lsn)
                assert message.prepare_lsn < message.end_lsn
            case wire.RollbackPrepared():
                assert (message.xid, message.rollback_end_lsn) == (row.xid, row.lsn)
                assert message.prepare_end_lsn < message.rollback_end_lsn
                assert message.prepare_time < message.rollback_time


@every_capture
def test_aborts_have_an_lsn_where_streaming_is_parallel(capture: Capture) -> None:
    is_parallel = capture.scenario.is_streamed and capture.server_version >= 160000
    for message in decode_all(capture):
        if isinstance(message, wire.StreamAbort):
            assert (message.abort_lsn is not None) is (message.abort_time is not None) is is_parallel


@every_capture
def test_transactions_are_assembled_whole(capture: Capture) -> None:
    assembler = Assembler()
    ordinals: list[int] = []
    for row, meaning in zip(capture.messages, capture.scenario.meaning, strict=True):
        event = assembler.receive(row.data)
        match event:
            case Began() | BeganPrepare():
                assert assembler.in_transaction
                ordinals = []
            case Change():
                assert event.data is row.data
                assert f" {qualified_name(event.relation)} " in meaning
                ordinals.append(event.ordinal)
            case Truncation():
                assert ", ".join(qualified_name(relation) for relation in event.relations) in meaning
                ordinals.extend(range(event.ordinal, event.ordinal + len(event.relations)))
            case Committed() | Prepared():
                assert ordinals == list(range(event.change_count))
                assert row.xid in (None, event.xid)
            case StreamedChange():
                assert event.data is row.data
                assert event.xid in assembler.open_streams
                assert f" {qualified_name(event.relation)} " in meaning
            case StreamAborted() | StreamCommitted() | StreamPrepared():
                is_over = not isinstance(event, StreamAborted) or event.subxid == event.xid
                assert (event.xid in assembler.open_streams) is not is_over
    assert assembler.state is State.IDLE
    assert assembler.open_streams == ()


@every_capture
def test_changes_have_the_relation_that_the_server_meant(capture: Capture) -> None:
    assembler = Assembler()
    for row, message in zip(capture.messages, decode_all(capture), strict=True):
        event = assembler.receive(row.data)
        if isinstance(event, Change | StreamedChange):
            assert isinstance(message, wire.Insert | wire.Update | wire.Delete)
            row_tuple = message.old if isinstance(message, wire.Delete) else message.new
            assert len(row_tuple) == len(event.relation.columns)


def test_origin_is_that_of_its_own_transaction_only() -> None:
    for capture in CAPTURES:
        if capture.scenario.name == "origin":
            assembler = Assembler()
            events = [assembler.receive(row.data) for row in capture.messages]
            origins = [event.origin and event.origin.name for event in events if isinstance(event, Change)]
            assert origins == ["north", None]


def test_origin_of_a_stream_is_that_of_its_later_segments_too() -> None:
    for capture in CAPTURES:
        if capture.scenario.name == "origin and binary values of a stream":
            assembler = Assembler()
            events = [assembler.receive(row.data) for row in capture.messages]
            changes = [event for event in events if isinstance(event, StreamedChange)]
            assert [event.origin and event.origin.name for event in changes] == ["south", "south", None]


def test_every_message_was_captured_and_every_scenario_ran() -> None:
    assert {chr(data[0]) for data, _ in MARKED} == set("BMCORYIUDTSEcAbPKrp")
    assert {chr(data[0]) for data, in_stream in MARKED if in_stream} == set("MORIUDTE")
    ran = Counter(capture.scenario.name for capture in CAPTURES)
    assert [scenario.name for scenario in SCENARIOS if not ran[scenario.name]] == []


def test_encoder_of_the_tests_gives_the_bytes_of_the_servers() -> None:
    assert [data for data, inside in MARKED if encode(decode(data, in_stream=inside)) != data] == []


@pytest.mark.costly
def test_every_strict_prefix_raises() -> None:
    for data, inside in MARKED:
        for length in range(len(data)):
            if data[:1] == b"A" and length == 9:
                continue  # a whole one, without LSN and time
            with pytest.raises(ProtocolError):
                decode(data[:length], in_stream=inside)


def test_trailing_byte_raises() -> None:
    for data, inside in MARKED:
        for extra in (b"\0", b"n", b"N", data):
            with pytest.raises(ProtocolError):
                decode(data + extra, in_stream=inside)


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(8))
def test_damaged_messages_decode_or_raise_protocol_errors_only(seed: int) -> None:
    random = Random(seed)
    short = [pair for pair in MARKED if len(pair[0]) < 400]
    raised = 0
    for _ in range(12_500):
        original, inside = random.choice(short)
        data = bytearray(original)
        for _ in range(random.randint(1, 4)):
            damage(data, random)
        try:
            message = decode(bytes(data), in_stream=inside is not (random.random() < 0.1))
        except ProtocolError:
            raised += 1
        else:
            assert encode(message) == bytes(data)
    assert raised > 5000


@pytest.mark.parametrize("seed", range(4))
def test_damaged_sessions_end_in_protocol_errors_only(seed: int) -> None:
    random = Random(seed)
    for _ in range(300):
        stream = [row.data for row in random.choice(CAPTURES).messages if len(row.data) < 400]
        for _ in range(random.randint(0, 3)):
            index = random.randrange(len(stream))
            match random.randrange(4):
                case 0:
                    del stream[index]
                case 1:
                    stream.insert(index, random.choice(MARKED)[0])
                case 2:
                    stream[index] = stream[index][: random.randrange(len(stream[index]) + 1)]
                case _:
                    data = bytearray(stream[index])
                    damage(data, random)
                    stream[index] = bytes(data)
            if not stream:
                break
        assembler = Assembler()
        is_broken = False
        for data_ in stream:
            try:
                event: Event | None = assembler.receive(data_)
            except ProtocolError:
                is_broken = True
            else:
                assert not is_broken, f"{event} after the session broke"


def damage(data: bytearray, random: Random) -> None:
    """Change, insert, delete or repeat some bytes."""
    index = random.randrange(len(data) + 1)
    match random.randrange(4):
        case 0 if index < len(data):
            data[index] = random.randrange(256)
        case 1:
            data.insert(index, random.choice(b"\0\1\xffNKOntub"))
        case 2:
            del data[index : index + random.randint(1, 5)]
        case _:
            data[index:index] = data[index : index + random.randint(1, 8)]
