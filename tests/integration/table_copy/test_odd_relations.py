"""Relations that are not what they seem: what of them silver has, and the sentence where it has not all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline.config.tables import TableRule
from pipeline.operate.init import choose_tables, read_source
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect
from pipeline.postgres.matched_relations import read_relations
from pipeline.report.status import read_status
from pipeline.report.status_page import TableStatus
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.servers import Database, new_database, serve_database

pytestmark = pytest.mark.postgres

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


@pytest.fixture(scope="module", params=[13, pytest.param(15, marks=pytest.mark.slow), 18])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Give servers of several versions."""
    yield from serve_database(tmp_path_factory.mktemp("odd"), request.param)


@pytest.fixture
def database(source: Database) -> Iterator[Database]:
    """Give a fresh database of each server in turn."""
    yield from new_database(source.server)


def shown(pipeline: Pipeline, table: str, *, is_offline: bool = False) -> TableStatus:
    """Return a table in `pgdelta status`."""
    tables = read_status(pipeline.config, is_offline=is_offline).tables
    return next(each for each in tables if each.name.table == table)


def checked(pipeline: Pipeline) -> list[tuple[bool, str, str]]:
    return [
        (each.ok, each.sentence, each.fix) for each in run_checks(pipeline.config) if each.name == "relations"
    ]


def rows(pipeline: Pipeline, table: str) -> list[tuple[object, ...]]:
    found = pipeline.frame("silver", "public", table).select("id", "v").collect()
    return sorted(tuple(row) for row in found)


def test_partitions_that_send_no_changes_are_not_in_silver(
    database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline("public.sales", "public.log", copy="initial")
    silver = replace(pipeline.config.silver, resync="auto")
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=silver))
    pipeline.run(
        *(*FOREIGN, *ROOT, *FAR),
        "INSERT INTO sales VALUES (1, 'a'), (2, 'b'), (101, 'unlogged')",
        "INSERT INTO log VALUES (1, 'near')",
        f"CREATE PUBLICATION {database.name} FOR TABLE sales, log WITH (publish_via_partition_root)",
    )
    ingested = pipeline.ingest()
    pipeline.apply()
    assert rows(pipeline, "sales") == [(1, "a"), (2, "b")]
    assert rows(pipeline, "log") == [(1, "near")]
    unlogged = (
        "Silver has no rows of these partitions: public.s2. They are unlogged, so that their changes are not in"
        " the WAL; ALTER TABLE … SET LOGGED makes them followed."
    )
    foreign = (
        "Silver has no rows of these partitions: public.log2. They are foreign tables, whose changes are made on"
        " other servers."
    )
    assert {f"public.sales: {unlogged}", f"public.log: {foreign}"} <= set(ingested.lines())
    assert [(True, f"public.log: {foreign}", ""), (True, f"public.sales: {unlogged}", "")] == checked(
        pipeline
    )
    for is_offline in (False, True):
        found = shown(pipeline, "sales", is_offline=is_offline)
        assert (found.state, found.partial) == ("current", unlogged)

    # a row that moves to such a partition leaves silver, and one that comes back is in it
    pipeline.run("UPDATE sales SET id = id + 100 WHERE id = 2", "UPDATE sales SET id = 3 WHERE id = 101")
    pipeline.catch_up()
    assert rows(pipeline, "sales") == [(1, "a"), (3, "unlogged")]

    pipeline.run("ALTER TABLE s2 SET LOGGED")
    pipeline.catch_up()
    assert (
        "whole",
        "SELECT on the source and silver show the same rows of the table again.",
    ) in pipeline.events("sales")
    pipeline.catch_up()
    pipeline.assert_equal("sales")
    assert shown(pipeline, "sales").partial is None

    pipeline.run("ALTER TABLE s1 SET UNLOGGED", "INSERT INTO sales VALUES (5, 'unlogged'), (105, 'logged')")
    pipeline.catch_up()
    pipeline.catch_up()
    assert rows(pipeline, "sales") == [(102, "b"), (105, "logged")]


def test_a_table_that_others_inherit_from_has_its_own_rows_or_is_refused(
    database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline("public.*", copy="initial")
    pipeline.run(*FAMILY)
    pipeline.catch_up()
    pipeline.assert_equal("parent", "child", "grandchild")
    own = (
        "Silver has its own rows, as SELECT … FROM ONLY shows them. Tables inherit from it: public.child,"
        " public.grandchild. SELECT shows their rows too; query them with UNION ALL."
    )
    assert shown(pipeline, "parent").partial == shown(pipeline, "parent", is_offline=True).partial == own
    assert shown(pipeline, "grandchild").partial is None

    refusing = with_rules(pipeline, TableRule("public.parent", inheritance="refuse"), TableRule("public.*"))
    reason = (
        "Tables inherit from it (public.child, public.grandchild), whose rows SELECT on it shows too, and"
        " inheritance is refuse."
    )
    fix = "Set inheritance: parent_only for its own rows, or end that with ALTER TABLE … NO INHERIT."
    [refusal, *_] = checked(refusing)
    assert refusal == (False, f"Not followed, though a rule matches: public.parent. {reason}", fix)
    refusing.run("UPDATE parent SET v = 'changed'")
    ingested = refusing.ingest()
    refusing.apply()
    assert f"not followed: public.parent. {reason} {fix}" in ingested.lines()
    assert ingested.exit_code(strict=True) == 1
    assert ingested.exit_code(strict=False) == 0
    found = shown(refusing, "parent")
    sentence = f"It matches the configuration and is not followed. {reason} {fix}"
    assert (found.state, found.sentence) == ("unpublished", sentence)
    assert rows(refusing, "parent") == [(1, "own"), (1, "of the child")][:1]

    refusing.run("ALTER TABLE child NO INHERIT parent")
    refusing.catch_up()
    refusing.assert_equal("parent", "child", "grandchild")


def test_what_is_no_table_is_named_with_what_to_do(database: Database, make_pipeline: MakePipeline) -> None:
    exact = ("public.report", "public.numbers")
    pipeline = make_pipeline(*exact, "public.*", copy="initial")
    pipeline.run(*FOREIGN, *ODD, *HYPERTABLES, "CREATE TABLE heap2 (id int PRIMARY KEY)")
    named = {
        "public.report": "It is a view, which has no rows and no changes of its own. Name the tables that it reads.",
        "public.numbers": "It is a sequence, whose values are not in the stream. Leave it out of tables.",
        "public.metrics": "It is a TimescaleDB hypertable: the stream has its rows under the names of its chunks,"
        " so that silver would be empty. Leave it out of tables, or copy it into an ordinary table.",
    }
    passed_over = {
        "public.other_report": named["public.report"],
        "public.stored": "It is a materialized view, whose changes are not in the stream. Name the tables that it"
        " reads.",
        "public.scratch": "It is unlogged, so its changes are not in the WAL. Run ALTER TABLE … SET LOGGED to"
        " follow it.",
        "public.lone": "It is a foreign table, whose changes are made on another server. Replicate it from that"
        " server.",
        "public.lookup": "It belongs to the extension hstore. A rule that names it without * and ? follows it.",
    }
    ingested = pipeline.ingest()
    pipeline.apply()
    lines = [f"not followed: {name}. {text}" for name, text in {**named, **passed_over}.items()]
    for line in lines[3:]:
        assert line.replace(
            "public.other_report.", "public.other_report, public.report."
        ) in ingested.lines() or (line in ingested.lines())
    assert {str(name): text for name, text in ingested.unfollowed.items()} == named
    assert {str(name): text for name, text in ingested.passed_over.items()} == passed_over
    published = database.run("SELECT tablename FROM pg_publication_tables ORDER BY 1")
    assert published == [("heap2",), ("orders",)]
    status = read_status(pipeline.config)
    assert status.source is not None
    assert {str(name): text for name, text in status.source.passed_over.items()} == passed_over
    for name, text in named.items():
        found = shown(pipeline, name.partition(".")[2])
        assert found.sentence == f"It matches the configuration and is not followed. {text}"
    assert {ok for ok, sentence, _ in checked(pipeline) if "public.stored" in sentence} == {True}
    assert {ok for ok, sentence, _ in checked(pipeline) if "public.metrics" in sentence} == {False}

    # a table of an extension that a rule names, or that is published already, is followed
    by_name = with_rules(pipeline, TableRule("public.lookup"), TableRule("public.orders"))
    by_name.run("INSERT INTO lookup VALUES (1)")
    by_name.catch_up()
    by_name.assert_equal("lookup")
    pipeline.run("INSERT INTO lookup VALUES (2)")
    assert TableName("public", "lookup") not in pipeline.ingest().passed_over
    pipeline.apply()
    pipeline.assert_equal("lookup")


def test_init_names_what_it_leaves_out(database: Database) -> None:
    database.run(*FOREIGN, *ODD, *HYPERTABLES)
    facts = read_source(database.conninfo)
    found = choose_tables(facts, [])
    assert found.globs["public"] == ["public.orders"]  # public.* matches the hypertable
    reasons = {str(table.name): reason for table, reason in found.left_out}
    assert reasons["public.metrics"].startswith("It is a TimescaleDB hypertable")


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
