"""Tables without a key: silver distinguishes their rows by all values that it holds."""

import pytest

from pipeline.delta.table import LakeTable
from pipeline.silver.write import native_reads, writer_choice
from tests.support.pipelines import MakePipeline, Pipeline, with_writer


@pytest.mark.spark
@pytest.mark.slow
def test_a_value_that_does_not_fit_is_recorded_where_silver_had_null(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE bag (n int, day date)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    pipeline.catch_up("INSERT INTO bag VALUES (1, 'infinity')")
    pipeline.catch_up("UPDATE bag SET day = '-infinity'")
    recorded = [row.raw_text for row in pipeline.frame("_pgdelta", "misfits").orderBy("lsn").collect()]
    assert recorded == ["infinity", "-infinity"]
    # of equal rows each is recorded, under its own text
    pipeline.run("INSERT INTO bag VALUES (2, 'infinity'), (2, '-infinity'), (2, 'infinity')")
    pipeline.catch_up("DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag)")
    found = pipeline.frame("_pgdelta", "misfits").orderBy("lsn", "raw_text").collect()
    assert [row.raw_text for row in found[2:]] == ["-infinity", "infinity"]
    assert pipeline.frame("silver", "public", "bag").count() == 3


@pytest.mark.spark
def test_a_large_table_is_written_natively_if_few_files_may_match_a_row(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "auto")
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    for first in (1, 1001):
        pipeline.catch_up(f"INSERT INTO t SELECT g, 'v' FROM generate_series({first}, {first + 999}) AS g")
    table = LakeTable(str(pipeline.path("silver", "public", "t")))
    largest = max(int(file["size"]) for file in table.snapshot().files.values())
    for limit, writer in ((largest, "pgdelta"), (largest // 2, "Apache-Spark")):
        monkeypatch.setattr(writer_choice, "MAX_COMPARED_BYTES", limit)
        monkeypatch.setattr(native_reads, "MAX_COMPARED_BYTES", limit)
        pipeline.catch_up(
            "UPDATE t SET v = v || 'w' WHERE id = 7",
            "DELETE FROM t WHERE id = (SELECT max(id) FROM t WHERE id < 900)",
        )
        pipeline.assert_equal("t")
        assert str(next(table.newest_commits())["engineInfo"]).split("/")[0] == writer
