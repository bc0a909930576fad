"""Rows of bronze in chunks: all that are chosen, in files' order, none larger than what one batch adds."""

from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.bronze import changes_scan
from pipeline.bronze.changes_scan import ChangesScan
from pipeline.delta.table_log import Snapshot
from pipeline.table_name import TableName
from tests.support.native_lakes import change, write_file

NAME = TableName("public", "t")


def scan_of(folder: Path, ops: tuple[str, ...]) -> ChangesScan:
    """Write two files of two row groups each, 1,000 rows in all, every tenth of them copied."""
    paths = []
    for first in (0, 500):
        groups = [
            [
                change(NAME, 1, ordinal, 1000, "R" if ordinal % 10 == 0 else "I", new=[str(ordinal)])
                for ordinal in range(start, start + 250)
            ]
            for start in (first, first + 250)
        ]
        paths.append(str(folder / write_file(folder, *groups).name))
    return ChangesScan(str(folder), cast(Snapshot, None), ops, paths=tuple(paths))


@pytest.mark.parametrize("ops", [("R",), ("I",), ("I", "R")])
def test_chunks_have_all_rows_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ops: tuple[str, ...]
) -> None:
    monkeypatch.setattr(changes_scan, "_BATCH_ROWS", 30)
    chunks = list(scan_of(tmp_path, ops).chunks(["ordinal", "op", "new"], 100, 1 << 30))
    found: list[dict[str, Any]] = [row for chunk in chunks for row in chunk.to_pylist()]
    wanted = [n for n in range(1000) if ("R" if n % 10 == 0 else "I") in ops]
    assert [row["ordinal"] for row in found] == wanted
    assert [row["new"] for row in found] == [[str(n)] for n in wanted]
    assert {row["op"] for row in found} == set(ops)
    assert max(chunk.num_rows for chunk in chunks) < 130
    assert all(chunk.num_rows >= 100 for chunk in chunks[:-1])


def test_chunks_are_bounded_in_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_scan, "_BATCH_ROWS", 30)
    chunks = list(scan_of(tmp_path, ("I", "R")).chunks(["ordinal"], 10**9, 1000))
    assert max(chunk.nbytes for chunk in chunks) < 1000 + 30 * 8
    assert sum(chunk.num_rows for chunk in chunks) == 1000
