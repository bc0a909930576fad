"""Bytes that real servers sent decode to what was done there; damaged, they raise ProtocolError."""

from collections import Counter
from random import Random

import pytest

from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import Begin, Commit, LogicalMessage, Relation
from pipeline.protocol.transactions import Assembler, Began, Change, Committed, Event, State, Truncation
from tests.captures.scenarios import SCENARIOS
from tests.protocol.encode import encode
from tests.protocol.golden import CAPTURES, MESSAGES, Capture
from tests.protocol.meaning import tell

every_capture = pytest.mark.parametrize("capture", CAPTURES, ids=str)


@every_capture
def test_messages_mean_what_was_done(capture: Capture) -> None:
    names: dict[int, str] = {}
    told = []
    for row in capture.messages:
        message = decode(row.data)
        if isinstance(message, Relation):
            assert message.oid in names or message.qualified_name == capture.relations[message.oid]
            names[message.oid] = message.qualified_name
        told.append(tell(message, names, capture.types))
    assert told == list(capture.scenario.meaning)


@every_capture
def test_positions_xids_and_times_are_those_the_server_tells_elsewhere(capture: Capture) -> None:
    begin = Begin(capture.messages[0].lsn, 0, 0)
    for row in capture.messages:
        match decode(row.data):
            case Begin() as begin:
                assert begin.xid == row.xid
                assert begin.commit_time == capture.commit_times[row.xid]
            case Commit() as commit:
                assert commit.commit_lsn == begin.final_lsn
                assert commit.end_lsn == row.lsn
                assert commit.commit_time == begin.commit_time
            case LogicalMessage() as message:
                assert message.lsn == row.lsn


@every_capture
def test_transactions_are_assembled_whole(capture: Capture) -> None:
    assembler = Assembler()
    ordinals: list[int] = []
    for row, told in zip(capture.messages, capture.scenario.meaning, strict=True):
        event = assembler.receive(row.data)
        match event:
            case Began():
                assert assembler.in_transaction
                ordinals = []
            case Change():
                assert event.data is row.data
                assert f" {event.relation.qualified_name} " in told
                ordinals.append(event.ordinal)
            case Truncation():
                assert ", ".join(relation.qualified_name for relation in event.relations) in told
                ordinals.extend(range(event.ordinal, event.ordinal + len(event.relations)))
            case Committed():
                assert ordinals == list(range(event.change_count))
                assert event.xid == row.xid
    assert assembler.state is State.IDLE


def test_origin_is_that_of_its_own_transaction_only() -> None:
    for capture in CAPTURES:
        if capture.scenario.name == "origin":
            assembler = Assembler()
            events = [assembler.receive(row.data) for row in capture.messages]
            origins = [event.origin and event.origin.name for event in events if isinstance(event, Change)]
            assert origins == ["north", None]


def test_every_message_of_version_1_was_captured_and_every_scenario_ran() -> None:
    assert {chr(data[0]) for data in MESSAGES} == set("BMCORYIUDT")
    ran = Counter(capture.scenario.name for capture in CAPTURES)
    assert [scenario.name for scenario in SCENARIOS if not ran[scenario.name]] == []


def test_encoder_of_the_tests_gives_the_bytes_of_the_servers() -> None:
    assert [data for data in MESSAGES if encode(decode(data)) != data] == []


def test_every_strict_prefix_raises() -> None:
    for data in MESSAGES:
        for length in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(data[:length])


def test_trailing_byte_raises() -> None:
    for data in MESSAGES:
        for extra in (b"\0", b"n", b"N", data):
            with pytest.raises(ProtocolError):
                decode(data + extra)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_messages_decode_or_raise_protocol_errors_only(seed: int) -> None:
    random = Random(seed)
    short = [data for data in MESSAGES if len(data) < 400]
    raised = 0
    for _ in range(4000):
        data = bytearray(random.choice(short))
        for _ in range(random.randint(1, 4)):
            damage(data, random)
        try:
            message = decode(bytes(data), in_stream=random.random() < 0.2)
        except ProtocolError:
            raised += 1
        else:
            assert encode(message) == bytes(data)
    assert raised > 1000


@pytest.mark.parametrize("seed", range(4))
def test_damaged_sessions_end_in_protocol_errors_only(seed: int) -> None:
    random = Random(seed)
    for _ in range(300):
        stream = [row.data for row in random.choice(CAPTURES).messages if len(row.data) < 400]
        for _ in range(random.randint(0, 3)):
            place = random.randrange(len(stream))
            match random.randrange(4):
                case 0:
                    del stream[place]
                case 1:
                    stream.insert(place, random.choice(MESSAGES))
                case 2:
                    stream[place] = stream[place][: random.randrange(len(stream[place]) + 1)]
                case _:
                    data = bytearray(stream[place])
                    damage(data, random)
                    stream[place] = bytes(data)
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
    place = random.randrange(len(data) + 1)
    match random.randrange(4):
        case 0 if place < len(data):
            data[place] = random.randrange(256)
        case 1:
            data.insert(place, random.choice(b"\0\1\xffNKOntub"))
        case 2:
            del data[place : place + random.randint(1, 5)]
        case _:
            data[place:place] = data[place : place + random.randint(1, 8)]
