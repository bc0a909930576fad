"""What is copied is what the stream would have sent: the same relation version, the same texts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze.relations import relation_version
from pipeline.bronze.spool import Spool
from pipeline.errors import SourceError
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import connect
from pipeline.postgres.publication import PublishedTable, describe_published
from pipeline.postgres.snapshot.export import RowsMoved, SnapshotKeeper, SnapshotLost
from pipeline.postgres.snapshot.read_table import BLOCK_BYTES, CopyReader, LeafPages
from pipeline.protocol.lsn import INVALID
from pipeline.table_copy.planner import plan_chunks
from pipeline.table_copy.reader_pool import CopyHeader, CopySpool
from pipeline.table_name import TableName
from tests.support.bronze.events import rows_of, rows_of_files
from tests.support.captures.typed import install
from tests.support.postgres.binaries import binaries_of
from tests.support.postgres.streams import prepare, read_through, start
from tests.support.postgres.templates import start_server
from tests.support.servers import Database, drop_database
from tests.support.values.kinds import Kind
from tests.support.values.table import FAMILIES, NEWEST_FAMILIES
from tests.support.values.tables import ValueTable

# Copying without Spark: what a publication has of a table at a snapshot, as rows of bronze.
Row = dict[str, Any]


def copy_table(
    conninfo: str, publication: str, table: str, directory: Path
) -> tuple[PublishedTable, list[Row]]:
    """Return a table of schema public as it is described, and its rows in the order of their ordinals."""
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        described = describe_published(keeper.connection, publication, TableName("public", table))
        facts = read_relation(keeper.connection, described.relation)
        assert facts is not None
        version = relation_version(described.relation, facts, INVALID)
        spool = CopySpool(directory, CopyHeader(7, version, keeper.snapshot.lsn, keeper.snapshot.exported_at))
        count = 0
        for chunk in plan_chunks(described.leaves, 64 << 20):
            leaf = next(leaf for leaf in described.leaves if leaf.oid == chunk.relation_id)
            for block in reader.read(
                keeper.snapshot, described, LeafPages(leaf, chunk.first_page, chunk.end_page)
            ):
                spool.add(block, count)
                count += block.row_count
        file = spool.finish()
    return described, rows_of_files([file] if file else [])


def values(rows: Sequence[Row]) -> list[list[str | None]]:
    """Return the values of rows."""
    return [row["new"] for row in rows]


pytestmark = pytest.mark.postgres

PLAIN = """
CREATE TABLE plain (id bigint PRIMARY KEY, flag boolean, padded char(9), letter "char", who name, at inet,
                    note text, price numeric(12,2), made timestamptz, spent interval, raw bytea, list int[])
"""
PLAIN_ROWS = """
INSERT INTO plain SELECT i, i % 2 = 0, 'x ', 'c', 'n' || i, ('10.0.0.' || i % 200)::inet,
CASE WHEN i % 3 > 0 THEN E'tab\\there \\\\N back\\\\slash\\nline é€😀' END, i / 3.0,
timestamptz '2020-02-29 12:00:00.25+03' + i * interval '1 day', i * interval '90 minutes',
decode('00ff5c' || lpad(to_hex(i), 4, '0'), 'hex'),
CASE WHEN i % 5 > 0 THEN ARRAY[i, NULL] END FROM generate_series(1, 3000) i
"""


def streamed(database: Database, directory: Path, **source: Any) -> list[Row]:
    """Return the rows of bronze that a slot made before has by now."""
    config = database.config(create_publication="all", **source)
    conninfo = config.source.conninfo
    with closing(start(config)) as stream, connect(conninfo) as connection:
        messages = read_through(stream, database.flush_lsn())
        spool = Spool(directory)
        Decoder(spool, connection, conninfo).decode(messages, stream.session)
        return rows_of(spool.seal())


def assert_copied(database: Database, directory: Path, *tables: str) -> None:
    """Assert that what came by the slot, all of it inserts, is what a copy has."""
    inserted = streamed(database, directory)
    for table in tables:
        described, rows = copy_table(database.conninfo, database.name, table, directory)
        expected = [row for row in inserted if row["table_name"] == table]
        assert sorted(map(repr, values(rows))) == sorted(map(repr, values(expected))), table
        assert {row["op"] for row in rows} <= {"R"}
        assert [row["ordinal"] for row in rows] == list(range(len(rows)))
        if expected:
            of_both = {(r["relation_version"], r["relation_id"]) for r in (*rows, *expected)}
            assert len(of_both) == 1, (described.relation, of_both)
            raw = sorted(repr(r["raw_new"]) for r in rows)
            assert raw == sorted(repr(r["raw_new"]) for r in expected)


@pytest.fixture(
    scope="module", params=["18", *(pytest.param(m, marks=pytest.mark.slow) for m in ("14", "10"))]
)
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    started = start_server(tmp_path_factory.mktemp("copied"), binaries=binaries_of(int(request.param)))
    yield Database.of(started)
    started.stop()


@pytest.fixture
def any_database(any_server: Database) -> Iterator[Database]:
    any_server.run("CREATE DATABASE copied")
    yield Database(any_server.server, "copied", any_server.server.conninfo_of("copied"))
    drop_database(any_server.server, "copied")


def test_a_table_on_every_kind_of_server(any_database: Database, tmp_path: Path) -> None:
    database = any_database
    database.run(PLAIN)
    prepare(database.config(create_publication="all"))
    database.run(PLAIN_ROWS)
    assert_copied(database, tmp_path, "plain")


@pytest.mark.promise("copies are what the stream sends")
@pytest.mark.parametrize("families", [FAMILIES, NEWEST_FAMILIES], ids=["contrib", "newest"])
def test_every_type(
    families: dict[str, list[Kind]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    binaries = binaries_of(18) if families is FAMILIES else None
    started = start_server(tmp_path_factory.mktemp("typed"), binaries=binaries)
    try:
        database = Database(started, "typed", started.conninfo)
        tables = [ValueTable(name, "plain", kinds) for name, kinds in families.items()]
        with database.connect() as source:
            install(source)
            for table in tables:
                table.create(source)
            prepare(database.config(create_publication="all"))
            for table in tables:
                with source.transaction():
                    table.write(source, "insert")
        assert_copied(database, tmp_path, *families)
    finally:
        started.stop()


def test_marks_in_values_and_composites_of_nulls(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TYPE pair AS (a int, b text)", "CREATE TABLE t (id int PRIMARY KEY, v text, p pair)")
    prepare(database.config(create_publication="all"))
    with database.connect() as source:
        for number, text in enumerate(("\x1d", "\x1e", "\x1f", "a\x1fb\x1e", "", "\x1d\x1d")):
            source.execute("INSERT INTO t VALUES (%s, %s, NULL)", (number, text))
    database.run("INSERT INTO t VALUES (10, NULL, ROW(NULL, NULL)), (11, 'x', ROW(1, NULL)), (12, 'y', NULL)")
    assert_copied(database, tmp_path, "t")


@pytest.mark.promise("copies are what the stream sends")
def test_null_under_a_constraint_that_is_not_validated(database: Database, tmp_path: Path) -> None:
    prepare(database.config(create_publication="all"))
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, kept text NOT NULL)",
        "INSERT INTO t VALUES (1, NULL, ''), (2, '', 'x')",
        "ALTER TABLE t ADD CONSTRAINT c NOT NULL v NOT VALID",
    )
    assert_copied(database, tmp_path, "t")
    described, rows = copy_table(database.conninfo, database.name, "t", tmp_path)
    assert (described.nullable, values(rows)) == ((False, True, False), [["1", None, ""], ["2", "", "x"]])
    database.run("UPDATE t SET v = '' WHERE v IS NULL", "ALTER TABLE t VALIDATE CONSTRAINT c")
    assert not any(copy_table(database.conninfo, database.name, "t", tmp_path)[0].nullable)


def test_widths_from_none_to_more_than_a_function_takes(database: Database, tmp_path: Path) -> None:
    names = ", ".join(f"c{i} {'int' if i % 2 else 'text NOT NULL'}" for i in range(250))
    database.run("CREATE TABLE none ()", f"CREATE TABLE wide ({names})")
    prepare(database.config(create_publication="all"))
    texts = ", ".join("NULL" if i % 4 == 1 else f"'{i}'" for i in range(250))
    database.run("INSERT INTO none DEFAULT VALUES", "INSERT INTO none DEFAULT VALUES")
    database.run(f"INSERT INTO wide VALUES ({texts})")
    assert_copied(database, tmp_path, "none", "wide")


def test_long_values_are_read_in_small_portions(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    prepare(database.config(create_publication="all"))
    database.run(
        "INSERT INTO t SELECT i, string_agg(md5(j::text), '') FROM generate_series(1, 60) i, "
        "generate_series(1, 20000) j GROUP BY i"
    )
    pages: list[int] = []
    read = CopyReader._aggregate

    def note(self: Any, table: Any, leaf: Any, first: int, stop: int) -> Any:
        pages.append(stop - first)
        return read(self, table, leaf, first, stop)

    monkeypatch.setattr(CopyReader, "_aggregate", note)
    assert_copied(database, tmp_path, "t")
    assert pages


@pytest.mark.promise("copies are what the stream sends")
def test_partitions_filters_and_column_lists(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE t (id int, kind text, v text, unsent text, PRIMARY KEY (id, kind)) "
        "PARTITION BY LIST (kind)",
        "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a')",
        "CREATE TABLE t_b (v text, unsent text, kind text NOT NULL, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION t_b FOR VALUES IN ('b')",
        "CREATE TABLE f (id int PRIMARY KEY, dropped int, v text, "
        "doubled int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE f DROP COLUMN dropped",
        f"CREATE PUBLICATION {database.name} FOR TABLE t (id, kind, v), f WHERE (id % 2 = 1) "
        "WITH (publish_via_partition_root = true)",
    )
    prepare(database.config())
    database.run(
        "INSERT INTO t SELECT i, CASE WHEN i % 3 = 0 THEN 'a' ELSE 'b' END, 'v' || i, 'secret' "
        "FROM generate_series(1, 50) i",
        "INSERT INTO f (id, v) SELECT i, 'v' || i FROM generate_series(1, 50) i",
    )
    assert_copied(database, tmp_path, "t", "f")


MOVES = ("VACUUM FULL t", "TRUNCATE t", "ALTER TABLE t ALTER id TYPE int8")


@pytest.mark.promise("copies are what the stream sends")
@pytest.mark.parametrize("statement", MOVES)
def test_what_moved_rows_before_the_table_was_described_is_found(database: Database, statement: str) -> None:
    """The snapshot sees no row of a table that was rewritten."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    prepare(database.config(create_publication="all"))
    conninfo = database.conninfo
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        database.run(statement)
        described = describe_published(keeper.connection, database.name, TableName("public", "t"))
        [leaf] = described.leaves
        with pytest.raises(RowsMoved, match=r"public\.t was"):
            list(reader.read(keeper.snapshot, described, LeafPages(leaf, 0, leaf.pages)))


@pytest.mark.parametrize("statement", [*MOVES, "ALTER TABLE t DROP COLUMN v", "DROP TABLE t"])
def test_what_moves_rows_under_way_is_found(database: Database, statement: str) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i FROM generate_series(1, 9) i"
    )
    prepare(database.config(create_publication="all"))
    conninfo = database.conninfo
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        described = describe_published(keeper.connection, database.name, TableName("public", "t"))
        database.run(statement)
        [leaf] = described.leaves
        with pytest.raises(RowsMoved, match=r"public\.t was"):
            list(reader.read(keeper.snapshot, described, LeafPages(leaf, 0, leaf.pages)))


WIDE = ((4_000, 3_000, "EXTERNAL"), (100_000, 300, "EXTERNAL"), (1_000_000, 60, "EXTENDED"))
"""Bytes of a value, rows, and how values are kept outside of their page: as they are, or compressed."""


@pytest.mark.promise("bounded memory")
@pytest.mark.parametrize(("size", "count", "storage"), WIDE)
def test_rows_are_read_in_texts_of_bounded_size(
    database: Database, size: int, count: int, storage: str
) -> None:
    """After many narrow rows, of another table and of the same one."""
    database.run(
        "CREATE TABLE narrow (id int PRIMARY KEY)",
        "INSERT INTO narrow SELECT generate_series(1, 200000)",
        "CREATE TABLE wide (id int PRIMARY KEY, v text)",
        f"ALTER TABLE wide ALTER v SET STORAGE {storage}",
        "INSERT INTO wide SELECT -i, '' FROM generate_series(1, 50000) i",
        f"INSERT INTO wide SELECT i, repeat('v', {size}) FROM generate_series(1, {count}) i",
    )
    prepare(database.config(create_publication="all"))
    conninfo, sizes = database.conninfo, dict[str, list[int]]()
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        for name in ("narrow", "wide"):
            described = describe_published(keeper.connection, database.name, TableName("public", name))
            [leaf] = described.leaves
            blocks = reader.read(keeper.snapshot, described, LeafPages(leaf, 0, leaf.pages))
            sizes[name] = [block.byte_count for block in blocks]
    assert len(sizes["narrow"]) < 8
    assert sum(sizes["wide"]) > count * size
    assert max(sizes["wide"]) < 2.2 * BLOCK_BYTES


def test_a_snapshot_that_ended_raises_snapshot_lost(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    prepare(database.config(create_publication="all"))
    with closing(CopyReader(database.conninfo)) as reader:
        keeper = SnapshotKeeper(database.conninfo)
        described = describe_published(keeper.connection, database.name, TableName("public", "t"))
        session = keeper.connection.info.backend_pid
        keeper.close()
        while database.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {session}"):
            time.sleep(0.02)  # the server ends a session some time after its client
        [leaf] = described.leaves
        with pytest.raises(SnapshotLost):
            list(reader.read(keeper.snapshot, described, LeafPages(leaf, 0, 1)))


def test_rows_that_a_policy_hides_are_refused(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        f"CREATE ROLE {database.name}_reader LOGIN",
        f"GRANT SELECT ON t TO {database.name}_reader",
    )
    prepare(database.config(create_publication="all"))
    conninfo = f"{database.conninfo} user={database.name}_reader"
    with closing(SnapshotKeeper(conninfo)) as keeper, closing(CopyReader(conninfo)) as reader:
        described = describe_published(keeper.connection, database.name, TableName("public", "t"))
        [leaf] = described.leaves
        with pytest.raises(SourceError, match="row-level security"):
            list(reader.read(keeper.snapshot, described, LeafPages(leaf, 0, 1)))
