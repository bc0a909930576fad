"""By its entry in the publication a table is known to have been published all the time."""

from __future__ import annotations

import pytest

from pipeline.postgres.connection import connect
from pipeline.postgres.publication import list_published
from tests.support.servers import Database, MakeServer

pytestmark = pytest.mark.postgres


def entries(database: Database, publication: str = "p") -> dict[str, int]:
    with connect(database.conninfo) as connection:
        return {name[1]: found.entry for name, found in list_published(connection, publication).items()}


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
    server = make_server(major=major)
    database = Database(server, "postgres", server.conninfo)
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
