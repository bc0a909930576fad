"""Comments on tables and columns are read from every version and in every encoding."""

import pytest

from pipeline.bronze.schema import storable
from pipeline.postgres.catalog_comments import MAX_CHARACTERS, CatalogComment, read_comments
from pipeline.postgres.connection import connect
from tests.support.servers import Database, drop_database


def oid_of(database: Database, table: str) -> int:
    [(oid,)] = database.run(f"SELECT '{table}'::regclass::oid::bigint")
    return int(oid)


def test_only_comments_on_the_tables_are_read(any_database: Database) -> None:
    any_database.run(
        "CREATE TABLE a (id int PRIMARY KEY, gone int, v text)",
        "CREATE TABLE b (id int)",
        "COMMENT ON COLUMN a.gone IS 'gone'",
        "ALTER TABLE a DROP COLUMN gone",
        "COMMENT ON COLUMN a.v IS E'two\\nlines'",
        "COMMENT ON TABLE a IS 'a'",
        "COMMENT ON TABLE b IS 'b'",
        "COMMENT ON COLUMN b.id IS 'of b'",
        "COMMENT ON COLUMN b.id IS NULL",
        f"DO $$ BEGIN EXECUTE format('COMMENT ON COLUMN a.id IS %L', repeat('é', {MAX_CHARACTERS + 1})); "
        "END $$",
    )
    a, b = oid_of(any_database, "a"), oid_of(any_database, "b")
    with connect(any_database.conninfo) as connection:
        found = read_comments(connection, [a])
        assert read_comments(connection, []) == []
        assert read_comments(connection, [b]) == [CatalogComment(b, 0, None, "b")]
    assert sorted(found) == [
        CatalogComment(a, 0, None, "a"),
        CatalogComment(a, 1, "id", "é" * MAX_CHARACTERS),
        CatalogComment(a, 3, "v", "two\nlines"),
    ]


@pytest.mark.parametrize(
    ("encoding", "text", "stored"),
    [
        ("LATIN1", "'naïve'", "naïve"),
        ("EUC_JP", "'日本'", "日本"),
        ("SQL_ASCII", "E'caf\\xe9'", r"caf\xE9"),
    ],
)
def test_comments_of_other_encodings_are_read(
    any_database: Database, encoding: str, text: str, stored: str
) -> None:
    name = f"{any_database.name}_{encoding.lower()}"
    any_database.run(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    database = Database(any_database.server, name, any_database.server.conninfo_of(name))
    try:
        database.run("CREATE TABLE a (id int)", f"COMMENT ON TABLE a IS {text}")
        with connect(database.conninfo) as connection:
            [found] = read_comments(connection, [oid_of(database, "a")])
        assert storable(found.comment) == stored
    finally:
        drop_database(any_database.server, name)
