"""Tables without a key whose rows silver tells apart by all that it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.delta.table import LakeTable
from pipeline.silver import native_reads, writer_choice
from tests.support.files import unreadable
from tests.support.pipelines import MakePipeline, Pipeline, with_writer

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.mark.slow
def test_a_value_that_does_not_fit_is_recorded_where_silver_held_none_before(pipeline: Pipeline) -> None:
    pipeline.run("CREATE TABLE bag (n int, day date)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    pipeline.ingest()
    pipeline.run("INSERT INTO bag VALUES (1, 'infinity')")
    pipeline.catch_up()
    pipeline.run("UPDATE bag SET day = '-infinity'")
    pipeline.catch_up()
    recorded = [row.raw_text for row in pipeline.frame("_pgdelta", "misfits").orderBy("lsn").collect()]
    assert recorded == ["infinity", "-infinity"]
    # of equal rows each is recorded, under its own text
    pipeline.run("INSERT INTO bag VALUES (2, 'infinity'), (2, '-infinity'), (2, 'infinity')")
    pipeline.run("DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag)")
    pipeline.catch_up()
    found = pipeline.frame("_pgdelta", "misfits").orderBy("lsn", "raw_text").collect()
    assert [row.raw_text for row in found[2:]] == ["-infinity", "infinity"]
    assert pipeline.frame("silver", "public", "bag").count() == 3


def test_rows_leave_a_wide_table(pipeline: Pipeline) -> None:
    columns = ", ".join(f"c{i} int" for i in range(60))
    pipeline.run(f"CREATE TABLE wide ({columns})", "ALTER TABLE wide REPLICA IDENTITY FULL")
    pipeline.ingest()
    pipeline.run("INSERT INTO wide (c0, c1) SELECT g % 3, 1 FROM generate_series(1, 9) g")
    pipeline.catch_up()
    pipeline.run("DELETE FROM wide WHERE c0 = 1", "UPDATE wide SET c59 = 1 WHERE ctid = '(0,2)'")
    pipeline.catch_up()
    pipeline.assert_equal("wide")


def test_only_files_that_may_have_an_equal_row_are_read(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "native")
    pipeline.ingest()
    pipeline.run(
        "CREATE TABLE t (id int, at timestamptz, big text, flag boolean)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    folder = pipeline.path("silver", "public", "t")
    files: list[set[Path]] = []
    for number in range(3):
        known = {path for each in files for path in each}
        pipeline.run(
            f"INSERT INTO t SELECT g, '2024-01-0{number + 1}Z', nullif(g % 2, 0) || 'big', NULL "
            f"FROM generate_series({100 * number + 1}, {100 * number + 100}) AS g"
        )
        pipeline.run(f"INSERT INTO t VALUES ({100 * number + 1}, '2024-01-0{number + 1}Z', '1big')")
        pipeline.catch_up()
        files.append(set(folder.glob("*.parquet")) - known)
    with unreadable(files[0] | files[2]):
        pipeline.run(
            "UPDATE t SET flag = true WHERE id IN (110, 111)",  # a NULL, and a value
            "DELETE FROM t WHERE ctid = (SELECT ctid FROM t WHERE id = 101 LIMIT 1)",  # one of two equal rows
        )
        assert pipeline.catch_up().exit_code(strict=True) == 0
    pipeline.assert_equal("t")
    pipeline.run("UPDATE t SET id = id + 1000 WHERE id % 50 = 0", "DELETE FROM t WHERE id = 1")
    pipeline.catch_up()
    pipeline.assert_equal("t")


def test_a_large_table_is_written_natively_if_few_files_may_have_an_equal_row(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "auto")
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    for first in (1, 1001):
        pipeline.run(f"INSERT INTO t SELECT g, 'v' FROM generate_series({first}, {first + 999}) AS g")
        pipeline.catch_up()
    table = LakeTable(str(pipeline.path("silver", "public", "t")))
    largest = max(int(file["size"]) for file in table.snapshot().files.values())
    for limit, writer in ((largest, "pgdelta"), (largest // 2, "Apache-Spark")):
        monkeypatch.setattr(writer_choice, "MOST_COMPARED_BYTES", limit)
        monkeypatch.setattr(native_reads, "MOST_COMPARED_BYTES", limit)
        pipeline.run(
            "UPDATE t SET v = v || 'w' WHERE id = 7",
            "DELETE FROM t WHERE id = (SELECT max(id) FROM t WHERE id < 900)",
        )
        pipeline.catch_up()
        pipeline.assert_equal("t")
        assert str(next(table.newest_commits())["engineInfo"]).split("/")[0] == writer
