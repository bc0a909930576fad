"""The default of an ADD COLUMN in silver, once the column or its table is dropped in the same batch."""

from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.sql_session import SqlSession, fold_by_key
from pipeline.silver.types.text_parsers import INT
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
