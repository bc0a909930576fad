"""Restarts, resumed copies and tables that join open no file of bronze that does not concern them."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.copy_states import Chunk
from pipeline.bronze.staged_files import StagedFile
from pipeline.config.config import Copying
from pipeline.postgres.snapshot.read_table import CopyReader
from pipeline.table_copy.reader_pool import ReaderPool, TableCopy
from pipeline.table_name import TableName
from tests.support.bronze_reads import bronze_reads
from tests.support.pipelines import MakePipeline, Pipeline, with_writer

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v text)"
FILL = "INSERT INTO {} SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"


@pytest.fixture
def copied(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with a table of many chunks, and other tables with many files of changes."""
    pipeline = make_pipeline(copy="initial", copying=Copying(range_size=32 << 10), create_publication="all")
    pipeline = with_writer(pipeline, "auto")
    for table in ("a", "z"):
        pipeline.run(TABLE.format(table), FILL.format(table, 1, 500))
    pipeline.catch_up()
    for number in range(4):
        pipeline.transact(*(FILL.format(table, 1000 + number, 1000 + number) for table in ("a", "z")))
        pipeline.ingest()
    pipeline.apply()
    return pipeline


def files(pipeline: Pipeline) -> set[str]:
    return {path.name for path in pipeline.path("bronze", "changes").glob("*.parquet")}


@pytest.mark.promise("restarts read little")
def test_a_restart_without_work_opens_no_file(copied: Pipeline) -> None:
    with bronze_reads() as reads:
        copied.ingest()
        applier = Applier(copied.spark, copied.config)
        applier.apply_pending()
    assert not reads.paths
    assert applier.summary.exit_code(strict=True) == 0


@pytest.mark.promise("restarts read little")
def test_a_copy_that_was_cut_off_continues_without_reading_bronze(
    copied: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = ReaderPool._stage

    def stage_or_stop(
        self: ReaderPool, reader: CopyReader, table: TableCopy, chunk: Chunk
    ) -> StagedFile | None:
        if table.snapshot.chunks.index(chunk) >= 5:
            raise OSError("cut off")
        return stage(self, reader, table, chunk)

    copied.run(TABLE.format("m"), FILL.format("m", 1, 4000))
    with monkeypatch.context() as patch:
        patch.setattr(ReaderPool, "_stage", stage_or_stop)
        assert copied.ingest().exit_code(strict=False) == 1
    landed = copied.frame("bronze", "changes").where("op = 'R' AND table_name = 'm'").count()
    assert 0 < landed < 4000
    with bronze_reads() as reads:
        summary = copied.ingest()
    assert not reads.paths
    assert summary.copies[TableName("public", "m")].rows_landed == 4000
    [complete] = copied.frame("bronze", "copies").where("table_name = 'm' AND state = 'complete'").collect()
    assert complete.row_count == 4000
    copied.apply()
    copied.assert_equal("a", "m", "z")


def test_a_transaction_that_is_open_makes_a_copy_read_no_old_file(copied: Pipeline) -> None:
    copied.run(TABLE.format("m"), FILL.format("m", 1, 100))
    with copied.database.connect() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO a VALUES (-1, 'open')")
        with bronze_reads() as reads:
            copied.ingest()
        assert not reads.paths
        other.execute("COMMIT")
    copied.assert_follows("a", "m", "z")


@pytest.mark.promise("restarts read little")
@pytest.mark.sample(1)
@pytest.mark.parametrize("copy", ["initial", "never"])
def test_a_new_table_and_a_new_partition_open_no_older_file(
    copied: Pipeline, copy: Literal["initial", "never"]
) -> None:
    source = replace(copied.config.source, copy=copy)
    copied = replace(copied, config=replace(copied.config, source=source))
    before = files(copied)
    copied.run(
        TABLE.format("m"),
        FILL.format("m", 1, 20),
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000)",
        FILL.format("p", 1, 20),
    )
    copied.transact(*(FILL.format(table, 2000, 2001) for table in ("a", "m", "z")))
    copied.ingest()
    with bronze_reads() as reads:
        summary = Applier(copied.spark, copied.config).apply_pending()
    assert summary.exit_code(strict=True) == 0, summary.lines()
    assert reads.paths
    assert {Path(path).name for path in reads.paths} <= files(copied) - before
    copied.run(
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000)", FILL.format("p", 1000, 1009)
    )
    before = files(copied)
    copied.ingest()
    with bronze_reads() as reads:
        Applier(copied.spark, copied.config).apply_pending()
    assert {Path(path).name for path in reads.paths} <= files(copied) - before
    copied.assert_equal("a", "m", "z", "p1", "p2")


@pytest.mark.promise("one bad table")
def test_an_unexpected_error_of_a_copy_ends_no_other_copy(
    copied: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = ReaderPool._stage

    def stage_or_fail(
        self: ReaderPool, reader: CopyReader, table: TableCopy, chunk: Chunk
    ) -> StagedFile | None:
        if table.state.name.table == "m":
            raise ValueError("a row's value")
        return stage(self, reader, table, chunk)

    copied.run(TABLE.format("m"), FILL.format("m", 1, 400), TABLE.format("n"), FILL.format("n", 1, 4000))
    with monkeypatch.context() as patch:
        patch.setattr(ReaderPool, "_stage", stage_or_fail)
        summary = copied.ingest()
    assert summary.exit_code(strict=False) == 1
    assert summary.copies[TableName("public", "n")].is_complete
    failure = summary.copies[TableName("public", "m")].failure
    assert failure is not None
    assert failure.startswith("Unexpected ValueError in ")
    assert "value" not in failure.replace("ValueError", "")
    copied.catch_up()
    copied.assert_equal("m", "n")
