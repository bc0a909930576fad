"""A file of bronze or silver that is missing or damaged stops the tables that need it; a copy mends them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.bronze.changes_scan import bounds_of
from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.progress import ApplySummary
from pipeline.reading.live import open_live
from pipeline.report.status import read_status
from pipeline.report.status_page import CURRENT
from pipeline.table_name import TableName
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

pytestmark = pytest.mark.postgres
Injury = Callable[[Path], object]


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def spoil(path: Path) -> None:
    """Change each page of a file, but not its footer."""
    data = bytearray(path.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(4, end, 16):
        data[place] ^= 0x10
    path.write_bytes(data)


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


INJURIES = pytest.mark.parametrize("injury", [Path.unlink, cut_in_half, spoil, make_empty])


def make_tables(database: Database, folder: Path) -> NativePipeline:
    database.run(
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in "ab"),
        *(f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 500) i" for table in "ab"),
    )
    pipeline = NativePipeline.make(database, folder, TableRule("public.*"), copy="initial")
    pipeline.catch_up()
    return pipeline


def assert_equal(pipeline: NativePipeline, table: str) -> None:
    source = sorted(pipeline.database.run(f"SELECT id, v FROM {table}"), key=repr)
    assert pipeline.rows(table, "id", "v") == source


def failures_of(summary: ApplySummary) -> list[str]:
    return [state.failure for state in summary.tables.values() if state.failure]


def copy_again(pipeline: NativePipeline, table: str) -> None:
    bronze = Bronze(Lake(pipeline.config.storage), pipeline.config.pipeline)
    bronze.copies.request([CopyRequest.of(TableName("public", table), "A person wants it.")])
    pipeline.catch_up()


@pytest.mark.promise("one bad table", "damaged files")
@INJURIES
def test_a_file_of_bronze_stops_only_the_tables_in_it(
    database: Database, tmp_path: Path, injury: Injury
) -> None:
    pipeline = make_tables(database, tmp_path)
    before = set(Path(pipeline.config.storage.root, "bronze", "changes").glob("*.parquet"))
    pipeline.ingest("UPDATE a SET v = 'new' WHERE id < 9")
    [file] = set(Path(pipeline.config.storage.root, "bronze", "changes").glob("*.parquet")) - before
    injury(file)
    for value in ("first", "second"):
        summary = pipeline.catch_up(f"UPDATE b SET v = '{value}' WHERE id < 9")
        assert_equal(pipeline, "b")
        [failure] = failures_of(summary)
        assert file.name in failure
        assert failure.endswith("Or run pgdelta resync for the table.")
        assert pipeline.rows("a", "id", "v") == sorted(((i, f"v{i}") for i in range(1, 501)), key=repr)
        assert {t.name.table: t.state for t in read_status(pipeline.config).tables}["b"] == CURRENT
    copy_again(pipeline, "a")
    summary = pipeline.catch_up("UPDATE a SET v = 'newest' WHERE id < 5", "DELETE FROM b WHERE id = 3")
    assert not failures_of(summary)
    for table in "ab":
        assert_equal(pipeline, table)


@pytest.mark.promise("one bad table", "damaged files")
@INJURIES
def test_a_file_of_copied_rows_stops_only_its_table(
    database: Database, tmp_path: Path, injury: Injury
) -> None:
    for table in "ab":
        database.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, 500) i",
        )
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*"), copy="initial")
    changes = Bronze(Lake(pipeline.config.storage), pipeline.config.pipeline).changes
    [file] = [
        path for path, add in changes.snapshot().files.items() if bounds_of(add)[0]["table_name"] == "a"
    ]
    injury(changes.folder / file)
    summary = pipeline.catch_up()
    assert_equal(pipeline, "b")
    [failure] = failures_of(summary)
    assert file in failure
    assert failure.endswith("Or run pgdelta resync for the table.")
    copy_again(pipeline, "a")
    for table in "ab":
        assert_equal(pipeline, table)


@pytest.mark.promise("one bad table", "damaged files")
@INJURIES
def test_a_file_of_silver_stops_only_its_table(database: Database, tmp_path: Path, injury: Injury) -> None:
    pipeline = make_tables(database, tmp_path)
    [file] = Path(pipeline.config.storage.root, "silver", "public", "a").glob("*.parquet")
    injury(file)
    with pytest.raises(LakeError, match=r"is damaged\. Check the disk, and run pgdelta resync|is missing"):
        open_live(pipeline.config).read()[TableName("public", "a")].to_table()
    summary = pipeline.catch_up(*(f"UPDATE {table} SET v = 'new' WHERE id < 9" for table in "ab"))
    assert_equal(pipeline, "b")
    [failure] = failures_of(summary)
    assert file.name in failure
    assert "Unexpected" not in failure
    if injury is Path.unlink:
        return
    copy_again(pipeline, "a")
    for table in "ab":
        assert_equal(pipeline, table)
