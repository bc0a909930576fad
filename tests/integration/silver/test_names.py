"""Names and columns that Delta cannot hold as they are, and changes without a message."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from pipeline.apply.applier import Applier
from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep
from pipeline.delta.table import Lake
from pipeline.maintenance.sort_orders import SortOrders
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.postgres.embedded import EmbeddedServer
from pipeline.silver.read.as_of import as_of
from pipeline.table_name import TableName
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash, MakePipeline, Pipeline, crash, succeeded
from tests.support.servers import Database, drop_database


def silver(pipeline: Pipeline, *names: str) -> list[tuple[object, ...]]:
    """Return silver's columns but ours, then its rows in order."""
    frame = pipeline.frame("silver", "public", "t").drop("_commit_lsn", "_commit_time")
    rows = [tuple(row) for row in frame.orderBy(frame.columns[0]).collect()]
    assert frame.columns == list(names)
    return rows


@pytest.mark.spark
@pytest.mark.slow
def test_columns_named_like_ours_keep_their_names(pipeline: Pipeline) -> None:
    pipeline.ingest('CREATE TABLE t (id int PRIMARY KEY, _commit_lsn_ bigint, "_COMMIT_TIME" text)')
    pipeline.catch_up("INSERT INTO t VALUES (1, 7, 'seven'), (2, 8, 'eight')")
    pipeline.catch_up("UPDATE t SET _commit_lsn_ = 9 WHERE id = 2")
    frame = pipeline.frame("silver", "public", "t")
    assert frame.columns == ["id", "_commit_lsn_", "_COMMIT_TIME", "_commit_lsn", "_commit_time_"]
    rows = [tuple(row) for row in frame.orderBy("id").collect()]
    assert [row[:3] for row in rows] == [(1, 7, "seven"), (2, 9, "eight")]
    assert rows[0][3] < rows[1][3]
    assert {type(row[4]) for row in rows} == {datetime}


@pytest.mark.spark
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(None, marks=pytest.mark.slow),
        # amid a step: columns were renamed, none is added yet
        pytest.param(
            "pipeline.silver.schema.schema_operations.AddColumn.statements",
            marks=pytest.mark.slow,
            id="before columns",
        ),
        pytest.param(CrashStep.REGISTER_TABLE, id="before the columns are registered"),
        pytest.param(CrashStep.WRITE_TABLE, marks=pytest.mark.slow, id="before the rows"),
    ],
)
def test_our_columns_give_way_to_those_that_come(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, ends: CrashStep | str | None
) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pipeline.ingest(
        "ALTER TABLE t ADD _commit_lsn bigint DEFAULT 5",
        'ALTER TABLE t RENAME v TO "_Commit_Time"',
        "UPDATE t SET _commit_lsn = 6 WHERE id = 1",
    )
    [planned] = make_plan(pipeline.config).tables
    gave_way = [
        f"Column {name} of pgdelta was renamed to {name}_, because the source has a column {name}."
        for name in ("_commit_lsn", "_commit_time")
    ]
    assert [step.sentence for step in planned.steps][:2] == gave_way
    if ends:
        with ExitStack() as ending:
            if isinstance(ends, CrashStep):
                ending.enter_context(crash_at(ends))
            else:
                ending.enter_context(monkeypatch.context()).setattr(ends, crash)
            with pytest.raises(Crash):
                Applier(pipeline.spark, pipeline.config).apply_pending()
    succeeded(Applier(pipeline.spark, pipeline.config).apply_pending())
    frame = pipeline.frame("silver", "public", "t")
    names = ["id", "_Commit_Time", "_commit_lsn_", "_commit_time_", "_commit_lsn"]
    assert frame.columns == names
    rows = [tuple(row) for row in frame.orderBy("id").collect()]
    assert [(*row[:2], row[4]) for row in rows] == [(1, "a", 6), (2, "b", 5)]
    assert rows[1][2] < rows[0][2]
    assert {*gave_way} <= {sentence for _, sentence in pipeline.events("t")}
    # and back: the names come free again, ours stay
    pipeline.catch_up("ALTER TABLE t RENAME _commit_lsn TO n", "UPDATE t SET n = 7 WHERE id = 2")
    frame = pipeline.frame("silver", "public", "t")
    assert frame.columns == [*names[:4], "n"]
    assert [row.n for row in frame.orderBy("id").collect()] == [6, 7]


@pytest.mark.spark
@pytest.mark.promise("any schema change")
@pytest.mark.slow
def test_a_change_without_a_message_is_an_event(pipeline: Pipeline) -> None:
    tables = ("padded", "rounded", "longer", "numbered", "computed", "hidden")
    pipeline.ingest(
        "CREATE TABLE padded (id int PRIMARY KEY, v char(3))",
        "CREATE TABLE rounded (id int PRIMARY KEY, v numeric(8,4))",
        "CREATE TABLE longer (id int PRIMARY KEY, v varchar(10))",
        "CREATE TABLE numbered (id int PRIMARY KEY, v text)",
        "CREATE TABLE computed (id int PRIMARY KEY, v text)",
        "CREATE TABLE hidden (id int PRIMARY KEY, v text)",
    )
    pipeline.run(*(f"INSERT INTO {table} VALUES (1, '1.2345'), (2, '7')" for table in tables[1:]))
    pipeline.catch_up("INSERT INTO padded VALUES (1, 'a'), (2, 'b')")
    pipeline.catch_up(
        "ALTER TABLE padded ALTER v TYPE char(5)",
        "ALTER TABLE rounded ALTER v TYPE numeric(8,2)",
        "ALTER TABLE longer ALTER v TYPE varchar(20)",
        "ALTER TABLE numbered ADD n bigserial",
        "ALTER TABLE computed ADD at timestamptz DEFAULT clock_timestamp()",
        *(f"UPDATE {table} SET v = '3' WHERE id = 2" for table in tables),
    )
    kinds = {table: sorted(kind for kind, _ in pipeline.events(table)) for table in tables}
    assert kinds == {
        "padded": ["resync"],
        "rounded": ["evolved", "resync"],
        "longer": [],
        "numbered": ["evolved", "resync"],
        "computed": ["evolved", "resync"],
        "hidden": [],
    }
    pipeline.assert_equal("longer", "hidden")
    pipeline.run(*(f"UPDATE {table} SET v = '4' WHERE id = 1" for table in tables))
    pipeline.catch_up()  # once is enough
    assert kinds == {table: sorted(kind for kind, _ in pipeline.events(table)) for table in tables}


@pytest.mark.spark
@pytest.mark.promise("uncertain columns")
@pytest.mark.slow
def test_a_column_dropped_and_added_again_unchanged_is_an_event(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(create_publication="all", copy="initial")
    auto = replace(pipeline.config.silver, resync="auto")
    pipeline = replace(pipeline, config=replace(pipeline.config, silver=auto))
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pipeline.catch_up()
    # when ingest asks the catalog about the first change, the column is another one already
    pipeline.catch_up(
        "UPDATE t SET v = 'before' WHERE id = 1",
        "ALTER TABLE t DROP v",
        "ALTER TABLE t ADD v text",
        "UPDATE t SET v = 'after' WHERE id = 2",
    )
    assert "diverged" in {kind for kind, _ in pipeline.events("t")}
    for _ in range(2):  # the copy that the event asked for
        pipeline.catch_up()
    assert silver(pipeline, "id", "v") == [(1, None), (2, "after")]
    pipeline.assert_equal("t", ignore_left_columns=True)


@pytest.fixture
def ascii_database(server: EmbeddedServer) -> Iterator[Database]:
    """Give a fresh database that does not say in which encoding its texts are."""
    encoding = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE names_in_bytes {encoding}".encode())
    yield Database(server, "names_in_bytes", server.conninfo_of("names_in_bytes"))
    drop_database(server, "names_in_bytes")


def test_keys_that_differ_in_a_byte_that_is_not_utf8_are_two(
    ascii_database: Database, make_pipeline: MakePipeline
) -> None:
    pipeline = make_pipeline(database=ascii_database, create_publication="all", copy="initial")
    pipeline.catch_up(
        "CREATE TABLE t (id text PRIMARY KEY, v text)",
        "INSERT INTO t SELECT 'caf' || chr(b), 'copied' FROM generate_series(232, 234) b",
    )
    rows = [(rf"caf\x{byte}", "copied") for byte in ("E8", "E9", "EA")]
    assert silver(pipeline, "id", "v") == rows
    pipeline.catch_up(
        "INSERT INTO t SELECT 'th' || chr(b), 'new' FROM generate_series(232, 233) b",
        "UPDATE t SET v = chr(255) WHERE id = 'caf' || chr(233)",
        "UPDATE t SET id = 'caf' || chr(235) WHERE id = 'caf' || chr(234)",
        "DELETE FROM t WHERE id IN ('caf' || chr(232), 'th' || chr(233))",
    )
    rows = [(r"caf\xE9", r"\xFF"), (r"caf\xEB", "copied"), (r"th\xE8", "new")]
    assert silver(pipeline, "id", "v") == rows


@pytest.mark.promise("copies are what the stream sends")
@pytest.mark.parametrize("route", ["walsender", pytest.param("sql", marks=pytest.mark.slow)])
def test_names_beyond_ascii_are_copied_from_a_database_of_bytes(
    ascii_database: Database, make_pipeline: MakePipeline, route: str
) -> None:
    pipeline = make_pipeline("*.*", database=ascii_database, publication="på", copy="initial", route=route)
    pipeline.run(
        "CREATE SCHEMA så",
        "CREATE TABLE så.tå (kå int PRIMARY KEY, cå text)",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION på FOR TABLE så.tå WHERE (kå <> 3), t",
        "INSERT INTO så.tå VALUES (1, 'copied'), (2, chr(30) || 'one by one'), (3, 'left out')",
        "INSERT INTO t VALUES (1)",
    )

    def rows() -> list[tuple[object, ...]]:
        return [(row.kå, row.cå) for row in pipeline.frame("silver", "så", "tå").orderBy("kå").collect()]

    pipeline.catch_up()
    assert rows() == [(1, "copied"), (2, "\x1eone by one")]
    pipeline.catch_up("UPDATE så.tå SET cå = 'nyå' WHERE kå = 2")
    assert rows() == [(1, "copied"), (2, "nyå")]


@pytest.mark.spark
def test_a_folder_with_the_rows_of_another_table_holds_the_table(pipeline: Pipeline, tmp_path: Path) -> None:
    both = TableRule("public.orders", "orders"), TableRule("public.orders_v2")
    before = replace(pipeline, config=replace(pipeline.config, tables=both))
    after = replace(
        pipeline, config=replace(pipeline.config, tables=(TableRule("public.orders_v2", "orders"),))
    )
    pipeline.ingest(*(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in ("orders", "orders_v2")))
    pipeline.run("INSERT INTO orders VALUES (1)", "INSERT INTO orders_v2 VALUES (2)")
    before.catch_up()
    pipeline.run("INSERT INTO orders VALUES (3)", "INSERT INTO orders_v2 VALUES (4)")
    after.ingest()
    held = after.apply().tables[TableName("public", "orders_v2")].held
    assert held is not None
    assert held.startswith("Table public.orders_v2 is held: the rows in its folder ")
    assert "are those of public.orders." in held
    assert pipeline.events("orders_v2") == [("held", held)]
    assert {*as_of(pipeline.session, pipeline.root).behind} == {TableName("public", "orders_v2")}
    rewritten = run_rebuild(after.config, ["public.orders_v2"])
    assert rewritten.tables[TableName("public", "orders_v2")].held == held
    assert {row.id for row in pipeline.frame("silver", "orders").collect()} == {1}
    shutil.move(pipeline.path("silver", "orders"), tmp_path / "orders")
    after.catch_up()
    pipeline.assert_equal("orders_v2", targets={TableName("public", "orders_v2"): "orders"})
    again = before.apply().tables
    assert "are those of public.orders_v2." in (again[TableName("public", "orders")].held or "")
    pipeline.assert_equal("orders_v2", targets={TableName("public", "orders_v2"): "orders"})


@pytest.mark.promise("plan is what apply does")
def test_no_step_is_planned_for_a_name_that_came_back(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(create_publication="all", copy="initial")
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    for before, after, key, new_key in (("v", "w", "id", "k"), ("w", "v", "k", "id")):
        pipeline.run(f"ALTER TABLE t RENAME {key} TO {new_key}")
        pipeline.catch_up(f"ALTER TABLE t RENAME {before} TO {after}", f"UPDATE t SET {after} = '{after}'")
    assert make_plan(pipeline.config).tables == ()
    assert SortOrders(Lake(pipeline.root), pipeline.config).of("public.t").columns == ("id",)
    pipeline.assert_equal("t")
