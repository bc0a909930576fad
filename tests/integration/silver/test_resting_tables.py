"""Tables that are altered and have no change: silver has the columns of the source after the next run."""

import random
import time
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pipeline.bronze.relations import RelationVersion
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.operate.resync import run_resync
from pipeline.table_copy import protected_tables, shape_watch
from pipeline.table_name import TableName
from tests.support.bronze.rows import bronze_rows
from tests.support.pipelines import MakePipeline, Pipeline, with_rules, with_writer
from tests.support.running import continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

ALTERED = (
    "ALTER TABLE t ALTER w TYPE bigint",
    "ALTER TABLE t ADD COLUMN added int DEFAULT 7, ADD COLUMN plain text",
    "ALTER TABLE t RENAME a TO b",
    "ALTER TABLE t DROP COLUMN gone",
)
COLUMNS = {"id", "b", "w", "added", "plain", "_commit_lsn", "_commit_time"}


def with_table(made: Pipeline) -> Pipeline:
    """Return the pipeline, which drops columns in silver, with a table that has rows there."""
    made.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, w int, gone int)",
        "CREATE TABLE quiet (id int PRIMARY KEY)",
    )
    made = with_rules(made, TableRule("public.*", dropped_columns="drop"))
    silver = replace(made.config.silver, rewrites="event")  # another table: it is not compared or copied
    made = replace(made, config=replace(made.config, silver=silver))
    made.ingest()
    made.catch_up("INSERT INTO t VALUES (1, 'one', 10, 1), (2, 'two', 20, 2)", "INSERT INTO quiet VALUES (1)")
    return made


@pytest.mark.parametrize(
    ("route", "major", "copy"),
    [
        pytest.param("walsender", 18, "initial", marks=pytest.mark.quick),
        pytest.param("sql", 13, "never", marks=pytest.mark.quick),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in product(("walsender", "sql"), (13, 18), ("never", "initial"))
            if each not in (("walsender", 18, "initial"), ("sql", 13, "never"))
        ),
    ],
)
def test_an_altered_table_follows_without_a_change(
    request: pytest.FixtureRequest,
    make_pipeline: MakePipeline,
    make_server: MakeServer,
    route: str,
    major: int,
    copy: str,
) -> None:
    if major == 18:
        database = request.getfixturevalue("database")
    else:
        server = make_server({"wal_level": "logical"}, major=major)
        database = Database.of(server)
    made = make_pipeline(database=database, create_publication="all", route=route, copy=copy)
    made = with_table(made)
    quiet = made.version("quiet")
    made.catch_up(*ALTERED)
    assert {*made.frame("silver", "public", "t").columns} == COLUMNS
    made.assert_equal("t", "quiet")
    assert made.version("quiet") == quiet
    events = sorted(made.events("t"))
    recorded = len(bronze_rows(made.config, "relations"))
    made.catch_up()
    assert sorted(made.events("t")) == events, "once"
    assert len(bronze_rows(made.config, "relations")) == recorded
    made.run("UPDATE t SET added = 8, plain = 'x', w = 5000000000 WHERE id = 1", "INSERT INTO t VALUES (3)")
    made.assert_follows("t")
    assert sorted(made.events("t")) == events


@pytest.mark.promise("tables join and leave")
@pytest.mark.parametrize(("route", "copy"), [("sql", "initial"), ("sql", "never"), ("walsender", "never")])
def test_changes_under_another_name_are_missed_without_a_later_change(
    make_pipeline: MakePipeline, route: str, copy: str
) -> None:
    made = with_table(make_pipeline(create_publication="all", route=route, copy=copy))
    made.run(
        "ALTER TABLE t RENAME TO other",
        "INSERT INTO other VALUES (3, 'three', 30, 3)",
        "ALTER TABLE other RENAME TO t",
    )
    made.catch_up()
    if copy == "never":  # otherwise it is copied anew, because the publication lost it meanwhile
        said = "Table public.t was called public.other for a while."
        assert [event[1][: len(said)] for event in made.events("t") if event[0] == "resync"] == [said]
        run_resync(made.config, ["public.t"])
        made.catch_up()
    made.assert_equal("t")


def test_a_table_follows_while_both_jobs_run(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.table_copy.coordinator.POLL_SECONDS", 0.2)
    monkeypatch.setattr("pipeline.apply.planner.POLL_SECONDS", 1.0)
    made = with_table(with_writer(pipeline, "native"))
    with continuous(made):
        made.run(*ALTERED)
        wait_until(lambda: any(row["at_rest"] for row in bronze_rows(made.config, "relations")))
        wait_until(lambda: made.apply() and {*made.frame("silver", "public", "t").columns} == COLUMNS)
    made.assert_equal("t")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_columns_that_change_among_rows_stay_exact(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("pipeline.table_copy.coordinator.POLL_SECONDS", 0.05)
    made, draw = with_table(pipeline), random.Random(seed)
    live = [0]
    made.run("ALTER TABLE t ADD c0 int DEFAULT 0")
    with continuous(made), made.database.connect() as other:
        for number in range(1, 30):
            row = f"INSERT INTO t (id, w) VALUES ({100 + number}, {number})"
            add = f"ALTER TABLE t ADD c{number} int DEFAULT {number}"
            match draw.randrange(4):
                case 0:
                    made.transact(add, f"UPDATE t SET c{number} = -1 WHERE id = 2", row)
                    live.append(number)
                case 1 if live:
                    made.transact(row, f"ALTER TABLE t DROP c{live.pop(draw.randrange(len(live)))}")
                case 2:
                    made.run(row)
                case _:
                    with other.transaction():
                        other.execute(add.encode())
                        time.sleep(draw.random() / 5)
                    live.append(number)
    made.catch_up()
    if {kind for kind, _ in made.events("t")} == {"evolved"}:
        made.assert_equal("t")


def test_a_table_that_is_being_altered_is_left_to_the_next_run(pipeline: Pipeline) -> None:
    made = with_table(pipeline)
    made.run("ALTER TABLE t ADD added int DEFAULT 7")
    with made.database.connect() as other, other.transaction():
        other.execute("ALTER TABLE t DROP COLUMN gone")
        made.catch_up()
        assert "added" not in made.frame("silver", "public", "t").columns
    made.assert_follows("t")


def test_changes_before_the_first_run_have_the_earlier_columns(pipeline: Pipeline) -> None:
    made = with_rules(pipeline, TableRule("public.*", dropped_columns="drop"))
    made.ingest()
    made.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, gone int)",
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t DROP gone, ADD added int DEFAULT 7",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "ALTER TABLE empty ADD added int",
    )
    made.assert_equal("t")
    assert not made.path("silver", "public", "empty").exists()


def test_an_altered_partitioned_table_and_protected_column_follow(make_pipeline: MakePipeline) -> None:
    made = make_pipeline(create_publication="never", copy="initial")
    made.run(
        "CREATE TABLE p (id int PRIMARY KEY, ssn text, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p VALUES (1, 'SECRET', 2)",
        f"CREATE PUBLICATION {made.config.source.publication} FOR TABLE p WITH (publish_via_partition_root)",
    )
    rules = ColumnRules(mask={"ssn": "hidden"})
    made = with_rules(made, TableRule("public.p", columns=rules, dropped_columns="drop"))
    made.catch_up()
    made.catch_up("ALTER TABLE p RENAME ssn TO number", "ALTER TABLE p ADD added int, DROP a")
    rows = made.frame("silver", "public", "p").select("id", "number", "added").collect()
    assert [tuple(row) for row in rows] == [(1, "hidden", None)]
    assert "a" not in made.frame("silver", "public", "p").columns


def test_a_table_that_is_not_altered_is_not_described(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_table(pipeline)
    described: list[TableName] = []
    describe = protected_tables.describe_version

    def counted(*arguments: Any) -> RelationVersion | None:
        described.append(arguments[3])
        return describe(*arguments)

    monkeypatch.setattr(shape_watch, "describe_version", counted)
    made.catch_up(
        "GRANT SELECT ON quiet TO PUBLIC", "VACUUM FULL quiet", "ANALYZE", "INSERT INTO quiet VALUES (2)"
    )
    assert not described
    made.catch_up("ALTER TABLE quiet ADD added int")
    assert described == [TableName("public", "quiet")]


def test_a_type_that_silver_cannot_follow_holds_the_table(pipeline: Pipeline) -> None:
    made = with_table(pipeline)
    made.ingest("ALTER TABLE t ALTER w TYPE text")
    summary = made.apply()
    assert summary.exit_code(strict=True) == 1
    assert [kind for kind, _ in made.events("t")] == ["held"]
    made.apply()
    assert [kind for kind, _ in made.events("t")] == ["held"], "once"
    made = with_rules(made, TableRule("public.*", dropped_columns="drop", type_changes="rebuild"))
    made.assert_follows("t")


def test_postgresql_10_shows_which_tables_were_altered(
    make_pipeline: MakePipeline, old_database: Database
) -> None:
    made = make_pipeline(database=old_database, create_publication="all", copy="initial")
    made.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    made.catch_up("ALTER TABLE t ADD added int")
    made.assert_equal("t")
    assert "added" in made.frame("silver", "public", "t").columns
