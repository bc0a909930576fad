"""Names and values that try to be SQL stay names and values, by either route, in copies and in every check.

`victim` is there to be dropped; it never is.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg import sql

from pipeline.config.config import Config
from pipeline.key_ranges import KeyRange
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect, connect_replication
from pipeline.postgres.key_conditions import accepts_keys, key_condition
from pipeline.postgres.publication import describe_published, ensure_publication
from pipeline.postgres.replication.slot import ensure_slot
from pipeline.postgres.snapshot.comparable_forms import TEXT
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.hashed_rows import HashedColumns, HashedTable, SourceRows
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import Relation
from pipeline.protocol.pg_types import PgType
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline
from tests.support.postgres.streams import both_routes, kinds, read_through, start
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

NAMES = [
    "'; DROP TABLE public.victim; --",
    '"; DROP TABLE public.victim; --',
    "\"') ; DROP TABLE public.victim; --",
    "\\'; DROP TABLE public.victim; --",
    "$(touch /tmp/x) `id` ${HOME}",
    "../../etc/passwd",
    "two\nlines\r\t\x1b[31m",
    "{} {0} {table} %s %(x)s %%",
    "$$ $1 :x @@version",
    "a,b.c*?[x]",
]
DATABASES = ["old_database", "database"]


@pytest.fixture(params=DATABASES)
def target(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Give a database of PostgreSQL 10, then of 18, whose victim must live on."""
    database: Database = request.getfixturevalue(request.param)
    database.run("CREATE TABLE victim (id int PRIMARY KEY)", "INSERT INTO victim VALUES (1)")
    yield database
    assert database.run("SELECT id FROM victim") == [(1,)]


def make_table(database: Database, name: str) -> None:
    """Create schema, table and columns of that name, with a row that holds it."""
    with database.connect() as connection:
        names = {
            "name": sql.Identifier(name),
            "more": sql.Identifier(f"{name} 2"),
            "value": sql.Literal(name),
        }
        for statement in (
            "CREATE SCHEMA {name}",
            "CREATE TABLE {name}.{name} ({name} text PRIMARY KEY, {more} text)",
            "INSERT INTO {name}.{name} VALUES ({value}, {value})",
        ):
            connection.execute(sql.SQL(statement).format(**names))


def config_of(database: Database, name: str, **source: Any) -> Config:
    """Return a configuration of the table alone, whose publication has that name too."""
    # of a glob `*` and `?` mean themselves as well
    glob = quote_identifier(name, name)
    return database.config(glob, publication=name, **source)


@pytest.mark.promise("names are never SQL")
@pytest.mark.sample(8)
@both_routes
@pytest.mark.parametrize("name", NAMES)
def test_names_stay_names_in_the_stream(target: Database, name: str, route: str) -> None:
    make_table(target, name)
    config = config_of(target, name, route=route)
    with connect(config.source.conninfo) as connection:
        publication, is_new = ensure_publication(connection, config)
        assert is_new
        assert (publication.name, set(publication.tables)) == (name, {(name, name)})
        ensure_slot(connection, config, may_create=True)
        with target.connect() as other:
            identifiers = sql.Identifier(name), sql.Identifier(f"{name} 2")
            other.execute(sql.SQL("UPDATE {0}.{0} SET {1} = 'new'").format(*identifiers))
        with closing(start(config, route)) as stream:
            messages = read_through(stream, target.flush_lsn())
        assert kinds(messages).endswith("UC")
        [relation] = [message for message in map(decode, messages) if isinstance(message, Relation)]
        assert (relation.namespace, relation.name) == (name, name)
        assert [column.name for column in relation.columns] == [name, f"{name} 2"]
        facts = read_relation(connection, relation)
        assert facts is not None
        assert facts.primary_key == (name,)
    assert all(check.ok for check in run_checks(config))


@pytest.mark.promise("names are never SQL")
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
def test_names_stay_names_in_copies_and_comparisons(target: Database, name: str) -> None:
    make_table(target, name)
    with target.connect() as connection:
        connection.execute(sql.SQL("CREATE PUBLICATION {0} FOR TABLE {0}.{0}").format(sql.Identifier(name)))
    conninfo = target.conninfo
    keys = key_condition([name], [PgType.TEXT], [KeyRange((name,), (name,)), KeyRange((name,), ())])
    shape = HashedColumns(((name, TEXT), (f"{name} 2", TEXT)), (0,))
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        assert accepts_keys(keeper.connection, TableName(name, name), keys)
        table = describe_published(keeper.connection, name, TableName(name, name))
        [leaf] = table.leaves
        blocks = list(reader.read(keeper.snapshot, table, LeafPages(leaf, 0, leaf.pages)))
        assert sum(block.row_count for block in blocks) == 1
        with HashedTable(conninfo, keeper.snapshot, name, TableName(name, name)) as source:
            rows = SourceRows(source, shape)
            [prefix] = rows.sums(1)
            [row] = rows.rows([prefix])
            assert row.texts == (name,)


@pytest.mark.promise("names are never SQL")
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_statement_of_a_check_can_be_run(database: Database, name: str) -> None:
    role = f"{name[:40]} {database.name}"
    make_table(database, name)
    with database.connect() as connection:
        identifiers = sql.Identifier(name), sql.Identifier(role)
        connection.execute(sql.SQL("CREATE PUBLICATION {}").format(identifiers[0]))
        connection.execute(sql.SQL("CREATE ROLE {1} LOGIN").format(*identifiers))
    try:
        # \ and ' are escaped in a conninfo
        user = role.replace("\\", r"\\").replace("'", r"\'")
        conninfo = database.server.conninfo_of(database.name, f"'{user}'")
        config = config_of(database, name, conninfo=conninfo, copy="initial")
        for check in ("replication right", "published tables", "SELECT right"):
            found = {check.name: check for check in run_checks(config) if not check.ok}
            fix = found[check].fix
            for ending in (" as a superuser", " (their existing rows", ", or set source.copy"):
                fix = fix.partition(ending)[0]
            with database.connect() as connection:
                connection.execute(fix.removeprefix("Run ").encode())
            assert check not in {check.name for check in run_checks(config) if not check.ok}
    finally:
        with database.connect() as connection:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_row_filter_is_used_as_the_server_writes_it(database: Database) -> None:
    database.run(
        "CREATE TABLE item (id int PRIMARY KEY, name text)",
        "INSERT INTO item VALUES (1, 'shown'), (2, '{0} %s ''; -- $$ \\')",
        f"CREATE PUBLICATION {database.name} FOR TABLE item WHERE (name <> '{{0}} %s ''; -- $$ \\')",
    )
    conninfo, name = database.conninfo, TableName("public", "item")
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        table = describe_published(keeper.connection, database.name, name)
        [leaf] = table.leaves
        blocks = list(reader.read(keeper.snapshot, table, LeafPages(leaf, 0, leaf.pages)))
        assert sum(block.row_count for block in blocks) == 1
        with HashedTable(conninfo, keeper.snapshot, database.name, name) as source:
            sums = SourceRows(source, HashedColumns((("id", TEXT), ("name", TEXT)), (0,))).sums(1)
            assert sum(found.rows for found in sums.values()) == 1


EVIL = """
CREATE FUNCTION evil.{name}(a text, b text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS
$$ BEGIN INSERT INTO evil.hits VALUES (1); RETURN false; END $$
"""


@pytest.mark.promise("names are never SQL")
@both_routes
def test_operators_of_the_search_path_are_never_run(
    target: Database, make_pipeline: MakePipeline, route: str
) -> None:
    shop = make_pipeline(database=target, route=route, copy="initial")
    target.run(
        "CREATE SCHEMA evil", "CREATE TABLE evil.hits (n int)", "CREATE TABLE item (id int PRIMARY KEY)"
    )
    for name, operator in (("eq", "="), ("ne", "<>"), ("concat", "||")):
        operands = f"LEFTARG = text, RIGHTARG = text, PROCEDURE = evil.{name}"
        target.run(EVIL.format(name=name), f"CREATE OPERATOR evil.{operator} ({operands})")
    target.run(
        f"ALTER DATABASE {target.name} SET search_path = evil, pg_catalog, public",
        f"ALTER DATABASE {target.name} SET bytea_output = 'escape'",
    )
    assert target.run("SELECT 'a'::text = 'a'::text", "TABLE evil.hits") == [(1,)]
    target.run("TRUNCATE evil.hits")
    for opened in (connect, connect_replication):
        with opened(target.conninfo) as connection:
            for setting, pinned in {"search_path": "", "bytea_output": "hex", "TimeZone": "UTC"}.items():
                assert connection.execute(f"SHOW {setting}".encode()).fetchone() == (pinned,)
    shop.ingest("INSERT INTO item VALUES (1)")
    assert not [check for check in run_checks(shop.config) if not check.ok]
    shop.ingest("INSERT INTO item VALUES (2)")
    assert target.run("TABLE evil.hits") == []
    assert shop.frame("bronze", "changes").count() == 3  # with the row of victim


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "backslash_quote = on"])
def test_a_role_whose_strings_have_escapes_changes_nothing(database: Database, setting: str) -> None:
    name = "\\'; DROP TABLE public.victim; --"
    database.run("CREATE TABLE victim (id int)", f"ALTER DATABASE {database.name} SET {setting}")
    database.run("SET standard_conforming_strings = on")
    make_table(database, name)
    for route in ("walsender", "sql"):
        config = config_of(database, name, route=route, slot=f"{database.name}_{route}")
        with connect(config.source.conninfo) as connection:
            ensure_publication(connection, config)
            ensure_slot(connection, config, may_create=True)
        with closing(start(config, route)) as stream:
            stream.ping()
    assert database.run("SELECT count(*) FROM victim") == [(0,)]
