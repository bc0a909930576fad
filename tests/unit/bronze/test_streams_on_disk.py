"""Transactions that stream are kept on disk: neither memory nor open files grow with their size or number."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pipeline.bronze import streamed_transactions as streams_module
from pipeline.protocol.events import StreamAborted
from tests.support.bronze.events import Session, rows_of
from tests.support.bronze.streamed import ONE, commit, insert, start
from tests.support.paths import ROOT


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, ONE)


def test_streams_are_forgotten_with_the_session_and_leave_no_file(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "STREAM_ROWS", 4)
    for xid in range(10, 60):
        start(session, xid, ONE)
        insert(session, xid, xid, "x")
    assert list(tmp_path.iterdir())
    session.spool.streams.discard()
    assert not list(tmp_path.iterdir())
    assert session.spool.seal() is None


def open_files() -> set[tuple[int, int]]:
    found = set()
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the listing itself
            file = os.fstat(int(descriptor))
            found.add((file.st_dev, file.st_ino))
    return found


@pytest.mark.costly
def test_streams_on_disk_hold_no_file_open(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "STREAM_ROWS", 1)
    for turn in range(3):
        for xid in range(100, 160):
            start(session, xid, ONE if turn == 0 else None)
            insert(session, xid, xid, f"{xid} {turn}")
    kept = {(file.st_dev, file.st_ino) for file in map(os.stat, tmp_path.iterdir())}
    assert len(kept) == 60
    assert not kept & open_files()
    for xid in range(159, 99, -1):
        if xid % 3:
            commit(session, xid, 100_000 - 100 * xid)
        else:
            session.spool.streams.abort(StreamAborted(xid, xid, None, None))
    rows = rows_of(session.spool.seal())
    expected = {(xid, turn, f"{xid} {turn}") for xid in range(100, 160) if xid % 3 for turn in range(3)}
    assert {(row["xid"], row["ordinal"], row["new"][1]) for row in rows} == expected
    assert len(rows) == len(expected)
    assert not list(tmp_path.glob("*.arrow"))


def test_committed_streams_of_large_rows_do_not_wait_in_memory(session: Session, tmp_path: Path) -> None:
    size = 1 << 20
    for xid in range(10, 50):
        start(session, xid, ONE)
        insert(session, xid, xid, Random(xid).randbytes(size // 2).hex())
        commit(session, xid, 1000 * xid)
    # what the limit lets wait is 16 MiB; hexadecimal digits take half their size, compressed
    assert session.spool.pending_rows == 40
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 10 * size
    assert len(rows_of(session.spool.seal())) == 40


FEED = """
import resource, sys
from pathlib import Path
from tests.support.bronze.streamed import ONE, commit, insert, start
from tests.support.bronze.events import Session, row_count_of
session = Session(Path(sys.argv[1]), ONE)
size, large = int(sys.argv[2]), "a value of a row " * 60

def transaction(xid, size):
    start(session, xid, ONE)
    for row in range(size):
        insert(session, xid, xid, large)
    commit(session, xid, 100 * xid)

transaction(10, 50_000)
early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
transaction(20, size)
staged = session.spool.seal()
print(row_count_of(staged.files), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early)
"""


@pytest.mark.costly
def test_memory_does_not_grow_with_a_stream(tmp_path: Path) -> None:
    size = 200_000
    command = [sys.executable, "-c", FEED, str(tmp_path), str(size)]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    row_count, growth_in_kib = map(int, result.stdout.split())
    assert row_count == 50_000 + size
    assert growth_in_kib < 128 << 10
