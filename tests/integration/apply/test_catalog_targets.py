"""Silver tables in AWS Glue, a Hive metastore and Unity Catalog, which the jobs register without Spark."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars
import pytest

from pipeline.apply import catalog_registrar
from pipeline.apply.applier import Applier
from pipeline.apply.catalogs import Catalogs, open_catalog
from pipeline.config.jobs import Catalog, CatalogService
from pipeline.delta.catalogs.glue import GlueCatalog
from pipeline.delta.catalogs.unity import UnityCatalog
from pipeline.delta.schema import SchemaField, TableSchema
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.metadata.catalog_entries import CatalogEntries, CatalogEntry
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.progress import ApplySummary
from pipeline.report.status import read_status
from tests.support.lives import FILL, TABLE
from tests.support.metastores import (
    GLUE_VARIABLES,
    UNITY_SERVER,
    GluePlace,
    Place,
    UnityDoublePlace,
    UnityPlace,
    UnityServerPlace,
    glue_place,
    hive_place,
    unity_place,
)
from tests.support.pipelines import MakePipeline, Pipeline, with_writer
from tests.support.threads import in_threads, wait_until
from tests.support.unity_server import CATALOG

pytestmark = pytest.mark.postgres


LABELS = {"glue": "AWS Glue", "hive": "the Hive metastore", "unity": "Unity Catalog"}


SERVER = pytest.param(
    "unity-server",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(UNITY_SERVER is None, reason="UNITY_SERVER names no server of Unity Catalog"),
    ],
)


@pytest.fixture(params=["glue", "unity", SERVER, pytest.param("hive", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Give an empty catalog."""
    if request.param == "unity-server":
        yield UnityServerPlace()
        return
    if request.param != "glue":
        with unity_place() if request.param == "unity" else hive_place(tmp_path / "hive") as found:
            yield found
        return
    for name, value in GLUE_VARIABLES.items():
        monkeypatch.setenv(name, value)
    with glue_place() as glue:
        monkeypatch.setenv("AWS_ENDPOINT_URL", glue.url)
        yield glue


@pytest.fixture
def shop(place: Place, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Give a pipeline with two tables, which are registered in the catalog from now on."""
    monkeypatch.setattr(catalog_registrar, "WAIT_SECONDS", 600.0)
    pipeline = with_writer(make_pipeline(copy="initial", create_publication="configured"), "native")
    pipeline.run(TABLE.format("a"), FILL.format("a", 1, 5), TABLE.format("b"), FILL.format("b", 1, 3))
    pipeline.run("COMMENT ON TABLE a IS 'the first'", "COMMENT ON COLUMN a.v IS 'größe,\n of it'")
    return in_catalogs(pipeline, place.service)


def in_catalogs(pipeline: Pipeline, *services: CatalogService, schema: str = "{schema}") -> Pipeline:
    catalog = Catalog(schema, targets=services)
    return replace(pipeline, config=replace(pipeline.config, catalog=catalog))


def recorded(pipeline: Pipeline, place: Place) -> dict[str, CatalogEntry]:
    entries = CatalogEntries(Lake(pipeline.root), place.service.recorded_type).read()
    return {name.table: entry for name, entry in entries.items()}


def states(pipeline: Pipeline, place: Place) -> dict[str, str]:
    return {table: entry.state for table, entry in recorded(pipeline, place).items()}


def rows_of(pipeline: Pipeline, table: str) -> int:
    return Lake(pipeline.root).table("silver", "public", table).row_count()


def lines_of(summary: ApplySummary) -> list[str]:
    return [line for line in summary.lines() if "catalog" in line]


@pytest.mark.promise("names in the metastore")
def test_entries_hold_columns_and_follow_them(shop: Pipeline, place: Place) -> None:
    label = LABELS[place.service.type]
    assert lines_of(shop.catch_up()) == [f"catalog ({label}): 2 tables registered, 0 removed"]
    entry = place.entry("public", "a")
    assert entry is not None
    assert entry.owner == shop.config.pipeline
    assert entry.points_to(str(shop.path("silver", "public", "a")))
    assert entry.held is not None
    assert entry.held.comment == "the first"
    assert place.held("public", "a")[:2] == (("id", "int", ""), ("v", "string", "größe, of it"))
    shop.run("ALTER TABLE a ADD added numeric(8, 2)", "ALTER TABLE a RENAME v TO text")
    shop.run("ALTER TABLE b ALTER id TYPE bigint", "INSERT INTO a VALUES (100, 'new', 1.5)")
    shop.run("INSERT INTO b VALUES (100, 'new')")
    assert lines_of(shop.catch_up()) == [f"catalog ({label}): 0 tables registered, 2 updated, 0 removed"]
    assert place.columns("public", "a") == {"id": "int", "text": "string", "added": "decimal(8,2)"}
    assert place.columns("public", "b") == {"id": "bigint", "v": "string"}
    # a column before others is dropped, which Hive compares by position
    rules = tuple(replace(rule, dropped_columns="drop") for rule in shop.config.tables)
    shop = replace(shop, config=replace(shop.config, tables=rules))
    shop.catch_up("ALTER TABLE a DROP COLUMN text", "INSERT INTO a VALUES (101, 2.5)")
    assert place.columns("public", "a") == {"id": "int", "added": "decimal(8,2)"}
    run_rebuild(shop.config, ["public.a"])
    assert place.columns("public", "a") == {"id": "int", "added": "decimal(8,2)"}
    status = read_status(shop.config, is_offline=True).as_json()
    assert [table["catalog"]["type"] for table in status["tables"]] == [place.service.type] * 2
    assert make_plan(shop.config).tables == ()


@pytest.mark.promise("names in the metastore")
@pytest.mark.parametrize("place", ["glue", "unity"], indirect=True)
def test_a_batch_that_changes_no_entry_makes_no_call(
    shop: Pipeline, place: GluePlace | UnityDoublePlace
) -> None:
    shop.catch_up()
    applier = Applier(None, shop.config)
    catalogs = Catalogs(shop.config, applier)
    before = place.calls
    for number in range(3):
        shop.ingest(f"INSERT INTO a VALUES ({number + 200}, 'x')")
        applier.apply_pending()
        catalogs.finish(threading.Event())
    assert place.calls == before
    assert applier.lake.sessions.started is None
    applier.close()


@pytest.mark.promise("names in the metastore")
def test_tables_renamed_and_dropped_at_the_source(shop: Pipeline, place: Place) -> None:
    shop.catch_up()
    shop.ingest("DROP TABLE b", "ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (50, 'c')")
    shop.apply()
    assert all(place.entry("public", name) for name in "abc")  # detached tables are kept
    rules = tuple(replace(rule, detached_tables="archive") for rule in shop.config.tables)
    archiving = replace(shop, config=replace(shop.config, tables=rules))
    shop.run("INSERT INTO c VALUES (51, 'c')")
    archiving.ingest()
    archiving.apply()
    assert place.entry("public", "b") is None
    assert shop.path("archive", "public", "b").exists()
    in_catalogs(archiving, place.service, schema="moved").apply()
    assert place.entry("public", "c") is None
    assert place.entry("moved", "c") is not None


@pytest.mark.promise("names in the metastore")
def test_entries_of_others_stay_as_they_are(shop: Pipeline, place: Place) -> None:
    elsewhere, path_of_b = str(shop.path().parent / "elsewhere"), str(shop.path("silver", "public", "b"))
    place.create("public", "a", elsewhere)
    place.create("public", "b", path_of_b)
    before = [place.entry("public", name) for name in "ab"]
    summary = run(shop)
    [line] = lines_of(summary)
    assert line.startswith("not in the catalog: public.a. The name public.a has another table or view in ")
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
    assert states(shop, place) == {"a": "refused", "b": "found"}
    shop.run("ALTER TABLE b ADD added int", "INSERT INTO b VALUES (9, 'v', 1)")
    run(shop)
    assert [place.entry("public", name) for name in "ab"] == before
    in_catalogs(shop, place.service, schema="moved").apply()
    assert [place.entry("public", name) for name in "ab"] == before
    # what replaced an entry of ours at the same path is not ours
    place.drop("moved", "a")
    place.create("moved", "a", str(shop.path("silver", "public", "a")))
    in_catalogs(shop, place.service).apply()
    assert place.entry("moved", "a") is not None
    assert place.entry("moved", "b") is None
    if place.service.type == "unity":  # which may refuse two tables at one path
        place.drop("moved", "a")
    place.drop("public", "a")
    assert any("1 table registered" in line for line in lines_of(run(shop)))


def run(pipeline: Pipeline) -> ApplySummary:
    pipeline.ingest()
    return pipeline.apply()


@pytest.mark.promise("names in the metastore")
def test_batches_go_on_while_a_catalog_is_down(
    shop: Pipeline, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_registrar, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(catalog_registrar, "MAX_PAUSE", 0.5)
    place.stop()
    ended: list[ApplySummary] = []
    shop.ingest()
    with in_threads(lambda stop: ended.append(shop.apply(trigger="continuous", stop=stop))):
        wait_until(lambda: shop.path("_pgdelta", "catalog_entries").exists())
        wait_until(lambda: states(shop, place) == {"a": "failed", "b": "failed"})
        for number in range(3):
            shop.ingest(f"INSERT INTO a VALUES ({number + 300}, 'x')")
            wait_until(lambda count=6 + number: rows_of(shop, "a") == count)  # type: ignore[misc]
        shop.ingest("ALTER TABLE b ADD added int", "INSERT INTO b VALUES (9, 'v', 1)")
        place.start()
        wait_until(lambda: states(shop, place) == {"a": "registered", "b": "registered"})
        wait_until(lambda: "added" in place.columns("public", "b"))
    events = [sentence for kind, sentence in shop.events("catalog_entries") if kind == "catalog"]
    assert events
    assert not any("secret" in sentence for sentence in events)
    assert lines_of(ended[0]) != []


@pytest.mark.parametrize("place", ["glue", "unity"], indirect=True)
def test_many_entries_are_listed_and_parameters_of_others_stay(place: GluePlace | UnityDoublePlace) -> None:
    catalog = open_catalog(place.service, "shop", NoSpark(""))
    names = [f"t{number}" for number in range(130)]
    assert catalog.entries("many", names) == {}
    catalog.create_schema("many")
    held = catalog.held_columns(Snapshot("t", schema_string=TableSchema.of_ddl("id INT").json))
    for name in names:
        catalog.create_table("many", name, f"s3a://lake/{name}", held)
    calls = place.calls
    found = catalog.entries("many", [*names, "none"])
    assert sorted(found) == sorted(names)
    assert found["t7"].points_to("s3a://lake/t7")
    assert place.calls - calls < 5
    assert found["t1"].location == "s3://lake/t1"
    place.add_parameter("many", "t1", "classification", "delta")
    parameters = place.parameters("many", "t1")
    assert parameters["classification"] == "delta"
    wide = TableSchema((SchemaField("id", "long", {"comment": "wide"}),))
    wide_held = catalog.held_columns(Snapshot("t", schema_string=wide.json, metadata={"description": "all"}))
    catalog.update_table("many", "t1", "s3a://lake/t1", wide_held)
    assert place.parameters("many", "t1") == parameters
    assert catalog.entries("many", ["t1"])["t1"].held == wide_held
    assert place.held("many", "t1") == (("id", "bigint", "wide"),)


@pytest.mark.promise("names in the metastore")
@pytest.mark.parametrize("place", ["glue", "unity"], indirect=True)
def test_an_entry_with_our_mark_is_ours(
    shop: Pipeline, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog: Any = {"glue": GlueCatalog, "unity": UnityCatalog}[place.service.type]
    original = catalog.create_table

    def create(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        raise OSError("https://catalog?key=secret-of-it")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "create_table", create)
        summary = run(shop)
    assert states(shop, place) == {"a": "pending", "b": "pending"}
    [line] = lines_of(summary)
    label = LABELS[place.service.type]
    assert line.startswith(f"not in the catalog: public.a, public.b. {label} failed: OSError. Check")
    shop.apply()
    assert states(shop, place) == {"a": "registered", "b": "registered"}
    shutil.rmtree(shop.path("_pgdelta", "catalog_entries"))
    shop.apply()
    assert states(shop, place) == {"a": "registered", "b": "registered"}
    in_catalogs(shop, place.service, schema="moved").apply()
    assert place.entry("public", "a") is None


@pytest.mark.parametrize("place", ["glue"], indirect=True)
def test_a_catalog_that_is_down_delays_no_other(shop: Pipeline, place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    down = CatalogService("hive", uri=f"thrift://127.0.0.1:{port}")
    both = in_catalogs(shop, down, place.service)
    both.ingest()
    failed, registered = lines_of(both.apply())
    assert failed.startswith("catalog: The Hive metastore failed: ConnectionRefusedError. Check that it runs")
    assert registered == "catalog (AWS Glue): 2 tables registered, 0 removed"
    assert states(shop, place) == {"a": "registered", "b": "registered"}
    table, _ = read_status(both.config, is_offline=True).as_json()["tables"]
    assert (table["catalog"]["type"], table["catalog"]["state"]) == ("glue", "registered")
    [other] = table["other_catalogs"]
    assert (other["type"], other["state"], other["name"]) == ("hive", "failed", "public.a")
    [step] = next(plan.steps for plan in make_plan(both.config).tables if plan.name.table == "a")
    assert step.sentence.startswith("The table is registered in the Hive metastore as public.a. The last")


@pytest.mark.promise("hostile catalog names")
def test_a_hostile_name_is_registered(shop: Pipeline, place: Place) -> None:
    shop.catch_up('CREATE TABLE "größe/%2F ${env:HOME}" (id int PRIMARY KEY, "A, (x)`" int, "größe" text[])')
    [entry] = (e for n, e in recorded(shop, place).items() if n.startswith("größe"))
    assert entry.state == "registered"
    name = "A, (x)`" if place.service.type == "unity" else "a, (x)`"  # Hive has no case
    held = {"id": "int", name: "int", "größe": "array<string>"}
    assert place.columns("public", entry.catalog_table) == held
    shop.catch_up()


@pytest.mark.parametrize("place", ["unity", SERVER], indirect=True)
def test_another_client_reads_tables_by_their_names(shop: Pipeline, place: UnityPlace) -> None:
    shop.catch_up()
    client = polars.Catalog(place.service.uri or "", bearer_token=place.service.token, require_https=False)
    assert {name: len(client.scan_table(CATALOG, "public", name).collect()) for name in "ab"} == {
        "a": 5,
        "b": 3,
    }


def test_entries_are_compared_within_an_hour(
    shop: Pipeline, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.catch_up()
    shop.run("COMMENT ON COLUMN b.v IS 'later'")
    place.drop("public", "a")
    run(shop)
    assert place.entry("public", "a") is None
    monkeypatch.setattr(catalog_registrar, "COMPARED_EVERY", timedelta(seconds=3))
    time.sleep(3)
    shop.apply()
    assert place.entry("public", "a") is not None
    assert place.held("public", "b")[1] == ("v", "string", "later")
