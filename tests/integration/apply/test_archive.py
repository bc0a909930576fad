"""Detached tables that are moved to the archive by runs that end early, without Spark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake, LakeTable
from pipeline.metadata.registry import Records
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash
from tests.support.servers import Database
from tests.support.stores.lakes import StorePipeline


@pytest.fixture
def archiving(tmp_path: Path, database: Database) -> Iterator[StorePipeline]:
    config = database.config(root=str(tmp_path / "lake"), create_publication="all", copy="initial")
    with database.connect() as source:
        rules = (TableRule("public.*", detached_tables="archive"),)
        pipeline = StorePipeline(replace(config, tables=rules), source)
        pipeline.run("CREATE TABLE followed (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY)")
        pipeline.catch_up("INSERT INTO t VALUES (1), (2)")
        pipeline.catch_up("INSERT INTO t VALUES (3)")
        pipeline.ingest("DROP TABLE t", "INSERT INTO followed VALUES (1)")
        yield pipeline


def rows_of(pipeline: StorePipeline) -> list[int]:
    lake = Lake(pipeline.config.storage)
    path = Records(lake).tables.read()[TableName("public", "t")].path
    assert path.startswith(lake.path("archive", "public"))
    return sorted(row["id"] for row in lake.table_at(path).rows(["id"]).to_pylist())


@pytest.mark.promise("tables that are gone")
def test_a_run_that_ends_before_a_move_is_registered_leaves_the_rows(
    archiving: StorePipeline,
) -> None:
    with crash_at(CrashStep.REGISTER_TABLE), pytest.raises(Crash):
        archiving.apply()
    assert Lake(archiving.config.storage).table("archive", "public", "t").exists()
    archiving.catch_up("INSERT INTO followed VALUES (2)")
    assert rows_of(archiving) == [1, 2, 3]
    assert archiving.silver("followed", "id") == {(1,): 1, (2,): 1}


@pytest.mark.promise("archived tables")
def test_a_table_that_cannot_be_moved_stops_no_other(
    archiving: StorePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: LakeTable, to: str, *arguments: object) -> None:
        raise PermissionError(13, "Permission denied", to)

    for number in (2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "move", fail)
            summary = archiving.apply()
        assert summary.exit_code(strict=False) == 1
        assert any("public.t: " in line and "Permission denied" in line for line in summary.lines())
        archiving.ingest(f"INSERT INTO followed VALUES ({number})")
    assert archiving.apply().exit_code(strict=True) == 0
    assert rows_of(archiving) == [1, 2, 3]
    assert archiving.silver("followed", "id") == {(1,): 1, (2,): 1, (3,): 1}
