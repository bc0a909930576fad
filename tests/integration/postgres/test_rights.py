"""The grants of docs/operations/security.md are enough, and each of them is needed.

`check`, or one sentence, names one that is missing. On the oldest and the newest major. The database is
closed to PUBLIC, the tables belong to another role.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.config.config import Config, Copying
from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect
from pipeline.postgres.publication import describe_published, ensure_publication
from pipeline.postgres.replication.slot import ensure_slot
from pipeline.postgres.snapshot.comparable_forms import TEXT
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.postgres.snapshot.hashed_rows import HashedColumns, HashedTable, SourceRows
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.table_name import TableName
from tests.support.paths import ROOT
from tests.support.postgres.streams import kinds, read_through, start
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

PAGE = ROOT / "docs" / "operations" / "security.md"
# As the page has them: the database and the owner are called shop there, the schema sales, the role pgdelta.
CONNECT = "GRANT CONNECT ON DATABASE shop TO pgdelta"
CAPTURE = ("ALTER ROLE pgdelta LOGIN REPLICATION", CONNECT)
READ = ("GRANT USAGE ON SCHEMA sales TO pgdelta", "GRANT SELECT ON ALL TABLES IN SCHEMA sales TO pgdelta")
COPY = ("ALTER ROLE pgdelta LOGIN", CONNECT, *READ)
PUBLISH = ("GRANT CREATE ON DATABASE shop TO pgdelta", "GRANT shop_owner TO pgdelta")


@dataclass(frozen=True)
class Guarded:
    """A database without grants to PUBLIC, with a table of another owner and a role without privileges."""

    database: Database
    role: str

    def grant(self, *statements: str) -> None:
        """Run statements of the page for the role."""
        names = {"pgdelta": self.role, "shop": self.database.name, "shop_owner": f"{self.role}_owner"}
        self.database.run(*(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), s) for s in statements))

    def config(self, **source: Any) -> Config:
        """Return a configuration whose sessions are the role's."""
        conninfo = self.database.server.conninfo_of(self.database.name, self.role)
        return self.database.config("sales.*", **{"conninfo": conninfo, **source})

    def prepare(self) -> None:
        """Have the superuser create publication and slot."""
        with connect(self.database.conninfo) as connection:
            ensure_publication(connection, self.database.config("sales.*"))
            ensure_slot(connection, self.database.config("sales.*"), may_create=True)

    def failures(self, **source: Any) -> dict[str, str]:
        """Return the failed checks' sentences, with what to do."""
        checks = run_checks(self.config(**source))
        return {check.name: f"{check.sentence} {check.fix}" for check in checks if not check.ok}


@pytest.fixture(params=[pytest.param("old_database", marks=pytest.mark.slow), "database"])
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    """Give such a database of PostgreSQL 10, then of 18."""
    database: Database = request.getfixturevalue(request.param)
    role, owner = f"role_{database.name}", f"role_{database.name}_owner"
    database.run(
        f"CREATE ROLE {role} NOLOGIN",
        f"CREATE ROLE {owner} NOLOGIN",
        f"REVOKE ALL ON DATABASE {database.name} FROM PUBLIC",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"CREATE SCHEMA sales AUTHORIZATION {owner}",
        "CREATE TABLE sales.item (id int PRIMARY KEY, name text)",
        f"ALTER TABLE sales.item OWNER TO {owner}",
        "INSERT INTO sales.item VALUES (1, 'lamp')",
    )
    yield Guarded(database, role)
    database.run(f"DROP OWNED BY {role}, {owner} CASCADE", f"DROP ROLE {role}", f"DROP ROLE {owner}")


def compare(config: Config) -> int:
    """Return how many rows the source has to compare, read as `reconcile` reads them."""
    conninfo, publication = config.source.conninfo, config.source.publication
    with (
        closing(SnapshotKeeper(conninfo)) as keeper,
        HashedTable(conninfo, keeper.snapshot, publication, TableName("sales", "item")) as table,
    ):
        rows = SourceRows(table, HashedColumns((("id", TEXT), ("name", TEXT)), (0,)))
        return sum(found.rows for found in rows.sums(1).values())


def copy(config: Config) -> int:
    """Return how many rows a copy reads."""
    conninfo = config.source.conninfo
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        table = describe_published(keeper.connection, config.source.publication, TableName("sales", "item"))
        [leaf] = table.leaves
        pages = LeafPages(leaf, 0, leaf.pages)
        return sum(block.row_count for block in reader.read(keeper.snapshot, table, pages))


@pytest.mark.promise("grants")
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_capture_needs_no_right_to_any_table(guarded: Guarded, route: str) -> None:
    guarded.prepare()
    guarded.grant(*CAPTURE)
    config = guarded.config(route=route)
    assert guarded.failures(route=route) == {}
    guarded.database.run("INSERT INTO sales.item VALUES (2, 'chair')")
    target = guarded.database.flush_lsn()
    with closing(start(config, route)) as stream:
        assert kinds(read_through(stream, target)).endswith("IC")
        stream.acknowledge(stream.received_lsn)
        assert stream.confirm(10.0)


def test_a_slot_needs_what_capture_needs(guarded: Guarded) -> None:
    guarded.grant(*CAPTURE)
    with connect(guarded.database.conninfo) as connection:
        ensure_publication(connection, guarded.database.config("sales.*"))
    assert guarded.failures() == {}
    with connect(guarded.config().source.conninfo) as connection:
        assert ensure_slot(connection, guarded.config(), may_create=True)[1]


@pytest.mark.promise("grants")
def test_a_publication_needs_the_tables_owner(guarded: Guarded) -> None:
    guarded.grant(*CAPTURE, *PUBLISH)
    assert guarded.failures() == {}
    with connect(guarded.config().source.conninfo) as connection:
        publication, is_new = ensure_publication(connection, guarded.config())
    assert is_new
    assert set(publication.tables) == {("sales", "item")}


@pytest.mark.promise("grants")
def test_copies_and_comparisons_need_no_right_to_replicate(guarded: Guarded) -> None:
    guarded.prepare()
    guarded.grant(*COPY)
    assert copy(guarded.config()) == 1
    assert compare(guarded.config()) == 1


def test_capture_and_copies_may_be_two_roles(guarded: Guarded) -> None:
    guarded.prepare()
    guarded.grant(*COPY)
    reader = guarded.config().source.conninfo
    superuser = guarded.database.conninfo
    assert guarded.failures(copy="initial", conninfo=superuser, copying=Copying(reader)) == {}


def test_one_role_may_do_all(guarded: Guarded) -> None:
    guarded.grant(*CAPTURE, *READ, *PUBLISH)
    assert guarded.failures(copy="initial") == {}


# What is taken away again; the checks that fail then; what they say to run.
MISSING = {
    "LOGIN": ("ALTER ROLE pgdelta NOLOGIN", ["connection"], "Run ALTER ROLE … LOGIN"),
    "CONNECT": ("REVOKE CONNECT ON DATABASE shop FROM pgdelta", ["connection"], "GRANT CONNECT ON DATABASE"),
    "REPLICATION": (
        "ALTER ROLE pgdelta NOREPLICATION",
        ["replication right", "walsender"],
        "Run ALTER ROLE {role} REPLICATION as a superuser",
    ),
    "USAGE": (
        "REVOKE USAGE ON SCHEMA sales FROM pgdelta",
        ["SELECT right"],
        "Run GRANT USAGE ON SCHEMA {schema} TO {role}",
    ),
    "SELECT": (
        "REVOKE SELECT ON sales.item FROM pgdelta",
        ["SELECT right"],
        "Run GRANT SELECT ON {schema}.{table} TO {role}",
    ),
}


@pytest.mark.promise("grants")
@pytest.mark.parametrize("right", MISSING)
def test_a_missing_privilege_is_reported_before_the_start(guarded: Guarded, right: str) -> None:
    guarded.prepare()
    guarded.grant(*CAPTURE, *READ)
    assert guarded.failures(copy="initial") == {}
    revoke, names, fix = MISSING[right]
    guarded.grant(revoke)
    found = guarded.failures(copy="initial")
    assert list(found) == names
    assert fix.format(role=f'"{guarded.role}"', schema='"sales"', table='"item"') in found[names[0]]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("REVOKE CREATE ON DATABASE shop FROM pgdelta", "lacks CREATE on the database"),
        ("REVOKE shop_owner FROM pgdelta", "does not own sales.item"),
    ],
)
def test_a_missing_publication_privilege_is_reported_before_the_start(
    guarded: Guarded, statement: str, reason: str
) -> None:
    guarded.grant(*CAPTURE, *PUBLISH, statement)
    found = guarded.failures()
    assert list(found) == ["publication"]
    assert reason in found["publication"]
    with connect(guarded.config().source.conninfo) as connection, pytest.raises(SourceError) as caught:
        ensure_publication(connection, guarded.config())
    assert f"The role {guarded.role} may not create the publication" in str(caught.value)


@pytest.mark.promise("grants")
@pytest.mark.parametrize(
    ("granted", "fix"),
    [
        (COPY[:2], 'Run GRANT USAGE ON SCHEMA "sales" TO'),
        (COPY[:3], "Run GRANT SELECT ON … TO"),
    ],
)
@pytest.mark.parametrize("read", [copy, compare])
def test_a_table_that_cannot_be_read_is_one_sentence(
    guarded: Guarded, read: Callable[[Config], int], granted: Sequence[str], fix: str
) -> None:
    guarded.prepare()
    guarded.grant(*granted)
    with pytest.raises(
        SourceError, match=r"^The table sales\.item cannot be (copied|compared): permission "
    ) as caught:
        read(guarded.config())
    assert f'{fix} "{guarded.role}" as its owner.' in str(caught.value)


def test_rows_that_policies_hide_need_bypassrls(guarded: Guarded) -> None:
    guarded.prepare()
    guarded.grant(*COPY)
    guarded.database.run("ALTER TABLE sales.item ENABLE ROW LEVEL SECURITY")
    for read in (copy, compare):
        with pytest.raises(SourceError, match=r"row-level security.*\. Run ALTER ROLE .* BYPASSRLS"):
            read(guarded.config())
    guarded.grant("ALTER ROLE pgdelta BYPASSRLS")
    assert copy(guarded.config()) == compare(guarded.config()) == 1


def test_the_page_names_these_grants() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for statement in (*CAPTURE, *COPY, *PUBLISH, "ALTER ROLE pgdelta BYPASSRLS"):
        assert f"`{statement}`" in text, statement
