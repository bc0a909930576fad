"""The history of copies: read once, and of ended copies without what only a resumed one needs."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze.copies import Copies, abandoned_row, complete_row, needed_rows, reading_row
from pipeline.bronze.copy_states import COMPLETE, READING, Chunk, CopyHistory, CopyState, SnapshotChunks
from pipeline.delta import rows
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

TABLES, ROUNDS, CHUNKS = 100, 20, 20


def state(number: int, table: int) -> tuple[CopyState, SnapshotChunks]:
    name = TableName("public", f"t{table}")
    copy = CopyState(number, name, READING, relation_id=1, membership=1, relation_version=1, row_count=7)
    chunks = tuple(Chunk(1, 1, page, page + 1) for page in range(CHUNKS))
    return copy, SnapshotChunks(LSN(1000 + number), (5, 6), 0, chunks)


def record_round(copies: Copies, number: int) -> None:
    """Record one more copy of each table: every third is abandoned, and those of the last table stay open."""
    begun, ended = [], []
    for table in range(TABLES):
        copy, snapshot = state(number * TABLES + table + 1, table)
        begun.append(reading_row(copy, snapshot))
        if table == TABLES - 1:
            continue
        ended.append(abandoned_row(copy, "why") if number % 3 == 2 else complete_row(copy, [LSN(9)]))
    copies.record(begun)
    copies.record(ended)


@pytest.mark.costly
@pytest.mark.promise("bounded growth")
def test_thousands_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(Lake(str(tmp_path)))
    opened: list[str] = []

    class DataFile(rows._DataFile):
        def __init__(self, path: str, *arguments: Any) -> None:
            opened.append(path)
            super().__init__(path, *arguments)

    monkeypatch.setattr(rows, "_DataFile", DataFile)
    for number in range(ROUNDS):
        record_round(copies, number)
    history = copies.read()
    assert len(opened) == len(set(opened)) == 2 * ROUNDS  # each file once
    assert facts(history) == facts(Copies(Lake(str(tmp_path))).read())
    ended = [each for states in history.states.values() for each in states if each.state != READING]
    assert len(ended) > TABLES * ROUNDS / 2
    assert not any(snapshot.chunks for each in ended for snapshot in each.snapshots)
    abandoned = [each for each in ended if each.state != COMPLETE]
    assert len(abandoned) == TABLES - 1
    unfinished = history.unfinished(TableName("public", f"t{TABLES - 1}"))[-1]
    assert len(unfinished.snapshots[0].chunks) == CHUNKS
    newest = history.newest()
    assert len(newest) == TABLES - 1
    assert all(copy.row_count == 7 and copy.invisible_commits == (LSN(9),) for copy in newest.values())
    size = sum(map(sys.getsizeof, (value for row in copies._rows for value in row.values())))
    whole = copies.table.rows().to_pylist()
    assert size < sum(map(sys.getsizeof, (value for row in whole for value in row.values())))


def test_a_table_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    copies = Copies(Lake(str(tmp_path)))
    record_round(copies, 0)
    assert len(copies.read().newest()) == TABLES - 1
    copies.table.compact_rows()
    assert facts(copies.read()) == facts(Copies(Lake(str(tmp_path))).read())


def facts(history: CopyHistory) -> list[CopyState]:
    return [each for name in sorted(history.states) for each in history.states[name]]


def test_the_newest_abandoned_copy_of_each_table_is_kept() -> None:
    rows = []
    for number, table in enumerate((1, 1, 2, 1), 1):
        copy, snapshot = state(number, table)
        rows += [reading_row(copy, snapshot), abandoned_row(copy, "why")]
    kept = needed_rows([dict(row) for row in rows])
    assert [row["copy_id"] for row in kept] == [3, 3, 4, 4]
    assert not any(row.get("chunks") for row in kept)
