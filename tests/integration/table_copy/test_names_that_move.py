"""Tables and columns whose names mean others, or have other types, once a copy is planned."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from pipeline.config.config import Config
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.ingest.job import run_ingest
from pipeline.postgres.publication import describe_published
from pipeline.postgres.snapshot.export import RowsMoved, SnapshotKeeper
from pipeline.postgres.snapshot.hashed_rows import HashedTable
from pipeline.postgres.snapshot.moved_rows import refuse_moved
from pipeline.table_copy.coordinator import CopyCoordinator
from pipeline.table_name import TableName
from tests.support.bronze.rows import bronze_rows
from tests.support.postgres.binaries import binaries_of
from tests.support.servers import Database, MakeServer

Copied = list[dict[int, str | None]]
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
    "INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3) i",
)
SWAP = ("ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME c TO b")


@pytest.fixture
def alter_at_copy(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function: run statements once, after the copies are planned and before rows are read."""

    def alter(*statements: str) -> None:
        copy, rest = CopyCoordinator._copy, list(statements)

        def altered(self: CopyCoordinator, *arguments: Any) -> None:
            if rest:
                with database.connect() as source, source.transaction():
                    while rest:
                        source.execute(rest.pop(0).encode())
            copy(self, *arguments)

        monkeypatch.setattr(CopyCoordinator, "_copy", altered)

    return alter


def configured(database: Database, tmp_path: Path, **options: Any) -> Config:
    return database.config(root=str(tmp_path / "lake"), copy="initial", create_publication="all", **options)


def copied(config: Config) -> Copied:
    """Return the copied rows by attribute number."""
    versions = {row["relation_version"]: row["columns"] for row in bronze_rows(config, "relations")}
    return [
        dict(zip((c["attribute_number"] for c in versions[row["relation_version"]]), row["new"], strict=True))
        for row in bronze_rows(config, "changes")
        if row["op"] == "R"
    ]


@pytest.mark.promise("copies are what the stream sends")
def test_columns_that_swap_their_names(
    database: Database, tmp_path: Path, alter_at_copy: Callable[..., None]
) -> None:
    database.run(*TABLE)
    config = configured(database, tmp_path)
    alter_at_copy(*SWAP)
    run_ingest(config)
    run_ingest(config)
    assert copied(config)[-3:] == [{1: str(i), 2: f"a{i}", 3: f"b{i}"} for i in (1, 2, 3)]
    assert all(str(row[2]).startswith("a") for row in copied(config))


@pytest.mark.promise("protected columns")
def test_an_excluded_column_that_gets_the_name_of_another(
    database: Database, tmp_path: Path, alter_at_copy: Callable[..., None]
) -> None:
    database.run(*TABLE)
    config = replace(
        configured(database, tmp_path), tables=(TableRule("public.*", columns=ColumnRules(exclude=("b",))),)
    )
    alter_at_copy("ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME b TO a")
    run_ingest(config)
    run_ingest(config)
    assert copied(config)[-3:] == [{1: str(i), 2: f"a{i}"} for i in (1, 2, 3)]
    assert not any(str(value).startswith("b") for row in copied(config) for value in row.values())


@pytest.mark.promise("copies are what the stream sends")
def test_tables_that_swap_their_names(
    database: Database, tmp_path: Path, alter_at_copy: Callable[..., None]
) -> None:
    database.run(*TABLE, "CREATE TABLE u (id int PRIMARY KEY, a text, b text)", "INSERT INTO u VALUES (9)")
    config = configured(database, tmp_path)
    alter_at_copy("ALTER TABLE t RENAME TO x", "ALTER TABLE u RENAME TO t", "ALTER TABLE x RENAME TO u")
    run_ingest(config)
    run_ingest(config)
    oids = dict(database.run("SELECT relname::text, oid::bigint FROM pg_class WHERE relname IN ('t', 'u')"))
    found = [row for row in bronze_rows(config, "changes") if row["op"] == "R"]
    assert {(row["relation_id"], row["new"][0]) for row in found} == {
        (oids["u"], "1"),
        (oids["u"], "2"),
        (oids["u"], "3"),
        (oids["t"], "9"),
    }


@pytest.mark.promise("copies are what the stream sends")
def test_a_type_that_changes_without_a_rewrite(
    database: Database, tmp_path: Path, alter_at_copy: Callable[..., None]
) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp)", "INSERT INTO t VALUES (1, '2020-01-01')"
    )
    config = configured(database, tmp_path)
    alter_at_copy("SET LOCAL TimeZone = 'UTC'", "ALTER TABLE t ALTER at TYPE timestamptz")
    run_ingest(config)
    run_ingest(config)
    types = {
        row["relation_version"]: row["columns"][1]["type_name"] for row in bronze_rows(config, "relations")
    }
    found = [
        (types[row["relation_version"]], row["new"][1])
        for row in bronze_rows(config, "changes")
        if row["op"] == "R"
    ]
    assert found
    assert all(("+00" in text) == (name == "timestamptz") for name, text in found), found


@pytest.mark.parametrize("major", [10, 13, 18])
def test_what_was_altered_under_a_snapshot_is_refused(make_server: MakeServer, major: int) -> None:
    server = make_server(binaries=binaries_of(major))
    database = Database.of(server)
    database.run(
        *TABLE, "CREATE TABLE plain (id int PRIMARY KEY, d text)", "CREATE PUBLICATION p FOR ALL TABLES"
    )
    if major >= 13:
        database.run(
            "CREATE TABLE root (id int, v text) PARTITION BY LIST (id)",
            "CREATE TABLE leaf (v text, id int)",
            "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES IN (1)",
            "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        )
    names = [TableName("public", name) for name in ("t", "plain", *(["root"] if major >= 13 else []))]
    keeper = SnapshotKeeper(server.conninfo)
    try:
        with keeper.reading() as connection:
            for name in names:
                table = describe_published(connection, "p", name)
                assert table.leaves
                refuse_moved(connection, table, table.leaves, "copied")
        database.run(
            *SWAP,
            "ALTER TABLE plain RENAME d TO e",
            *(["ALTER TABLE root RENAME v TO w"] if major >= 13 else []),
        )
        for name in names:
            with keeper.reading() as connection:
                table = describe_published(connection, "p", name)
                with pytest.raises(
                    RowsMoved, match=f"The table {name} was truncated, rewritten or altered while"
                ):
                    refuse_moved(connection, table, table.leaves, "copied")
            with (
                HashedTable(server.conninfo, keeper.snapshot, "p", name) as source,
                pytest.raises(RowsMoved, match="altered while it was compared"),
            ):
                source.execute(_rows_of(source))
    finally:
        keeper.close()


def _rows_of(source: HashedTable) -> sql.Composed:
    return sql.SQL("SELECT id FROM ONLY {}").format(sql.Identifier(source.table.leaves[0].table_name))
