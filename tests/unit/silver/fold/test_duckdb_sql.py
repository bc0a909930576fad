"""Relations of a session: queries that name one another, tables, and names that are used again."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from pipeline.silver.fold.duckdb_sql import DuckSql


@pytest.fixture
def session() -> Iterator[DuckSql]:
    with closing(DuckSql()) as session:
        session.add("rows", pa.table({"n": [1, 2, 3]}))
        yield session


def numbers(session: DuckSql, query: str) -> list[int]:
    return sorted(session.table(query).column(0).to_pylist())


def test_a_query_sees_what_defined_ones_are_made_of(session: DuckSql) -> None:
    session.define("doubled", "SELECT 2 * n AS n FROM rows")
    session.define("unused", "SELECT 1 / n AS n FROM doubled")
    session.define("more", "SELECT n + 1 AS n FROM doubled UNION ALL SELECT n FROM doubled")
    assert numbers(session, "SELECT n FROM more") == [2, 3, 4, 5, 6, 7]
    assert session.row("SELECT count(*) AS rows, 'unused' AS text FROM more").rows == 6
    assert session.is_empty("SELECT n FROM more WHERE n > 7")
    session.compute("found", "SELECT n FROM more WHERE n > 5")
    assert numbers(session, "SELECT n FROM found") == [6, 7]


def test_a_query_may_have_a_with_of_its_own(session: DuckSql) -> None:
    session.define("doubled", "SELECT 2 * n AS n FROM rows")
    own = "WITH most AS (SELECT max(n) AS n FROM doubled) SELECT n FROM most UNION ALL SELECT n FROM rows"
    assert numbers(session, own) == [1, 2, 3, 6]
    session.compute("found", own)
    session.define("again", own)
    assert numbers(session, "SELECT n FROM again") == numbers(session, "SELECT n FROM found")


def test_a_name_is_what_it_was_given_last(session: DuckSql) -> None:
    session.define("found", "SELECT n FROM rows")
    session.compute("found", "SELECT max(n) AS n FROM found")
    assert numbers(session, "SELECT n FROM found") == [3]
    session.define("found", "SELECT n FROM rows WHERE n < 3")
    assert numbers(session, "SELECT n FROM found") == [1, 2]
    session.clear()
    session.add("rows", pa.table({"n": [7]}))
    session.define("found", "SELECT n FROM rows")
    assert numbers(session, "SELECT n FROM found") == [7]


def test_rows_of_a_computed_relation_come_in_their_order(session: DuckSql) -> None:
    """A merge numbers them by it, in several threads too."""
    session.compute("many", "SELECT i, 'value ' || i AS v FROM range(500000) AS r(i) ORDER BY hash(i)")
    for _ in range(5):
        found = session.table("SELECT s.rowid AS number, s.v, list_value(s.i % 2 = 0) AS f FROM many AS s")
        assert found.column(0).to_pylist() == [*range(500_000)]
