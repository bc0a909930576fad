"""What one batch may hold, and what silver holds after it.

Truncates between inserts, another replica identity, another table under the same name, changes of rows from
before the slot, rows that are equal or full of NULL, and columns added with a default.
"""

import pytest

from tests.support.orders import FILL, LINES, LOG, ORDERS, TABLES
from tests.support.pipelines import Pipeline


@pytest.mark.spark
@pytest.mark.slow
def test_truncate_between_inserts_leaves_what_came_after_it(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *LOG, "CREATE TABLE emptied (id int PRIMARY KEY)")
    pipeline.catch_up(*FILL, "INSERT INTO emptied VALUES (1)")
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
    pipeline.assert_follows(*TABLES, "emptied")


def test_replica_identity_may_change_inside_a_batch_and_a_transaction(pipeline: Pipeline) -> None:
    create = "CREATE TABLE {} (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text, big text)"
    for table in ("a", "b"):
        pipeline.run(create.format(table), f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
    pipeline.ingest()
    rows = "SELECT g, g + 50, 'v', repeat('b', 2500) FROM generate_series(1, 12) g"
    pipeline.catch_up(*(f"INSERT INTO {table} {rows}" for table in ("a", "b")))
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
    pipeline.assert_follows("a", "b")


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_created_again_under_its_name_takes_the_place_of_the_first(pipeline: Pipeline) -> None:
    create = "CREATE TABLE {} (id int PRIMARY KEY, v text)"
    pipeline.ingest(*(create.format(table) for table in ("a", "b")))
    pipeline.catch_up(*(f"INSERT INTO {table} VALUES (1, 'old'), (2, 'old')" for table in ("a", "b")))
    # b is dropped within the batch that also changes the first one
    pipeline.run("UPDATE b SET v = 'changed'", "DROP TABLE a", "DROP TABLE b")
    pipeline.run(*(create.format(table) for table in ("a", "b")))
    pipeline.run("INSERT INTO a VALUES (2, 'new')", "INSERT INTO b VALUES (3, 'new'), (4, 'new')")
    pipeline.catch_up("UPDATE b SET id = 5 WHERE id = 3")
    pipeline.assert_equal("a", "b")


@pytest.mark.spark
@pytest.mark.slow
def test_rows_older_than_the_slot_are_no_trouble(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES, *FILL[:2])
    pipeline.ingest(
        "DELETE FROM orders WHERE id < 5",
        "UPDATE orders SET price = 1 WHERE id = 6",
        "INSERT INTO orders VALUES (3, 'new', NULL, NULL)",
        "DELETE FROM lines WHERE order_id = 1",
        "UPDATE lines SET count = 3 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 1)",
        "INSERT INTO lines VALUES (1, NULL, NULL), (1, NULL, NULL), (1, NULL, NULL)",
    )
    pipeline.apply()
    orders = {
        tuple(row) for row in pipeline.frame("silver", "public", "orders").select("id", "item").collect()
    }
    assert orders == {(3, "new"), (6, "item 6")}
    lines = [tuple(row) for row in pipeline.frame("silver", "public", "lines").drop("_commit_lsn").collect()]
    assert sorted(line[0] for line in lines) == [1, 1, 1, 2]


@pytest.mark.quick
@pytest.mark.promise("rows without a key")
def test_null_and_equal_rows_under_full_identity_are_counted(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (x int, y float8, z text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    one = "(SELECT ctid FROM t WHERE {} LIMIT {})"
    pipeline.catch_up(
        "INSERT INTO t SELECT 1, NULL, NULL FROM generate_series(1, 5)",
        "INSERT INTO t SELECT NULL, 'NaN', '' FROM generate_series(1, 5)",
        "INSERT INTO t VALUES (2, 0, 'zero'), (2, '-0', 'zero'), (2, '-0', 'zero')",
        f"DELETE FROM t WHERE ctid IN {one.format('x = 1', 2)}",
    )
    pipeline.assert_equal("t")
    pipeline.catch_up(
        f"UPDATE t SET z = 'set' WHERE ctid IN {one.format('x IS NULL', 2)}",
        f"UPDATE t SET x = x WHERE ctid IN {one.format('x = 1', 2)}",
        f"DELETE FROM t WHERE ctid IN {one.format('x = 1', 1)}",
        "DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE y::text = '-0' LIMIT 1)",
        "INSERT INTO t VALUES (1, NULL, NULL)",
    )
    pipeline.assert_equal("t")


@pytest.mark.spark
@pytest.mark.slow
def test_added_columns_show_what_the_source_shows(pipeline: Pipeline) -> None:
    pipeline.ingest(*ORDERS, *LINES)
    pipeline.catch_up(*FILL[:2])
    for table in ("orders", "lines"):
        pipeline.run(
            f"ALTER TABLE {table} ADD COLUMN plain text",
            f"ALTER TABLE {table} ADD COLUMN rank int DEFAULT 7",
            f"ALTER TABLE {table} ADD COLUMN words text[] DEFAULT '{{a,NULL,\"it''s\"}}' NOT NULL",
        )
    pipeline.catch_up(
        "UPDATE orders SET plain = 'x', rank = NULL WHERE id < 3",
        "UPDATE orders SET id = 99 WHERE id = 5",
        "DELETE FROM lines WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 1 LIMIT 2)",
        "UPDATE lines SET rank = 8 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 2)",
    )
    pipeline.assert_equal("orders", "lines")
    assert {kind for kind, _ in pipeline.events("orders")} == {"evolved"}
    pipeline.run("UPDATE orders SET rank = 9 WHERE id = 8", "UPDATE lines SET rank = 9 WHERE order_id = 3")
    pipeline.assert_follows("orders", "lines")
