"""The rows of a file, by table: in memory, in a temporary file, or not kept."""

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.bronze import divided_rows
from pipeline.bronze.divided_rows import DividedRows
from pipeline.table_name import TableName

A, B, C = (TableName("public", table) for table in "abc")
PARTS = {
    A: pa.table({"op": ["I", "D"], "new": [["1", None], None]}),
    B: pa.table({"op": ["U"], "new": [["2", "\u00e9"]]}),
}
SIZE = sum(rows.nbytes for rows in PARTS.values())


@pytest.fixture
def rows() -> DividedRows:
    return DividedRows()


@pytest.mark.parametrize("most_in_memory", [SIZE, 0])
def test_the_rows_of_each_table_come_back(
    rows: DividedRows, monkeypatch: pytest.MonkeyPatch, most_in_memory: int
) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", most_in_memory)
    for path in ("f", "g"):
        rows.add(path, PARTS, is_shared=True)
        assert rows.has(path, A)
        assert rows.get(path, A) == PARTS[A]
        assert rows.get(path, B) == PARTS[B]
        assert rows.get(path, C) is None
    assert not rows.has("h", A)
    rows.clear()
    assert not rows.has("f", A)
    assert not rows.has("g", A)
    rows.add("f", PARTS, is_shared=True)
    assert rows.get("f", B) == PARTS[B]


@pytest.mark.parametrize("most_in_memory", [SIZE, 0])
def test_rows_of_a_released_table_are_on_disk_or_are_read_again(
    rows: DividedRows, monkeypatch: pytest.MonkeyPatch, most_in_memory: int
) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", most_in_memory)
    rows.add("f", PARTS, is_shared=True)
    rows.release(A)
    assert rows.has("f", A) == (not most_in_memory)
    for part in ("f", "g"):  # read again, and read for the first time
        rows.add(part, PARTS, is_shared=True)
        assert rows.get(part, B) == PARTS[B]
        assert not rows.has(part, A) or rows.get(part, A) == PARTS[A]
    assert rows.has("f", C)
    assert rows._in_memory <= most_in_memory
    rows.clear()
    rows.add("f", PARTS, is_shared=True)
    assert rows.get("f", A) == PARTS[A]


def test_what_few_tables_need_is_not_kept_beyond_the_memory(
    rows: DividedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", SIZE)
    rows.add("f", PARTS, is_shared=False)
    rows.add("g", PARTS, is_shared=False)
    rows.add("h", PARTS, is_shared=True)
    assert [path for path in "fgh" if rows.has(path, A)] == ["f", "h"]


def test_the_disk_is_bounded_too(rows: DividedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(divided_rows, "MAX_ON_DISK", 1)
    rows.add("f", PARTS, is_shared=True)
    rows.add("g", PARTS, is_shared=True)
    assert [path for path in "fg" if rows.has(path, A)] == ["f"]


def test_a_full_disk_keeps_nothing_and_fails_nothing(
    rows: DividedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    rows.add("f", PARTS, is_shared=True)
    assert not rows.has("f", A)


def test_the_temporary_file_has_no_name(
    rows: DividedRows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows.add("f", PARTS, is_shared=True)
    assert rows._file is not None
    number = rows._file.fileno()
    assert os.fstat(number).st_size > 0
    assert os.fstat(number).st_nlink == 0
    assert not list(tmp_path.iterdir())
    rows.clear()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
