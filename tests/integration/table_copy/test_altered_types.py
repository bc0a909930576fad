"""Types that are altered so that stored values have another text: silver follows, an event names the type.

Keys with such values, tables that are identified by all columns, and columns that no key has.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database, ServerOf, new_database

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
    "of_pairs": ("pair[]", '{"(1,2)"}'),
    "of_feeling": ("feeling", "wild"),
    "of_nested": ("nested", '("(1,2)",3)'),
    "of_span": ("span", '["(1,2)","(1,3)")'),
    "of_row": ("part", "(1,2)"),
}
KEYED = (
    "CREATE TABLE by_pair (p pair PRIMARY KEY, v int)",
    "CREATE TABLE by_mood (id int, m mood, v int, PRIMARY KEY (id, m))",
    "CREATE TABLE full_pair (p pair, v int)",
    "ALTER TABLE full_pair REPLICA IDENTITY FULL",
    "INSERT INTO by_pair SELECT (i, i)::pair, i FROM generate_series(1, 9) i",
    "INSERT INTO full_pair SELECT (i, i)::pair, i FROM generate_series(1, 9) i",
    "INSERT INTO by_mood SELECT i, 'calm', i FROM generate_series(1, 9) i",
)
OTHERS = (
    "CREATE TABLE back_again (id int PRIMARY KEY, b back)",
    "CREATE TABLE late (id int PRIMARY KEY)",
    "CREATE TABLE grows (id int PRIMARY KEY, g grown, n named)",
    "INSERT INTO back_again VALUES (1, 'here')",
    "INSERT INTO late VALUES (1)",
    "INSERT INTO grows VALUES (1, 'one', '(1,2)')",
    *(f"CREATE TABLE {table} (id int PRIMARY KEY, v {kind})" for table, (kind, _) in BELOW.items()),
    *(f"INSERT INTO {table} VALUES (1, '{text}'), (2, NULL)" for table, (_, text) in BELOW.items()),
)
BY_KEY = ("by_pair", "by_mood", "full_pair")
CHANGED = (*BY_KEY, *BELOW, "back_again", "late")
KEPT = ("grows", "part")
ALTERED = (
    "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
    "ALTER TYPE mood RENAME VALUE 'wild' TO 'calm'",
    "ALTER TYPE pair ADD ATTRIBUTE c int",
    *(f"UPDATE {table} SET v = v + 100 WHERE v IN (3, 4)" for table in BY_KEY),
    *(f"DELETE FROM {table} WHERE v = 5" for table in BY_KEY),
    "INSERT INTO by_pair VALUES ('(1,1,1)', 1)",
    "INSERT INTO by_mood VALUES (9, 'calm', 9)",
)
OTHERS_ALTERED = (
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
)


@pytest.fixture(params=[13, 18])
def source(request: pytest.FixtureRequest, server_of: ServerOf) -> Iterator[Database]:
    """Give a database of an old and of a new version."""
    yield from new_database(server_of(request.param))


def texts(pipeline: Pipeline, table: str) -> list[str]:
    """Return the sentences of events about another text of a table's values."""
    events = pipeline.events(table, rewrites=True)
    return [sentence for _, sentence in events if "Bronze keeps" in sentence]


@pytest.mark.promise("types that are altered")
def test_silver_follows_the_texts_of_altered_types(source: Database, make_pipeline: MakePipeline) -> None:
    route = "sql" if source.server_major == 13 else "walsender"
    made = make_pipeline(database=source, copy="initial", create_publication="all", route=route)
    silver = replace(made.config.silver, rewrites="resync")
    tables = replace(made, config=replace(made.config, silver=silver))
    tables.catch_up(*TYPES, *KEYED, *OTHERS)
    with source.connect() as other, other.transaction():
        other.execute("INSERT INTO by_pair VALUES ('(50,50)', 50)")
        other.execute("UPDATE full_pair SET v = 50 WHERE v = 2")
        found = tables.ingest(*ALTERED, *OTHERS_ALTERED)
        assert {name.table for name in found.copies} == set(CHANGED)
        assert texts(tables, "by_mood") == [
            "Stored values of the type public.mood have another text at the source, as after ALTER TYPE, and"
            " no message carries that. All its rows are copied. Bronze keeps earlier values until retention"
            " or pgdelta forget removes them, also if the change was to anonymise."
        ]
        assert "of the type public.part have" in texts(tables, "of_row")[0]
        assert "still open and may bring earlier texts" in texts(tables, "by_pair")[0]
        tables.apply()
        tables.assert_equal(*CHANGED, *KEPT)
    tables.assert_follows(*CHANGED, *KEPT)
    assert {table for table in CHANGED if len(texts(tables, table)) == 2} == {"by_pair", "full_pair"}
    assert texts(tables, "by_pair")[1].startswith("The transactions have ended that were writing")


@pytest.mark.spark
@pytest.mark.promise("types that are altered")
def test_only_what_differs_after_a_type_was_altered_is_copied(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(
        *TYPES,
        *KEYED,
        "DROP TABLE full_pair",  # each comparison takes seconds
        "CREATE TABLE by_named (n named PRIMARY KEY, v feeling)",
        "INSERT INTO by_named VALUES ('(1,1)', NULL), ('(1,2)', 'wild')",
    )
    pipeline.ingest(*(each for each in ALTERED if "full_pair" not in each))
    history = Bronze(Lake(pipeline.root), pipeline.config.pipeline).copies.read()
    assert {name.table for name in history.open_requests} == {"by_pair", "by_mood", "by_named"}
    assert "It is compared with the source" in texts(pipeline, "by_pair")[0]
    pipeline.apply()
    found = pipeline.ingest()
    assert found.copies[TableName("public", "by_mood")].rows_landed == 6
    assert found.compared[TableName("public", "by_named")] == "1 key differs of 2 rows; 1 key range copied."
    pipeline.apply()
    pipeline.assert_equal("by_pair", "by_mood", "by_named")
