"""By its entry in the publication a table is known to have been published all the time.

Whole schemas are only added to a publication that can have them.
"""

import psycopg
import pytest

from pipeline.postgres import unpublished_tables
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.publication import Scope, list_published, managed_comment, read_publication
from pipeline.postgres.unpublished_tables import add_schemas, find_unpublished
from tests.support.servers import Database, MakeServer


def entries(database: Database, publication: str = "p") -> dict[str, int]:
    with connect(database.conninfo) as connection:
        return {name[1]: found.entry for name, found in list_published(connection, publication).items()}


@pytest.mark.promise("tables join and leave")
def test_a_schema_that_left_and_came_back_has_another_entry(database: Database) -> None:
    database.run(
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (id int PRIMARY KEY)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE u, TABLES IN SCHEMA s",
    )
    before = entries(database)
    assert all(before.values())
    assert entries(database) == before
    database.run("ALTER PUBLICATION p DROP TABLES IN SCHEMA s", "ALTER PUBLICATION p ADD TABLES IN SCHEMA s")
    after = entries(database)
    assert after["u"] == before["u"]
    assert after["t"] not in (0, before["t"])


@pytest.mark.parametrize("major", [None, 14])
def test_a_partition_has_the_entry_of_its_root(make_server: MakeServer, major: int | None) -> None:
    database = Database.of(make_server(major=major))
    database.run(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION p FOR TABLE r",
    )
    before = entries(database)
    assert before["r1"]
    database.run("CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)")
    assert entries(database) == {"r1": before["r1"], "r2": before["r1"]}
    database.run("ALTER PUBLICATION p DROP TABLE r", "ALTER PUBLICATION p ADD TABLE r")
    assert entries(database)["r1"] not in (0, before["r1"])


def test_a_table_of_all_has_no_entry_and_one_that_is_added_again_another(old_database: Database) -> None:
    old_database.run(
        "CREATE TABLE u (id int PRIMARY KEY)",
        "CREATE PUBLICATION every FOR ALL TABLES",
        "CREATE PUBLICATION p FOR TABLE u",
    )
    assert entries(old_database, "every") == {"u": 0}
    before = entries(old_database)
    old_database.run("ALTER PUBLICATION p DROP TABLE u", "ALTER PUBLICATION p ADD TABLE u")
    assert entries(old_database)["u"] not in (0, before["u"])


@pytest.mark.parametrize(
    ("scope", "added"), [("ALL TABLES", []), ("TABLE u (id)", []), ("TABLE u", ["public"])], ids=str
)
def test_a_schema_is_added_where_postgresql_allows_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, scope: str, added: list[str]
) -> None:
    """Ingest polls every few seconds, so a statement that always fails would fill the server's log."""
    config = database.config(create_publication="schemas")
    database.run(
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {database.name} FOR {scope}",
        f"COMMENT ON PUBLICATION {database.name} IS '{managed_comment(config.pipeline)}'",
    )
    tried: list[str] = []

    def observe(connection: Connection, publication: str, scope: Scope) -> psycopg.Error | None:
        tried.extend(scope.schemas)
        return add(connection, publication, scope)

    add = unpublished_tables._add
    monkeypatch.setattr(unpublished_tables, "_add", observe)
    with connect(database.conninfo) as connection:
        publication = read_publication(connection, config.source.publication)
        found = find_unpublished(connection, config, publication, read_relations(connection, config))
        assert add_schemas(connection, config, publication, found) == added
    assert tried == added


def test_a_server_without_schemas_in_publications_gets_tables(old_database: Database) -> None:
    config = old_database.config(create_publication="schemas")
    old_database.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {old_database.name}",
        f"COMMENT ON PUBLICATION {old_database.name} IS '{managed_comment(config.pipeline)}'",
    )
    with connect(old_database.conninfo) as connection:
        publication = read_publication(connection, config.source.publication)
        found = find_unpublished(connection, config, publication, read_relations(connection, config))
        assert found == {("public", "t"): None}
        assert add_schemas(connection, config, publication, found) == []
