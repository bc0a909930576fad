"""The default of an ADD COLUMN in silver, once its table is dropped in the same batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pipelines import MakePipeline, Pipeline, with_writer


def values(pipeline: Pipeline, table: str) -> dict[int, Any]:
    """Return column c of a silver table, by id."""
    rows = pipeline.frame("silver", "public", table).select("id", "c").collect()
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: row.c for row in rows}


@pytest.mark.spark
@pytest.mark.postgres
def test_a_new_table_has_no_default_of_the_former_one(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all", copy="never"), "native")
    pipeline.ingest()
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD c int DEFAULT 7",
        "INSERT INTO t VALUES (2, 8)",
    )
    pipeline.ingest()  # while the catalog has the former table
    pipeline.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (3)")
    pipeline.ingest()
    pipeline.run("ALTER TABLE t ADD c int", "INSERT INTO t VALUES (4, 9)")
    pipeline.catch_up()
    assert values(pipeline, "t") == {3: None, 4: 9}
    pipeline.assert_equal("t")
