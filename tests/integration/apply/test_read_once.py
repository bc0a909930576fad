"""The new files of bronze are read once for the rows of all tables of a batch, whatever their size."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.parquet import read_table

from pipeline.apply.applier import Applier
from pipeline.bronze import divided_rows
from pipeline.bronze.change_rows import ChangeRows, RowStream
from pipeline.bronze.changes_scan import missing_file
from pipeline.silver.write import writer_choice
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.table_name import TableName
from tests.support.bronze_reads import bronze_reads
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_writer

TABLES = [f"t{number}" for number in range(8)]
CHANGES = 20


@pytest.fixture
def tables(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with tables with and without a key, which are in silver."""
    pipeline = with_writer(make_pipeline(create_publication="all"), "auto")
    for number, table in enumerate(TABLES):
        key = "" if number % 4 == 3 else "PRIMARY KEY"
        pipeline.run(f"CREATE TABLE {table} (id int {key}, v text)")
        if not key:
            pipeline.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    pipeline.ingest()
    change(pipeline, 0)
    return pipeline


def change(pipeline: Pipeline, first: int) -> None:
    """Change all tables in two transactions, which land as files of their own."""
    for start in (first, first + CHANGES):
        statements = [
            f"INSERT INTO {table} SELECT {start} + g, 'new' FROM generate_series(0, {CHANGES - 1}) g"
            for table in TABLES
        ]
        statements += [f"UPDATE {table} SET v = 'other' WHERE id % 7 = 3" for table in TABLES]
        statements += [f"DELETE FROM {table} WHERE id % 5 = 1" for table in TABLES[::2]]
        pipeline.transact(*statements)
        pipeline.ingest()


def files(pipeline: Pipeline) -> set[str]:
    return {path.name for path in pipeline.path("bronze", "changes").glob("*.parquet")}


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("is_known", [True, False])
def test_the_rows_of_a_batch_are_read_once(
    tables: Pipeline, monkeypatch: pytest.MonkeyPatch, place: str, is_known: bool
) -> None:
    """Also by a run that does not know which files are new, and finds them by their statistics."""
    if place == "disk":
        monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", 0)
    applier = Applier(tables.spark, tables.config)
    applier.apply_pending()
    before = files(tables)
    change(tables, 100)
    new = files(tables) - before
    assert len(new) >= 2
    if not is_known:
        applier = Applier(tables.spark, tables.config)
    with bronze_reads() as reads:
        summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0
    opened = Counter(Path(path).name for path in reads.paths)
    assert {name: opened[name] for name in new} == dict.fromkeys(new, 2)  # by the survey, and for the rows
    assert opened.keys() == new
    tables.assert_equal(*TABLES)


def test_without_room_each_table_reads_for_itself(tables: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided_rows, "MAX_IN_MEMORY", 0)
    monkeypatch.setattr(divided_rows, "MAX_ON_DISK", 0)
    applier = Applier(tables.spark, tables.config)
    change(tables, 100)
    with bronze_reads() as reads:
        summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0
    assert len(reads.paths) > len(TABLES) * 2
    tables.assert_equal(*TABLES)


def test_files_of_all_tables_do_not_make_small_changes_large(
    tables: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table's changes count by their share of the files: the native writer writes them."""
    applier = Applier(tables.spark, tables.config)
    applier.apply_pending()
    before = files(tables)
    change(tables, 100)
    size = sum(tables.path("bronze", "changes", name).stat().st_size for name in files(tables) - before)
    limit = size // 3
    monkeypatch.setattr("pipeline.silver.write.writer_choice.MAX_CHANGE_BYTES", limit)
    monkeypatch.setattr("pipeline.silver.write.batch_writer.MAX_CHANGE_BYTES", limit)
    assert limit == writer_choice.MAX_CHANGE_BYTES

    def refuse(*arguments: object) -> None:
        raise AssertionError("Spark was used")

    monkeypatch.setattr(BatchWriter, "_write_by_spark", refuse)
    succeeded(applier.apply_pending())
    tables.assert_equal(*TABLES)


def test_rows_that_are_wider_than_their_share_are_written_in_chunks(
    tables: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.run("CREATE TABLE wide (id int, v text)")
    applier = Applier(tables.spark, tables.config)
    applier.apply_pending()
    tables.run("INSERT INTO wide SELECT g, repeat('wide', 5000) FROM generate_series(1, 20) g")
    change(tables, 100)
    monkeypatch.setattr("pipeline.bronze.change_rows._MAX_BYTES", 100_000)
    written: list[str] = []
    write_chunks = BatchWriter._write_chunks

    def record(writer: BatchWriter, *arguments: Any) -> int:
        written.append(writer._name.table)
        return write_chunks(writer, *arguments)

    def refuse(*arguments: object) -> None:
        raise AssertionError("Spark was used")

    monkeypatch.setattr(BatchWriter, "_write_chunks", record)
    monkeypatch.setattr(BatchWriter, "_write_by_spark", refuse)
    assert applier.apply_pending().exit_code(strict=True) == 0
    assert written == ["wide"]
    tables.assert_equal("wide", *TABLES)


def test_changes_that_memory_does_not_hold_are_streamed(
    tables: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.bronze.change_rows._MAX_BYTES", 1)
    streamed: list[str] = []
    stream = ChangeRows.stream

    def record(rows: ChangeRows, name: TableName, *arguments: Any) -> RowStream:
        streamed.append(name.table)
        return stream(rows, name, *arguments)

    def refuse(*arguments: object) -> None:
        raise AssertionError("Spark was used")

    monkeypatch.setattr(ChangeRows, "stream", record)
    monkeypatch.setattr(BatchWriter, "_write_by_spark", refuse)
    applier = Applier(tables.spark, tables.config)
    for first in (100, 200):  # into empty tables, and into those that have rows
        change(tables, first)
        tables.ingest(f"UPDATE t0 SET id = id + 1000 WHERE id % 7 = 2 AND id < {first + 50}")
        assert applier.apply_pending().exit_code(strict=True) == 0
        assert set(streamed) == set(TABLES)
        tables.assert_equal(*TABLES)
        streamed.clear()


def test_misfits_of_many_changes_are_those_of_the_rows_that_are_left(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.silver.write.native_session.MANY", 1)
    pipeline = with_writer(make_pipeline(create_publication="all"), "native")
    pipeline.ingest("CREATE TABLE m (id int PRIMARY KEY, day date)")
    pipeline.ingest(
        "INSERT INTO m SELECT g, 'infinity' FROM generate_series(1, 4) g",
        "UPDATE m SET day = '2026-01-01' WHERE id = 1",
        "UPDATE m SET id = 20 WHERE id = 2",
        "DELETE FROM m WHERE id = 3",
    )
    summary = Applier(None, pipeline.config).apply_pending()
    assert not any(state.failure for state in summary.tables.values())
    misfits = read_table(DeltaTable(str(pipeline.path("_pgdelta", "misfits"))).file_uris())
    assert sorted(misfits.column("key").to_pylist()) == ['{"id":"20"}', '{"id":"4"}']


def test_a_file_that_goes_while_changes_are_streamed_is_named(
    tables: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.bronze.change_rows._MAX_BYTES", 1)
    parts = ChangeRows._parts

    def lose(rows: ChangeRows, *arguments: Any) -> Iterator[pa.Table]:
        yield from parts(rows, *arguments)
        raise missing_file("gone.parquet")

    monkeypatch.setattr(ChangeRows, "_parts", lose)
    summary = Applier(tables.spark, tables.config).apply_pending()
    assert {state.failure for state in summary.tables.values()} == {str(missing_file("gone.parquet"))}
