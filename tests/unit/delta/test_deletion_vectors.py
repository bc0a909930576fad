"""Tables whose rows another program has deleted by deletion vectors, read without Spark."""

from pathlib import Path

import pyarrow.compute as pc
import pytest

from pipeline.delta import native_write
from pipeline.delta.new_rows import NewRows
from pipeline.delta.rows import Where, read_rows
from pipeline.delta.table import Lake, LakeTable
from tests.support.deletion_vectors import delete_by_vector

DDL = "id INT"


def table_of(folder: Path) -> LakeTable:
    """Return a table with a file of the ids 0 to 9 and one of 10 to 19."""
    table = Lake(str(folder)).table("a b+c#")
    table.ensure(DDL)
    for first in (0, 10):
        table.append_rows([{"id": first + number} for number in range(10)], DDL)
    return table


def ids_by_file(table: LakeTable) -> list[list[int]]:
    """Return the ids of each file, as a reader of this file only gets them."""
    snapshot = table.snapshot()
    parts = (snapshot.with_files({key: add}) for key, add in snapshot.files.items())
    return sorted(table.rows(["id"], snapshot=part).column("id").to_pylist() for part in parts)


def test_a_file_with_a_vector_is_read_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    [first, _] = table.snapshot().files.values()
    delete_by_vector(table, [0, 2, 9], first["path"])
    assert ids_by_file(table) == [[1, 3, 4, 5, 6, 7, 8], list(range(10, 20))]
    assert sorted(table.rows(["id"]).column("id").to_pylist()) == [1, *range(3, 9), *range(10, 20)]


def test_a_condition_counts_rows_that_are_not_deleted_only(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    delete_by_vector(table, [3, 4])
    for where in (pc.field("id") > 12, Where(("id",), lambda rows: pc.greater(rows["id"], 12))):
        found = read_rows(table.local_path or "", table.snapshot(), ["id"], where)
        assert sorted(found.column("id").to_pylist()) == [15, 16, 17, 18, 19]


def test_a_compaction_keeps_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path)
    table.append_rows([{"id": number} for number in range(20, 5000)], DDL)
    delete_by_vector(table, [0])
    monkeypatch.setattr(
        native_write, "_LARGE_FILE", max(add["size"] for add in table.snapshot().files.values())
    )
    table.compact_rows()
    assert len(table.snapshot().files) == 2
    assert sorted(table.rows(["id"]).column("id").to_pylist()) == sorted({*range(5000)} - {0, 10, 20})


def test_rows_are_read_once_as_a_table_grows(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    delete_by_vector(table, [0])
    rows = NewRows(table, ["id"])
    assert len(rows.read()[0]) == 18
    table.append_rows([{"id": 20}], DDL)
    assert rows.read() == ([{"id": 20}], True)
