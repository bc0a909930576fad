"""What Spark and the commands that need it do with the silver tables of many sources."""

import pytest

from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.read.as_of import as_of
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline, Pipeline, with_writer
from tests.support.tenants import (
    TENANTS,
    apply,
    assert_columns_widen,
    assert_others_stay,
    assert_tenants_equal,
    catch_up,
    files,
    rows,
    tenant_rows,
    with_tenants,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def tenants(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline of three tenants."""
    return with_tenants(make_pipeline("tenant_*.*", copy="initial", create_publication="configured"))


def test_spark_never_touches_another_source(tenants: Pipeline) -> None:
    assert_others_stay(with_writer(tenants, "spark"), spark=True)


def test_spark_reads_columns_that_were_widened_for_all(tenants: Pipeline) -> None:
    assert_columns_widen(with_writer(tenants, "spark"), spark=True)


def test_resync_and_rebuild_are_for_one_source(tenants: Pipeline) -> None:
    others = [files(tenants, tenant) for tenant in TENANTS[1:]]
    before = files(tenants, "tenant_a")
    summary = run_rebuild(tenants.config, ["tenant_a.orders"])
    assert summary.rebuilt == [TableName("tenant_a", "orders")]
    assert_tenants_equal(tenants)
    assert not files(tenants, "tenant_a") & before
    run_resync(tenants.config, ["tenant_a.orders"])
    catch_up(tenants, "UPDATE tenant_a.orders SET total = 9 WHERE id = 1")
    assert_tenants_equal(tenants)
    assert [files(tenants, tenant) for tenant in TENANTS[1:]] == others
    assert run_reconcile(tenants.config, runs=True).exit_code(strict=True) == 0


def test_a_manifest_reads_each_source(tenants: Pipeline) -> None:
    tables = as_of(tenants.session, tenants.root)
    lsn = tables.lsn
    catch_up(tenants, "DELETE FROM tenant_b.orders")
    then = as_of(tenants.session, tenants.root, lsn=lsn)
    assert [then[TableName(tenant, "orders")].count() for tenant in TENANTS] == [5, 5, 5]
    now = as_of(tenants.session, tenants.root)
    assert [now[TableName(tenant, "orders")].count() for tenant in TENANTS] == [5, 0, 5]


def test_a_renamed_column_waits_for_all_sources(tenants: Pipeline) -> None:
    def rename(tenant: str) -> None:
        tenants.run(
            f"ALTER TABLE {tenant}.orders RENAME COLUMN note TO remark",
            f"UPDATE {tenant}.orders SET total = 50 WHERE id = 1",
        )

    before = rows(tenants, "tenant_a", "id", "note", "total")
    rename("tenant_a")
    summary = apply(tenants)
    assert summary.exit_code(strict=True) == 1
    held = summary.tables[TableName("tenant_a", "orders")].held or ""
    assert "Its column remark has another name in the shared table." in held
    assert ("held", held) in tenants.events("orders")
    assert rows(tenants, "tenant_a", "id", "note", "total") == before
    tenants.run("UPDATE tenant_b.orders SET total = 60 WHERE id = 1")
    summary = apply(tenants)
    assert summary.tables[TableName("tenant_a", "orders")].held == held
    assert rows(tenants, "tenant_b", "id", "note", "total") == tenant_rows(
        tenants, "tenant_b", "id", "note", "total"
    )
    rename("tenant_b")
    rename("tenant_c")
    apply(tenants)  # the last one lets the others follow
    catch_up(tenants)
    assert_tenants_equal(tenants, "id", "remark", "total", spark=True)
