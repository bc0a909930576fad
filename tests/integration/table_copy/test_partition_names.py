"""Partitioned tables are one silver table each, and one that is not followed is named, and alone."""

from dataclasses import replace

import pytest

from pipeline.config.config import Create
from pipeline.errors import SourceError
from pipeline.operate.init import choose_tables, read_source
from pipeline.operate.init_file import FileRule
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.report.status import read_status
from tests.support.pipelines import MakePipeline, Pipeline, succeeded
from tests.support.servers import Database, ServerOf, database_of_each, new_database

on_each_server = pytest.mark.usefixtures("database")

SALES = (
    "CREATE TABLE sales (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    "CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')"
    " PARTITION BY LIST (id)",
    "CREATE TABLE sales_2a PARTITION OF sales_2 DEFAULT",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "INSERT INTO sales VALUES (1, '2026-01-05', 'copied'), (2, '2026-02-05', 'copied')",
)
MONTH = "CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')"
SENT_BY_PARTITIONS = (
    "It is partitioned, and the publication {0} sends its rows under the names of its partitions. Run ALTER"
    ' PUBLICATION "{0}" SET (publish_via_partition_root = true): then silver gets one table for each'
    " partitioned table that a rule matches, which is copied, and those of its partitions no more changes. Or"
    " name the partitions in tables."
)
SENT_BY_ROOT = (
    "It is a partition of public.sales, and the publication {0} sends its rows under that name{1} Or run"
    ' ALTER PUBLICATION "{0}" SET (publish_via_partition_root = false): then silver gets a table for each'
    " partition that a rule matches, and that of a partitioned table no more changes."
)
NO_RULE = ", which no rule matches. Name public.sales in tables."
OWN_RULE = ". Leave it out of tables."

database = database_of_each(13)


def published(pipeline: Pipeline) -> set[str]:
    return {name for (name,) in pipeline.database.run("SELECT tablename FROM pg_publication_tables")}


def silver(pipeline: Pipeline) -> set[str]:
    return {path.name for path in pipeline.path("silver", "public").iterdir()}


def assert_named(pipeline: Pipeline, *names: str, sentence: str, is_refused: bool = True) -> None:
    """Assert that `check`, the next run and `status` say the same of relations that are not followed."""
    publication = pipeline.config.source.publication
    expected = {f"public.{name}": sentence.format(publication) for name in names}
    checks = [each for each in run_checks(pipeline.config) if each.name == "relations"]
    assert [(each.ok, f"{each.sentence} {each.fix}") for each in checks] == [
        (not is_refused, f"Not followed, though a rule matches: {', '.join(expected)}. {text}")
        for text in set(expected.values())
    ]
    summary = pipeline.ingest()
    assert summary.exit_code(strict=False) == 0
    assert summary.exit_code(strict=True) == int(is_refused)
    found = summary.unfollowed if is_refused else summary.passed_over
    assert {str(name): text for name, text in found.items()} == expected
    assert any(line.startswith("not followed: ") for line in summary.publication_lines())
    status = read_status(pipeline.config)
    assert status.source is not None
    if not is_refused:
        assert {str(name): text for name, text in status.source.passed_over.items()} == expected
        return
    states = {str(table.name): table for table in status.tables}
    for name, text in expected.items():
        assert states[name].state == "unpublished"
        assert states[name].sentence == f"It matches the configuration and is not followed. {text}"


@pytest.mark.promise("partitioned tables")
@pytest.mark.parametrize(
    "rules", [("public.*",), pytest.param(("public.sales", "public.other"), marks=pytest.mark.slow)]
)
@on_each_server
def test_a_partitioned_table_is_one_silver_table(make_pipeline: MakePipeline, rules: tuple[str, ...]) -> None:
    pipeline = make_pipeline(*rules, copy="initial")
    pipeline.run(*SALES)
    checks = run_checks(pipeline.config)
    [found] = [each.sentence for each in checks if each.name == "publication"]
    assert found.endswith("will be created for 2 tables (public.other, public.sales).")
    assert not [each for each in checks if each.name in ("relations", "published tables")]
    pipeline.catch_up()
    pipeline.run(MONTH, "INSERT INTO sales VALUES (3, '2026-03-05', 'x')", "UPDATE sales SET v = 'y'")
    pipeline.catch_up("UPDATE sales SET day = '2026-03-06' WHERE id = 1", "DELETE FROM sales WHERE id = 2")
    pipeline.assert_equal("sales")
    assert published(pipeline) == {"sales", "other"}
    assert silver(pipeline) == {"sales", "other"}
    assert not pipeline.ingest().publication_lines()


@on_each_server
def test_a_rule_that_names_a_partition_gives_a_table_of_it(make_pipeline: MakePipeline) -> None:
    """Until a rule names its root, too."""
    pipeline = make_pipeline("public.sales_1", copy="initial")
    pipeline.catch_up(*SALES)
    pipeline.catch_up("UPDATE sales SET v = 'y'")
    pipeline.assert_equal("sales_1")
    assert silver(pipeline) == {"sales_1"}
    rules = (*pipeline.config.tables, replace(pipeline.config.tables[0], source="public.sales"))
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=rules))
    assert [str(name) for name in pipeline.ingest().published] == ["public.sales"]
    assert_named(pipeline, "sales_1", sentence=SENT_BY_ROOT.format("{0}", OWN_RULE))
    pipeline.ingest("UPDATE sales SET v = 'z'")
    pipeline.apply()
    pipeline.assert_equal("sales")


@pytest.mark.promise("partitioned tables")
@on_each_server
def test_a_rule_whose_rows_come_under_names_of_partitions_is_named(make_pipeline: MakePipeline) -> None:
    """A publication as earlier releases created it stays as it is, until it is altered as the text says."""
    pipeline = make_pipeline("public.sales", copy="initial", create_via_partition_root=False)
    pipeline.run(*SALES)
    assert_named(pipeline, "sales", sentence=SENT_BY_PARTITIONS)  # before it exists, too
    assert published(pipeline) == {"sales_1", "sales_2a"}
    all_rules = (replace(pipeline.config.tables[0], source="public.*"),)
    source = replace(pipeline.config.source, create=Create())
    pipeline = replace(pipeline, config=replace(pipeline.config, source=source, tables=all_rules))
    pipeline.ingest(MONTH)
    assert_named(pipeline, "sales", "sales_2", sentence=SENT_BY_PARTITIONS, is_refused=False)
    pipeline.catch_up("UPDATE sales SET v = 'y'", "INSERT INTO sales VALUES (3, '2026-03-05', 'x')")
    pipeline.assert_equal("sales_1", "sales_2a", "sales_3")
    name = pipeline.config.source.publication
    pipeline.run(f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)", "DELETE FROM sales_1")
    pipeline.ingest()
    pipeline.catch_up("UPDATE sales SET v = 'z'")
    pipeline.assert_equal("sales")
    states = {table.name.table: table.state for table in read_status(pipeline.config).tables}
    assert states.pop("other")  # it waits for its comparison, because the publication was altered
    assert states == {
        "sales": "current",
        **dict.fromkeys(("sales_1", "sales_2a", "sales_3"), "detached"),
    }


@pytest.mark.parametrize("what", ["TABLE sales", "ALL TABLES"])
@on_each_server
def test_rules_of_partitions_are_named_if_rows_come_under_their_root(
    make_pipeline: MakePipeline, what: str
) -> None:
    pipeline = make_pipeline("public.sales_*", copy="initial")
    name = pipeline.config.source.publication
    pipeline.run(*SALES, f"CREATE PUBLICATION {name} FOR {what} WITH (publish_via_partition_root)")
    sentence = SENT_BY_ROOT.format("{0}", NO_RULE)
    assert_named(pipeline, "sales_1", "sales_2", "sales_2a", sentence=sentence)
    rules = (replace(pipeline.config.tables[0], source="public.*"),)
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=rules))
    if what == "TABLE sales":
        pipeline.run("DROP TABLE other")
    pipeline.assert_follows("sales")
    assert not pipeline.ingest().publication_lines()


def test_init_chooses_a_partitioned_table_once(database: Database) -> None:
    database.run(*SALES)
    facts = read_source(database.conninfo)
    chosen = choose_tables(facts, [])
    assert [table.name.table for table in chosen.tables] == ["other", "sales"]
    assert chosen.rules == {"public": [FileRule("public.*")]}
    assert [table.name.table for table in choose_tables(facts, ["public.sales_1"]).tables] == ["sales_1"]


@pytest.mark.promise("updates without an old row")
@on_each_server
def test_a_root_without_identity_is_held_alone_and_followed_once_mended(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    pipeline.run(
        "CREATE TABLE events (id int NOT NULL, kind text NOT NULL, v text) PARTITION BY LIST (kind)",
        "CREATE TABLE events_a PARTITION OF events FOR VALUES IN ('a')",
        "ALTER TABLE events_a ADD PRIMARY KEY (id, kind)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO events VALUES (1, 'a', 'copied'), (2, 'a', 'copied')",
    )
    [check] = [each for each in run_checks(pipeline.config) if each.name == "identities of partitions"]
    assert not check.ok
    assert check.sentence.endswith("silver is held at the first update or delete: public.events.")
    pipeline.ingest()
    pipeline.catch_up("INSERT INTO events VALUES (3, 'a', 'added')", "INSERT INTO other VALUES (1)")
    pipeline.assert_equal("events", "other")
    pipeline.ingest(
        "INSERT INTO events VALUES (4, 'a', 'added')",
        "UPDATE events SET v = 'x' WHERE id = 1",
        "DELETE FROM events WHERE id = 2",
        "INSERT INTO other VALUES (2)",
    )
    summary = pipeline.apply()
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1), summary.lines()
    pipeline.assert_equal("other")
    assert len(pipeline.frame("silver", "public", "events").select("id").collect()) == 4
    [(kind, sentence)] = [each for each in pipeline.events("events") if each[0] == "held"]
    assert "does not identify its row, because the table has no replica identity" in sentence
    assert 'Run ALTER TABLE "public"."events" ADD PRIMARY KEY (…) with the key of its partitions' in sentence
    [table] = [each for each in read_status(pipeline.config).tables if each.name.table == "events"]
    assert (table.state, table.sentence) == (kind, sentence)
    pipeline.ingest(
        "ALTER TABLE events_a DROP CONSTRAINT events_a_pkey",
        "ALTER TABLE events ADD PRIMARY KEY (id, kind)",
        "UPDATE events SET v = 'mended' WHERE id = 1",
    )
    succeeded(pipeline.apply())
    pipeline.ingest()
    pipeline.catch_up("DELETE FROM events WHERE id = 3", "UPDATE other SET id = 3 WHERE id = 1")
    pipeline.assert_equal("events", "other")


@pytest.mark.slow
@pytest.mark.parametrize("major", [10, 12])
def test_older_servers_have_a_table_for_each_partition(
    make_pipeline: MakePipeline, server_of: ServerOf, major: int
) -> None:
    for database in new_database(server_of(major)):
        pipeline = make_pipeline("public.*", name="old", copy="initial", database=database)
        keys = () if major > 10 else ("ALTER TABLE sales_1 ADD PRIMARY KEY (id, day)",)
        sales = SALES if major > 10 else (SALES[0].replace(", PRIMARY KEY (id, day)", ""), *SALES[1:2], *keys)
        pipeline.run(*sales)
        written = replace(pipeline.config.source, create=Create(via_partition_root=True))
        config = replace(pipeline.config, source=written)
        with pytest.raises(SourceError, match="publishes partitioned tables from 13 on"):
            replace(pipeline, config=config).ingest()
        [found] = [each for each in run_checks(config) if each.name == "publication"]
        assert not found.ok
        [line] = [each for each in pipeline.ingest().publication_lines() if "public.sales" in each]
        assert line.startswith("not followed: public.sales")
        assert "It is partitioned, and PostgreSQL publishes partitioned tables from 13 on." in line
        pipeline.catch_up()
        pipeline.catch_up("INSERT INTO sales VALUES (7, '2026-01-07', 'x')")
        pipeline.assert_equal("sales_1")
