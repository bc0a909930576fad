"""Three tenants whose tables of one name are one silver table, and what it has of each."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.apply.applier import Applier
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.progress import ApplySummary
from tests.support.comparable.delta_rs import open_table
from tests.support.pipelines import Pipeline, succeeded, with_rules

TENANTS = ("tenant_a", "tenant_b", "tenant_c")


def with_tenants(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose tenants have rows in the table `orders`."""
    pipeline = with_rules(pipeline, TableRule("tenant_*.*", target="{table}"))
    for number, tenant in enumerate(TENANTS):
        pipeline.run(
            f"CREATE SCHEMA {tenant}",
            f"CREATE TABLE {tenant}.orders (id int PRIMARY KEY, note text, total int)",
            f"INSERT INTO {tenant}.orders SELECT i, 'n{number}', i FROM generate_series(1, 5) i",
        )
    catch_up(
        pipeline, "CREATE TABLE tenant_a.ticks (v int)", "ALTER TABLE tenant_a.ticks REPLICA IDENTITY FULL"
    )
    return pipeline


def apply(pipeline: Pipeline, *statements: str) -> ApplySummary:
    """Run statements, and capture what there is and apply it, without a query of Structured Streaming."""
    if pipeline.ingest(*statements).copies:
        pipeline.ingest("INSERT INTO tenant_a.ticks VALUES (1)")  # a copy waits until the stream is past it
    return Applier(pipeline.spark, pipeline.config).apply_pending()


def catch_up(pipeline: Pipeline, *statements: str) -> None:
    succeeded(apply(pipeline, *statements))


def rows(pipeline: Pipeline, tenant: str, *columns: str, spark: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of a source in the shared table, read by Spark, or by delta-rs if it can."""
    source = f"{pipeline.config.pipeline}.{tenant}"
    if spark:
        found = pipeline.frame("silver", "orders").where(f"_source = '{source}'").select(*columns)
        return sorted(tuple(row) for row in found.collect())
    table = open_table(str(pipeline.path("silver", "orders")))
    if table is None:
        found = Lake(pipeline.root).table("silver", "orders").rows(columns, pc.field("_source") == source)
    else:
        found = pa.table(table.scan(list(columns), predicate=f"_source = '{source}'").read_all())
    return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())


def tenant_rows(pipeline: Pipeline, tenant: str, *columns: str) -> list[tuple[Any, ...]]:
    query = f"SELECT {', '.join(columns)} FROM {tenant}.orders ORDER BY 1"
    return pipeline.source.execute(query.encode()).fetchall()


def assert_tenants_equal(pipeline: Pipeline, *columns: str, spark: bool = False) -> None:
    for tenant in TENANTS:
        names = columns or ("id", "note", "total")
        assert rows(pipeline, tenant, *names, spark=spark) == tenant_rows(pipeline, tenant, *names), tenant


def files(pipeline: Pipeline, tenant: str) -> set[str]:
    source = f"{pipeline.config.pipeline}.{tenant}"
    found = Lake(pipeline.root).table("silver", "orders").snapshot().files.values()
    return {add["path"] for add in found if add["partitionValues"]["_source"] == source}


def assert_others_stay(pipeline: Pipeline, *, spark: bool = False) -> None:
    """Assert that one tenant's changes, a truncate among them, leave the files of the others as they are."""
    assert_tenants_equal(pipeline)
    others = [files(pipeline, tenant) for tenant in TENANTS[1:]]
    catch_up(
        pipeline,
        "UPDATE tenant_a.orders SET note = 'changed' WHERE id = 1",
        "UPDATE tenant_a.orders SET id = 100 WHERE id = 2",
        "DELETE FROM tenant_a.orders WHERE id = 3",
    )
    assert_tenants_equal(pipeline)
    catch_up(pipeline, "TRUNCATE tenant_a.orders")
    assert rows(pipeline, "tenant_a", "id") == []
    assert_tenants_equal(pipeline)
    catch_up(pipeline, "INSERT INTO tenant_a.orders VALUES (7, 'again', 7)")
    assert_tenants_equal(pipeline, spark=spark)
    assert [files(pipeline, tenant) for tenant in TENANTS[1:]] == others


def ddl_of_total(pipeline: Pipeline) -> str:
    fields = Lake(pipeline.root).table("silver", "orders").schema().fields
    return next(each.ddl for each in fields if each.name == "total")


def assert_columns_widen(pipeline: Pipeline, *, spark: bool = False) -> None:
    """Assert that a shared table has a type that holds those of all tenants, also of narrower ones."""
    catch_up(
        pipeline,
        "ALTER TABLE tenant_b.orders ALTER total TYPE bigint",
        "UPDATE tenant_b.orders SET total = 3000000000 WHERE id = 1",
        "UPDATE tenant_a.orders SET total = -1 WHERE id = 1",
        "CREATE SCHEMA tenant_d",
        "CREATE TABLE tenant_d.orders (id int PRIMARY KEY, note text, total smallint)",
        "INSERT INTO tenant_d.orders VALUES (1, 'd', 7)",
    )
    assert ddl_of_total(pipeline) == "BIGINT"
    assert_tenants_equal(pipeline, spark=spark)
    assert rows(pipeline, "tenant_d", "total", spark=spark) == [(7,)]
    catch_up(
        pipeline,
        "UPDATE tenant_c.orders SET total = 2147483647",
        "ALTER TABLE tenant_a.orders ALTER total TYPE bigint",
        "ALTER TABLE tenant_d.orders ALTER total TYPE numeric(9, 2)",
        "UPDATE tenant_d.orders SET total = 7.25",
    )
    assert ddl_of_total(pipeline) == "DECIMAL(22,2)"
    assert_tenants_equal(pipeline, spark=spark)
    assert rows(pipeline, "tenant_d", "total", spark=spark) == [(Decimal("7.25"),)]
