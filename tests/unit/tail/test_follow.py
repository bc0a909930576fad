"""The loop of `pgdelta tail` over a stream that a test feeds: what it prints, and what it acknowledges."""

import io
import threading
from collections.abc import Sequence

import pytest

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Insert, Message
from pipeline.tail.follow import Tail
from pipeline.tail.json_format import JsonFormat
from pipeline.tail.source import TailOptions
from pipeline.tail.text_format import TextFormat
from tests.support.protocol.encode import encode
from tests.support.tail_messages import COMMIT, ITEM, inside, type_name


class Fed:
    """A ChangeStream that hands out batches, and remembers what was asked of it."""

    session = 1

    def __init__(self, *batches: Sequence[bytes], needs_acknowledgement: bool = False) -> None:
        self.batches = list(batches)
        self.needs_acknowledgement = needs_acknowledgement
        self.acknowledged: list[LSN] = []
        self.received_lsn = INVALID

    def read(self, timeout: float) -> list[bytes]:
        if self.batches:
            return list(self.batches.pop(0))
        self.received_lsn = LSN(2**40)
        return []

    def interrupt(self) -> None:
        pass

    def acknowledge(self, lsn: LSN) -> None:
        self.acknowledged.append(lsn)

    def ping(self) -> None:
        pass

    def confirm(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        pass


def run(stream: Fed, request: TailOptions, out: io.StringIO | None = None) -> list[str]:
    out = out or io.StringIO()
    Tail(request, stream, TextFormat(type_name), out, LSN(2**40)).run(threading.Event())
    return out.getvalue().splitlines()


def encoded(*messages: Message) -> list[bytes]:
    return [encode(message) for message in messages]


ONE = encoded(*inside(ITEM, Insert(7, (b"1", None, None))))


def test_nothing_is_acknowledged_that_was_not_requested() -> None:
    stream = Fed(ONE)
    assert len(run(stream, TailOptions())) == 4
    assert stream.acknowledged == []


def test_a_transaction_is_acknowledged_with_its_last_message_only() -> None:
    stream = Fed(ONE[:3], ONE[3:])
    run(stream, TailOptions(acknowledge=True))
    assert set(stream.acknowledged) == {COMMIT.end_lsn}
    stream = Fed(ONE[:3], ONE[3:])
    assert len(run(stream, TailOptions(acknowledge=True, limit=3))) == 3
    assert stream.acknowledged == []


def test_what_was_not_written_is_not_acknowledged() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stream = Fed(ONE)
    with pytest.raises(BrokenPipeError):
        run(stream, TailOptions(acknowledge=True), Full())
    assert stream.acknowledged == []


@pytest.mark.parametrize("bad", [b"Z\0secret", ONE[2], ONE[1][:-1]], ids=["unknown", "illegal", "cut short"])
def test_bytes_that_are_no_message_are_shown_before_the_error(bad: bytes) -> None:
    out = io.StringIO()
    with pytest.raises(ProtocolError):
        run(Fed([*ONE, bad, *ONE]), TailOptions(), out)
    *before, last = out.getvalue().splitlines()
    assert len(before) == 4
    assert f"  Undecodable message of {len(bad)} bytes x'{bad[:30].hex()}'" in last


def test_json_lines_are_written_by_the_same_loop() -> None:
    out = io.StringIO()
    Tail(TailOptions(), Fed(ONE), JsonFormat(type_name), out, LSN(2**40)).run(threading.Event())
    assert [line[:13] for line in out.getvalue().splitlines()] == ['{"message": "'] * 4
