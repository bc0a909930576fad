"""Columns of silver that another writer removes are a foreign change; other changes of them are harmless."""

import shutil
from pathlib import Path

import pytest

from pipeline.bronze.log import Bronze
from pipeline.config.tables import TableRule
from pipeline.delta.features import Feature
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError
from pipeline.metadata.reconciliations import UNPROVEN
from pipeline.metadata.registry import Records
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.progress import ApplySummary
from pipeline.reading.live import LiveReader
from pipeline.silver.compare.clone import pin_table
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.foreign_commits import add, alter, delete_rows, drop, rename, restore
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import MakePipeline, succeeded, with_writer
from tests.support.servers import Database

COLUMNS = "(id int PRIMARY KEY, a text, day date, last int)"
FILL = "INSERT INTO {} VALUES (1, 'x', 'infinity', 10), (2, 'y', '2024-01-01', 20)"
RULE = TableRule("public.*", misfits={"day": "text"})
CHANGES = ("UPDATE {} SET a = 'z' WHERE id = 1", "INSERT INTO {} VALUES (3, 'new', '2024-02-02', 30)")


def name(table: str) -> TableName:
    return TableName("public", table)


def silver(shop: NativePipeline, table: str) -> LakeTable:
    return LakeTable(f"{shop.config.storage.root}/silver/public/{table}")


def make_shop(database: Database, folder: Path, *tables: str, rule: TableRule = RULE) -> NativePipeline:
    """Return a pipeline without Spark that has tables with two rows in silver, one of them with a sidecar."""
    shop = NativePipeline.make(database, folder, rule, copy="initial")
    shop.ingest(*(f"CREATE TABLE {table} {COLUMNS}" for table in tables))
    succeeded(shop.catch_up(*(FILL.format(table) for table in tables)))
    return shop


def change(shop: NativePipeline, *tables: str) -> None:
    shop.ingest(*(statement.format(table) for table in tables for statement in CHANGES))


def failures(summary: ApplySummary) -> dict[str, str]:
    return {each.table: state.failure for each, state in summary.tables.items() if state.failure}


def assert_equal(shop: NativePipeline, *tables: str) -> None:
    select = "SELECT id, a, last, CASE WHEN NOT isfinite(day) THEN day::text END FROM {} ORDER BY id"
    with shop.database.connect() as source:
        for table in tables:
            rows = source.execute(select.format(table).encode()).fetchall()
            assert shop.rows(table, "id", "a", "last", "day__text") == rows, table


@pytest.mark.promise("foreign changes")
def test_a_removed_column_is_a_foreign_change(database: Database, tmp_path: Path) -> None:
    removed = {"ends": ["last"], "keyed": ["id", "a"], "own": ["_commit_lsn"], "texts": ["day__text"]}
    removed["resting"] = ["last"]
    tables = [*removed, "renamed", "emptied", "fine"]
    shop = make_shop(database, tmp_path, *tables)
    versions = {table: drop(silver(shop, table), *columns) for table, columns in removed.items()}
    versions["renamed"] = rename(silver(shop, "renamed"), "day__text", "texts")
    removed["renamed"] = ["day__text"]
    change(shop, *(versions.keys() - {"resting"}), "fine")
    versions["emptied"] = delete_rows(silver(shop, "emptied"))

    operations = dict.fromkeys(removed, "DROP COLUMNS") | {"renamed": "RENAME COLUMN", "emptied": "DELETE"}
    effects = {
        table: f"removed column{'s' if len(columns) > 1 else ''} {', '.join(sorted(columns))}"
        for table, columns in removed.items()
    } | {"emptied": "changed rows"}
    expected = {
        table: f"A foreign commit ({operations[table]} at version {version}) {effects[table]} of silver "
        f"table public.{table}. RESTORE it to version {version - 1}, or run pgdelta resync --table "
        f"public.{table}, "
        f"or remove file:{silver(shop, table).path} to rebuild it from bronze."
        for table, version in versions.items()
    }
    refused = LiveReader(shop.config).read().refused
    assert {each.table: refused[each] for each in refused} == expected
    planned = {each.name.table: each.failure for each in make_plan(shop.config).tables if each.failure}
    assert planned == expected
    lake = Lake(shop.config.storage)
    bronze, registered = Bronze(lake, shop.config.pipeline), Records(lake).tables.read()
    for table in ("ends", "keyed", "own", "resting"):
        with pytest.raises(LakeError, match="removed column"):  # as reconcile does
            pin_table(bronze, registered[name(table)], None)
    for _ in range(2):
        assert failures(shop.apply()) == expected
    assert_equal(shop, "fine")

    restore(silver(shop, "ends"), versions["ends"] - 1)
    restore(silver(shop, "texts"), versions["texts"] - 1)
    shutil.rmtree(silver(shop, "own").folder)
    run_resync(shop.config, ["public.keyed", "public.renamed", "public.emptied"])
    assert run_rebuild(shop.config, ["public.resting"]).rebuilt == [name("resting")]
    succeeded(shop.catch_up("UPDATE fine SET a = 'later'"))
    assert_equal(shop, *tables)


@pytest.mark.promise("foreign changes")
def test_other_changes_of_columns_are_harmless(database: Database, tmp_path: Path) -> None:
    shop = make_shop(database, tmp_path, "renamed", "wider", "moved", "noted")
    rename(silver(shop, "renamed"), "a", "b")
    rename(silver(shop, "renamed"), "id", "key")
    rename(silver(shop, "renamed"), "_commit_lsn", "lsn")
    widened = Feature.TYPE_WIDENING
    alter(silver(shop, "wider"), "CHANGE COLUMN", lambda d: d.enabled(widened).widened("last", "long"))
    alter(silver(shop, "moved"), "CHANGE COLUMN", lambda d: d.with_fields([d.fields[-1], *d.fields[:-1]]))
    version = silver(shop, "noted").version()
    for number in range(2):  # also after a RESTORE
        if number:
            restore(silver(shop, "noted"), version)
        add(silver(shop, "noted"), "note")
    tables = ["renamed", "wider", "moved", "noted"]
    change(shop, *tables)
    succeeded(shop.apply())
    drop(silver(shop, "noted"), "note")
    shop.catch_up("DELETE FROM noted WHERE id = 2")
    assert_equal(shop, *tables)
    assert {*shop.events("renamed")} >= {
        ("evolved", "Column b was renamed to a."),
        ("evolved", "Column key was renamed to id."),
    }
    assert shop.columns("wider")["last"] == "BIGINT"


@pytest.mark.promise("foreign changes")
def test_a_column_of_another_writer_keeps_its_name(database: Database, tmp_path: Path) -> None:
    """The source gives a column the name of one that another writer added: the table is held, as it was."""
    added = {"renamed": "w", "cased": "W", "typed": "w", "moved": "last__4", "bared": "w"}
    source = dict.fromkeys(added, "RENAME a TO w") | {
        "typed": "ADD w int",
        "moved": "DROP last, ADD last int",
    }
    source["bared"] = 'ADD "W" int'
    shop = make_shop(database, tmp_path, *added)
    for table, column in added.items():
        add(silver(shop, table), column)
    shop.ingest(*(f"UPDATE {table} SET last = 11 WHERE id = 1" for table in added))
    shop.ingest(*(f"ALTER TABLE {table} {action}" for table, action in source.items()))
    shop.ingest(*(f"INSERT INTO {table} (id) VALUES (4)" for table in added))
    needing = {"renamed": "a", "cased": "a", "typed": "w", "moved": "last", "bared": "W"}
    for _ in range(2):
        held = {each.table: state.held for each, state in shop.apply().tables.items()}
        assert held == {
            table: f"Table public.{table} is held: silver has a column {column} that another writer added, "
            f"and needs that name for column {needing[table]}. Rename or drop it in silver, or run pgdelta "
            f"resync --table public.{table}, which drops it. Until then silver keeps the table as it was "
            "before this change, and bronze keeps the changes that follow."
            for table, column in added.items()
        }
    for table in added:  # with what came before
        assert sorted(shop.rows(table, "id", "last")) == [(1, 11), (2, 20)]
    drop(silver(shop, "renamed"), "w")
    rename(silver(shop, "cased"), "W", "own")
    rename(silver(shop, "moved"), "last__4", "own")
    run_resync(shop.config, ["public.typed", "public.bared"])
    succeeded(shop.catch_up("UPDATE renamed SET w = 'c' WHERE id = 1"))
    for table, action in source.items():
        column = "w" if action.startswith("RENAME") else "last"
        with shop.database.connect() as connection:
            rows = connection.execute(f"SELECT id, {column} FROM {table} ORDER BY id".encode()).fetchall()
        assert sorted(shop.rows(table, "id", column)) == rows, table
    assert {"own"} <= shop.columns("cased").keys() & shop.columns("moved").keys()


@pytest.mark.promise("foreign changes")
def test_names_that_pgdelta_makes_are_not_those_of_others(database: Database, tmp_path: Path) -> None:
    """A swap takes another intermediate name; a column for texts that do not fit holds the table."""
    rule = TableRule("public.*", misfits={"day": "text", "w": "text"})
    added = {"moved": ("w__text", "string"), "typed": ("w__text", "integer"), "cased": ("W__TEXT", "string")}
    shop = make_shop(database, tmp_path, "swapped", *added, rule=rule)
    add(silver(shop, "swapped"), "a__0")
    for table, (column, kind) in added.items():
        add(silver(shop, table), column, kind)
    swap = ("RENAME a TO t", "RENAME day TO a", "RENAME t TO day")
    shop.ingest(*(f"ALTER TABLE swapped {action}" for action in swap), "UPDATE swapped SET last = 11")
    shop.ingest("ALTER TABLE moved RENAME day TO w", "INSERT INTO moved (id) VALUES (4)")
    shop.ingest(*(f"ALTER TABLE {table} ADD w date" for table in ("typed", "cased")))
    shop.ingest(*(f"INSERT INTO {table} (id, w) VALUES (4, 'infinity')" for table in ("typed", "cased")))
    states = shop.apply().tables
    for table, (column, _) in added.items():
        needing = "day__text" if table == "moved" else "w__text"
        held = states[name(table)].held or ""
        assert (
            f"has a column {column} that another writer added, and needs that name for column {needing}."
            in held
        )
    assert (states[name("swapped")].held, states[name("swapped")].failure) == (None, None)
    assert sorted(shop.rows("swapped", "id", "day", "last")) == [(1, "x", 11), (2, "y", 11)]
    assert {"a__0", "a__text"} <= shop.columns("swapped").keys()
    for table, (column, _) in added.items():
        drop(silver(shop, table), column)
    succeeded(shop.catch_up())
    assert sorted(shop.rows("moved", "id", "w__text")) == [(1, "infinity"), (2, None), (4, None)]
    for table in ("typed", "cased"):
        assert (4, "infinity") in shop.rows(table, "id", "w__text")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("foreign changes")
def test_spark_and_reconcile_refuse_a_removed_column(make_pipeline: MakePipeline) -> None:
    shop = with_writer(make_pipeline(), "spark")
    shop.ingest(f"CREATE TABLE t {COLUMNS}", f"CREATE TABLE checked {COLUMNS}")
    for table in ("t", "checked"):
        shop.run(f"INSERT INTO {table} VALUES (1, 'x', NULL, 10), (2, 'y', NULL, 20)")
    shop.catch_up()
    path = f"delta.`{shop.root}/silver/public/t`"
    for action in ("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "DROP COLUMN last"):
        shop.session.sql(f"ALTER TABLE {path} {action}")
    checked = f"delta.`{shop.root}/silver/public/checked`"
    shop.session.sql(f"ALTER TABLE {checked} ADD CONSTRAINT small CHECK (last < 100)")
    shop.ingest("UPDATE t SET a = 'z' WHERE id = 1", "INSERT INTO checked VALUES (3, 'secret', NULL, 300)")
    found = failures(shop.apply())
    version = shop.version("t")
    assert found["t"].startswith(
        f"A foreign commit (DROP COLUMNS at version {version}) removed column last of "
    )
    assert found["checked"] == (
        "Rows of the source violate the constraint small that another writer gave the silver table. Drop the "
        "constraint, then run again."
    )
    [verdict] = run_reconcile(shop.config, ["public.t"], runs=True).verdicts
    assert (verdict.verdict, verdict.sentence) == (UNPROVEN, found["t"])
    shop.session.sql(f"RESTORE TABLE {path} TO VERSION AS OF {version - 1}")
    shop.session.sql(f"ALTER TABLE {checked} DROP CONSTRAINT small")
    shop.assert_follows("t", "checked")
