"""Silver tables in the catalog of the Spark session, whose place of storage is this process's memory here."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from pipeline.apply import catalog_registrar
from pipeline.apply.applier import Applier
from pipeline.apply.catalogs import Catalogs
from pipeline.config.config import Storage
from pipeline.config.jobs import Catalog
from pipeline.config.tables import TableRule
from pipeline.delta.spark.metastore import Metastore
from pipeline.delta.table import Lake
from pipeline.metadata.catalog_entries import CatalogEntries, CatalogEntry
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.progress import ApplySummary
from pipeline.report.status import read_status
from tests.support.lives import FILL, TABLE
from tests.support.pipelines import Crash, MakePipeline, Pipeline, with_writer
from tests.support.running import applying
from tests.support.threads import wait_until

pytestmark = pytest.mark.spark

IN_MEMORY = Metastore.check
CALLS = ("check", "entries", "create_schema", "create_table", "drop_table")


@pytest.fixture
def shop(make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """Give a pipeline with two tables in silver, whose configuration has a catalog from now on."""
    monkeypatch.setattr(Metastore, "check", lambda self: None)
    monkeypatch.setattr(catalog_registrar, "COMPARED_EVERY", timedelta(0))
    monkeypatch.setattr(catalog_registrar, "WAIT_SECONDS", 600.0)  # Spark starts late on a busy machine
    pipeline = make_pipeline(copy="initial", create_publication="configured")
    pipeline.run(TABLE.format("a"), FILL.format("a", 1, 5), TABLE.format("b"), FILL.format("b", 1, 3))
    schema = f"{pipeline.database.name}_{{schema}}"
    yield replace(pipeline, config=replace(pipeline.config, catalog=Catalog(schema)))
    for row in pipeline.session.sql("SHOW SCHEMAS").collect():
        if row.namespace.startswith(pipeline.database.name):
            pipeline.session.sql(f"DROP SCHEMA {row.namespace} CASCADE")


def schema_of(pipeline: Pipeline) -> str:
    return f"{pipeline.database.name}_public"


def names_in(pipeline: Pipeline, schema: str | None = None) -> list[str]:
    """Return the tables that the catalog has."""
    rows = pipeline.session.sql(f"SHOW TABLES IN {schema or schema_of(pipeline)}").collect()
    return sorted(row.tableName for row in rows if not row.isTemporary)


def count_of(pipeline: Pipeline, table: str) -> int:
    return pipeline.session.table(f"{schema_of(pipeline)}.{table}").count()


def recorded(pipeline: Pipeline) -> dict[str, CatalogEntry]:
    entries = CatalogEntries(Lake(pipeline.root, pipeline.spark)).read()
    return {name.table: entry for name, entry in entries.items()}


def states(pipeline: Pipeline) -> dict[str, str]:
    return {table: entry.state for table, entry in recorded(pipeline).items()}


def recording(called: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that records that it was called."""

    def method(*arguments: Any) -> Any:
        called.append(name)
        return call(*arguments)

    return method


def versions(pipeline: Pipeline) -> dict[str, int]:
    return {table: pipeline.version(table) for table in ("a", "b")}


def lines_of(summary: ApplySummary) -> list[str]:
    return [line for line in summary.lines() if "catalog" in line]


@pytest.mark.parametrize("writer", ["native", pytest.param("spark", marks=pytest.mark.slow)])
def test_tables_are_queried_by_name(shop: Pipeline, writer: Any) -> None:
    shop = with_writer(shop, writer)
    summary = shop.catch_up()
    assert lines_of(summary) == ["catalog: 2 tables registered, 0 removed"]
    assert names_in(shop) == ["a", "b"]
    rows = shop.session.sql(f"SELECT a.id, b.v FROM {schema_of(shop)}.a JOIN {schema_of(shop)}.b USING (id)")
    assert {tuple(row) for row in rows.collect()} == {(1, "v1"), (2, "v2"), (3, "v3")}
    # changes, new columns and rebuilds are seen by the entry that exists
    shop.run("INSERT INTO a VALUES (100, 'new')", "ALTER TABLE a ADD extra int DEFAULT 7")
    shop.run("UPDATE a SET v = 'changed' WHERE id = 1")
    assert lines_of(shop.catch_up()) == []
    assert count_of(shop, "a") == 6
    [row] = shop.session.sql(f"SELECT v, extra FROM {schema_of(shop)}.a WHERE id = 1").collect()
    assert (row.v, row.extra) == ("changed", 7)
    shop.run("ALTER TABLE a DROP COLUMN extra", "ALTER TABLE a RENAME v TO w", "DELETE FROM a WHERE id > 3")
    shop.catch_up()
    run_rebuild(shop.config, ["public.a"])
    assert [row.w for row in shop.session.table(f"{schema_of(shop)}.a").orderBy("id").collect()] == [
        *("changed", "v2", "v3")
    ]


@pytest.mark.slow
def test_registering_commits_nothing_to_a_table(shop: Pipeline) -> None:
    without = replace(shop, config=replace(shop.config, catalog=Catalog()))
    without.catch_up()
    before = versions(shop)
    assert lines_of(shop.apply()) == ["catalog: 2 tables registered, 0 removed"]
    assert versions(shop) == before
    shop.session.sql(f"DROP TABLE {schema_of(shop)}.a")
    assert lines_of(shop.apply()) == ["catalog: 1 table registered, 0 removed"]
    assert versions(shop) == before
    assert names_in(shop) == ["a", "b"]


@pytest.mark.slow
def test_status_and_plan_show_the_name(shop: Pipeline) -> None:
    without = replace(shop, config=replace(shop.config, catalog=Catalog()))
    without.catch_up()
    shop.ingest(TABLE.format('"Order items"'))
    found = {table.name.table: table.steps for table in make_plan(shop.config).tables}
    schema = schema_of(shop)
    digits = sha256(b"public\0Order items").hexdigest()[:8]
    name = f"{schema}.order_items_{digits}"
    assert found.keys() == {"a", "b", "Order items"}
    for table, planned in (("a", f"{schema}.a"), ("Order items", name)):
        assert found[table][-1].sentence == f"The table is registered in the catalog of Spark as {planned}."
    shop.apply()
    assert make_plan(shop.config).tables == ()
    status = read_status(shop.config, is_offline=True).as_json()
    assert {table["table"]: table["catalog"]["name"] for table in status["tables"]} == {
        "a": f"{schema}.a",
        "b": f"{schema}.b",
        "Order items": name,
    }


@pytest.mark.slow
@pytest.mark.promise("names in the metastore")
def test_a_batch_without_new_tables_calls_no_catalog(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.catch_up()
    called: list[str] = []
    for name in CALLS:
        monkeypatch.setattr(Metastore, name, recording(called, name, getattr(Metastore, name)))
    applier = Applier(shop.spark, shop.config)
    registrar = Catalogs(shop.config, applier)
    for number in range(4):
        shop.ingest(f"INSERT INTO a VALUES ({number + 200}, 'x')")
        applier.apply_pending()
        registrar.finish(threading.Event())
        # the entries are compared once in a run
        assert called == ["check", "entries"]
    applier.close()


@pytest.mark.slow
def test_scheduled_runs_compare_entries_once_an_hour(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.catch_up()
    monkeypatch.setattr(catalog_registrar, "COMPARED_EVERY", timedelta(hours=1))
    called: list[str] = []
    for name in CALLS:
        monkeypatch.setattr(Metastore, name, recording(called, name, getattr(Metastore, name)))
    shop.catch_up("INSERT INTO a VALUES (100, 'x')")
    assert called == []
    shop.session.sql(f"DROP TABLE {schema_of(shop)}.a")
    with applying(shop):
        wait_until(lambda: names_in(shop) == ["a", "b"])


def test_renamed_dropped_and_archived_tables_follow(shop: Pipeline) -> None:
    shop.catch_up()
    shop.ingest("DROP TABLE b", "ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (50, 'c')")
    shop.apply()
    # kept tables keep their name, until they are archived
    assert names_in(shop) == ["a", "b", "c"]
    assert count_of(shop, "b") == 3
    rules = tuple(replace(rule, detached_tables="archive") for rule in shop.config.tables)
    archiving = replace(shop, config=replace(shop.config, tables=rules))
    shop.run("INSERT INTO c VALUES (51, 'c')")
    archiving.ingest()
    summary = archiving.apply()
    assert not shop.path("silver", "public", "b").exists()
    assert "b" not in names_in(shop)
    assert any("removed" in line for line in lines_of(summary))
    assert "b" not in states(shop)
    assert shop.frame("archive", "public", "b").count() == 3


@pytest.mark.slow
def test_another_target_or_template_replaces_the_entry(shop: Pipeline) -> None:
    shop.catch_up()
    rule = replace(shop.config.tables[0], source="public.a", target="moved")
    moved = replace(shop, config=replace(shop.config, tables=(rule, *shop.config.tables)))
    moved.catch_up("INSERT INTO a VALUES (60, 'x')")
    assert count_of(shop, "a") == 6
    assert recorded(shop)["a"].path.endswith("/silver/moved")
    one = Catalog(f"{shop.database.name}_one", "{schema}_{table}")
    other = replace(moved, config=replace(moved.config, catalog=one))
    assert lines_of(other.apply()) == ["catalog: 2 tables registered, 2 removed"]
    assert names_in(shop) == []
    assert names_in(shop, f"{shop.database.name}_one") == ["public_a", "public_b"]
    assert shop.frame("silver", "moved").count() == 6


@pytest.mark.slow
@pytest.mark.parametrize("is_outside", [False, True])
def test_tables_of_many_sources_are_registered_one_by_one(shop: Pipeline, is_outside: bool) -> None:
    for number, schema in enumerate(("one", "two")):
        name = f"{schema}.orders"
        shop.run(f"CREATE SCHEMA {schema}", TABLE.format(name), FILL.format(name, 1, number + 2))
    shared_root = f"{shop.path().parent}/shared" if is_outside else None
    silver = replace(shop.config.silver, shared_root=shared_root)
    rules = (TableRule("*.orders", target="{table}"),)
    many = replace(shop, config=replace(shop.config, silver=silver, tables=rules))
    many.catch_up()
    counts = [
        shop.session.table(f"{shop.database.name}_{schema}.orders").count() for schema in ("one", "two")
    ]
    assert counts == [2, 3]
    other = replace(many, config=replace(many.config, catalog=Catalog(f"{shop.database.name}_all")))
    assert lines_of(other.apply()) == ["catalog: 2 tables registered, 2 removed"]
    assert len(names_in(shop, f"{shop.database.name}_all")) == 2


@pytest.mark.promise("names in the metastore")
def test_an_entry_of_others_is_never_touched(shop: Pipeline) -> None:
    shop.session.sql(f"CREATE SCHEMA {schema_of(shop)}")
    elsewhere = str(shop.path().parent / "elsewhere")
    shop.session.range(2).write.format("delta").save(elsewhere)
    shop.session.sql(f"CREATE TABLE {schema_of(shop)}.a USING delta LOCATION '{elsewhere}'")
    shop.ingest()
    summary = shop.apply()
    assert names_in(shop) == ["a", "b"]
    assert count_of(shop, "a") == 2
    [line] = [line for line in lines_of(summary) if "public.a" in line]
    assert line.startswith("not in the catalog: public.a. The name ")
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
    assert [kind for kind, _ in shop.events("a")].count("catalog") == 1
    shop.apply()
    assert [kind for kind, _ in shop.events("a")].count("catalog") == 1
    assert states(shop) == {"a": "refused", "b": "registered"}
    shop.assert_equal("a", "b")
    # dropped by its owner, it is registered, and stays when another session makes the same entry
    shop.session.sql(f"DROP TABLE {schema_of(shop)}.a")
    assert lines_of(shop.apply()) == ["catalog: 1 table registered, 0 removed"]
    assert count_of(shop, "a") == 5


@pytest.mark.slow
def test_an_entry_that_another_session_made_is_used_and_stays(shop: Pipeline) -> None:
    without = replace(shop, config=replace(shop.config, catalog=Catalog()))
    without.catch_up()
    shop.session.sql(f"CREATE SCHEMA {schema_of(shop)}")
    path = shop.path("silver", "public", "a")
    shop.session.sql(f"CREATE TABLE {schema_of(shop)}.a USING delta LOCATION '{path}'")
    shop.apply()
    assert states(shop) == {"a": "found", "b": "registered"}
    other = replace(shop, config=replace(shop.config, catalog=Catalog(f"{shop.database.name}_other")))
    other.apply()
    assert names_in(shop) == ["a"]
    assert names_in(shop, f"{shop.database.name}_other") == ["a", "b"]


@pytest.mark.slow
def test_a_view_and_a_managed_table_are_left(shop: Pipeline) -> None:
    shop.session.sql(f"CREATE SCHEMA {schema_of(shop)}")
    shop.session.sql(f"CREATE TABLE {schema_of(shop)}.a USING delta AS SELECT 1 AS mine")
    shop.session.sql(f"CREATE VIEW {schema_of(shop)}.b AS SELECT 2 AS mine")
    shop.ingest()
    shop.apply()
    shop.apply()
    assert states(shop) == {"a": "refused", "b": "refused"}
    assert [shop.session.table(f"{schema_of(shop)}.{name}").head()[0] for name in "ab"] == [1, 2]  # type: ignore[index]


@pytest.mark.promise("hostile catalog names")
def test_hostile_names_are_registered_and_queried(shop: Pipeline) -> None:
    names = ["Order items", "order_items", "ORDER_ITEMS", "`; DROP TABLE a; -- '\"", "größe/%2F ${env:HOME}"]
    for number, name in enumerate(names):
        quoted = '"' + name.replace('"', '""') + '"'
        shop.run(TABLE.format(quoted), FILL.format(quoted, 1, number + 1))
    shop.catch_up()
    entries = recorded(shop)
    assert len(entries) == len(names) + 2
    assert {entry.state for entry in entries.values()} == {"registered"}
    found = (f"`{entries[name].catalog_schema}`.`{entries[name].catalog_table}`" for name in names)
    counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in found)
    assert [*shop.session.sql(f"SELECT {counts}").collect()[0]] == [*range(1, len(names) + 1)]
    before = {name: entry.catalog_table for name, entry in entries.items()}
    shop.catch_up("INSERT INTO a VALUES (70, 'x')")
    assert {name: entry.catalog_table for name, entry in recorded(shop).items()} == before


@pytest.mark.sample(1)
@pytest.mark.promise("names in the metastore")
@pytest.mark.parametrize("call", ["create_schema", "create_table"])
@pytest.mark.parametrize("is_after", [False, True])
def test_a_run_that_ends_within_a_change_is_continued(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch, call: str, is_after: bool
) -> None:
    end_within(shop, monkeypatch, call, is_after=is_after)
    shop.apply()
    assert names_in(shop) == ["a", "b"]
    assert states(shop) == {"a": "registered", "b": "registered"}
    other = replace(shop, config=replace(shop.config, catalog=Catalog(f"{shop.database.name}_other")))
    end_within(other, monkeypatch, "drop_table", is_after=is_after)
    other.apply()
    assert names_in(shop) == []
    assert names_in(shop, f"{shop.database.name}_other") == ["a", "b"]


def end_within(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, call: str, *, is_after: bool) -> None:
    """Apply, and let the thread that changes the catalog end before or after a call."""
    original, stop = getattr(Metastore, call), threading.Event()

    def end(self: Metastore, *arguments: str) -> None:
        stop.set()
        if is_after:
            original(self, *arguments)
        raise Crash

    pipeline.ingest()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        patch.setattr(Metastore, call, end)
        pipeline.apply(stop=stop)
    assert stop.is_set()


@pytest.mark.promise("names in the metastore")
def test_a_catalog_that_fails_delays_no_table(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("jdbc:postgresql://metastore?password=secret")

    shop.ingest()
    with monkeypatch.context() as patch:
        patch.setattr(Metastore, "entries", fail)
        summary = shop.apply()
    [line] = lines_of(summary)
    assert line.startswith("catalog: The catalog of Spark failed: OSError. Check the metastore")
    shop.assert_equal("a", "b")
    assert states(shop) == {"a": "failed", "b": "failed"}
    [event] = shop.events("catalog_entries")
    assert event == ("catalog", line.removeprefix("catalog: "))
    shop.apply()
    assert states(shop) == {"a": "registered", "b": "registered"}
    assert names_in(shop) == ["a", "b"]


@pytest.mark.slow
def test_an_attempt_that_failed_is_repeated_in_the_same_run(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True, True, False])
    original = Metastore.create_table

    def create(self: Metastore, *arguments: Any) -> None:
        if arguments[1] == "a" and next(failures):
            raise OSError("not now")
        original(self, *arguments)

    monkeypatch.setattr(Metastore, "create_table", create)
    monkeypatch.setattr(catalog_registrar, "FIRST_PAUSE", 0.2)
    shop.ingest()
    with applying(shop):
        wait_until(lambda: shop.path("_pgdelta", "catalog_entries").exists())
        wait_until(lambda: states(shop) == {"a": "registered", "b": "registered"})
    assert names_in(shop) == ["a", "b"]


@pytest.mark.slow
def test_a_catalog_that_does_not_answer_is_left(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(Metastore, "check", lambda self: answer.wait())
    monkeypatch.setattr(catalog_registrar, "WAIT_SECONDS", 0.5)
    shop.ingest()
    try:
        [line] = lines_of(shop.apply())
    finally:
        answer.set()
    assert line == (
        "catalog: The catalog of Spark has not answered for 0.5 s. Check the metastore and Spark's settings "
        "for it."
    )
    shop.assert_equal("a", "b")


@pytest.mark.slow
def test_a_catalog_in_memory_is_refused(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Metastore, "check", IN_MEMORY)
    shop.ingest()
    [line] = lines_of(shop.apply())
    assert line.startswith("catalog: Spark has no metastore: its catalog is in memory")
    shop.assert_equal("a", "b")


def with_root(pipeline: Pipeline, root: str) -> Pipeline:
    return replace(pipeline, config=replace(pipeline.config, storage=Storage(root)))


@pytest.mark.slow
def test_a_copy_of_a_lake_leaves_the_entries_of_the_original(shop: Pipeline) -> None:
    shop.catch_up()
    copied = with_root(shop, f"{shop.root}_copy")
    shutil.copytree(shop.root, copied.root)
    copied.apply()
    assert states(copied) == {"a": "refused", "b": "refused"}
    files = shop.session.table(f"{schema_of(shop)}.a").inputFiles()
    assert files
    assert all(f"{shop.root}/silver/" in file for file in files), files


@pytest.mark.slow
def test_a_moved_lake_takes_its_entries_along(shop: Pipeline) -> None:
    shop.catch_up()
    moved = with_root(shop, f"{shop.root}_moved")
    shutil.move(shop.root, moved.root)
    moved.catch_up("INSERT INTO a VALUES (80, 'x')")
    assert count_of(moved, "a") == 6
    assert {table: entry.path for table, entry in recorded(moved).items()} == {
        table: f"file:{moved.root}/silver/public/{table}" for table in ("a", "b")
    }
