"""The default of an ADD COLUMN in silver, once the column or its table is dropped in the same batch."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.silver.fold import Fold, FoldColumn
from pipeline.silver.fold_sql import FoldSql
from pipeline.silver.sql_session import SqlSession, fold_by_key
from pipeline.silver.text_parsers import INT
from tests.support.pipelines import MakePipeline, Pipeline, with_writer
from tests.support.silver.folding import CHANGES, SOME_TIME, add_rows, rows_of


def test_both_engines_compare_the_place_of_a_change(sql_session: SqlSession) -> None:
    added = FoldColumn("c", INT, {2: 1}, True, "7", missing_before=(2**40, 5))
    fold = Fold((FoldColumn("id", INT, {1: 0, 2: 0}), added), (0,), (1, 2), has_key_changes=False)
    places = {"1": (10, 9), "2": (2**40, 4), "3": (2**40, 6), "4": (2**40 + 1, 0)}
    rows = [(*place, SOME_TIME, "I", 1, None, None, [key], None) for key, place in places.items()]
    add_rows(sql_session, "changes", rows, CHANGES)
    sql = FoldSql(fold, sql_session.engine)
    fold_by_key(sql_session, sql)
    expected = {"1": "7", "2": "7", "3": None, "4": None}
    assert {row["k0"]: row["x1"] for row in rows_of(sql_session, "SELECT * FROM by_key")} == expected
    inserted = rows_of(sql_session, sql.inserted("changes"))
    assert {row["x0"]: row["x1"] for row in inserted} == expected
    sql_session.define("signed", sql.signed_rows("changes", 1))
    signed = rows_of(sql_session, "SELECT * FROM signed")
    assert {row["x0"]: row["x1"] for row in signed} == expected


def values(pipeline: Pipeline, table: str) -> dict[int, Any]:
    """Return column c of a silver table, by id."""
    rows = pipeline.frame("silver", "public", table).select("id", "c").collect()
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: row.c for row in rows}


@pytest.mark.spark
@pytest.mark.postgres
def test_rows_after_a_dropped_column_are_as_in_a_batch_of_their_own(make_pipeline: MakePipeline) -> None:
    made = {name: make_pipeline(name=name, create_publication="all") for name in ("together", "apart")}
    lanes = {name: with_writer(pipeline, "native") for name, pipeline in made.items()}
    together, apart = lanes["together"], lanes["apart"]
    together.ingest()
    apart.ingest()
    tables = ("keyed", "whole")
    for statements in (
        ("INSERT INTO {} VALUES (1, 'a')",),
        ("ALTER TABLE {} ADD c int DEFAULT 7", "INSERT INTO {} VALUES (2, 'b', 8), (4, 'd', 9)"),
        ("ALTER TABLE {} DROP c", "INSERT INTO {} VALUES (3, 'c')", "UPDATE {} SET v = 'z' WHERE id = 2"),
    ):
        for table in tables:
            if "'a'" in statements[0]:
                identity = "FULL" if table == "whole" else "DEFAULT"
                together.run(
                    f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
                    f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
                )
            together.run(*(each.format(table) for each in statements))
        together.ingest()  # while the catalog has the column and its default
        apart.catch_up()
    together.catch_up()
    assert values(together, "keyed") == values(apart, "keyed") == {1: 7, 2: 8, 3: None, 4: 9}
    # PostgreSQL sends all values of the updated row, and c is none of them any more
    assert values(together, "whole") == values(apart, "whole") == {1: 7, 2: None, 3: None, 4: 9}
    together.assert_equal(*tables, ignore_left_columns=True)


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
