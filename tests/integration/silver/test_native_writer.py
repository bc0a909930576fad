"""Small cuts are written to silver without Spark, with the same result."""

import json
from typing import Any

import pytest

from pipeline.report.status import read_details
from tests.support.commits import fail_to_sync_logs
from tests.support.pipelines import Pipeline, with_writer


def commits(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    """Return the `commitInfo` of a silver table's commits."""
    log = pipeline.path("silver", "public", table) / "_delta_log"
    lines = (line for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines())
    return [action["commitInfo"] for line in lines if "commitInfo" in (action := json.loads(line))]


def test_small_cuts_of_all_identities_are_written_natively(pipeline: Pipeline) -> None:
    pipeline = with_writer(pipeline, "auto")
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text, n numeric(12, 2), at timestamptz)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE bag (v text, n float8)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE log (v text)",
        "INSERT INTO t SELECT g, 'v' || g, repeat('x', 3000) || g, g / 3.0, now()"
        " FROM generate_series(1, 100) g",
        "INSERT INTO bag SELECT g % 5, g % 3 FROM generate_series(1, 50) g",
    )
    pipeline.assert_equal("t", "bag", "log")
    pipeline.catch_up(
        "UPDATE t SET v = 'new' WHERE id % 7 = 0",
        "UPDATE t SET id = id + 1000 WHERE id % 9 = 0",
        "DELETE FROM t WHERE id % 10 = 0",
        "INSERT INTO t VALUES (5000, 'a', 'b', 1, '2024-02-29 12:00+02')",
        "UPDATE bag SET n = 'NaN' WHERE v = '1'",
        "DELETE FROM bag WHERE v = '2'",
        "INSERT INTO bag VALUES ('1', '-0'), (NULL, NULL)",
        "INSERT INTO log SELECT generate_series(1, 10)",
    )
    pipeline.assert_equal("t", "bag", "log")
    pipeline.catch_up("TRUNCATE t, log", "INSERT INTO t VALUES (1, 'a', NULL, NULL, NULL)")
    pipeline.assert_equal("t", "bag", "log")
    for table in ("t", "bag", "log"):
        found = commits(pipeline, table)
        assert all(each["engineInfo"].startswith("pgdelta/") for each in found), found
    operations = [each["operation"] for each in commits(pipeline, "t")]
    assert operations == ["CREATE TABLE", "WRITE", "MERGE", "WRITE"]


def test_a_commit_that_fails_once_it_is_made_loses_no_row(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_writer(pipeline, "native")
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE log (v text)")
    for statement in (
        "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g",  # an append
        "UPDATE t SET v = 'new' WHERE id % 7 = 0",  # a merge
        "ALTER TABLE t ADD n int DEFAULT 5",  # the default is set in every row
    ):
        pipeline.ingest(statement, "INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), 'w')")
        with monkeypatch.context() as patch:
            fail_to_sync_logs(patch, under=pipeline.path("silver", "public", "t"))
            summary = pipeline.apply()
        assert summary.exit_code(strict=False) == 1
        pipeline.apply()
        pipeline.assert_equal("t")


@pytest.mark.spark
def test_status_shows_which_writer_wrote_a_table_last(pipeline: Pipeline) -> None:
    def writer() -> str | None:
        details = read_details(pipeline.config, ["public.t"], is_offline=True)
        return details.tables[0].writer

    pipeline = with_writer(pipeline, "auto")
    pipeline.ingest()
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert writer() == "native"
    pipeline.run("INSERT INTO t VALUES (2)")
    with_writer(pipeline, "spark").catch_up()
    pipeline.session.sql(f"OPTIMIZE delta.`{pipeline.path('silver', 'public', 't')}`")
    assert writer() == "spark"
    pipeline.catch_up("INSERT INTO t VALUES (3)")
    assert writer() == "native"
