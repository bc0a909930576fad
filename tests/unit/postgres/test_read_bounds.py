"""One read of the stream is bounded by bytes, by messages and by its timeout, however fast messages come."""

import socket
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pipeline.postgres.replication.change_stream import BATCH_BYTES, BATCH_MESSAGES
from pipeline.postgres.replication.walsender import XLOGDATA, XLOGDATA_HEADER_SIZE, Walsender
from pipeline.protocol.lsn import LSN


class Libpq:
    """A session whose server has always sent a little more after a moment: every second read finds some."""

    def __init__(
        self, size: int, *, each_look: int = 0, a_second: float = 0.0, most: int = 1_000_000
    ) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._theirs.send(b"d")  # there is always something to read
        self.socket = self._ours.fileno()
        self._data = memoryview(bytes([XLOGDATA]) + bytes(XLOGDATA_HEADER_SIZE - 1) + b"I" * size)
        self._each_look, self._a_second = each_look, a_second
        self._started = time.monotonic()
        self._waiting = self._looks = 0
        self._left = most

    def consume_input(self) -> None:
        self._looks += 1
        due = self._each_look * (self._looks % 2)
        if self._a_second:
            due = int((time.monotonic() - self._started) * self._a_second) - self.taken
        self._waiting = min(max(due, self._waiting), self._left)

    taken = 0

    def get_copy_data(self, asynchronous: int) -> tuple[int, memoryview | None]:
        if not self._waiting:
            return 0, None
        self._waiting -= 1
        self._left -= 1
        self.taken += 1
        return len(self._data), self._data

    def put_copy_data(self, data: bytes) -> None:
        del data

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class Connection:
    def __init__(self, libpq: Libpq) -> None:
        self.pgconn = libpq

    def add_notice_handler(self, handler: object) -> None:
        del handler

    def close(self) -> None:
        self.pgconn.close()


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Walsender, Libpq]]:
    libpq = Libpq(**request.param)
    connection = cast(Any, Connection(libpq))
    walsender = Walsender(connection, conninfo="", slot="s", start_lsn=LSN(1), timeout=60)
    yield walsender, libpq
    walsender.close()


@pytest.mark.parametrize("opened", [{"size": 100_000, "each_look": 20, "most": 2_000}], indirect=True)
def test_a_read_holds_no_more_than_a_batch_of_bytes(opened: tuple[Walsender, Libpq]) -> None:
    walsender, libpq = opened
    batches = []
    while libpq.taken < 2_000:
        messages = walsender.read(60)
        assert sum(map(len, messages)) < BATCH_BYTES + 100_000
        batches.append(len(messages))
    assert sum(batches) == 2_000
    assert min(batches[:-1]) > 100  # and no less than that: small batches are slow


@pytest.mark.parametrize("opened", [{"size": 10, "each_look": 300, "most": 30_000}], indirect=True)
def test_a_read_returns_no_more_than_a_batch_of_messages(opened: tuple[Walsender, Libpq]) -> None:
    walsender, _ = opened
    assert [len(walsender.read(60)) for _ in range(3)] == [BATCH_MESSAGES] * 3


@pytest.mark.parametrize("opened", [{"size": 100, "a_second": 500.0, "most": 2_000}], indirect=True)
def test_a_steady_trickle_is_returned_by_the_timeout(opened: tuple[Walsender, Libpq]) -> None:
    walsender, libpq = opened
    started = time.monotonic()
    messages = walsender.read(0.25)
    assert time.monotonic() - started < 2
    assert 0 < len(messages) == libpq.taken < 2_000
