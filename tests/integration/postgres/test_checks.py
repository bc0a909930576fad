"""`run_checks` finds what a start, or the source itself, would fail on, and changes nothing."""

import re
from dataclasses import replace

import psycopg
import pytest

from pipeline.config.config import Config, Protocol
from pipeline.config.tables import TableRule
from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import Check, run_checks
from pipeline.postgres.connection import connect
from tests.support.postgres.streams import prepare
from tests.support.servers import Database, drop_database


def failures(config: Config) -> dict[str, Check]:
    return {check.name: check for check in run_checks(config) if not check.ok}


def find(config: Config, name: str) -> Check:
    return next(check for check in run_checks(config) if check.name == name)


def test_a_fresh_source_passes_and_nothing_is_created(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    config = database.config()
    checks = run_checks(config)
    assert [check for check in checks if not check.ok] == []
    assert [check.name for check in checks] == [
        *("connection", "server version", "wal_level", "replication right", "walsender", "publication"),
        *("slot", "kept WAL", "encoding"),
    ]
    assert "will be created for 1 table (public.item)" in find(config, "publication").sentence
    assert database.run("SELECT 1 FROM pg_publication") == []
    assert database.run(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{database.name}'") == []


def test_a_prepared_source_passes(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    prepare(database.config())
    assert failures(database.config()) == {}
    assert "and free" in find(database.config(), "slot").sentence


def test_a_prepared_source_of_version_10_passes(old_database: Database) -> None:
    old_database.run("CREATE TABLE item (id int PRIMARY KEY)")
    prepare(old_database.config())
    assert failures(old_database.config(route="sql")) == {}


def test_a_source_that_cannot_be_reached_is_one_failure(database: Database) -> None:
    checks = run_checks(database.config(conninfo="host=127.0.0.1 port=1 dbname=shop"))
    assert [(check.name, check.ok) for check in checks] == [("connection", False)]


@pytest.mark.parametrize("kind", ["ROLE", "DATABASE"])
def test_a_limit_of_sessions_below_what_copies_need_fails(database: Database, kind: str) -> None:
    role = f"limited_{database.name}"
    name = role if kind == "ROLE" else database.name
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"ALTER {kind} {name} CONNECTION LIMIT 3",
    )
    config = database.config(conninfo=database.server.conninfo_of(database.name, role), copy="initial")
    limit = failures(config)["session limit"]
    assert f"{kind.lower()} {name} may have 3 sessions" in limit.sentence
    assert f'ALTER {kind} "{name}" CONNECTION LIMIT 4' in limit.fix
    database.run(f"ALTER {kind} {name} CONNECTION LIMIT 0")
    with pytest.raises(SourceError, match=r"Raise its CONNECTION LIMIT: ingest needs four sessions"):
        connect(config.source.conninfo)
    database.run(f"ALTER {kind} {name} CONNECTION LIMIT 4")
    assert "session limit" not in failures(config)


def test_missing_rights_fail(database: Database) -> None:
    role = f"reader_{database.name}"
    database.run("CREATE TABLE item (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN")
    config = database.config(conninfo=database.server.conninfo_of(database.name, role))
    assert set(failures(config)) == {"replication right", "walsender", "publication"}
    database.run(f"ALTER ROLE {role} REPLICATION", f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    assert failures(config)["publication"].sentence.endswith(f"{role} does not own public.item.")
    database.run(f"ALTER TABLE item OWNER TO {role}")
    assert failures(config) == {}
    database.run(f"REASSIGN OWNED BY {role} TO postgres", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_publication_that_lacks_a_table_or_an_operation_fails(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        "CREATE TABLE later (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {database.name} FOR TABLE item WITH (publish = 'insert, update')",
    )
    found = failures(database.config())
    assert set(found) == {"published operations", "published tables"}
    assert "does not publish DELETE, TRUNCATE" in found["published operations"].sentence
    assert 'ADD TABLE "public"."later"' in found["published tables"].fix


def test_partitions_are_covered_by_their_root_and_roots_by_partitions(database: Database) -> None:
    database.run(
        "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        f"CREATE PUBLICATION {database.name} FOR TABLE part",
    )
    assert failures(database.config()) == {}
    database.run(f"ALTER PUBLICATION {database.name} SET (publish_via_partition_root = true)")
    assert failures(database.config()) == {}


def test_a_missing_publication_with_a_slot_fails(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')",
    )
    assert "cannot decode changes from before" in failures(database.config())["publication"].sentence


def test_a_slot_that_cannot_be_used_fails(old_database: Database) -> None:
    old_database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {old_database.name} FOR TABLE item",
        "SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')",
    )
    assert "test_decoding" in failures(old_database.config())["slot"].sentence


def test_what_makes_updates_fail_at_the_source_is_found(database: Database) -> None:
    broken = {
        "nothing": "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "keyless": "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey",
        "deferred": "ALTER TABLE deferred DROP CONSTRAINT deferred_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
    }
    for name, change in broken.items():
        database.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", change)
    database.run(
        "CREATE TABLE fine (id int PRIMARY KEY, v int)",
        "CREATE TABLE whole (v int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {database.name} FOR ALL TABLES",
    )
    failing = set()
    for name in ("fine", "whole", *broken):
        try:
            database.run(
                f"INSERT INTO {name} (v) VALUES (1)" if name == "whole" else f"INSERT INTO {name} VALUES (1)"
            )
            database.run(f"UPDATE {name} SET v = 2")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            failing.add(name)
    assert failing == set(broken)
    sentence = failures(database.config())["replica identity"].sentence
    assert sentence.endswith("public.deferred, public.keyless, public.nothing.")


@pytest.mark.promise("updates without an old row")
def test_a_leaf_that_logs_less_than_its_root_is_found(database: Database) -> None:
    database.run(
        "CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE part REPLICA IDENTITY FULL",
        "ALTER TABLE part_2 REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {database.name} FOR TABLE part WITH (publish_via_partition_root = true)",
    )
    found = failures(database.config())
    assert set(found) == {"identities of partitions"}
    assert found["identities of partitions"].sentence.endswith("do not identify a row: public.part_1.")
    database.run("ALTER TABLE part_1 REPLICA IDENTITY FULL")
    assert failures(database.config()) == {}


def test_a_leaf_that_does_not_log_the_key_of_its_root_is_found(database: Database) -> None:
    database.run(
        "CREATE TABLE part (region int, id int, code int NOT NULL, v text, PRIMARY KEY (region, id))"
        " PARTITION BY LIST (region)",
        # one has its columns in another order
        "CREATE TABLE part_0 (v text, code int NOT NULL, id int NOT NULL, region int NOT NULL)",
        "ALTER TABLE part ATTACH PARTITION part_0 FOR VALUES IN (0)",
        *(f"CREATE TABLE part_{n} PARTITION OF part FOR VALUES IN ({n})" for n in range(1, 4)),
        "CREATE UNIQUE INDEX part_1_code ON part_1 (code)",
        "ALTER TABLE part_1 REPLICA IDENTITY USING INDEX part_1_code",
        "CREATE UNIQUE INDEX part_2_more ON part_2 (code, id, region)",
        "ALTER TABLE part_2 REPLICA IDENTITY USING INDEX part_2_more",
        "CREATE UNIQUE INDEX part_3_include ON part_3 (region, code) INCLUDE (id)",
        "ALTER TABLE part_3 REPLICA IDENTITY USING INDEX part_3_include",
        f"CREATE PUBLICATION {database.name} FOR TABLE part WITH (publish_via_partition_root = true)",
    )
    found = failures(database.config())
    assert set(found) == {"identities of partitions"}
    sentence = found["identities of partitions"].sentence
    assert sentence.endswith("do not identify a row: public.part_1, public.part_3.")
    database.run(*(f"ALTER TABLE part_{n} REPLICA IDENTITY FULL" for n in range(4)))
    assert failures(database.config()) == {}


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_an_unpublished_generated_column_in_a_full_identity_is_found(database: Database, kind: str) -> None:
    database.run(
        f"CREATE TABLE item (id int, twice int GENERATED ALWAYS AS (id * 2) {kind})",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {database.name} FOR TABLE item",
        "INSERT INTO item VALUES (1)",
    )
    with pytest.raises(psycopg.Error, match="cannot update"):
        database.run("UPDATE item SET id = 2")
    assert set(failures(database.config())) == {"generated columns"}
    database.run(f"ALTER PUBLICATION {database.name} SET (publish_generated_columns = stored)")
    assert set(failures(database.config())) == ({"generated columns"} if kind == "VIRTUAL" else set())


@pytest.mark.promise("any schema change")
def test_generated_columns_that_silver_lacks_are_named(database: Database, old_database: Database) -> None:
    old_database.run("CREATE TABLE item (id int PRIMARY KEY)")  # version 10 has none
    assert find(old_database.config(route="sql"), "encoding").ok
    twice = "int GENERATED ALWAYS AS (id * 2)"
    database.run(f"CREATE TABLE item (id int PRIMARY KEY, v {twice} VIRTUAL, s {twice} STORED)")

    def named() -> set[str]:
        advice = [check for check in run_checks(database.config()) if check.name == "generated columns"]
        assert all(check.ok for check in advice)
        return {sentence for check in advice if (sentence := check.sentence).startswith("Silver")}

    lacks = "Silver lacks generated columns, which are not published: {}."
    assert named() == {lacks.format("v of public.item, s of public.item")}
    prepare(database.config())
    assert named() == {lacks.format("v of public.item, s of public.item")}
    database.run(f"ALTER PUBLICATION {database.name} SET (publish_generated_columns = stored)")
    assert named() == {lacks.format("v of public.item")}
    database.run("ALTER TABLE item DROP COLUMN v")
    assert named() == set()


def test_the_negotiated_options_are_shown(database: Database, old_database: Database) -> None:
    sentence = find(database.config(), "server version").sentence
    assert sentence.endswith(
        "will be read with protocol version 4, streaming parallel, messages, origin any."
    )
    assert "streaming off" in find(database.config(route="sql"), "server version").sentence
    assert "protocol version 1, streaming off" in find(old_database.config(), "server version").sentence


def test_a_slot_that_two_phase_will_change_permanently_is_named(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    prepare(database.config())
    assert find(database.config(), "slot").fix == ""
    written = database.config(protocol=Protocol(two_phase=True))
    assert "a two-phase slot permanently" in find(written, "slot").fix


def test_an_option_that_the_server_lacks_fails_when_written(old_database: Database) -> None:
    old_database.run("CREATE TABLE item (id int PRIMARY KEY)")
    config = old_database.config(protocol=Protocol(messages=True, written=frozenset({"messages"})))
    assert "needs PostgreSQL 14" in failures(config)["server version"].sentence


def test_a_column_that_only_the_configuration_has_is_found(database: Database) -> None:
    database.run('CREATE TABLE item (id int PRIMARY KEY, "Price" numeric)')
    types = {"Price": "DECIMAL(20,4)", "id": "BIGINT"}
    rule = TableRule("public.*", types=types)
    config = replace(database.config(), tables=(rule,))
    assert find(config, "configured columns").ok
    wrong = replace(rule, types={"price": "DECIMAL(20,4)"}, misfits={"day": "error"})
    check = find(replace(config, tables=(wrong,)), "configured columns")
    assert not check.ok
    assert check.sentence.endswith("the rules of tables name: day of public.*, price of public.*.")
    wrong = replace(rule, partition_by=("id", "country"), cluster_by=("Price", "since"))
    check = find(replace(config, tables=(wrong,)), "configured columns")
    assert check.sentence.endswith("name: country of public.*, since of public.*.")


@pytest.mark.promise("any schema change")
def test_names_that_are_not_utf8_are_named(database: Database) -> None:
    name = f"{database.name}_bytes"
    database.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    of_bytes = Database(database.server, name, database.server.conninfo_of(name))
    try:
        with psycopg.connect(of_bytes.conninfo, autocommit=True, client_encoding="SQL_ASCII") as connection:
            connection.execute('CREATE TABLE "å 表 𝄞" ("ÿ" int PRIMARY KEY)'.encode())
            assert failures(of_bytes.config()) == {}
            connection.execute(b'CREATE TABLE "t\xe9" (id int PRIMARY KEY)')
            connection.execute(b'CREATE TABLE c (id int PRIMARY KEY, "c\xed\xa0\x80" text)')
        check = failures(of_bytes.config())["encoding"]
        assert re.fullmatch(
            r"Names in the database are not UTF-8, so no run can read them: c\\xed\\xa0\\x80 \(column of the "
            r"relation \d+\), public\.t\\xe9 \(relation \d+\)\.",
            check.sentence,
        )
        assert "SQL_ASCII" in check.fix
        with pytest.raises(SourceError, match=r"not UTF-8\. Rename what pgdelta check names\.$"):
            prepare(of_bytes.config())
    finally:
        drop_database(database.server, name)
