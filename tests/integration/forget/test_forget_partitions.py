"""A subject whose key is a partition column is nowhere in the lake any more, also in no name of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.crash_steps import ForgetStep
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError
from pipeline.forget.forget import run_forget
from pipeline.ingest.job import run_ingest
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import snapshot, source_rows
from tests.support.fault_points import crash_at
from tests.support.files import places_of
from tests.support.pipelines import Crash, succeeded
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "xyzzy/Subject"  # in every value of the subject; a folder's name has it escaped
COLUMNS = ["id", "day", "name"]


def lived(database: Database, root: Path, columns: tuple[str, ...], spark: SparkSession | None) -> Config:
    """Return a pipeline whose source has deleted a subject that had rows in several partitions."""
    config = database.config(root=str(root), copy="initial")
    rules = (TableRule("public.person", partition_by=columns),)
    silver = replace(config.silver, writer="auto" if spark is None else "spark")
    config = replace(config, silver=silver, tables=rules)
    database.run(
        "CREATE TABLE person (id text PRIMARY KEY, day date, name text)",
        f"INSERT INTO person VALUES ('{SECRET}1', '2026-01-01', '{SECRET}'), ('kept', '2026-01-02', 'kept')",
    )
    run_ingest(config)
    for statements in (
        ("INSERT INTO person VALUES ('later', '2026-01-01', 'later')",),
        (
            f"UPDATE person SET day = '2026-01-03' WHERE id = '{SECRET}1'",
            "UPDATE person SET day = '2026-01-04' WHERE id = 'kept'",
        ),
        (f"UPDATE person SET id = '{SECRET}2' WHERE id = '{SECRET}1'",),
        (f"DELETE FROM person WHERE id = '{SECRET}2'",),
    ):
        database.run(*statements)
        run_ingest(config)
        succeeded(Applier(spark, config).apply_pending())
    return config


def forget(config: Config, spark: SparkSession | None) -> None:
    run_forget(config, "public.person", [(f"{SECRET}2",)])


def assert_erased(database: Database, config: Config, before: list[str]) -> None:
    lake = Path(config.storage.root)
    assert before
    for word in (SECRET, SECRET.split("/")[1]):
        assert places_of(lake, word) == []
    silver = silver_path(config.storage.root, "public", "person")
    with database.connect() as source, snapshot(source):
        assert arrow_rows(silver, COLUMNS) == source_rows(source, "public", "person")
    # a folder without a row says which values there were
    files = {Path(silver, name) for name in LakeTable(silver).snapshot().files}
    folders = {path for path in Path(silver).rglob("*") if path.is_dir() and "_delta_log" not in path.parts}
    assert all(any(folder in file.parents for file in files) for folder in folders)


@pytest.mark.promise("erasure")
@pytest.mark.parametrize("columns", [("id",), ("day", "id")])
def test_names_of_folders_do_not_have_the_key(
    database: Database, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    config = lived(database, tmp_path / "lake", columns, None)
    before = [place for place in places_of(tmp_path, SECRET) if Path(tmp_path, place).is_dir()]
    forget(config, None)
    assert_erased(database, config, before)


@pytest.mark.slow
def test_spark_leaves_no_folder_of_the_key_either(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    config = lived(database, tmp_path / "lake", ("day", "id"), spark)
    before = [place for place in places_of(tmp_path, SECRET) if Path(tmp_path, place).is_dir()]
    forget(config, spark)
    assert_erased(database, config, before)


def test_uncommitted_files_are_found_by_the_names_of_their_folders(
    database: Database, tmp_path: Path
) -> None:
    config = lived(database, tmp_path / "lake", ("id",), None)
    silver = Path(silver_path(config.storage.root, "public", "person"))
    files = {name: (silver / name).read_bytes() for name in map(str, silver.rglob("*.parquet"))}
    written = [name for name in files if "Subject" in name]
    for name in written:  # as by a writer that ended before its commit
        path = Path(name)
        path.with_name(f"young-{path.name}").write_bytes(files[name])
    with crash_at(ForgetStep.END_HISTORY, "before", passing=0), pytest.raises(Crash):
        forget(config, None)
    forget(config, None)
    assert_erased(database, config, written)


def test_a_row_that_lives_on_in_its_partition_is_not_erased(database: Database, tmp_path: Path) -> None:
    config = lived(database, tmp_path / "lake", ("id",), None)
    before = Bronze(Lake(config.storage.root), config.pipeline).changes.version()
    with pytest.raises(LakeError, match="still has a row with one of the keys"):
        run_forget(config, "public.person", [("kept",)])
    assert Bronze(Lake(config.storage.root), config.pipeline).changes.version() == before
