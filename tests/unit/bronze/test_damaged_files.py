"""What the spool reads again from its disk is what it wrote, or is refused."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from pipeline.bronze import spool as spool_module
from pipeline.bronze import streamed_transactions as streams_module
from pipeline.errors import SpoolError
from tests.support.bronze.events import Session, relation, rows_of
from tests.support.bronze.streamed import commit, insert, start

ONE = relation(1, "one")
Injury = Callable[[bytes, int, Random], bytes]


def flip_a_bit(data: bytes, place: int, rng: Random) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def cut_off(data: bytes, place: int, rng: Random) -> bytes:
    return data[:place]


def fill_with_zeros(data: bytes, place: int, rng: Random) -> bytes:
    return data[:place] + bytes(len(data) - place)


INJURIES = pytest.mark.parametrize("injury", [flip_a_bit, cut_off, fill_with_zeros])


def an_open_stream(folder: Path) -> Session:
    """Return a session with an open streamed transaction, two pieces of it on disk."""
    session = Session(folder, ONE)
    start(session, 10, ONE)
    for number in range(10):
        insert(session, 10, 10, f"a value {number}")
    session.spool._background.flush()
    return session


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "STREAM_ROWS", 5)


@pytest.mark.costly
@pytest.mark.promise("damaged files")
@INJURIES
@pytest.mark.usefixtures("small")
def test_a_stream_whose_file_is_damaged_is_refused(tmp_path: Path, injury: Injury) -> None:
    an_open_stream(tmp_path)
    [file] = tmp_path.glob("*.arrow")
    data = file.read_bytes()
    file.unlink()
    rng = Random(7)
    places = [0, 11, 12, len(data) - 1, len(data) // 2, *(rng.randrange(len(data)) for _ in range(60))]
    for place in places:
        damaged = injury(data, place, rng)
        if damaged == data:
            continue
        session = an_open_stream(tmp_path)
        [file] = tmp_path.glob("*.arrow")
        assert file.read_bytes() == data
        file.write_bytes(damaged)
        commit(session, 10, 1000)
        with pytest.raises(SpoolError, match="is not as it was written"):
            session.seal()
        session.spool.discard()
        file.unlink()


@pytest.mark.promise("damaged files")
@INJURIES
def test_a_transaction_whose_file_is_damaged_is_refused(
    tmp_path: Path, injury: Injury, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "ROW_LIMIT", 5)
    rng = Random(9)
    for _ in range(40):
        session = Session(tmp_path, ONE)
        session.begin()
        session.changes(12)
        session.spool._background.flush()
        [file] = tmp_path.glob("*.arrow")
        data = file.read_bytes()
        file.write_bytes(injury(data, rng.randrange(len(data)), rng))
        if file.read_bytes() == data:
            continue
        session.commit()
        with pytest.raises(SpoolError, match=r"of the open transaction 1 is not as it was written"):
            session.seal()
        session.spool.discard()
        for left in tmp_path.iterdir():
            left.unlink()


@pytest.mark.usefixtures("small")
def test_a_piece_that_came_from_another_place_is_refused(tmp_path: Path) -> None:
    session = an_open_stream(tmp_path)
    [file] = tmp_path.glob("*.arrow")
    data = file.read_bytes()
    half = 12 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[half:])  # whole pieces, but one too few
    commit(session, 10, 1000)
    with pytest.raises(SpoolError):
        session.seal()
    session.spool.discard()


@pytest.mark.promise("damaged files")
@INJURIES
def test_a_file_that_was_damaged_is_not_read_again_and_does_not_land(tmp_path: Path, injury: Injury) -> None:
    session = Session(tmp_path, ONE)
    session.transaction(25)
    staged = session.seal()
    [file] = staged.files
    data = file.path.read_bytes()
    assert (file.data.size, pq.ParquetFile(file.path).metadata.num_rows) == (len(data), 25)
    file.check()
    rng = Random(8)
    for _ in range(60):
        file.path.write_bytes(injury(data, rng.randrange(4, len(data) - 4), rng))
        with pytest.raises(SpoolError, match="is not as it was written"):
            file.check()
        assert list(tmp_path.iterdir()) == [file.path]
    file.path.unlink()
    with pytest.raises(SpoolError, match="is not as it was written"):
        file.check()


def test_pages_have_checksums_that_readers_of_the_lake_can_verify(tmp_path: Path) -> None:
    session = Session(tmp_path, ONE)
    session.transaction(500)
    staged = session.seal()
    [file] = staged.files
    assert len(rows_of(staged)) == 500
    metadata = pq.ParquetFile(file.path).metadata.row_group(0)
    chunk = next(metadata.column(i) for i in range(20) if metadata.column(i).path_in_schema == "ordinal")
    data = bytearray(file.path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1  # inside of the values
    file.path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(file.path, page_checksum_verification=True).read_row_group(0, columns=["ordinal"])
