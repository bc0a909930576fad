"""Tables, columns and row filters of publications, by catalogs alone, are those of the server's own view."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pipeline.errors import NotPublishedError
from pipeline.postgres.connection import Connection, connect, for_server
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import describe_published, list_published, read_publication
from pipeline.postgres.published_tables import IS_PUBLISHED, PUBLISHED
from pipeline.table_name import TableName
from tests.support.servers import Database, ServerOf, new_database

NAMES = "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s"
RELATIONS = """
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('app', 'other')
"""
VIEW = """
SELECT schemaname::text, tablename::text, attnames::text[], rowfilter FROM pg_publication_tables
WHERE pubname = %s
"""
OURS = """
SELECT n.nspname::text, c.relname::text, ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {} ORDER BY a.attnum
), pg_get_expr(p.qual, p.relid) FROM {} p
JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
"""

# For each feature: the first major that has it, and statements.
TABLES = [
    (10, "CREATE SCHEMA app"),
    (10, "CREATE SCHEMA other"),
    (10, "CREATE TABLE app.plain (id int PRIMARY KEY, name text, gone int)"),
    (10, "ALTER TABLE app.plain DROP COLUMN gone"),
    (10, "CREATE TABLE app.child (note text) INHERITS (app.plain)"),
    (10, "CREATE UNLOGGED TABLE app.unlogged (id int PRIMARY KEY)"),
    (10, "CREATE VIEW app.view AS SELECT * FROM app.plain"),
    (10, "CREATE MATERIALIZED VIEW app.stored AS SELECT * FROM app.plain"),
    (10, "CREATE TABLE other.plain (id int PRIMARY KEY)"),
    (10, 'CREATE TABLE other."It\'s" (id int PRIMARY KEY)'),
    (10, "CREATE TABLE other.no_columns ()"),
    (12, "CREATE TABLE app.made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, x int)"),
    (18, "CREATE TABLE app.thrice (id int PRIMARY KEY, t int GENERATED ALWAYS AS (id * 3), x int)"),
    (13, "CREATE TABLE app.root (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)"),
    (13, "CREATE TABLE app.one PARTITION OF app.root FOR VALUES FROM (0) TO (10)"),
    (13, "CREATE TABLE other.two PARTITION OF app.root FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id)"),
    (13, "CREATE TABLE app.two_a PARTITION OF other.two FOR VALUES IN (1)"),
    (13, "CREATE TABLE other.two_b PARTITION OF other.two FOR VALUES IN (2)"),
    (13, "CREATE TABLE app.empty_root (id int PRIMARY KEY) PARTITION BY LIST (id)"),
    (13, "CREATE TABLE other.root (id int PRIMARY KEY) PARTITION BY LIST (id)"),
    (13, "CREATE TABLE app.three PARTITION OF other.root FOR VALUES IN (3)"),
    (13, "CREATE TABLE app.mixed (id int, at int) PARTITION BY LIST (id)"),
    (13, "CREATE TABLE app.mixed_a PARTITION OF app.mixed FOR VALUES IN (1)"),
    (13, "CREATE FOREIGN DATA WRAPPER dummy"),
    (13, "CREATE SERVER elsewhere FOREIGN DATA WRAPPER dummy"),
    (13, "CREATE FOREIGN TABLE app.far PARTITION OF app.mixed FOR VALUES IN (2) SERVER elsewhere"),
]
ROOTED = "publish_via_partition_root = true"
PUBLICATIONS = [
    (10, "p_all", "FOR ALL TABLES"),
    (10, "p_none", ""),
    (10, "p_list", 'FOR TABLE app.plain, other.plain, other."It\'s", other.no_columns'),
    (10, "p_only", "FOR TABLE ONLY app.plain"),
    (12, "p_made", "FOR TABLE app.made"),
    (13, "p_all_rooted", f"FOR ALL TABLES WITH ({ROOTED})"),
    *(
        (first, f"{name}{'_rooted' if rooted else ''}", f"{target}{f' WITH ({ROOTED})' if rooted else ''}")
        for rooted in (False, True)
        for first, name, target in [
            (13, "p_root", "FOR TABLE app.root"),
            (13, "p_empty", "FOR TABLE app.empty_root"),
            (13, "p_leaf", "FOR TABLE app.one, other.two_b"),
            (13, "p_middle", "FOR TABLE other.two"),
            (13, "p_both", "FOR TABLE app.root, app.one, app.two_a, app.plain"),
            (13, "p_levels", "FOR TABLE app.root, other.two"),
            (13, "p_mixed", "FOR TABLE app.mixed"),
            (15, "p_app", "FOR TABLES IN SCHEMA app"),
            (15, "p_other", "FOR TABLES IN SCHEMA other"),
            (15, "p_schemas", "FOR TABLES IN SCHEMA app, other"),
            (15, "p_with_table", "FOR TABLES IN SCHEMA app, TABLE other.plain, other.root"),
            (15, "p_filtered_schema", "FOR TABLES IN SCHEMA app, TABLE app.plain WHERE (id > 1)"),
            (15, "p_columns", "FOR TABLE app.plain (id) WHERE (id > 1), app.made, app.one (at, id)"),
            (15, "p_leaf_filter", "FOR TABLE app.root, app.one WHERE (at < 3)"),
        ]
    ),
    (15, "p_root_columns", f"FOR TABLE app.root (at, id) WHERE (id > 5), app.one (id, at) WITH ({ROOTED})"),
    (18, "p_stored", "FOR ALL TABLES WITH (publish_generated_columns = stored)"),
    (18, "p_stored_list", "FOR TABLE app.made, app.thrice WITH (publish_generated_columns = stored)"),
    (18, "p_named", "FOR TABLE app.made (id, twice)"),
]


@pytest.fixture(
    scope="module",
    params=[10, 13, *(pytest.param(m, marks=pytest.mark.slow) for m in (14, 15, 16, 17)), 18],
)
def source(request: pytest.FixtureRequest, server_of: ServerOf) -> Iterator[Database]:
    """Give a database of each major with all of the tables and publications that it can have."""
    major: int = request.param
    for database in new_database(server_of(major)):
        database.run(*(statement for first, statement in TABLES if major >= first))
        database.run(*(f"CREATE PUBLICATION {name} {targets}" for name, targets in publications(major)))
        yield database


def publications(major: int) -> list[tuple[str, str]]:
    return [(name, targets) for first, name, targets in PUBLICATIONS if major >= first]


def test_the_tables_are_those_of_the_view(source: Database) -> None:
    with closing(connect(source.conninfo)) as connection:
        major = connection.info.server_version // 10000
        tables = {TableName(*row) for row in connection.execute(RELATIONS).fetchall()}
        for name, targets in publications(major):
            expected = {TableName(*row) for row in connection.execute(NAMES, (name,)).fetchall()}
            assert set(list_published(connection, name)) == expected, (name, targets)
            read = read_publication(connection, name)
            assert read is not None
            assert read.tables == expected, (name, targets)
            assert {table for table in tables if is_described(connection, name, table)} == expected, targets
            if major < 15:
                continue
            columns = for_server(connection, IS_PUBLISHED)
            ours = OURS.format(columns, for_server(connection, PUBLISHED)).encode()
            found = connection.execute(ours, {"publication": name}).fetchall()
            viewed = connection.execute(VIEW.encode(), (name,)).fetchall()
            assert by_name(found) == by_name(viewed, major), (name, targets)
            for table in expected:
                described = describe_published(connection, name, table)
                facts = [column.name for column in described.relation.columns], described.row_filter
                assert facts == by_name(viewed, major)[table], (name, table)


def is_described(connection: Connection, publication: str, table: TableName) -> bool:
    try:
        return describe_published(connection, publication, table).relation.name == table.table
    except NotPublishedError:
        return False


def by_name(rows: list[Any], major: int = 18) -> dict[TableName, tuple[list[str], str | None]]:
    """Return columns and row filter by table; generated columns, which 15 lists, are published from 18 on."""
    left_out = {"twice"} if major < 18 else set()
    return {
        TableName(schema, table): ([each for each in columns or () if each not in left_out], row_filter)
        for schema, table, columns, row_filter in rows
    }


def test_a_partition_that_is_being_detached_is_as_in_the_view(source: Database) -> None:
    if source.run("SHOW server_version_num")[0][0] < "140000":
        pytest.skip("DETACH CONCURRENTLY is newer")
    source.run("SET statement_timeout = 0", "CREATE TABLE app.kept (id int) PARTITION BY LIST (id)")
    source.run("CREATE TABLE app.leaving PARTITION OF app.kept FOR VALUES IN (1)")
    source.run("CREATE PUBLICATION p_detached FOR TABLE app.kept")
    with source.connect() as reader, source.connect() as other, closing(connect(source.conninfo)) as mine:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT * FROM app.kept")
        other.execute("SET statement_timeout = '1s'")
        with pytest.raises(Exception, match="statement timeout"):
            other.execute("ALTER TABLE app.kept DETACH PARTITION app.leaving CONCURRENTLY")
        pending = mine.execute("SELECT count(*) FROM pg_inherits WHERE inhdetachpending").fetchone()
        assert pending == (1,)
        expected = mine.execute(NAMES, ("p_detached",)).fetchall()
        assert set(list_published(mine, "p_detached")) == {TableName(*row) for row in expected}


def test_relations_that_are_no_ordinary_tables_are_read_on_every_version(source: Database) -> None:
    config = source.config("app.view", "*.*")
    with closing(connect(source.conninfo)) as connection:
        major = connection.info.server_version // 10000
        relations = read_relations(connection, config)
        names = [TableName("app", "plain"), TableName("app", "mixed")]
        partial = relations.notes(names)
    assert {name.table for name in relations.refused()} == {"view"}
    assert {name.table for name in relations.passed_over()} == {"stored", "unlogged"}
    assert partial.keys() == set(names[: 2 if major >= 13 else 1])
