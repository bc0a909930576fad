"""What commands do with the silver tables of many sources, and how their columns change, without Spark."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.config.tables import RowMode, TableRule
from pipeline.delta.definition import Definition
from pipeline.delta.native_commit import Operation, commit_version
from pipeline.delta.table import Lake, LakeTable
from pipeline.forget.forget import run_forget
from pipeline.key_ranges import KeyRange
from pipeline.operate.maintain import run_maintenance
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.read.as_of import find_silver
from pipeline.table_name import TableName
from tests.support.deletion_vectors import delete_by_vector
from tests.support.foreign_commits import drop, rename, restore
from tests.support.pipelines import Pipeline, succeeded, with_rules
from tests.support.servers import Database
from tests.support.tenants import (
    TENANTS,
    apply,
    assert_columns_widen,
    assert_others_stay,
    assert_tenants_equal,
    catch_up,
    ddl_of_total,
    files,
    rows,
    tenant_rows,
    with_tenants,
)

DAY = 86_400


@pytest.fixture
def tenants(database: Database, tmp_path: Path) -> Iterator[Pipeline]:
    """Give a pipeline of three tenants; it has no Spark session."""
    config = database.config(root=str(tmp_path / "lake"), copy="initial", create_publication="configured")
    with database.connect() as source:
        yield with_tenants(Pipeline(database, config, source))


def assert_a_resync_is_for_one_source(tenants: Pipeline) -> None:
    others = [files(tenants, tenant) for tenant in TENANTS[1:]]
    before = files(tenants, "tenant_a")
    run_resync(tenants.config, ["tenant_a.orders"])
    catch_up(tenants, "UPDATE tenant_a.orders SET total = 9 WHERE id = 1")
    assert_tenants_equal(tenants)
    assert not files(tenants, "tenant_a") & before
    assert [files(tenants, tenant) for tenant in TENANTS[1:]] == others


def assert_maintenance_keeps_all_rows(tenants: Pipeline) -> None:
    rules = replace(tenants.config.maintenance, small_files=2)
    tenants = replace(tenants, config=replace(tenants.config, maintenance=rules))
    for number in range(4):
        catch_up(tenants, f"INSERT INTO tenant_a.orders VALUES ({20 + number}, 'more', {number})")
    count = len(files(tenants, "tenant_a"))
    later = time.time() + 30 * DAY
    succeeded(run_maintenance(tenants.config, (), clock=lambda: later))
    assert len(files(tenants, "tenant_a")) < count
    assert_tenants_equal(tenants)


def assert_a_forgotten_row_is_erased(tenants: Pipeline) -> None:
    catch_up(tenants, "INSERT INTO tenant_a.orders VALUES (500, 'xyzzySubject', 0)")
    catch_up(tenants, "DELETE FROM tenant_a.orders WHERE id = 500")
    run_forget(tenants.config, "tenant_a.orders", [("500",)])
    for path in tenants.path("silver").rglob("*"):
        assert not path.is_file() or b"xyzzySubject" not in path.read_bytes(), path
    assert_tenants_equal(tenants)
    catch_up(tenants, "UPDATE tenant_b.orders SET total = 1 WHERE id = 1")
    assert_tenants_equal(tenants)


def assert_a_column_may_come_to_one_source_first(tenants: Pipeline) -> None:
    catch_up(
        tenants,
        "ALTER TABLE tenant_b.orders ADD COLUMN extra int DEFAULT 3",
        "UPDATE tenant_b.orders SET note = 'later' WHERE id = 1",
    )
    assert_tenants_equal(tenants)
    assert rows(tenants, "tenant_b", "id", "extra") == tenant_rows(tenants, "tenant_b", "id", "extra")
    assert {extra for _, extra in rows(tenants, "tenant_a", "id", "extra")} == {None}


def assert_another_type_is_held(tenants: Pipeline) -> None:
    tenants.run(
        "CREATE SCHEMA tenant_d",
        "CREATE TABLE tenant_d.orders (id int PRIMARY KEY, note text, total text)",
        "INSERT INTO tenant_d.orders VALUES (1, 'd', 'many')",
    )
    summary = apply(tenants)
    held = summary.tables[TableName("tenant_d", "orders")].held or ""
    assert "Its column total has the type STRING, and INT in the shared table." in held
    assert_tenants_equal(tenants)
    assert rows(tenants, "tenant_d", "id") == []


@pytest.mark.promise("shared tables")
@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_rebuild_gives_a_renamed_column_its_name_in_the_files(
    database: Database, tmp_path: Path, mode: RowMode
) -> None:
    """The table is built in steps, between which its column got another name."""
    config = database.config(root=str(tmp_path / "lake"), copy="initial", create_publication="configured")
    with database.connect() as source:
        rules = (TableRule("tenant_*.orders", target="{table}", mode=mode), TableRule("*.ticks"))
        pipeline = with_rules(Pipeline(database, config, source), *rules)
        table = "CREATE TABLE {0}.orders (id int PRIMARY KEY, {1} text)".format
        fill = "INSERT INTO {0}.orders SELECT i, 'v' || i FROM generate_series(1, 5) i".format
        pipeline.run("CREATE SCHEMA tenant_a", table("tenant_a", "v"), fill("tenant_a"))
        pipeline.run(
            "CREATE TABLE tenant_a.ticks (v int)", "ALTER TABLE tenant_a.ticks REPLICA IDENTITY FULL"
        )
        catch_up(pipeline)
        keys = [KeyRange(("1",), ("1",))] if mode == "mirror" else ()
        for rename in ((), ("ALTER TABLE tenant_a.orders RENAME v TO w",)):
            catch_up(pipeline, *rename, "UPDATE tenant_a.orders SET id = id + 10 WHERE id % 2 = 1")
            run_resync(pipeline.config, ["tenant_a.orders"], key_ranges=keys)
            pipeline.ingest()
            catch_up(pipeline, "INSERT INTO tenant_a.ticks VALUES (2)")
        pipeline.run("CREATE SCHEMA tenant_b", table("tenant_b", "w"), fill("tenant_b"))
        summary = apply(pipeline)
        held = summary.tables[TableName("tenant_b", "orders")].held or ""
        # in mode history, the later copy has rebuilt the table already
        assert ("Run pgdelta rebuild for the tables of all sources" in held) == (mode == "mirror")
        succeeded(run_rebuild(pipeline.config, ["tenant_?.orders"]))
        catch_up(pipeline, "UPDATE tenant_b.orders SET w = 'x' WHERE id = 2")
        for tenant in TENANTS[:2]:
            marks = ["_is_current"] if mode == "history" else []
            found = rows(pipeline, tenant, "id", "w", *marks)
            current = [(id_, w) for id_, w, *is_current in found if is_current in ([], [True])]
            assert sorted(current) == tenant_rows(pipeline, tenant, "id", "w"), tenant


@pytest.mark.promise("shared tables")
def test_what_is_done_for_one_source_leaves_the_others_as_they_are(tenants: Pipeline) -> None:
    assert_a_resync_is_for_one_source(tenants)
    assert_maintenance_keeps_all_rows(tenants)
    assert_a_forgotten_row_is_erased(tenants)
    assert_others_stay(tenants)
    assert_a_column_may_come_to_one_source_first(tenants)
    assert_another_type_is_held(tenants)


@pytest.mark.promise("shared tables")
def test_a_wider_type_of_one_source_widens_the_column_of_all(tenants: Pipeline) -> None:
    assert_columns_widen(tenants)


@pytest.mark.promise("shared tables")
def test_a_type_that_does_not_fit_holds_its_source_until_all_have_it(tenants: Pipeline) -> None:
    path = tenants.path("silver", "orders")
    tenants = with_rules(tenants, *(replace(each, type_changes="rebuild") for each in tenants.config.tables))
    altered = "ALTER TABLE {}.orders ALTER total TYPE text"
    tenants.run(altered.format("tenant_a"), *(f"DELETE FROM {each}.orders WHERE id = 1" for each in TENANTS))
    summary = apply(tenants)
    sentence = (
        f"Table tenant_a.orders is held in file:{path}, which has its earlier rows. Its column total has "
        "the type STRING, and INT in the shared table. Change the tables of all sources alike, or give this "
        "one another target. If a source has left, run pgdelta rebuild for the tables of the others."
    )
    held = {name: state.held for name, state in summary.tables.items() if state.held}
    assert held == {TableName("tenant_a", "orders"): sentence}
    silver = find_silver(lambda: Lake(tenants.root))
    lacks = f"Table tenant_a.orders lacks rows as of {silver.lsn}. Run pgdelta status to find out why."
    assert silver.table("tenant_a", "orders").refusal == lacks
    assert len(rows(tenants, "tenant_a", "id")) == 5
    for tenant in TENANTS[1:]:
        assert rows(tenants, tenant, "id", "total") == tenant_rows(tenants, tenant, "id", "total")
    events = tenants.events("orders")
    # none is held, not even in the batch in which the types of the others change
    catch_up(tenants, *(altered.format(tenant) for tenant in TENANTS[1:]))
    assert ddl_of_total(tenants) == "STRING"
    assert_tenants_equal(tenants)
    assert [each for each in tenants.events("orders")[len(events) :] if each[0] == "held"] == []


def assert_held(tenants: Pipeline, sentence: str) -> None:
    """Assert that a shared table is left as it is while its sources' tables follow."""
    shared = Lake(tenants.root).table("silver", "orders")
    before = shared.snapshot()
    tenants.run(
        "ALTER TABLE tenant_b.orders ADD COLUMN extra timestamp",
        "INSERT INTO tenant_b.orders VALUES (-7, 'later', 7, now())",
    )
    summary = apply(tenants)
    held = summary.tables[TableName("tenant_b", "orders")].held or ""
    assert held == (
        f"Table tenant_b.orders is held in {shared.path}, which has its earlier rows. {sentence} Remove it "
        "from the shared table, or give this one another target."
    )
    assert ("held", held) in tenants.events("orders")
    after = shared.snapshot()
    assert (after.version, after.protocol) == (before.version, before.protocol)
    own = LakeTable(f"{shared.path}/_parts/{tenants.config.pipeline}.tenant_b")
    assert -7 in own.rows(["id"]).column("id").to_pylist()


def test_what_another_writer_requires_is_not_violated(tenants: Pipeline) -> None:
    shared = Lake(tenants.root).table("silver", "orders")
    DeltaTable(str(shared.folder)).alter.add_constraint({"positive": "id > 0"})
    assert_held(tenants, "The shared table has the constraint positive, which only Spark writes.")
    DeltaTable(str(shared.folder)).alter.drop_constraint("positive")
    catch_up(tenants)
    assert_tenants_equal(tenants)


def test_another_writers_features_are_not_lost(tenants: Pipeline) -> None:
    shared = Lake(tenants.root).table("silver", "orders")
    snapshot = shared.snapshot()
    names = {"readerFeatures": [], "writerFeatures": ["inCommitTimestamp"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **names}}
    enabled = Definition.of(snapshot).with_properties({"delta.enableInCommitTimestamps": "true"})
    actions = [protocol, {"metaData": dict(enabled.metadata)}]
    commit_version(shared.folder, snapshot.version, actions, Operation("SET TBLPROPERTIES"))
    assert_held(tenants, "The shared table has the table feature inCommitTimestamp, which only Spark writes.")


def test_rows_that_a_foreign_deletion_vector_hides_come_back(tenants: Pipeline) -> None:
    shared = Lake(tenants.root).table("silver", "orders")
    delete_by_vector(shared, [0, 1])
    assert len(rows(tenants, "tenant_b", "id")) == 3
    catch_up(tenants, "ALTER TABLE tenant_a.orders ADD COLUMN at timestamp", "DELETE FROM tenant_a.orders")
    assert "deletionVectors" in shared.snapshot().protocol["writerFeatures"]
    assert_tenants_equal(tenants)


@pytest.mark.promise("foreign changes")
def test_columns_that_another_writer_altered_are_as_at_their_sources(tenants: Pipeline) -> None:
    shared = Lake(tenants.root).table("silver", "orders")
    drop(shared, "total")
    rename(shared, "note", "remark")
    catch_up(tenants, "UPDATE tenant_b.orders SET total = 9 WHERE id = 1")
    assert_tenants_equal(tenants)

    own = LakeTable(f"{shared.path}/_parts/{tenants.config.pipeline}.tenant_b")
    version = drop(own, "total")
    tenants.run("UPDATE tenant_b.orders SET note = 'b'", "UPDATE tenant_c.orders SET note = 'c'")
    failure = apply(tenants).tables[TableName("tenant_b", "orders")].failure or ""
    assert (
        f"(DROP COLUMNS at version {version}) removed column total of silver table tenant_b.orders" in failure
    )
    assert rows(tenants, "tenant_c", "note") == [("c",)] * 5
    restore(own, version - 1)
    catch_up(tenants)
    assert_tenants_equal(tenants)
