"""Writes in the background: in their order, one at a time, and none after one that failed."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event, get_ident

import pytest

from pipeline.bronze import spool as spool_module
from pipeline.bronze.background_writer import BackgroundWriter
from pipeline.errors import ProtocolError
from pipeline.protocol.events import Change
from tests.support.bronze.events import Session, relation

TIMEOUT = 30.0


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    writer = BackgroundWriter()
    yield writer
    writer.close()


def test_writes_run_in_order_in_one_other_thread(writer: BackgroundWriter) -> None:
    written: list[tuple[int, int]] = []
    for number in range(100):
        writer.submit(lambda number=number: written.append((number, get_ident())))  # type: ignore[misc]
    writer.flush()
    assert [number for number, _ in written] == list(range(100))
    [thread] = {thread for _, thread in written}
    assert thread != get_ident()


def test_submit_returns_while_the_write_is_under_way(writer: BackgroundWriter) -> None:
    may_end, has_ended = Event(), Event()

    def write() -> None:
        assert may_end.wait(TIMEOUT)
        has_ended.set()

    writer.submit(write)
    assert not has_ended.is_set()
    may_end.set()
    writer.flush()
    assert has_ended.is_set()


def test_a_write_begins_after_those_of_another_writer(writer: BackgroundWriter) -> None:
    other, may_end, written = BackgroundWriter(), Event(), list[str]()

    def write() -> None:
        assert may_end.wait(TIMEOUT)
        written.append("before")

    writer.submit(write)
    other.submit_after(writer, lambda: written.append("after"))
    other.settle(0.05)
    busy = [other.is_busy]
    assert not written
    may_end.set()
    other.flush()
    assert [*busy, other.is_busy] == [True, False]
    assert written == ["before", "after"]
    other.close()


def test_no_write_begins_after_one_of_another_writer_that_failed(writer: BackgroundWriter) -> None:
    other, written = BackgroundWriter(), list[int]()

    def fail() -> None:
        raise ProtocolError("malformed")

    writer.submit(fail)
    other.submit_after(writer, lambda: written.append(1))
    with pytest.raises(ProtocolError, match="malformed"):
        other.flush()
    assert not written
    other.close()


def test_a_failed_write_fails_every_later_call(writer: BackgroundWriter) -> None:
    written: list[int] = []

    def fail() -> None:
        raise ProtocolError("malformed")

    writer.submit(fail)
    writer.settle()
    for call in (writer.flush, writer.flush, lambda: writer.submit(lambda: written.append(1))):
        with pytest.raises(ProtocolError, match="malformed"):
            call()
    assert not written


def test_without_a_thread_submit_writes() -> None:
    writer, threads = BackgroundWriter(has_thread=False), list[int]()
    writer.submit(lambda: threads.append(get_ident()))
    assert threads == [get_ident()]
    for end in (writer.flush, writer.settle, writer.close):
        end()


def test_the_spool_hands_over_nothing_after_a_malformed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "ROW_LIMIT", 4)
    session = Session(tmp_path, relation(1))
    session.transaction(3)
    session.begin()
    session.spool.add_change(Change(0, session.relations[0], None, b"I\0\0\0\1N\0\7"))
    session.commit()
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"public\.t"):
            session.spool.seal()
    session.spool.discard()
    assert not list(tmp_path.iterdir())
