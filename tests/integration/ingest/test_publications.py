"""What a publication can say: partitions, column lists, row filters, generated columns, whole schemas."""

import pytest

from pipeline.metadata.reconciliations import EQUAL
from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.servers import Database

LARGE = "repeat('x', 2500)"


def publication(pipeline: Pipeline, what: str, **options: str) -> str:
    """Return what creates the pipeline's publication by hand, as its users may."""
    settings = ", ".join(f"{name} = {value}" for name, value in options.items())
    with_ = f" WITH ({settings})" if settings else ""
    return f"CREATE PUBLICATION {pipeline.config.source.publication} FOR {what}{with_}"


PARTITIONED = (
    "CREATE TABLE sales (region text, id int, amount numeric(8,2), note text, PRIMARY KEY (region, id))"
    " PARTITION BY LIST (region)",
    "CREATE TABLE sales_north PARTITION OF sales FOR VALUES IN ('north')",
    "CREATE TABLE sales_south (note text, amount numeric(8,2), id int NOT NULL, region text NOT NULL)",
    "ALTER TABLE sales ATTACH PARTITION sales_south FOR VALUES IN ('south')",
    "ALTER TABLE sales_north ALTER note SET STORAGE EXTERNAL",
    "ALTER TABLE sales_south ALTER note SET STORAGE EXTERNAL",
)
"""A partitioned table whose leaves have their columns in orders of their own."""
CHANGES = (
    f"INSERT INTO sales SELECT r, g, g / 4.0, {LARGE} || g FROM generate_series(1, 6) g, "
    "(VALUES ('north'), ('south')) v(r)",
    "UPDATE sales SET amount = 9 WHERE id = 1",
    "UPDATE sales SET region = 'south', id = id + 100 WHERE region = 'north' AND id = 2",
    "DELETE FROM sales WHERE id = 3",
    "UPDATE sales SET id = id + 50 WHERE id = 4",
)


@pytest.mark.spark
@pytest.mark.slow
def test_partitions_are_tables_of_their_own(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.ingest(*PARTITIONED, publication(pipeline, "ALL TABLES"))
    pipeline.catch_up(*CHANGES, "TRUNCATE sales_north", "INSERT INTO sales VALUES ('north', 7, 1, 'x')")
    pipeline.assert_equal("sales_north", "sales_south")


@pytest.mark.quick
def test_partitions_are_one_table_through_their_root(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.ingest(*PARTITIONED, publication(pipeline, "TABLE sales", publish_via_partition_root="true"))
    pipeline.catch_up(*CHANGES[:1])
    pipeline.run(*CHANGES[1:])
    pipeline.catch_up(
        "CREATE TABLE sales_west (id int NOT NULL, region text NOT NULL, note text, amount numeric(8,2))",
        "ALTER TABLE sales ATTACH PARTITION sales_west FOR VALUES IN ('west')",
        "INSERT INTO sales VALUES ('west', 1, 1, 'w')",
        "UPDATE sales SET region = 'west' WHERE region = 'south' AND id = 5",
    )
    pipeline.assert_equal("sales")
    assert not pipeline.path("silver", "public", "sales_north").exists()
    pipeline.catch_up("TRUNCATE sales", "INSERT INTO sales VALUES ('north', 1, 1, 'again')")
    pipeline.assert_equal("sales")


def test_a_partition_with_another_key_than_its_root_is_refused_or_correct(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline()
    pipeline.run(
        "CREATE TABLE events (id int, kind text, v text) PARTITION BY LIST (kind)",
        "CREATE TABLE events_a PARTITION OF events FOR VALUES IN ('a')",
        "ALTER TABLE events_a ADD PRIMARY KEY (id)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    pipeline.ingest(publication(pipeline, "TABLE events, other", publish_via_partition_root="true"))
    pipeline.run("INSERT INTO events SELECT g, 'a', 'v' FROM generate_series(1, 4) g")
    pipeline.run("DELETE FROM events WHERE id = 2", "UPDATE events SET v = 'w' WHERE id = 3")
    pipeline.ingest("INSERT INTO other VALUES (1)")
    summary = pipeline.apply()
    pipeline.assert_equal("other")
    if summary.exit_code(strict=True) == 0:
        pipeline.assert_equal("events")
    else:
        assert any("events" in line for line in summary.lines()), summary.lines()


@pytest.mark.promise("updates without an old row")
def test_a_partition_that_logs_less_than_its_root_is_held_or_diverged(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    for table in ("updated", "deleted"):
        pipeline.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (10)",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        )
    pipeline.ingest(publication(pipeline, "TABLE updated, deleted", publish_via_partition_root="true"))
    for table in ("updated", "deleted"):
        pipeline.run(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'a')")
    pipeline.catch_up()
    pipeline.ingest("UPDATE updated SET v = 'b' WHERE id = 1", "DELETE FROM deleted WHERE id = 2")
    summary = pipeline.apply()
    assert summary.exit_code(strict=True) == 1
    found = pipeline.frame("silver", "public", "updated").select("id", "v").collect()
    assert {tuple(row) for row in found} == {(1, "a"), (2, "a")}
    [(kind, sentence)] = pipeline.events("updated")
    assert kind == "held"
    assert "for each partition" in sentence
    [(kind, sentence)] = pipeline.events("deleted")
    assert kind == "diverged"
    assert sentence.startswith("Silver lacks 1 row that updates or deletes under REPLICA IDENTITY FULL")


@pytest.mark.spark
@pytest.mark.slow
def test_a_partition_that_logs_more_than_its_root_is_followed(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.run(*PARTITIONED, "ALTER TABLE sales_north REPLICA IDENTITY FULL")
    pipeline.ingest(publication(pipeline, "TABLE sales", publish_via_partition_root="true"))
    pipeline.catch_up(*CHANGES[:2])
    pipeline.catch_up("UPDATE sales SET id = id + 50 WHERE id IN (4, 5)", *CHANGES[2:])
    pipeline.assert_equal("sales")


@pytest.mark.quick
def test_a_delete_without_the_key_holds_the_table_with_the_reason(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    for table in ("t", "starts"):
        pipeline.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, code int NOT NULL) PARTITION BY RANGE (id)",
            f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES FROM (0) TO (10)",
            f"CREATE UNIQUE INDEX {table}_code ON {table}_1 (code)",
            f"ALTER TABLE {table}_1 REPLICA IDENTITY USING INDEX {table}_code",
            f"INSERT INTO {table} VALUES (1, 10), (2, 20)",
        )
    pipeline.ingest(publication(pipeline, "TABLE t, starts", publish_via_partition_root="true"))

    def held(*tables: str) -> None:
        pipeline.ingest()
        summary = pipeline.apply()
        assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1), summary.lines()
        found = {name.table: state.held for name, state in summary.tables.items() if state.held}
        assert {*found} == {*tables}
        for table, sentence in found.items():
            reason = "an update or delete has no key, because a partition has another replica identity"
            assert reason in (sentence or "")
            assert pipeline.events(table)[-1] == ("held", sentence)

    pipeline.run("DELETE FROM starts WHERE id = 2")  # follows its copy in the batch in which it starts
    held("starts")
    pipeline.assert_equal("t")
    pipeline.run("DELETE FROM t WHERE id = 2")
    held("starts", "t")
    # as it says
    pipeline.run(*(f"ALTER TABLE {table}_1 REPLICA IDENTITY FULL" for table in ("t", "starts")))
    run_resync(pipeline.config, ["public.t", "public.starts"])
    pipeline.ingest()
    pipeline.catch_up()
    for table in ("t", "starts"):
        pipeline.run(f"UPDATE {table} SET id = 3 WHERE id = 1", f"INSERT INTO {table} VALUES (4, 40)")
        pipeline.run(f"DELETE FROM {table} WHERE id = 4")
    pipeline.assert_follows("t", "starts")


def test_columns_that_are_not_published_are_not_in_silver(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.run("CREATE TABLE people (secret text, id int PRIMARY KEY, age int, name text)")
    pipeline.ingest(publication(pipeline, "TABLE people (id, name)"))
    pipeline.run("INSERT INTO people SELECT 'secret', g, g, 'name ' || g FROM generate_series(1, 9) g")
    pipeline.run("UPDATE people SET age = 1, id = id + 10 WHERE id < 3", "DELETE FROM people WHERE id = 5")
    pipeline.run("ALTER TABLE people ADD more text", "UPDATE people SET name = 'x', more = 'y' WHERE id = 6")
    pipeline.catch_up()
    names = pipeline.frame("silver", "public", "people").columns
    assert names == ["id", "name", "_commit_lsn", "_commit_time"]
    found = {(r.id, r.name) for r in pipeline.frame("silver", "public", "people").collect()}
    assert found == set(pipeline.source.execute("SELECT id, name FROM people").fetchall())


@pytest.mark.promise("unchanged TOAST")
def test_a_row_that_a_filter_lets_in_late_never_gets_a_silent_null(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.run(
        "CREATE TABLE docs (id int, shown bool, body text, title text, PRIMARY KEY (id))",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE docs REPLICA IDENTITY FULL",
    )
    pipeline.ingest(publication(pipeline, "TABLE docs WHERE (shown)"))
    pipeline.run(f"INSERT INTO docs SELECT g, g % 2 = 0, {LARGE} || g, 'title' FROM generate_series(1, 8) g")
    pipeline.catch_up()
    pipeline.ingest(
        "UPDATE docs SET shown = true WHERE id = 1",
        "UPDATE docs SET shown = false WHERE id IN (2, 4)",
        "UPDATE docs SET shown = true WHERE id = 4",
        "UPDATE docs SET title = 'other' WHERE id = 6",
        "DELETE FROM docs WHERE id = 8",
    )
    assert pipeline.apply().exit_code(strict=False) == 0
    shown = pipeline.source.execute("SELECT id, title, body FROM docs WHERE shown").fetchall()
    silver = {row.id: row for row in pipeline.frame("silver", "public", "docs").collect()}
    assert {(i, title) for i, title, _ in shown} == {(i, row.title) for i, row in silver.items()}
    misfits = pipeline.frame("_pgdelta", "misfits").where("table_name = 'docs'").collect()
    recorded = {(row.column_name, row.key) for row in misfits}
    for i, _, body in shown:
        if silver[i].body != body:
            assert silver[i].body is None
            assert any(column == "body" and str(i) in (key or "") for column, key in recorded), (i, recorded)


@pytest.mark.promise("unchanged TOAST")
def test_rows_that_come_into_a_filter_without_all_values_have_an_event(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial")
    fill = f"SELECT g, 'x', {LARGE} || g FROM generate_series(1, 12) g"
    for table in ("a", "b"):
        pipeline.run(f"CREATE TABLE {table} (id int PRIMARY KEY, st text, big text)")
        pipeline.run(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL", f"INSERT INTO {table} {fill}")
    pipeline.run("ALTER TABLE b REPLICA IDENTITY FULL")
    pipeline.ingest(publication(pipeline, "TABLE a WHERE (id > 10), b WHERE (id > 10)"))
    pipeline.catch_up("UPDATE a SET id = 20 WHERE id = 1", "UPDATE b SET id = 20 WHERE id = 1")
    assert [row.big for row in pipeline.frame("silver", "public", "a").where("id = 20").collect()] == [None]
    [(_, sentence)] = [event for event in pipeline.events("a") if event[0] == "resync"]
    assert "Run pgdelta reconcile --table public.a --repair." in sentence
    assert not [event for event in pipeline.events("b") if event[0] == "resync"]
    assert run_reconcile(pipeline.config, ["public.a"], runs=True, repairs=True).exit_code(strict=False) == 1
    pipeline.catch_up()
    found = run_reconcile(pipeline.config, runs=True)
    assert {str(each.name): each.verdict for each in found.verdicts} == {"public.a": EQUAL, "public.b": EQUAL}


def test_generated_columns_come_where_they_are_published(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline()
    pipeline.run(
        "CREATE TABLE boxes (id int PRIMARY KEY, w int, twice int GENERATED ALWAYS AS (w * 2) STORED, "
        "thrice int GENERATED ALWAYS AS (w * 3) VIRTUAL)"
    )
    pipeline.ingest(publication(pipeline, "TABLE boxes", publish_generated_columns="stored"))
    pipeline.catch_up(
        "INSERT INTO boxes SELECT g, g FROM generate_series(1, 5) g", "UPDATE boxes SET w = 0 WHERE id = 2"
    )
    found = {(r.id, r.w, r.twice) for r in pipeline.frame("silver", "public", "boxes").collect()}
    assert found == set(pipeline.source.execute("SELECT id, w, twice FROM boxes").fetchall())
    assert "thrice" not in pipeline.frame("silver", "public", "boxes").columns


def test_a_publication_of_a_schema_brings_tables_that_are_made_later(
    make_pipeline: MakePipeline, database: Database
) -> None:
    pipeline = make_pipeline("shop.*")
    pipeline.run("CREATE SCHEMA shop", "CREATE TABLE shop.first (id int PRIMARY KEY)")
    pipeline.ingest(publication(pipeline, "TABLES IN SCHEMA shop"))
    pipeline.run("CREATE TABLE shop.second (id int PRIMARY KEY, v text)", "CREATE TABLE outside (id int)")
    pipeline.run("INSERT INTO shop.first VALUES (1)", "INSERT INTO shop.second VALUES (1, 'a')")
    pipeline.catch_up("INSERT INTO outside VALUES (1)")
    names = [TableName("shop", "first"), TableName("shop", "second")]
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, names)
    assert pipeline.frame("bronze", "changes").where("table_name = 'outside'").count() == 0
