"""Whatever is lost, repeated or cut off, silver ends equal to the source and bronze has each change once.

A crash is an exception that nothing in the jobs catches, raised at a named place; what comes after it starts
from storage alone, as a new process does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.operate.pipelines import MakePipeline, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text, note text, price numeric(8,2))",
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
)
LINES = "CREATE TABLE lines (order_id int, item text, count int)", "ALTER TABLE lines REPLICA IDENTITY FULL"
LOG = ("CREATE TABLE log (line text)",)
FILL = (
    "INSERT INTO orders SELECT g, 'item ' || g, repeat('n', 2500), g / 8.0 FROM generate_series(1, 20) g",
    "INSERT INTO lines SELECT g % 4, NULLIF('item ' || g % 2, 'item 1'), NULL FROM generate_series(1, 20) g",
    "INSERT INTO log SELECT 'line ' || g % 3 FROM generate_series(1, 6) g",
)
CHANGE = (
    "UPDATE orders SET id = id + 100, price = NULL WHERE id < 4",
    "DELETE FROM orders WHERE id BETWEEN 10 AND 12",
    "DELETE FROM lines WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 1 LIMIT 2)",
    "UPDATE lines SET count = 7 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 2)",
    "INSERT INTO log VALUES ('line 1'), (NULL)",
)
TABLES = ("orders", "lines", "log")


class Crash(BaseException):
    """The process ends here."""


def crash(*arguments: object, **options: object) -> Any:
    raise Crash


def apply_in_new_process(pipeline: Pipeline) -> Any:
    """Apply all there is without Spark's query, through which a crash would not come back."""
    from pipeline.operate.apply import Applier

    return Applier(pipeline.spark, pipeline.config).apply_pending()


def log_versions(pipeline: Pipeline, folder: str) -> dict[str, str]:
    """Return the newest commit of every Delta table below a folder of the lake."""
    logs = sorted(pipeline.path(folder).glob("**/_delta_log/*.json"))
    return {str(log.parent): log.name for log in logs}


# Runs that are repeated -------------------------------------------------------------------------------------


def test_a_lost_checkpoint_and_repeated_runs_change_nothing(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    pipeline.run(*CHANGE)
    pipeline.ingest()
    pipeline.ingest()
    shutil.rmtree(pipeline.path("_pgdelta", "checkpoints"))
    pipeline.apply()
    pipeline.assert_equal(*TABLES)

    before = log_versions(pipeline, "silver")
    shutil.rmtree(pipeline.path("_pgdelta", "checkpoints"))
    pipeline.apply()
    pipeline.apply()
    assert log_versions(pipeline, "silver") == before
    pipeline.assert_equal(*TABLES)


@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_changes_landed_but_not_acknowledged_are_not_landed_again(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    pipeline = make_pipeline(route=route)
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    confirmed = pipeline.confirmed_lsn()
    pipeline.run(*FILL)
    with monkeypatch.context() as patch:
        stream = "walsender.Walsender" if route == "walsender" else "slot_sql.SlotSql"
        patch.setattr(f"pipeline.postgres.{stream}.acknowledge", crash)
        with pytest.raises(Crash):
            pipeline.ingest()
    assert pipeline.confirmed_lsn() == confirmed
    landed = pipeline.frame("bronze", "changes").count()
    assert landed == 46

    pipeline.run(*CHANGE[:1])
    summary = pipeline.ingest()
    assert summary.changes == 3
    assert pipeline.frame("bronze", "changes").count() == landed + 3
    assert pipeline.confirmed_lsn() >= summary.position
    pipeline.apply()
    pipeline.assert_equal(*TABLES)


def test_changes_staged_but_not_landed_come_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.lake.bronze.Bronze.land", crash)
        with pytest.raises(Crash):
            pipeline.ingest()
    assert pipeline.frame("bronze", "changes").count() == 0
    pipeline.catch_up()
    pipeline.assert_equal(*TABLES)


# Apply that ends in the middle ------------------------------------------------------------------------------


def after(times: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `call` so many times and then crashes."""
    calls: list[None] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return call(*arguments, **options) if len(calls) <= times else crash()

    return counted


PLACES = {
    "before the first table is written": ("pipeline.lake.writer", "CutWriter", "write", 0),
    "between two tables": ("pipeline.lake.writer", "CutWriter", "write", 1),
    "before a table's shape is recorded": ("pipeline.lake.records", "Records", "register", 0),
    "before the manifest": ("pipeline.lake.records", "Records", "record_manifest", 0),
}


@pytest.mark.parametrize("place", PLACES)
def test_apply_goes_on_after_a_crash(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    pipeline.run("ALTER TABLE orders ADD COLUMN rank int DEFAULT 5", *CHANGE)
    pipeline.run("UPDATE orders SET rank = 9 WHERE id = 6")
    pipeline.ingest()
    with monkeypatch.context() as patch:
        module, owner, name, times = PLACES[place]
        found = getattr(__import__(module, fromlist=[owner]), owner)
        patch.setattr(found, name, after(times, getattr(found, name)))
        with pytest.raises(Crash):
            apply_in_new_process(pipeline)
    assert apply_in_new_process(pipeline).exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)

    # What was added must not be added again to rows that have changed since.
    pipeline.run("UPDATE orders SET rank = 6 WHERE id = 7", "UPDATE orders SET item = 'x' WHERE id = 8")
    pipeline.catch_up()
    pipeline.run("UPDATE orders SET item = 'y' WHERE id = 9")
    pipeline.catch_up()
    pipeline.assert_equal(*TABLES)
    assert [kind for kind, _ in pipeline.events("orders")] == ["evolved"]


def test_a_crash_between_two_writes_of_one_table_repeats_neither(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text)")
    pipeline.ingest()
    pipeline.run("INSERT INTO t SELECT g, g + 50, 'v' FROM generate_series(1, 9) g")
    pipeline.catch_up()
    # Three ways to know a row in one transaction: three writes, the first two under a suffix of their own.
    pipeline.transact(
        "UPDATE t SET v = 'w' WHERE id < 4",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key",
        "UPDATE t SET other = other + 100 WHERE id < 3",
        "DELETE FROM t WHERE id = 9",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET id = id + 20 WHERE id IN (1, 5)",
    )
    pipeline.ingest()
    from pipeline.lake.writer import CutWriter

    for times in (1, 1):
        with monkeypatch.context() as patch:
            patch.setattr(CutWriter, "write", after(times, CutWriter.write))
            with pytest.raises(Crash):
                apply_in_new_process(pipeline)
    assert apply_in_new_process(pipeline).exit_code(strict=True) == 0
    pipeline.assert_equal("t")


# What one batch may hold ------------------------------------------------------------------------------------


def test_truncate_between_inserts_leaves_what_came_after_it(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG, "CREATE TABLE emptied (id int PRIMARY KEY)")
    pipeline.ingest()
    pipeline.run(*FILL, "INSERT INTO emptied VALUES (1)")
    pipeline.catch_up()
    pipeline.run(
        "UPDATE orders SET id = id + 50 WHERE id < 3",
        "INSERT INTO lines VALUES (1, 'gone', 1)",
        "INSERT INTO log VALUES ('gone')",
        "TRUNCATE orders, lines, log, emptied RESTART IDENTITY CASCADE",
        "INSERT INTO lines VALUES (1, NULL, 1), (1, NULL, 1)",
        "INSERT INTO log VALUES ('kept')",
    )
    pipeline.transact(
        "INSERT INTO orders VALUES (1, 'gone', 'n', 1)",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 'kept', 'n', 1)",
        "UPDATE orders SET id = 2",
    )
    pipeline.catch_up()
    pipeline.assert_equal(*TABLES, "emptied")


def test_replica_identity_may_change_inside_a_batch_and_a_transaction(pipeline: Pipeline) -> None:
    create = "CREATE TABLE {} (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text, big text)"
    for table in ("a", "b"):
        pipeline.run(create.format(table), f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
    pipeline.ingest()
    rows = "SELECT g, g + 50, 'v', repeat('b', 2500) FROM generate_series(1, 12) g"
    pipeline.run(*(f"INSERT INTO {table} {rows}" for table in ("a", "b")))
    pipeline.catch_up()
    statements = [
        "UPDATE {} SET id = id + 100 WHERE id < 3",
        "ALTER TABLE {} REPLICA IDENTITY FULL",
        "UPDATE {} SET v = NULL WHERE other IN (51, 55)",
        "UPDATE {} SET id = id + 100, v = 'moved' WHERE other IN (57, 58)",
        "DELETE FROM {} WHERE other = 56",
        "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_other_key",
        "UPDATE {} SET other = other + 100 WHERE id IN (101, 9)",
        "UPDATE {} SET id = 1000 WHERE other = 60",
        "DELETE FROM {} WHERE other = 61",
        "ALTER TABLE {} REPLICA IDENTITY DEFAULT",
        "UPDATE {} SET id = 9 WHERE id = 12",
    ]
    # The row with id 9 has to go first: it is the one that was given another number above.
    statements.insert(-1, "DELETE FROM {} WHERE id = 9")
    pipeline.run(*(statement.format("a") for statement in statements))
    pipeline.transact(*(statement.format("b") for statement in statements))
    pipeline.catch_up()
    pipeline.assert_equal("a", "b")


def test_a_table_created_again_under_its_name_takes_the_place_of_the_first(pipeline: Pipeline) -> None:
    create = "CREATE TABLE {} (id int PRIMARY KEY, v text)"
    pipeline.run(*(create.format(table) for table in ("a", "b")))
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO {table} VALUES (1, 'old'), (2, 'old')" for table in ("a", "b")))
    pipeline.catch_up()
    # b is dropped within the batch that also changes the first one
    pipeline.run("UPDATE b SET v = 'changed'", "DROP TABLE a", "DROP TABLE b")
    pipeline.run(*(create.format(table) for table in ("a", "b")))
    pipeline.run("INSERT INTO a VALUES (2, 'new')", "INSERT INTO b VALUES (3, 'new'), (4, 'new')")
    pipeline.run("UPDATE b SET id = 5 WHERE id = 3")
    pipeline.catch_up()
    pipeline.assert_equal("a", "b")


def test_rows_older_than_the_slot_are_no_trouble(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *FILL[:2])
    pipeline.ingest()
    pipeline.run(
        "DELETE FROM orders WHERE id < 5",
        "UPDATE orders SET price = 1 WHERE id = 6",
        "INSERT INTO orders VALUES (3, 'new', NULL, NULL)",
        "DELETE FROM lines WHERE order_id = 1",
        "UPDATE lines SET count = 3 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 1)",
        "INSERT INTO lines VALUES (1, NULL, NULL), (1, NULL, NULL), (1, NULL, NULL)",
    )
    pipeline.ingest()
    pipeline.apply()
    orders = {
        tuple(row) for row in pipeline.frame("silver", "public", "orders").select("id", "item").collect()
    }
    assert orders == {(3, "new"), (6, "item 6")}
    lines = [tuple(row) for row in pipeline.frame("silver", "public", "lines").drop("_commit_lsn").collect()]
    assert sorted(line[0] for line in lines) == [1, 1, 1, 2]


def test_null_and_equal_rows_under_full_identity_are_counted(pipeline: Pipeline) -> None:
    pipeline.run("CREATE TABLE t (x int, y float8, z text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    pipeline.ingest()
    one = "(SELECT ctid FROM t WHERE {} LIMIT {})"
    pipeline.run(
        "INSERT INTO t SELECT 1, NULL, NULL FROM generate_series(1, 5)",
        "INSERT INTO t SELECT NULL, 'NaN', '' FROM generate_series(1, 5)",
        "INSERT INTO t VALUES (2, 0, 'zero'), (2, '-0', 'zero'), (2, '-0', 'zero')",
        f"DELETE FROM t WHERE ctid IN {one.format('x = 1', 2)}",
    )
    pipeline.catch_up()
    pipeline.assert_equal("t")
    pipeline.run(
        f"UPDATE t SET z = 'set' WHERE ctid IN {one.format('x IS NULL', 2)}",
        f"UPDATE t SET x = x WHERE ctid IN {one.format('x = 1', 2)}",
        f"DELETE FROM t WHERE ctid IN {one.format('x = 1', 1)}",
        "DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE y::text = '-0' LIMIT 1)",
        "INSERT INTO t VALUES (1, NULL, NULL)",
    )
    pipeline.catch_up()
    pipeline.assert_equal("t")


# Shapes that change -----------------------------------------------------------------------------------------


def test_added_columns_show_what_the_source_shows(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES)
    pipeline.ingest()
    pipeline.run(*FILL[:2])
    pipeline.catch_up()
    for table in ("orders", "lines"):
        pipeline.run(
            f"ALTER TABLE {table} ADD COLUMN plain text",
            f"ALTER TABLE {table} ADD COLUMN rank int DEFAULT 7",
            f"ALTER TABLE {table} ADD COLUMN words text[] DEFAULT '{{a,NULL,\"it''s\"}}' NOT NULL",
        )
    pipeline.run(
        "UPDATE orders SET plain = 'x', rank = NULL WHERE id < 3",
        "UPDATE orders SET id = 99 WHERE id = 5",
        "DELETE FROM lines WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 1 LIMIT 2)",
        "UPDATE lines SET rank = 8 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 2)",
    )
    pipeline.catch_up()
    pipeline.assert_equal("orders", "lines")
    assert {kind for kind, _ in pipeline.events("orders")} == {"evolved"}
    pipeline.run("UPDATE orders SET rank = 9 WHERE id = 8", "UPDATE lines SET rank = 9 WHERE order_id = 3")
    pipeline.catch_up()
    pipeline.assert_equal("orders", "lines")


def test_what_cannot_be_followed_is_held_and_says_so(pipeline: Pipeline) -> None:
    tables = ("renamed", "retyped", "dropped", "followed")
    pipeline.run(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in tables))
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO {table} VALUES (1, 1), (2, 2)" for table in tables))
    pipeline.catch_up()
    pipeline.run(
        *(f"UPDATE {table} SET v = 10 WHERE id = 1" for table in tables),
    )
    # The catalog must be seen as it is now: afterwards column v has another number under the same name.
    pipeline.ingest()
    pipeline.run(
        "ALTER TABLE renamed RENAME v TO w",
        "ALTER TABLE retyped ALTER v TYPE text USING 'text ' || v",
        "ALTER TABLE dropped DROP COLUMN v",
        "ALTER TABLE dropped ADD COLUMN v int",
        *(f"INSERT INTO {table} VALUES (3)" for table in tables),
    )
    pipeline.ingest()
    for _ in range(2):
        summary = pipeline.apply()
        assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)
        for table in tables[:3]:
            assert any(line.startswith(f"held: public.{table} ") for line in summary.lines())
    pipeline.assert_equal("followed")
    for table in tables[:3]:
        rows = pipeline.frame("silver", "public", table).select("id", "v").collect()
        assert sorted(map(tuple, rows)) == [(1, 10), (2, 2)], table
        assert [kind for kind, _ in pipeline.events(table)] == ["held"]


# Tables that fail -------------------------------------------------------------------------------------------


def test_a_table_configured_later_gets_its_history_from_bronze(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.orders", create_publication="all")
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    pipeline.run(*CHANGE)
    pipeline.catch_up()
    assert not pipeline.path("silver", "public", "lines").exists()
    wider = make_pipeline()
    wider.apply()
    wider.assert_equal(*TABLES)


def test_a_table_that_fails_stops_no_other_and_catches_up_alone(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    table, aside = pipeline.path("silver", "public", "lines"), pipeline.path("aside")
    table.rename(aside)
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020d}.json").write_text("garbage")
    pipeline.run(*CHANGE)
    pipeline.ingest()
    for _ in range(2):
        summary = pipeline.apply()
        assert summary.exit_code(strict=False) == 1
        assert [line for line in summary.lines() if line.startswith("failed: public.lines: ")]
        pipeline.assert_equal("orders", "log")
    shutil.rmtree(table)
    aside.rename(table)
    assert pipeline.apply().exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)


def test_a_table_changed_by_somebody_else_is_refused_until_restored(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    table = f"delta.`{pipeline.path('silver', 'public', 'orders')}`"
    version = pipeline.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0].version
    pipeline.spark.sql(f"DELETE FROM {table} WHERE id = 20")
    pipeline.run(*CHANGE)
    pipeline.ingest()
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 1
    [line] = [line for line in summary.lines() if line.startswith("failed: ")]
    assert "public.orders" in line
    assert "DELETE at version" in line
    pipeline.assert_equal("lines", "log")
    pipeline.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    assert pipeline.apply().exit_code(strict=True) == 0
    pipeline.assert_equal(*TABLES)


def test_maintenance_of_silver_is_not_a_change(pipeline: Pipeline) -> None:
    pipeline.run(*ORDERS, *LINES, *LOG)
    pipeline.ingest()
    pipeline.run(*FILL)
    pipeline.catch_up()
    pipeline.run(*CHANGE)
    pipeline.catch_up()
    for name in TABLES:
        table = f"delta.`{pipeline.path('silver', 'public', name)}`"
        pipeline.spark.sql(f"OPTIMIZE {table}")
        pipeline.spark.sql(f"VACUUM {table}")
    pipeline.run("UPDATE orders SET item = 'last'", "DELETE FROM lines", "INSERT INTO log VALUES ('last')")
    pipeline.catch_up()
    pipeline.assert_equal(*TABLES)
