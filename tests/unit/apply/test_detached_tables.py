"""Detached tables that are moved to the archive: what a failure leaves, and how a later attempt continues."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.apply import detached_tables
from pipeline.apply.detached_tables import Archive
from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config, Silver, Source, Storage
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.progress import TableState
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash

A, B = TableName("public", "a"), TableName("public", "b")
DETACHED = dict.fromkeys((A, B), "It was dropped.")


class Tables:
    """Tables a and b with one row each, in silver and detached; a new `Archive` is that of a new process."""

    def __init__(self, root: Path) -> None:
        silver = Silver(detached_tables="archive")
        self.config = Config("shop", Source("", "s", "p"), Storage(str(root)), silver, (), "pipeline.yaml")
        self.lake = Lake(str(root))
        self.records = Records(self.lake)
        self.records.ensure()
        self.states: dict[TableName, TableState] = {}
        self.archive = self.new_archive()
        for name in (A, B):
            self.create(name, name.table)

    def new_archive(self) -> Archive:
        return Archive(self.config, Records(self.lake), self.silver)

    def silver(self, name: TableName) -> str:
        return self.lake.path("silver", *name)

    def create(self, name: TableName, row: str) -> None:
        table = self.lake.table_at(self.silver(name))
        table.ensure("id STRING")
        table.append_rows([{"id": row}], "id STRING")
        self.records.tables.register(RegisteredTable(*name, table.path, 1, ()))
        self.archive = self.new_archive()

    def move(self, lsn: int = 100) -> list[TableName]:
        return self.archive.move(DETACHED, self.states, BronzeOffset(1, LSN(lsn)), ())

    def path(self, name: TableName) -> str:
        return Records(self.lake).tables.read()[name].path

    def rows(self, name: TableName) -> list[str]:
        """Return the rows of a table where the registry says that it is."""
        return [row["id"] for row in self.lake.table_at(self.path(name)).rows().to_pylist()]


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_detached_tables_are_moved_once(tables: Tables) -> None:
    assert tables.move() == [A, B]
    assert (tables.rows(A), tables.rows(B), tables.move()) == (["a"], ["b"], [])
    assert tables.path(A) == tables.lake.path("archive", *A)


def test_a_table_that_cannot_be_archived_stops_no_other_and_is_tried_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = LakeTable.move

    def fail(table: LakeTable, to: str, *arguments: Any) -> None:
        if table.path == tables.silver(A):
            raise PermissionError(13, "Permission denied", "/lake/archive")
        move(table, to, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "move", fail)
        assert tables.move() == [B]
        assert "Permission denied" in (tables.states[A].failure or "")
        assert tables.path(A) == tables.silver(A)
    assert tables.move() == []  # it is not due yet
    assert tables.states[A].failure
    monkeypatch.setattr(detached_tables, "RETRY_SECONDS", 0.0)
    tables.archive = tables.new_archive()
    tables.states.clear()
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "move", fail)
        assert tables.move() == []
    assert tables.states[A].failure
    assert tables.move() == [A]
    assert (tables.states[A].failure, tables.rows(A)) == (None, ["a"])


def test_a_table_that_failed_and_is_followed_again_is_not_shown_as_failed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: LakeTable, to: str, *arguments: Any) -> None:
        raise PermissionError(13, "Permission denied", to)

    monkeypatch.setattr(LakeTable, "move", fail)
    tables.move()
    tables.archive.move({}, tables.states, BronzeOffset(1, LSN(101)), ())
    assert [state.failure for state in tables.states.values()] == [None, None]


def test_a_table_that_failed_otherwise_stays_as_it_is(tables: Tables) -> None:
    tables.states[A] = TableState(failure="Its file is missing.")
    assert tables.move() == [B]
    assert tables.states[A].failure == "Its file is missing."
    tables.states[A] = replace(tables.states[A], failure=None)
    assert tables.move() == [A]


def test_a_folder_without_a_log_is_another_path(tables: Tables, tmp_path: Path) -> None:
    (tmp_path / "archive" / "public" / "a").mkdir(parents=True)
    (tmp_path / "archive" / "public" / "a" / "notes").write_text("theirs")
    assert tables.move() == [A, B]
    assert tables.rows(A) == ["a"]
    assert (tmp_path / "archive" / "public" / "a" / "notes").read_text() == "theirs"


def test_a_move_that_was_not_registered_is_registered(
    tables: Tables,
) -> None:
    for lsn, life in enumerate(("a", "again", "and again"), 100):
        tables.create(A, life) if life != "a" else None
        with crash_at(CrashStep.REGISTER_TABLE), pytest.raises(Crash):
            tables.move(lsn)
        assert not tables.lake.table_at(tables.silver(A)).exists()
        tables.archive = tables.new_archive()
        assert A in tables.move(lsn + 1000)
        assert tables.rows(A)[-1] == life
        assert tables.rows(A) == [life]


def test_a_table_that_was_deleted_is_not_reported_as_moved(tables: Tables) -> None:
    tables.lake.table_at(tables.silver(A)).remove()
    assert tables.move() == [A, B]
    assert tables.path(A) != tables.silver(A)
    event = tables.records.events.newest().tables[A]
    assert "does not exist any more" in event.sentence


def test_the_archive_of_a_table_with_a_similar_name_is_not_taken(tables: Tables) -> None:
    other = TableName("public", "a.5")
    path = tables.lake.path("archive", *other)
    tables.lake.table_at(path).ensure("id STRING")
    tables.records.tables.register(RegisteredTable(*other, path, 2, ()))
    tables.lake.table_at(tables.silver(A)).remove()
    tables.archive = tables.new_archive()
    tables.move()
    assert tables.path(other) == path
