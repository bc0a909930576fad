"""A table that stays behind stops no other.

A table whose changes cannot be followed is held. One that fails, or that a foreign commit changed, fails
alone until it is restored (maintenance is no change); one that is configured later catches up from bronze.
"""

import re
import shutil
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.apply.table_applier import TableApplier
from pipeline.delta.table import Lake
from pipeline.operate.resync import run_resync
from pipeline.report.status import read_status
from pipeline.silver.read.as_of import find_silver
from pipeline.silver.write.table import SilverTable
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS, TABLES
from tests.support.pipelines import MakePipeline, Pipeline


def silver_orders(pipeline: Pipeline) -> DeltaTable:
    return DeltaTable(str(pipeline.path("silver", "public", "orders")))


@pytest.mark.promise("one bad table")
def test_a_type_change_that_cannot_be_followed_is_held_with_an_event(pipeline: Pipeline) -> None:
    tables = ("retyped", "floating", "followed")
    pipeline.ingest(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in tables))
    pipeline.catch_up(*(f"INSERT INTO {table} VALUES (1, 1), (2, 2)" for table in tables))
    pipeline.ingest(
        *(f"UPDATE {table} SET v = 10 WHERE id = 1" for table in tables),
        "ALTER TABLE retyped ALTER v TYPE text USING 'text ' || v",
        "ALTER TABLE floating ALTER v TYPE real",
        *(f"INSERT INTO {table} VALUES (3)" for table in tables),
    )
    for _ in range(2):
        summary = pipeline.apply()
        assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
        for table in tables[:2]:
            assert any(line.startswith(f"held: Table public.{table} is held: ") for line in summary.lines())
    pipeline.assert_equal("followed")
    for table in tables[:2]:
        rows = pipeline.frame("silver", "public", table).select("id", "v").collect()
        assert sorted(map(tuple, rows)) == [(1, 10), (2, 2)], table
        assert [kind for kind, _ in pipeline.events(table)] == ["held"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_configured_later_gets_its_history_from_bronze(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.orders", create_publication="all")
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    pipeline.catch_up(*CHANGE)
    assert not pipeline.path("silver", "public", "lines").exists()
    wider = make_pipeline()
    wider.apply()
    wider.assert_equal(*TABLES)


@pytest.mark.promise("one bad table")
def test_a_table_that_fails_stops_no_other_and_catches_up_alone(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    table, aside = pipeline.path("silver", "public", "lines"), pipeline.path("aside")
    table.rename(aside)
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020d}.json").write_text("garbage")
    pipeline.ingest(*CHANGE)
    for _ in range(2):
        summary = pipeline.apply()
        assert summary.exit_code(strict=False) == 1
        assert [line for line in summary.lines() if line.startswith("failed: public.lines: ")]
        pipeline.assert_equal("orders", "log")
    shutil.rmtree(table)
    aside.rename(table)
    assert pipeline.apply().exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)


@pytest.mark.promise("foreign changes")
def test_a_table_with_a_foreign_commit_fails_until_it_is_restored(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    version = silver_orders(pipeline).version()
    silver_orders(pipeline).delete("id = 20")
    pipeline.ingest(*CHANGE)
    summary = pipeline.apply(records_status=True)
    assert summary.exit_code(strict=False) == 1
    [line] = [line for line in summary.lines() if line.startswith("failed: ")]
    assert "public.orders" in line
    assert "DELETE at version" in line
    pipeline.assert_equal("lines", "log")
    status = read_status(pipeline.config, is_offline=True)
    states = {table.name[1]: (table.state, table.sentence) for table in status.tables}
    assert states["orders"][0] == "failed"
    assert "DELETE at version" in (states["orders"][1] or "")
    assert states["lines"] == states["log"] == ("current", None)
    assert status.is_held
    silver_orders(pipeline).restore(version)
    assert pipeline.apply().exit_code(strict=True) == 0
    assert not read_status(pipeline.config, is_offline=True).is_held
    pipeline.assert_equal(*TABLES)


@pytest.mark.promise("foreign commits in manifests")
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_foreign_commit_during_a_run_is_in_no_manifest(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    pipeline.ingest(*CHANGE)
    write, bring = SilverTable.apply, TableApplier._write

    def disturb() -> None:
        silver_orders(pipeline).delete("id = 20")

    def disturbed_write(writer: SilverTable, *given: Any) -> Any:
        if writer.name == ("public", "orders"):
            disturb()  # nobody else had written when it was asked
        return write(writer, *given)

    def disturbed_bring(applier: TableApplier, table: Any, *given: Any) -> Any:
        state = bring(applier, table, *given)
        if table.facts.name == ("public", "orders"):
            disturb()
        return state

    with monkeypatch.context() as patched:
        if moment == "before":
            patched.setattr(SilverTable, "apply", disturbed_write)
        else:
            patched.setattr(TableApplier, "_write", disturbed_bring)
        first = pipeline.apply()
    for summary in (first, pipeline.apply()):
        assert summary.exit_code(strict=False) == 1
        [line] = [line for line in summary.lines() if line.startswith("failed: ")]
        assert "A foreign commit (DELETE at version" in line
        assert "changed rows of silver table public.orders." in line
        assert ("RESTORE" in line) == (moment == "after")
    silver = find_silver(lambda: Lake(pipeline.root))
    assert set(silver.behind) == {("public", "orders")}
    pipeline.assert_equal("lines", "log")
    if moment == "after":
        good = re.search(r"RESTORE it to version (\d+)", line)
        assert good
        silver_orders(pipeline).restore(int(good[1]))
        assert pipeline.apply().exit_code(strict=True) == 0
    else:
        run_resync(pipeline.config, ["public.orders"])
        pipeline.catch_up()
    pipeline.assert_equal(*TABLES)
    assert not find_silver(lambda: Lake(pipeline.root)).behind


@pytest.mark.spark
@pytest.mark.slow
def test_maintenance_of_silver_is_not_a_change(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG)
    pipeline.catch_up(*FILL)
    pipeline.catch_up(*CHANGE)
    for name in TABLES:
        table = f"delta.`{pipeline.path('silver', 'public', name)}`"
        pipeline.session.sql(f"OPTIMIZE {table}")
        pipeline.session.sql(f"VACUUM {table}")
    pipeline.run("UPDATE orders SET item = 'last'", "DELETE FROM lines", "INSERT INTO log VALUES ('last')")
    pipeline.assert_follows(*TABLES)
