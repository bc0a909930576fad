"""Columns that are renamed, dropped and added again, and keys that only Spark finds."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pipeline.config.tables import TableRule
from tests.support.lockstep import STOPPED, Lane, Steps, lockstep

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def silver(lane: Lane, table: str, *names: str) -> list[tuple[Any, ...]]:
    """Return silver's rows in order, whose columns but ours have these names."""
    frame = lane.frame(table).drop("_commit_lsn", "_commit_time")
    assert frame.columns == list(names)
    return [tuple(row) for row in frame.orderBy(names[0]).collect()]


def recorded(lane: Lane, table: str) -> dict[str, str]:
    """Return the source's names with silver's, as an analyst finds them."""
    [row] = lane.records("tables", table)
    return {column.name: column.silver_name for column in row["columns"]}


TEXTS = TableRule("*.t", types={"n": "INT"}, misfits={"day": "text", "n": "text", "note": "text"})


@pytest.mark.promise("misfit policies")
@lockstep(TEXTS)
def test_text_keeps_what_does_not_fit_in_a_column_of_its_own(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int PRIMARY KEY, price numeric(5,2), day date, n numeric, note text)",
        "INSERT INTO t VALUES (1, 1, 'infinity', 5, 'a'), (2, 'NaN', '2024-01-01', 1.5, 'b')",
        "INSERT INTO t VALUES (3, 2, '0044-03-15 BC', NULL, NULL)",
    )
    yield
    assert lane.state("t").misfits == 4
    assert lane.rows("t", "id", "price", "day", "day__text", "n", "n__text") == [
        (1, Decimal(1), None, "infinity", 5, None),
        (2, None, date(2024, 1, 1), None, None, "1.5"),
        (3, Decimal(2), None, "0044-03-15 BC", None, None),
    ]
    assert "note__text" not in lane.frame("t").columns
    misfits = lane.records("misfits", "t")
    assert sorted((row.column_name, row.key, row.raw_text, row.policy) for row in misfits) == [
        ("day", '{"id":"1"}', "infinity", "text"),
        ("day", '{"id":"3"}', "0044-03-15 BC", "text"),
        ("n", '{"id":"2"}', "1.5", "text"),
        ("price", '{"id":"2"}', "NaN", "null"),
    ]
    lane.set_rules(TableRule("*.t", types={"m": "INT"}, misfits={"day": "text", "m": "text"}))
    lane.run(
        "UPDATE t SET day = '2025-05-05' WHERE id = 1",
        "UPDATE t SET id = 4 WHERE id = 3",
        "ALTER TABLE t RENAME n TO m",
        "UPDATE t SET price = 3 WHERE id = 2",
    )
    yield
    assert lane.rows("t", "id", "price", "day", "day__text", "m", "m__text") == [
        (1, Decimal(1), date(2025, 5, 5), None, 5, None),
        (2, Decimal(3), date(2024, 1, 1), None, None, "1.5"),
        (4, Decimal(2), None, "0044-03-15 BC", None, None),
    ]
    assert "n__text" not in lane.frame("t").columns


LEFT = TableRule("*.*", misfit="text")


@pytest.mark.promise("misfit policies")
@lockstep(
    TableRule("*.w", misfit="text", readers="widest"),
    TableRule("*.h", misfit="text", mode="history"),
    TableRule("*.l", misfit="text", mode="append"),
    LEFT,
)
def test_a_column_may_have_the_name_of_texts_of_a_dropped_one(lane: Lane) -> Steps:
    tables = ("renamed", "added", "spelled", "w", "h", "l")
    for table in tables:
        lane.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, z text, d date)",
            f"INSERT INTO {table} VALUES (1, 'a', 'infinity')",
        )
    yield
    assert lane.rows("added", "d__text") == [("infinity",)]
    for table in tables:
        lane.run(f"ALTER TABLE {table} DROP d", f"UPDATE {table} SET z = 'b'")
    yield
    for table in tables:
        named = '"D__text"' if table == "spelled" else "d__text"
        is_added = table in ("added", "spelled", "l")
        lane.run(f"ALTER TABLE {table} {'ADD' if is_added else 'RENAME z TO'} {named} {'text' * is_added}")
        lane.run(f"INSERT INTO {table} VALUES (2, 'c'" + (", 'd')" if is_added else ")"))
    yield
    for table in tables[:-2]:
        lane.assert_equal(table, ignore_left_columns=True)
    shown = lane.rows("h", "id", "d__text", "_is_current")
    assert sorted(row[:2] for row in shown if row[2]) == [(1, "b"), (2, "c")]
    assert lane.rows("added", "id", "d__text", "d__text__0") == [(1, None, "infinity"), (2, "d", None)]
    assert [row for row in lane.rows("l", "d__text") if row != (None,)] == [("d",)]
    # texts of changes before, and a column with their name, in one batch
    for table in ("renamed", "added"):
        lane.run(
            f"ALTER TABLE {table} ADD e date",
            f"INSERT INTO {table} (id, e) VALUES (3, 'infinity')",
            f"ALTER TABLE {table} DROP e, ADD e__text text",
            f"INSERT INTO {table} (id, e__text) VALUES (4, 'e')",
        )
    yield STOPPED
    yield
    for table in ("renamed", "added"):
        lane.assert_equal(table, ignore_left_columns=True)


@lockstep()
def test_misfits_of_different_rows_have_different_keys(lane: Lane) -> Steps:
    keys = {
        "text": ["a", "", "NULL"],
        "bytea": ["\\xff", "\\xfe"],
        "text[]": ['{a,"b, c"}', "{a,b,c}", "{a,NULL}"],
    }
    for number, (type_, texts) in enumerate(keys.items()):
        lane.run(f"CREATE TABLE keyed_{number} (k {type_} PRIMARY KEY, day date)")
        lane.run(*(f"INSERT INTO keyed_{number} VALUES ('{key}', 'infinity')" for key in texts))
    yield
    for number, texts in enumerate(keys.values()):
        found = [row.key for row in lane.records("misfits", f"keyed_{number}")]
        assert len(found) == len(set(found)) == len(texts)


def change_cases(lane: Lane, identity: str) -> Steps:
    lane.run(
        'CREATE TABLE t ("Id" int PRIMARY KEY, v text, "V" text, "ID" int)',
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t SELECT g, 'low', 'high', g * 10 FROM generate_series(1, 4) g",
        'UPDATE t SET "V" = \'higher\' WHERE "Id" = 2',
        'UPDATE t SET "Id" = 9 WHERE "Id" = 3',
        'DELETE FROM t WHERE "ID" = 40',
    )
    yield
    rows = [(1, "low", "high", 10), (2, "low", "higher", 20), (9, "low", "high", 30)]
    assert silver(lane, "t", "Id", "v", "V__3", "ID__4") == rows
    assert recorded(lane, "t") == {"Id": "Id", "v": "v", "V": "V__3", "ID": "ID__4"}
    # the names come free, each in its own way
    lane.run("ALTER TABLE t RENAME v TO other", 'ALTER TABLE t RENAME "ID" TO n', "UPDATE t SET n = n + 1")
    yield
    assert silver(lane, "t", "Id", "other", "V", "n") == [(*row[:3], row[3] + 1) for row in rows]
    # and are taken again
    lane.run('ALTER TABLE t ADD "OTHER" int DEFAULT 5', "DELETE FROM t WHERE n = 11")
    yield
    assert [row[4] for row in silver(lane, "t", "Id", "other", "V", "n", "OTHER__5")] == [5, 5]
    assert lane.events("t")[-1] == ("evolved", "Column OTHER__5 was added with a default.")


@lockstep()
def test_columns_that_differ_only_in_case_are_both_there(lane: Lane) -> Steps:
    yield from change_cases(lane, "DEFAULT")


@pytest.mark.slow
@lockstep()
def test_columns_of_whole_rows_that_differ_only_in_case_are_both_there(lane: Lane) -> Steps:
    yield from change_cases(lane, "FULL")


@lockstep(TableRule("*.t", dropped_columns="drop", misfits={"day": "text"}))
def test_dropped_columns_are_dropped_in_silver_if_the_rule_is_drop(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, day date, w text)",
        "INSERT INTO t VALUES (1, 'a', 'infinity', 'x'), (2, 'b', '2024-01-01', 'y')",
    )
    yield
    lane.transact(
        "UPDATE t SET v = 'c' WHERE id = 1",
        "ALTER TABLE t DROP v, DROP day",
        "INSERT INTO t VALUES (3, 'z')",
        "ALTER TABLE t ADD v int DEFAULT 7",
        "UPDATE t SET w = 'late' WHERE id = 2",
    )
    yield
    assert silver(lane, "t", "id", "w", "v") == [(1, "x", 7), (2, "late", 7), (3, "z", 7)]
    lane.assert_equal("t")
    lane.run("ALTER TABLE t DROP w", "UPDATE t SET v = 8 WHERE id = 1")
    yield
    lane.assert_equal("t")
    assert recorded(lane, "t") == {"id": "id", "v": "v"}


# type → a key, and one that the server takes for the same
KEYS = {
    "float8": ("-0", "0"),
    "numeric": ("1.0", "1.00"),
    "jsonb": ("1.0", "1.00"),
    "float8[]": ("{-0,NaN}", "{0,NaN}"),
}


def change_keys(lane: Lane, *types: str, is_one_batch: bool) -> Steps:
    tables = {f"keyed_{i}": KEYS[type_] for i, type_ in enumerate(types)}
    for (table, (before, _)), type_ in zip(tables.items(), types, strict=True):
        lane.run(f"CREATE TABLE {table} (k {type_} PRIMARY KEY, n int)")
        lane.run(f"INSERT INTO {table} VALUES ('{before}', 1)")
    if not is_one_batch:
        yield
    for table, (_, after) in tables.items():
        lane.run(f"UPDATE {table} SET k = '{after}'", f"UPDATE {table} SET n = 2")
    yield
    lane.assert_equal(*tables)
    for table, (before, _) in tables.items():
        lane.run(f"DELETE FROM {table}", f"INSERT INTO {table} VALUES ('{before}', 3)")
    yield
    lane.assert_equal(*tables)


@lockstep()
def test_a_key_that_becomes_an_equal_one_is_one_row(lane: Lane) -> Steps:
    yield from change_keys(lane, "float8", "numeric", "jsonb", is_one_batch=False)


@pytest.mark.slow
@lockstep()
def test_a_key_that_becomes_an_equal_one_in_a_batch_is_one_row(lane: Lane) -> Steps:
    yield from change_keys(lane, "float8", "numeric", "jsonb", is_one_batch=True)


@pytest.mark.slow
@lockstep()
def test_an_array_key_that_becomes_an_equal_one_is_one_row(lane: Lane) -> Steps:
    yield from change_keys(lane, "float8[]", is_one_batch=False)


@pytest.mark.slow
@lockstep()
def test_a_key_whose_type_was_widened_within_a_batch_is_one_row(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (k numeric(10,1) PRIMARY KEY, n int, body text)",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b')",
        "ALTER TABLE t ALTER k TYPE numeric(12,3)",
        "UPDATE t SET n = 2 WHERE k = 1",
        "DELETE FROM t WHERE k = 2",
    )
    yield
    lane.assert_equal("t")
