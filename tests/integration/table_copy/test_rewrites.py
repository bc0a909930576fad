"""Rewrites that change rows without a message: silver is compared with the source, and equal again.

What keeps all rows, or is in the stream, must cause no event and no comparison.
"""

from dataclasses import replace
from typing import Literal

import pytest

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.operate.resync import run_resync
from pipeline.report.alert_rules import find_alerts
from pipeline.report.alerts import read_facts
from pipeline.report.status import read_status
from pipeline.report.status_page import CURRENT, IN_DOUBT
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.servers import Database, database_of_each
from tests.support.threads import wait_until

TABLES = ("same_type", "hashed", "wider", "computed", "lost_default", "unlogged", "stored", "generated")
KEPT = ("vacuumed", "clustered", "truncated", "emptied", "empty", "younger")
TOTAL = "ADD COLUMN total int GENERATED ALWAYS AS (v * 2) STORED"
REWRITES = (
    "ALTER TABLE same_type ALTER v TYPE int USING v * 100",
    "ALTER TABLE hashed ALTER name TYPE text USING md5(name)",
    "ALTER TABLE wider ALTER v TYPE bigint USING v * 1000",
    "ALTER TABLE computed ADD COLUMN at float8 DEFAULT random()",
    "ALTER TABLE lost_default ADD COLUMN added int DEFAULT 7",
    "ALTER TABLE lost_default ALTER v TYPE int USING v + 1",
    "ALTER TABLE unlogged SET UNLOGGED; UPDATE unlogged SET v = -v; ALTER TABLE unlogged SET LOGGED",
    "ALTER TABLE stored ADD added int DEFAULT 7; ALTER TABLE stored ALTER added DROP DEFAULT",
    "VACUUM FULL stored",
)
HARMLESS = (
    "VACUUM FULL vacuumed",
    "CLUSTER clustered USING clustered_pkey",
    "TRUNCATE truncated",
    "INSERT INTO truncated VALUES (7, 7, 'after')",
    "TRUNCATE emptied",
    "VACUUM FULL empty",
    "ALTER TABLE younger ADD COLUMN more int DEFAULT 3",
    "REINDEX TABLE vacuumed",
)

database = database_of_each(13)


@pytest.fixture
def tables(database: Database, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose silver tables equal the source."""
    pipeline = make_pipeline(copy="initial", create_publication="all")
    fill(pipeline, *TABLES, *KEPT)
    pipeline.run("DELETE FROM empty", "VACUUM empty", f"ALTER TABLE generated {TOTAL}")
    if database.server_major >= 18:
        pipeline.run(f"ALTER PUBLICATION {database.name} SET (publish_generated_columns = stored)")
    pipeline.catch_up()
    return pipeline


def fill(pipeline: Pipeline, *names: str) -> None:
    for name in names:
        pipeline.run(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int, name text)",
            f"INSERT INTO {name} SELECT i, i, 'name ' || i FROM generate_series(1, 20) i",
        )


def rewrite_generated(pipeline: Pipeline) -> None:
    """Change the values of a generated column that silver has, or publish one that it does not have."""
    set_expression = "ALTER TABLE generated ALTER total SET EXPRESSION AS (v * 3)"
    drop_expression = "ALTER TABLE generated ALTER total DROP EXPRESSION"
    pipeline.run(set_expression if pipeline.database.server_major >= 18 else drop_expression)


def with_policy(pipeline: Pipeline, policy: Literal["resync", "event"]) -> Pipeline:
    silver = replace(pipeline.config.silver, rewrites=policy)
    return replace(pipeline, config=replace(pipeline.config, silver=silver))


def requests(pipeline: Pipeline) -> dict[str, str]:
    """Return the open requests for copies, by table."""
    lake = Lake(pipeline.root)
    found = Bronze(lake, pipeline.config.pipeline).copies.read().open_requests
    return {name.table: each.reason for name, of_table in found.items() for each in of_table}


def events_of_rewrites(pipeline: Pipeline) -> dict[str, tuple[str, str]]:
    """Return kind and sentence of the events about a rewrite, by table."""
    found = {}
    for table in (*TABLES, *KEPT):
        for kind, sentence in pipeline.events(table, rewrites=True) if has_events(pipeline) else ():
            if "Bronze keeps earlier values" in sentence:
                assert table not in found
                found[table] = kind, sentence
    return found


def has_events(pipeline: Pipeline) -> bool:
    return pipeline.path("_pgdelta", "events").exists()


@pytest.mark.promise("rewrites")
@pytest.mark.parametrize("is_continuous", [False, True], ids=["scheduled", "continuous"])
def test_each_form_is_found_and_what_keeps_rows_is_not(tables: Pipeline, is_continuous: bool) -> None:
    if is_continuous:
        with continuous(tables) as running:
            tables.run(*HARMLESS, *REWRITES)
            rewrite_generated(tables)
            wait_until(lambda: len(requests(tables)) == len(TABLES))
        assert running.error is None
    else:
        tables.run(*HARMLESS, *REWRITES)
        rewrite_generated(tables)
        tables.ingest()
    assert requests(tables).keys() == set(TABLES)
    assert all("after the rewrite or type change before" in reason for reason in requests(tables).values())
    found = events_of_rewrites(tables)
    assert {table: kind for table, (kind, _) in found.items()} == dict.fromkeys(TABLES, "evolved")
    assert found["hashed"][1] == (
        "The table was rewritten at the source, as ALTER TABLE does: no earlier row is left, and no message"
        " carries the new values. It is compared with the source, and what differs is copied. Bronze keeps"
        " earlier values until retention or pgdelta forget removes them, also if the change was to"
        " anonymise."
    )
    again = requests(tables)
    tables.ingest()
    assert requests(tables) == again, "the state is recorded"


def test_a_rewritten_table_that_is_locked_is_found_once_it_is_free(tables: Pipeline) -> None:
    tables.run(REWRITES[0], "VACUUM FULL vacuumed")
    with tables.database.connect() as other, other.transaction():
        other.execute("LOCK TABLE same_type, vacuumed IN ACCESS EXCLUSIVE MODE")
        tables.ingest()
        assert requests(tables) == {}
    tables.ingest()
    assert requests(tables).keys() == {"same_type"}


@pytest.mark.promise("rewrites")
def test_silver_is_equal_again_and_only_what_differs_is_copied(tables: Pipeline) -> None:
    tables.run(
        "UPDATE hashed SET name = 'before' WHERE id = 3",
        *REWRITES,
        "ALTER TABLE vacuumed ALTER v TYPE int USING CASE id WHEN 4 THEN 0 ELSE v END",
    )
    rewrite_generated(tables)
    found = tables.ingest("UPDATE hashed SET v = 0 WHERE id = 5", "DELETE FROM same_type WHERE id = 6")
    assert not found.copies
    waits = "The first ingest after apply has brought it there compares it"
    assert all(waits in sentence for sentence in found.compared.values())
    tables.apply()
    tables.run("UPDATE vacuumed SET name = 'later' WHERE id = 9", "INSERT INTO hashed VALUES (90, 1, 'x')")
    found = tables.ingest()
    vacuumed, wider = TableName("public", "vacuumed"), TableName("public", "wider")
    assert found.copies[vacuumed].rows_landed == 2
    assert found.compared[wider] == "20 keys differ of 20 rows; 20 key ranges copied."
    tables.assert_follows(*TABLES, "vacuumed")
    assert requests(tables) == {}
    kind, sentence = tables.events("vacuumed", rewrites=True)[-1]
    assert kind == "evolved"
    assert "compared with the source after the rewrite or type change before" in sentence
    tables.catch_up("UPDATE hashed SET v = 8 WHERE id = 8")
    tables.assert_equal("hashed")


@pytest.mark.promise("rewritten tables")
@pytest.mark.parametrize(("policy", "kind"), [("resync", "evolved"), ("event", "resync")])
def test_the_policy_says_whether_a_rewritten_table_is_copied(
    tables: Pipeline, policy: Literal["resync", "event"], kind: str
) -> None:
    tables = with_policy(tables, policy)
    tables.catch_up(*REWRITES)
    assert {each for each, _ in events_of_rewrites(tables).values()} == {kind}
    assert requests(tables) == {}
    if policy == "resync":
        tables.assert_equal("same_type", "hashed", "wider", "computed", "lost_default")
    else:
        assert_in_doubt_until_copied(tables)


def assert_in_doubt_until_copied(tables: Pipeline) -> None:
    sentence = events_of_rewrites(tables)["hashed"][1]
    assert "Run pgdelta resync --table public.hashed." in sentence
    rewritten = {TableName("public", name) for name in events_of_rewrites(tables)}
    summary = tables.apply()
    assert summary.doubts.keys() == rewritten
    assert summary.exit_code(strict=True) == 1
    assert summary.exit_code(strict=False) == 0
    assert f"in doubt: {sentence}" in summary.lines()
    status = read_status(tables.config)
    assert status.is_held
    states = {table.name: table.state for table in status.tables}
    assert {name for name, state in states.items() if state == IN_DOUBT} == rewritten
    alerts = find_alerts(read_facts(tables.config)).found
    assert {alert.table for alert in alerts if alert.rule == "doubt"} == rewritten
    run_resync(tables.config, ["public.*"])
    tables.assert_follows(*rewritten)
    assert tables.apply().exit_code(strict=True) == 0
    assert {table.state for table in read_status(tables.config).tables} == {CURRENT}


def test_rewritten_partitions_are_compared_with_their_root(tables: Pipeline) -> None:
    publication = tables.config.source.publication
    tables.catch_up(
        f"DROP PUBLICATION {publication}",
        f"CREATE PUBLICATION {publication} FOR ALL TABLES WITH (publish_via_partition_root)",
        "CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (100) TO (200)",
        "INSERT INTO root SELECT i, i FROM generate_series(1, 150) i",
    )
    tables.catch_up("ALTER TABLE root ALTER v TYPE int USING v * 2", "TRUNCATE other", "VACUUM FULL leaf")
    tables.assert_follows("root")
    events = tables.events("root", rewrites=True)
    [sentence] = [sentence for _, sentence in events if "Bronze keeps" in sentence]
    assert "Partition public.leaf was truncated, or rewritten" in sentence


def test_a_truncate_on_postgresql_10_is_found(old_database: Database, make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", database=old_database, create_publication="all")
    fill(pipeline, "a", "b")
    pipeline.catch_up()
    pipeline.catch_up("TRUNCATE a", "VACUUM FULL b")
    pipeline.assert_follows("a", "b")
    assert requests(pipeline) == {}
