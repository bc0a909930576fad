"""Relations that are not what they seem: what of them silver has, and the sentence where it has not all."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.init import choose_tables, read_source
from pipeline.operate.init_file import FileRule
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect
from pipeline.postgres.matched_relations import read_relations
from pipeline.progress import IngestSummary
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.servers import Database, database_of_each

FOREIGN = (
    "CREATE EXTENSION file_fdw",
    "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
)
ROOT = (
    "CREATE TABLE sales (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE s1 PARTITION OF sales FOR VALUES FROM (0) TO (100)",
    "CREATE UNLOGGED TABLE s2 PARTITION OF sales FOR VALUES FROM (100) TO (200)",
)
FAR = (  # a root with a foreign partition has no primary key
    "CREATE TABLE log (id int, v text) PARTITION BY LIST (id)",
    "ALTER TABLE log REPLICA IDENTITY FULL",
    "CREATE TABLE log1 PARTITION OF log FOR VALUES IN (1)",
    "ALTER TABLE log1 REPLICA IDENTITY FULL",
    "CREATE FOREIGN TABLE log2 PARTITION OF log FOR VALUES IN (2)"
    " SERVER files OPTIONS (program 'echo 2,far', format 'csv')",
)
FAMILY = (
    "CREATE TABLE parent (id int PRIMARY KEY, v text)",
    "CREATE TABLE child (w text, PRIMARY KEY (id)) INHERITS (parent)",
    "CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (child)",
    "INSERT INTO parent VALUES (1, 'own')",
    "INSERT INTO child VALUES (1, 'of the child', 'w')",
)
ODD = (
    "CREATE TABLE orders (id int PRIMARY KEY)",
    "CREATE VIEW report AS SELECT * FROM orders",
    "CREATE VIEW other_report AS SELECT * FROM orders",
    "CREATE MATERIALIZED VIEW stored AS SELECT * FROM orders",
    "CREATE SEQUENCE numbers",
    "CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY)",
    "CREATE FOREIGN TABLE lone (id int) SERVER files OPTIONS (program 'echo 2', format 'csv')",
    "CREATE EXTENSION hstore",
    "CREATE TABLE lookup (id int PRIMARY KEY)",
    "ALTER EXTENSION hstore ADD TABLE lookup",
)
HYPERTABLES = (
    "CREATE SCHEMA _timescaledb_catalog",
    "CREATE TABLE _timescaledb_catalog.hypertable (id int, schema_name name, table_name name)",
    "CREATE TABLE metrics (id int PRIMARY KEY)",
    "INSERT INTO _timescaledb_catalog.hypertable VALUES (1, 'public', 'metrics')",
)

database = database_of_each(13, 15)


def catch_up(pipeline: Pipeline) -> IngestSummary:
    """Capture and apply all there is, and return what ingest did."""
    ingested = pipeline.ingest()
    assert pipeline.apply().exit_code(strict=True) == 0
    return ingested


def texts(reasons: Mapping[TableName, object]) -> dict[str, str]:
    return {str(name): str(reason) for name, reason in reasons.items()}


def published(database: Database) -> set[str]:
    return {name for (name,) in database.run("SELECT tablename FROM pg_publication_tables")}


def rows(pipeline: Pipeline, table: str) -> list[tuple[object, ...]]:
    found = pipeline.frame("silver", "public", table).select("id", "v").collect()
    return sorted(tuple(row) for row in found)


HEIRS = (
    "Silver has its own rows, as SELECT … FROM ONLY shows them. Tables inherit from it: {}. SELECT shows"
    " their rows too; query them with UNION ALL."
)
UNLOGGED = (
    "Silver has no rows of these partitions: public.s2. They are unlogged, so that their changes are not in"
    " the WAL; ALTER TABLE … SET LOGGED makes them followed."
)
FAMILY_PARTIAL = {
    "public.child": HEIRS.format("public.grandchild"),
    "public.parent": HEIRS.format("public.child, public.grandchild"),
}
PARTIAL = {
    **FAMILY_PARTIAL,
    "public.log": "Silver has no rows of these partitions: public.log2. They are foreign tables, whose"
    " changes are made on other servers.",
    "public.sales": UNLOGGED,
}
NAMED = {
    "public.metrics": "It is a TimescaleDB hypertable: the stream has its rows under the names of its chunks,"
    " so that silver would be empty. Leave it out of tables, or copy it into an ordinary table.",
    "public.numbers": "It is a sequence, whose values are not in the stream. Leave it out of tables.",
    "public.report": "It is a view, which has no rows and no changes of its own. Name the tables that it"
    " reads.",
}
PASSED_OVER = {
    "public.lone": "It is a foreign table, whose changes are made on another server. Replicate it from that"
    " server.",
    "public.lookup": "It belongs to the extension hstore. A rule that names it without * and ? follows it.",
    "public.other_report": NAMED["public.report"],
    "public.scratch": "It is unlogged, so its changes are not in the WAL. Run ALTER TABLE … SET LOGGED to"
    " follow it.",
    "public.stored": "It is a materialized view, whose changes are not in the stream. Name the tables that it"
    " reads.",
}
REFUSED = (
    "Tables inherit from it (public.child, public.grandchild), whose rows SELECT on it shows too, and"
    " inheritance is refuse. Set inheritance: parent_only for its own rows, or end that with ALTER TABLE … NO"
    " INHERIT."
)


@pytest.mark.promise("relations that are not what they seem")
def test_what_is_not_followed_is_out_of_silver_and_named(
    database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline("public.report", "public.numbers", "public.*", copy="initial")
    silver = replace(pipeline.config.silver, resync="auto")
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=silver))
    pipeline.run(
        *(*FOREIGN, *ROOT, *FAR, *FAMILY, *ODD, *HYPERTABLES),
        "INSERT INTO sales VALUES (1, 'a'), (2, 'b'), (101, 'unlogged')",
        "INSERT INTO log VALUES (1, 'near')",
        f"CREATE PUBLICATION {database.name} FOR TABLE sales, log, parent, orders, metrics"
        " WITH (publish_via_partition_root)",
    )
    ingested = catch_up(pipeline)
    assert rows(pipeline, "sales") == [(1, "a"), (2, "b")]
    assert rows(pipeline, "log") == [(1, "near")]
    pipeline.assert_equal("parent", "child", "grandchild", "orders")

    # the run, `check` and `status` have the same sentences
    lines = set(ingested.lines())
    assert {f"{name}: {sentence}" for name, sentence in PARTIAL.items()} <= lines
    assert f"not followed: public.metrics. {NAMED['public.metrics']}" in lines
    assert f"not followed: public.other_report, public.report. {NAMED['public.report']}" in lines
    assert texts(ingested.unfollowed) == NAMED
    assert texts(ingested.passed_over) == PASSED_OVER
    assert ingested.unpublished == {}
    assert [ingested.exit_code(strict=strict) for strict in (False, True)] == [0, 1]
    checks = [each for each in run_checks(pipeline.config) if each.name == "relations"]
    assert {each.sentence for each in checks if not each.fix} == set(map(": ".join, PARTIAL.items()))
    assert sum(not each.ok for each in checks) == len(NAMED)
    assert len(checks) == len({*NAMED, *PASSED_OVER, *PARTIAL})
    status = read_status(pipeline.config)
    assert status.source is not None
    assert texts(status.source.passed_over) == PASSED_OVER
    for found in (status, read_status(pipeline.config, is_offline=True)):
        shown = {str(table.name): table for table in found.tables}
        assert {name: table.partial for name, table in shown.items() if table.partial} == PARTIAL
        for name, text in NAMED.items():
            sentence = f"It matches the configuration and is not followed. {text}"
            assert (shown[name].state, shown[name].sentence) == ("unpublished", sentence)

    # a row that moves out of the followed partitions leaves silver, and one that moves into them is in it
    pipeline.run("UPDATE sales SET id = id + 100 WHERE id = 2", "UPDATE sales SET id = 3 WHERE id = 101")
    pipeline.run("ALTER EXTENSION hstore DROP TABLE lookup", "INSERT INTO lookup VALUES (1)")
    refusing = TableRule("public.parent", inheritance="refuse")
    pipeline = with_rules(pipeline, refusing, *pipeline.config.tables)
    ingested = catch_up(pipeline)
    assert rows(pipeline, "sales") == [(1, "a"), (3, "unlogged")]
    assert f"not followed: public.parent. {REFUSED}" in ingested.lines()

    # rows of a partition that is logged again are copied; a table that is refused does not change
    pipeline.run("ALTER TABLE s2 SET LOGGED", "UPDATE parent SET v = 'refused'")
    catch_up(pipeline)
    catch_up(pipeline)
    pipeline.assert_equal("sales", "child")
    assert rows(pipeline, "parent") == [(1, "own")]
    assert ("partial", UNLOGGED) in pipeline.events("sales")
    whole = "SELECT on the source and silver show the same rows of the table again."
    assert ("whole", whole) in pipeline.events("sales")

    pipeline.run(
        "ALTER TABLE s1 SET UNLOGGED",
        "INSERT INTO sales VALUES (5, 'unlogged'), (105, 'logged')",
        "ALTER TABLE child NO INHERIT parent",
    )
    catch_up(pipeline)
    catch_up(pipeline)
    assert rows(pipeline, "sales") == [(102, "b"), (105, "logged")]
    pipeline.assert_equal("parent", "child", "grandchild")


def test_a_table_of_an_extension_is_followed_if_a_rule_names_it(
    database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline("public.*", copy="initial")
    pipeline.ingest(*FOREIGN, *ODD)
    assert published(database) == {"orders"}
    by_name = with_rules(pipeline, TableRule("public.lookup"), *pipeline.config.tables)
    by_name.ingest("INSERT INTO lookup VALUES (1)")
    assert published(database) == {"orders", "lookup"}
    by_name.apply()
    by_name.assert_equal("lookup")
    sentences = [each.sentence for each in run_checks(pipeline.config) if each.name == "relations"]
    assert len(sentences) == 4
    assert not any("lookup" in sentence for sentence in sentences)  # it is published already


def test_init_names_what_it_leaves_out(database: Database) -> None:
    database.run(*FOREIGN, *ODD, *FAMILY)
    facts = read_source(database.conninfo)
    found = choose_tables(facts, [])
    assert found.rules == {"public": [FileRule("public.*")]}
    assert texts(facts.passed_over) == PASSED_OVER | {"public.report": NAMED["public.report"]}
    assert texts(facts.partial) == FAMILY_PARTIAL
    named = choose_tables(facts, ["public.*", "public.lookup"])
    assert named.rules == {"public": [FileRule("public.lookup"), FileRule("public.*")]}
    database.run(*HYPERTABLES)
    found = choose_tables(read_source(database.conninfo), [])
    assert found.rules["public"] == [FileRule("public.*", ("public.metrics",))]
    reason = next(reason for table, reason in found.left_out if table.name.table == "metrics")
    assert NAMED["public.metrics"].startswith(reason)


def test_another_access_method_is_followed_only_if_it_is_published(
    database: Database, make_pipeline: MakePipeline
) -> None:
    """heap by another name is heap; a method with functions of its own is not."""
    database.run(
        "CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler",
        "CREATE TABLE t (id int PRIMARY KEY) USING heap2",
    )
    with closing(connect(database.conninfo)) as connection:
        config = make_pipeline("public.*").config
        relations = read_relations(connection, config)
    assert relations.refused() == relations.passed_over() == {}
