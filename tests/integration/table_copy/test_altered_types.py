"""Types that are altered so that stored values have another text: silver follows, an event names the type.

Keys with such values, tables that are identified by all columns, and columns that no key has.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, new_database, serve_database

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

TYPES = (
    "CREATE TYPE mood AS ENUM ('calm', 'wild')",
    "CREATE TYPE pair AS (a int, b int)",
    "CREATE DOMAIN feeling AS mood",
    "CREATE TYPE nested AS (p pair, n int)",
    "CREATE TYPE span AS RANGE (subtype = pair)",
    "CREATE TYPE back AS ENUM ('here', 'there')",
    "CREATE TYPE grown AS ENUM ('one', 'two')",
    "CREATE TYPE named AS (a int, b int)",
    "CREATE TABLE part (x int PRIMARY KEY, y int)",
)
BELOW = {
    "of_pair": ("pair", "(1,2)"),
    "of_pairs": ("pair[]", '{"(1,2)"}'),
    "of_feeling": ("feeling", "wild"),
    "of_nested": ("nested", '("(1,2)",3)'),
    "of_span": ("span", '["(1,2)","(1,3)")'),
    "of_row": ("part", "(1,2)"),
}
KEYED, FULL = ("by_pair", "by_mood"), ("full_pair",)
CHANGED = {*BELOW, *KEYED, *FULL, "back_again", "late"}
KEPT = ("grows", "part")


@pytest.fixture(scope="module", params=[13, 18])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Give a server of an old and of a new version."""
    yield from serve_database(tmp_path_factory.mktemp("types"), request.param)


@pytest.fixture
def database(source: Database) -> Iterator[Database]:
    """Give a fresh database of each server in turn."""
    yield from new_database(source.server)


@pytest.fixture
def tables(database: Database, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline of the source whose silver tables equal it; the old server's is read by SQL."""
    route = "sql" if database.server_major == 13 else "walsender"
    pipeline = make_pipeline(copy="initial", create_publication="all", route=route)
    pipeline.run(
        *TYPES,
        "CREATE TABLE by_pair (p pair PRIMARY KEY, v int)",
        "CREATE TABLE by_mood (id int, m mood, v int, PRIMARY KEY (id, m))",
        "CREATE TABLE full_pair (p pair, v int)",
        "ALTER TABLE full_pair REPLICA IDENTITY FULL",
        "CREATE TABLE back_again (id int PRIMARY KEY, b back)",
        "CREATE TABLE late (id int PRIMARY KEY)",
        "CREATE TABLE grows (id int PRIMARY KEY, g grown, n named)",
        "INSERT INTO by_pair SELECT (i, i)::pair, i FROM generate_series(1, 9) i",
        "INSERT INTO full_pair SELECT (i, i)::pair, i FROM generate_series(1, 9) i",
        "INSERT INTO by_mood SELECT i, 'calm', i FROM generate_series(1, 9) i",
        "INSERT INTO back_again VALUES (1, 'here')",
        "INSERT INTO late VALUES (1)",
        "INSERT INTO grows VALUES (1, 'one', '(1,2)')",
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v {kind})" for t, (kind, _) in BELOW.items()),
        *(f"INSERT INTO {t} VALUES (1, '{text}'), (2, NULL)" for t, (_, text) in BELOW.items()),
    )
    pipeline.catch_up()
    return pipeline


def requests(pipeline: Pipeline) -> set[str]:
    """Return the tables with open requests for a comparison."""
    found = Bronze(Lake(pipeline.root), pipeline.config.pipeline).copies.read().open_requests()
    assert all(each.rewrite is not None for of_table in found.values() for each in of_table)
    return {name.table for name in found}


def texts(pipeline: Pipeline, table: str) -> list[str]:
    """Return the sentences of events about another text of a table's values."""
    events = pipeline.events(table, rewrites=True) if pipeline.path("_pgdelta", "events").exists() else []
    return [sentence for _, sentence in events if "text" in sentence or "have ended" in sentence]


@pytest.mark.promise("types that are altered")
def test_silver_follows_the_texts_of_altered_types(tables: Pipeline) -> None:
    tables.run(
        "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
        "ALTER TYPE mood RENAME VALUE 'wild' TO 'calm'",
        "ALTER TYPE pair ADD ATTRIBUTE c int",
        "ALTER TABLE part ADD COLUMN z int",
        "ALTER TYPE back RENAME VALUE 'here' TO 'away'",
        "INSERT INTO back_again VALUES (2, 'away')",
        "ALTER TYPE back RENAME VALUE 'away' TO 'here'",
        "CREATE TYPE fresh AS ENUM ('new')",
        "ALTER TABLE late ADD COLUMN f fresh",
        "UPDATE late SET f = 'new'",
        "ALTER TYPE fresh RENAME VALUE 'new' TO 'old'",
        "ALTER TYPE grown ADD VALUE 'three' BEFORE 'two'",
        "ALTER TYPE named RENAME ATTRIBUTE b TO c",
        "ALTER TYPE named RENAME TO other_name",
        *(f"UPDATE {table} SET v = v + 100 WHERE v IN (3, 4)" for table in (*KEYED, *FULL)),
        *(f"DELETE FROM {table} WHERE v = 5" for table in (*KEYED, *FULL)),
        "INSERT INTO by_pair VALUES ('(1,1,1)', 1)",
        "INSERT INTO by_mood VALUES (9, 'calm', 9)",
    )
    tables.ingest()
    assert requests(tables) == CHANGED
    assert texts(tables, "by_pair") == [
        "Stored values of the type public.pair have another text at the source, as after ALTER TYPE, and no"
        " message carries that. It is compared with the source, and what differs is copied. Bronze keeps"
        " earlier values until retention or pgdelta forget removes them, also if the change was to anonymise."
    ]
    assert "of the type public.mood have" in texts(tables, "of_feeling")[0]
    assert "of the type public.part have" in texts(tables, "of_row")[0]
    assert not any(texts(tables, table) for table in KEPT)
    tables.apply()
    tables.catch_up()
    tables.assert_equal(*CHANGED, *KEPT)
    tables.run("ALTER TYPE pair DROP ATTRIBUTE b", "UPDATE by_pair SET v = 0 WHERE v = 9")
    for _ in range(2):
        tables.catch_up()
    tables.assert_equal(*CHANGED, *KEPT)
    assert requests(tables) == set()


def test_earlier_texts_of_open_transactions_do_not_stay(tables: Pipeline) -> None:
    with tables.database.connect() as other, other.transaction():
        other.execute("INSERT INTO by_pair VALUES ('(50,50)', 50)")
        other.execute("UPDATE full_pair SET v = 50 WHERE v = 2")
        tables.run("ALTER TYPE pair ADD ATTRIBUTE c int")
        tables.ingest()
        assert "still open and may bring earlier texts" in texts(tables, "by_pair")[0]
        assert "still open" not in texts(tables, "of_pair")[0]
        tables.apply()
        tables.catch_up()
        tables.assert_equal("by_pair", "full_pair")
        assert requests(tables) == set()
    tables.catch_up()
    assert requests(tables) == {"by_pair", "full_pair"}
    assert texts(tables, "by_pair")[-1].startswith("The transactions have ended that were writing")
    tables.catch_up()
    tables.assert_equal("by_pair", "full_pair")
    assert requests(tables) == set()
