"""`run_checks` finds beforehand what would make a copy fail, or read another database's rows."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.config import Config, Copying
from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import Check, run_checks
from pipeline.postgres.publication import describe_published
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.table_name import TableName
from tests.support.postgres.standbys import promote, standby_of
from tests.support.servers import Database, MakeServer

CHECKS = ("copy source", "SELECT right", "row-level security", "tables without a rule")


def checks_of(config: Config) -> dict[str, Check]:
    return {check.name: check for check in run_checks(config) if check.name in CHECKS}


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """Give a role that may replicate and nothing else."""
    name = f"Reader {database.name}"
    database.run(f'CREATE ROLE "{name}" LOGIN REPLICATION')
    yield name
    database.run(f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')


def of_role(database: Database, role: str, **source: Any) -> Config:
    conninfo = database.server.conninfo_of(database.name, f"'{role}'")
    return database.config("public.*", "shop.*", conninfo=conninfo, copy="initial", **source)


def can_copy(config: Config, name: TableName) -> bool:
    """Say whether a table can really be read as copies read it."""
    conninfo = config.source.conninfo
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        table = describe_published(keeper.connection, config.source.publication, name)
        try:
            for leaf in table.leaves:
                list(reader.read(keeper.snapshot, table, LeafPages(leaf, 0, leaf.pages)))
        except SourceError:
            return False
        return True


def test_tables_that_the_role_may_not_read_are_named(database: Database, role: str) -> None:
    database.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.item (id int PRIMARY KEY)",
        "CREATE TABLE public.open (id int PRIMARY KEY)",
        'CREATE TABLE public."Closed" (id int PRIMARY KEY)',
        f'GRANT SELECT ON public.open TO "{role}"',
        f"CREATE PUBLICATION {database.name} FOR ALL TABLES",
    )
    for table in ("shop.item", "public.open", 'public."Closed"'):
        database.run(f"INSERT INTO {table} VALUES (1)")
    config = of_role(database, role)
    found = checks_of(config)
    assert set(found) == {"SELECT right", "row-level security"}
    check = found["SELECT right"]
    assert not check.ok
    assert check.sentence.endswith("may not read 2 of 3 tables to copy: public.Closed, shop.item.")
    statements = check.fix.removeprefix("Run ").removesuffix(", or set source.copy to never.").split("; ")
    assert statements == [
        f'GRANT USAGE ON SCHEMA "shop" TO "{role}"',
        f'GRANT SELECT ON "public"."Closed", "shop"."item" TO "{role}"',
    ]
    names = [TableName("public", "Closed"), TableName("public", "open"), TableName("shop", "item")]
    assert [can_copy(config, name) for name in names] == [False, True, False]
    database.run(*statements)
    assert all(check.ok for check in checks_of(config).values())
    assert all(can_copy(config, name) for name in names)
    assert checks_of(replace(config, source=replace(config.source, copy="never"))) == {}


def test_a_server_of_version_10_is_checked_too(old_database: Database) -> None:
    old_database.run("CREATE TABLE item (id int PRIMARY KEY)")
    config = old_database.config(copy="initial", route="sql", copying=Copying(old_database.conninfo))
    assert [check.ok for check in checks_of(config).values()] == [True, True, True]


def test_of_a_partitioned_table_the_rights_on_its_partitions_count(database: Database, role: str) -> None:
    database.run(
        "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "INSERT INTO part VALUES (1)",
        f'GRANT SELECT ON part TO "{role}"',
        f"CREATE PUBLICATION {database.name} FOR TABLE part WITH (publish_via_partition_root = true)",
    )
    config = of_role(database, role)
    assert checks_of(config)["SELECT right"].sentence.endswith("read 1 of 1 table to copy: public.part_1.")
    assert not can_copy(config, TableName("public", "part"))
    database.run(f'REVOKE SELECT ON part FROM "{role}"', f'GRANT SELECT ON part_1 TO "{role}"')
    assert checks_of(config)["SELECT right"].ok
    assert can_copy(config, TableName("public", "part"))


def test_tables_whose_rows_policies_hide_are_named(database: Database, role: str) -> None:
    for table in ("plain", "guarded", "mine"):
        database.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
        database.run(f'GRANT SELECT ON {table} TO "{role}"')
    database.run(
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY all_rows ON guarded USING (true)",
        "ALTER TABLE mine ENABLE ROW LEVEL SECURITY",
        f'ALTER TABLE mine OWNER TO "{role}"',
        f"CREATE PUBLICATION {database.name} FOR ALL TABLES",
    )
    config = of_role(database, role)
    check = checks_of(config)["row-level security"]
    assert not check.ok
    assert check.sentence.endswith("on 1 table, whose copy will fail rather than skip rows: public.guarded.")
    assert [can_copy(config, TableName("public", table)) for table in ("plain", "guarded", "mine")] == [
        True,
        False,
        True,
    ]
    database.run(f'ALTER ROLE "{role}" BYPASSRLS')
    assert checks_of(config)["row-level security"].ok
    assert can_copy(config, TableName("public", "guarded"))


def test_published_tables_without_a_rule_are_listed(database: Database) -> None:
    database.run(
        "CREATE SCHEMA shop",
        "CREATE TABLE item (id int PRIMARY KEY)",
        "CREATE TABLE shop.other (id int PRIMARY KEY)",
    )
    assert "tables without a rule" not in checks_of(database.config())
    database.run(f"CREATE PUBLICATION {database.name} FOR ALL TABLES")
    check = checks_of(database.config())["tables without a rule"]
    assert check.ok
    assert check.sentence.endswith("in bronze but not in silver: shop.other.")
    assert check.fix
    assert "tables without a rule" not in checks_of(replace(database.config(), tables=()))


def test_a_place_to_copy_from_is_the_source_or_refused(database: Database, old_database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")

    def copy_source(conninfo: str) -> Check:
        config = database.config(copy="initial", copying=Copying(conninfo))
        return checks_of(config)["copy source"]

    assert copy_source(database.conninfo).sentence == "Rows are copied from the source."
    other = copy_source(database.server.conninfo_of("postgres"))
    assert not other.ok
    assert other.sentence.startswith("Rows would be copied from the database postgres")
    other = copy_source(old_database.conninfo)
    assert not other.ok
    assert other.sentence.startswith("Rows would be copied from another database system (")
    unreachable = copy_source("host=127.0.0.1 port=1")
    assert not unreachable.ok
    assert "Check source.copying.conninfo" in unreachable.sentence


def test_a_standby_is_one_until_it_is_promoted(make_server: MakeServer) -> None:
    primary = make_server()
    database = Database.of(primary)
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    with standby_of(primary) as standby:
        config = database.config(copy="initial", copying=Copying(standby.conninfo))
        check = checks_of(config)["copy source"]
        assert (check.ok, check.sentence) == (True, "Rows are copied from a standby of the source.")
        assert "hot_standby_feedback" in check.fix
        assert checks_of(config)["SELECT right"].ok
        reader = Database.of(standby)
        promote(standby)
        reader.run("CHECKPOINT")
        check = checks_of(config)["copy source"]
        assert not check.ok
        assert check.sentence.startswith(
            "Rows would be copied from a server on timeline 2, but the source is on 1:"
        )
