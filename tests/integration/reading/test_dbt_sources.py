"""`pgdelta dbt-sources` over a lake that the jobs filled: modes, comments, keys, and how far silver is."""

from typing import Any

from pipeline.apply.job import run_apply
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.reading.dbt_sources import Freshness, read_dbt_sources
from tests.support.pipelines import MakePipeline, with_rules


def test_the_sources_follow_what_the_jobs_wrote(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("*.*", copy="initial", create_publication="configured")
    rules = [TableRule("public.prices", mode="history"), TableRule("public.log", mode="append")]
    rules += [TableRule("t_*.*", target="{table}"), *pipeline.config.tables]
    pipeline = with_rules(pipeline, *rules)
    pipeline.run(
        "CREATE TABLE orders (id int, line int, item text, PRIMARY KEY (id, line))",
        "COMMENT ON TABLE orders IS 'What was bought'",
        "COMMENT ON COLUMN orders.item IS 'Its name'",
        "CREATE TABLE prices (id int PRIMARY KEY, price int)",
        "CREATE TABLE log (id int PRIMARY KEY)",
        "CREATE TABLE entire (id int)",
        "ALTER TABLE entire REPLICA IDENTITY FULL",
        "CREATE SCHEMA t_a CREATE TABLE tenants (id int PRIMARY KEY)",
        "CREATE SCHEMA t_b CREATE TABLE tenants (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1, 1, 'a')",
        "INSERT INTO prices VALUES (1, 1)",
    )

    def run() -> dict[str, dict[str, Any]]:
        run_ingest(pipeline.config)
        run_apply(pipeline.config)
        content = read_dbt_sources(pipeline.config, (), Freshness()).content
        return {source["name"]: {t["name"]: t for t in source["tables"]} for source in content["sources"]}

    found = run()
    shared = f"{pipeline.config.pipeline}_shared"
    assert {name: sorted(tables) for name, tables in found.items()} == {
        "public": ["entire", "log", "orders", "prices"],
        shared: ["tenants"],
        f"{pipeline.config.pipeline}_pgdelta": ["status"],
    }
    orders = found["public"]["orders"]
    assert orders["description"] == "What was bought"
    assert [c.get("description") for c in orders["columns"]][:3] == [None, None, "Its name"]
    assert orders["data_tests"] == [{"unique": {"arguments": {"column_name": "(id, line)"}}}]
    tested = {name: "data_tests" in str(table) for name, table in found["public"].items()}
    assert tested == {"entire": False, "log": False, "orders": True, "prices": True}
    assert "_source" in [column["name"] for column in found[shared]["tenants"]["columns"]]

    pipeline.run("ALTER TABLE orders RENAME item TO product", "UPDATE orders SET product = 'b'")
    assert run()["public"]["orders"]["columns"][2]["name"] == "product"
    # a table that rests is as far as the one that changed
    lake = Lake(pipeline.config.storage)
    (order,) = lake.table("silver", "public", "orders").rows().to_pylist()
    reached = {row["commit_time"] for row in lake.table("_pgdelta", "status").rows().to_pylist()}
    assert reached == {order["_commit_time"]}
