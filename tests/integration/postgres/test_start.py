"""Publication and slot at the start: created in order where allowed, used as they are, or refused."""

from contextlib import closing
from dataclasses import replace

import pytest

from pipeline.config.config import Config, Protocol
from pipeline.errors import GapError, SourceError
from pipeline.ingest.continuity import first_slot
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect, identify
from pipeline.postgres.publication import Publication, ensure_publication
from pipeline.postgres.replication.slot import Slot, ensure_slot
from tests.support.postgres.streams import kinds, read_through, start
from tests.support.servers import Database, MakeServer

pytestmark = pytest.mark.postgres


def make_publication(config: Config) -> tuple[Publication, bool]:
    with connect(config.source.conninfo) as connection:
        return ensure_publication(connection, config)


def make_slot(config: Config, *, may_create: bool = True) -> tuple[Slot, bool]:
    with connect(config.source.conninfo) as connection:
        return ensure_slot(connection, config, may_create=may_create)


def test_a_publication_is_created_for_the_tables_that_match(database: Database) -> None:
    database.run(
        "CREATE SCHEMA sales",
        'CREATE TABLE "Odd ""name" (id int PRIMARY KEY)',
        "CREATE TABLE item (id int PRIMARY KEY)",
        "CREATE UNLOGGED TABLE scratch (id int)",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE TABLE sales.orders (id int PRIMARY KEY)",
        "CREATE TABLE sales.secret (id int PRIMARY KEY)",
    )
    publication, is_new = make_publication(database.config("public.*", "sales.orders"))
    assert is_new
    assert publication.tables == {("public", 'Odd "name'), ("public", "item"), ("sales", "orders")}
    assert publication.operations == {"insert", "update", "delete", "truncate"}


def test_a_publication_on_10_names_ordinary_tables(old_database: Database) -> None:
    old_database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        "CREATE TABLE part (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF part (id PRIMARY KEY) FOR VALUES FROM (0) TO (10)",
    )
    publication, _ = make_publication(old_database.config())
    assert publication.tables == {("public", "item"), ("public", "part_1")}
    assert publication.operations == {"insert", "update", "delete"}


def test_a_publication_for_all_tables_is_created(database: Database) -> None:
    config = database.config()
    create = replace(config.source.create, publication="all")
    config = replace(config, source=replace(config.source, create=create))
    publication, is_new = make_publication(config)
    assert is_new
    assert publication.all_tables


def test_a_publication_for_whole_schemas_is_created(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        'CREATE SCHEMA "Odd "" one"',
        'CREATE TABLE "Odd "" one".a (id int PRIMARY KEY)',
        "CREATE SCHEMA empty",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY)",
        "CREATE TABLE sales.secret (id int PRIMARY KEY)",
    )
    config = database.config('"Odd "" one".*', "e*.*", "sales.orders", create_publication="schemas")
    publication, is_new = make_publication(config)
    assert is_new
    assert publication.tables == {('Odd " one', "a"), ("sales", "orders")}
    schemas = database.run("SELECT pnnspid::regnamespace::text FROM pg_publication_namespace ORDER BY 1")
    assert schemas == [('"Odd "" one"',), ("empty",)]


def test_whole_schemas_are_refused_where_the_server_or_the_role_cannot(
    old_database: Database, database: Database
) -> None:
    with pytest.raises(SourceError, match="publishes schemas from 15 on"):
        make_publication(old_database.config(create_publication="schemas"))
    role = f"reader_{database.name}"
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY)",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {database.name} TO {role}",
    )
    conninfo = database.server.conninfo_of(database.name, role)
    config = database.config(create_publication="schemas", conninfo=conninfo)
    with pytest.raises(SourceError, match=r'FOR TABLES IN SCHEMA "public" WITH .* as a superuser'):
        make_publication(config)
    found = next(check for check in run_checks(config) if check.name == "publication")
    assert (found.ok, found.sentence) == (
        False,
        f"The publication {database.name} cannot be created: FOR TABLES IN SCHEMA requires a superuser,"
        f" which {role} is not.",
    )
    database.run(f"REVOKE CREATE ON DATABASE {database.name} FROM {role}", f"DROP ROLE {role}")
    [old] = [
        c for c in run_checks(old_database.config(create_publication="schemas")) if c.name == "publication"
    ]
    assert not old.ok
    [new] = [c for c in run_checks(database.config(create_publication="schemas")) if c.name == "publication"]
    assert (new.ok, new.sentence.partition(" will be ")[2]) == (True, "created for all tables of public.")


def test_an_existing_publication_is_not_altered(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    config = database.config()
    make_publication(config)
    database.run("CREATE TABLE later (id int PRIMARY KEY)")
    publication, is_new = make_publication(config)
    assert not is_new
    assert publication.tables == {("public", "item")}


def test_a_missing_publication_that_may_not_be_created_is_refused(database: Database) -> None:
    with pytest.raises(SourceError, match=r"does not exist, and source.create.publication is never"):
        make_publication(database.config(create_publication="never"))


@pytest.mark.quick
def test_a_publication_of_no_table_is_refused(database: Database) -> None:
    with pytest.raises(SourceError, match=r"would be empty: no table .* matches tables in pipeline.yaml"):
        make_publication(database.config())


def test_a_publication_is_not_created_after_its_slot(database: Database) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    make_slot(database.config())
    with pytest.raises(SourceError, match="cannot decode changes from before a publication"):
        make_publication(database.config())


def test_a_role_that_cannot_create_the_publication_gets_the_command_to_run(database: Database) -> None:
    role = f"reader_{database.name}"
    database.run("CREATE TABLE item (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN REPLICATION")
    conninfo = database.server.conninfo_of(database.name, role)
    with pytest.raises(
        SourceError, match=f'{role} may not create .* CREATE PUBLICATION "{database.name}" FOR'
    ):
        make_publication(database.config(conninfo=conninfo))
    database.run(f"DROP ROLE {role}")


def test_a_slot_is_created_once(database: Database) -> None:
    slot, is_new = make_slot(database.config())
    again, is_new_again = make_slot(database.config(), may_create=False)
    assert (is_new, is_new_again) == (True, False)
    assert slot == again
    assert (slot.plugin, slot.database, slot.active_pid) == ("pgoutput", database.name, None)


def test_a_missing_slot_is_a_gap_once_bronze_holds_a_position(database: Database) -> None:
    with pytest.raises(GapError, match=f"The slot {database.name} does not exist any more"):
        make_slot(database.config(), may_create=False)


def test_a_missing_slot_that_may_not_be_created_is_refused(database: Database) -> None:
    with pytest.raises(SourceError, match=r"source.create.slot is false\. Run SELECT"):
        make_slot(database.config(create_slot=False))


def test_a_slot_of_another_plugin_is_refused(old_database: Database) -> None:
    old_database.run("SELECT pg_create_logical_replication_slot(current_database(), 'test_decoding')")
    with pytest.raises(SourceError, match="uses the plugin test_decoding"):
        make_slot(old_database.config())


def test_a_physical_slot_is_refused(database: Database) -> None:
    database.run("SELECT pg_create_physical_replication_slot(current_database())")
    with pytest.raises(SourceError, match="is a physical slot"):
        make_slot(database.config())
    database.run("SELECT pg_drop_replication_slot(current_database())")


@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_slot_of_another_database_is_refused(database: Database, route: str) -> None:
    make_slot(database.config())
    elsewhere = database.config(conninfo=database.server.conninfo)
    with pytest.raises(SourceError, match=f"belongs to the database {database.name}, not postgres"):
        make_slot(elsewhere)
    with pytest.raises(SourceError, match=f"belongs to the database {database.name}, not postgres"):
        start(elsewhere, route)


def test_a_slot_with_two_phase_is_used_as_it_is(database: Database) -> None:
    database.run("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput', false, true)")
    slot, is_new = make_slot(database.config())
    assert (slot.two_phase, is_new) == (True, False)


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_slot_is_created_with_two_phase_only_where_that_is_written(
    database: Database, two_phase: bool
) -> None:
    slot, _ = make_slot(database.config(protocol=Protocol(two_phase=two_phase)))
    assert slot.two_phase is two_phase


@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_slot_becomes_a_two_phase_one_only_where_that_is_written(database: Database, route: str) -> None:
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    make_publication(database.config())
    plain, written = database.config(), database.config(protocol=Protocol(two_phase=True))
    make_slot(plain)
    for number, config in enumerate((plain, written, plain)):
        database.run(f"INSERT INTO item VALUES ({number})")
        with closing(start(config, route)) as stream:
            assert kinds(read_through(stream, database.flush_lsn())).endswith("IC")
        slot, _ = make_slot(config)
        assert slot.two_phase is (number > 0)


@pytest.mark.promise("gaps are never silent")
def test_a_new_lake_refuses_a_two_phase_slot_if_a_transaction_is_prepared(
    make_server: MakeServer,
) -> None:
    database = Database.of(make_server({"max_prepared_transactions": "5"}))
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    plain, two_phase = (
        database.config(slot=name, protocol=Protocol(two_phase=name == "two_phase"))
        for name in ("plain", "two_phase")
    )
    make_publication(two_phase)
    with connect(database.conninfo) as connection:
        for config in (plain, two_phase):  # made now
            assert first_slot(connection, config).two_phase is (config is two_phase)
        database.run("BEGIN", "INSERT INTO item VALUES (1)", "PREPARE TRANSACTION 'p'")
        assert not first_slot(connection, plain).two_phase, "it sends all when that is committed"
        for lost_slot in ("stop", "resync"):
            config = replace(two_phase, source=replace(two_phase.source, lost_slot=lost_slot))
            with pytest.raises(
                GapError, match=r"slot two_phase is older .*transactions \(1\)\. .*drop the slot"
            ):
                first_slot(connection, config)
        database.run("ROLLBACK PREPARED 'p'")
        assert first_slot(connection, two_phase).two_phase


def test_a_slot_is_not_created_for_options_that_the_server_lacks(old_database: Database) -> None:
    with pytest.raises(SourceError, match="two_phase: true needs PostgreSQL 15, but the server is 10"):
        make_slot(old_database.config(protocol=Protocol(two_phase=True)))
    assert old_database.run("SELECT slot_name FROM pg_replication_slots") == []


@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_role_without_replication_gets_the_command_to_run(database: Database, route: str) -> None:
    role = f"reader_{database.name}"
    database.run(f"CREATE ROLE {role} LOGIN", "CREATE TABLE item (id int PRIMARY KEY)")
    config = database.config(conninfo=database.server.conninfo_of(database.name, role))
    with pytest.raises(
        SourceError, match=f'{role} may not create the slot .* ALTER ROLE "{role}" REPLICATION'
    ):
        make_slot(config)
    make_publication(database.config())
    make_slot(database.config())
    database.run("INSERT INTO item VALUES (2)")
    with pytest.raises(SourceError, match=r"may not (replicate|read the slot).*ALTER ROLE \S+ REPLICATION"):
        start(config, route).read(5.0)
    database.run(f"DROP ROLE {role}")


def test_a_wal_level_that_is_too_low_is_named(make_server: MakeServer) -> None:
    database = Database.of(make_server({"wal_level": "replica"}))
    with pytest.raises(SourceError, match="ALTER SYSTEM SET wal_level = logical"):
        make_slot(database.config())


def test_a_server_without_a_free_slot_is_named(make_server: MakeServer) -> None:
    database = Database.of(make_server({"max_replication_slots": "1"}))
    make_slot(database.config())
    with pytest.raises(SourceError, match="all replication slots are in use"):
        make_slot(database.config(slot="another"))


def test_a_server_without_a_free_walsender_is_named(make_server: MakeServer) -> None:
    database = Database.of(make_server({"max_wal_senders": "1"}))
    database.run("CREATE TABLE item (id int PRIMARY KEY)")
    for slot in ("one", "two"):
        make_publication(database.config(slot="none"))
        make_slot(database.config(slot=slot))
    stream = start(database.config(slot="one"))
    with pytest.raises(SourceError, match="Raise max_wal_senders"):
        start(database.config(slot="two"))
    stream.close()


def test_a_server_is_identified(database: Database) -> None:
    with connect(database.conninfo) as connection:
        identity = identify(connection)
    assert identity.database == database.name
    assert (
        identity.system_identifier
        == database.run("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    )
    assert (identity.timeline, identity.encoding) == (1, "UTF8")
    assert identity.server_version >= 180000
    assert identity.wal_flush_lsn <= database.flush_lsn()


def test_the_client_encoding_is_utf8_whatever_the_conninfo_sets(database: Database) -> None:
    with connect(f"{database.conninfo} client_encoding=LATIN1") as connection:
        assert connection.info.encoding == "utf-8"


@pytest.mark.promise("no password repeated")
def test_a_refused_connection_names_no_password(database: Database) -> None:
    with pytest.raises(SourceError, match="Cannot connect to the source") as caught:
        connect(f"host=127.0.0.1 port={database.server.port} dbname=nowhere user=postgres password=s3cr3t")
    assert "s3cr3t" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.promise("no password repeated", "configuration errors repeat no secret")
@pytest.mark.parametrize(
    "conninfo",
    [
        "host=x s3cr3t",
        "postgresql://shop:pa:s3cr3t@host:s3cr3t/db",
        "postgresql://a:b@h:x/s3cr3t",
        # a password that is not percent-encoded: libpq takes its rest for the host, or the database
        "postgresql://shop:pa@s3cr3t@127.0.0.1/db",
        "postgresql://shop:5432/s3cr3t@127.0.0.1/db",
        "postgresql://shop:pa%s3cr3t@127.0.0.1/db",
    ],
)
def test_a_conninfo_that_cannot_be_parsed_is_not_repeated(conninfo: str) -> None:
    with pytest.raises(SourceError, match=r"source.conninfo cannot be parsed") as caught:
        connect(conninfo)
    assert "s3cr3t" not in str(caught.value)
