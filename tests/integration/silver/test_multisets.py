"""Tables without a key whose rows silver tells apart by all that it holds."""

from __future__ import annotations

import pytest

from tests.support.pipelines import Pipeline

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
