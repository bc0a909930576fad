"""Keys that are equal and not the same, and rows without a key, without Spark."""

from decimal import Decimal
from pathlib import Path

import pytest

from pipeline.config.tables import RowMode, TableRule
from tests.support.files import unreadable
from tests.support.lockstep import Group, Lane, Steps, lockstep

pytestmark = pytest.mark.postgres

GROUP = Group(copy="initial")


@lockstep(TableRule("*.t", types={"k": "DECIMAL(10,2)"}))
def test_spellings_of_one_number_are_one_key_of_an_overridden_type(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (k numeric PRIMARY KEY, n int, body text)")
    yield
    lane.run("INSERT INTO t VALUES ('1.0', 1, 'a'), ('2', 1, 'b'), ('100', 1, 'c')")
    yield
    lane.run(
        "UPDATE t SET k = '1.00' WHERE k = 1",
        "UPDATE t SET n = 2 WHERE k = 1",
        "DELETE FROM t WHERE k = 2",
        "INSERT INTO t VALUES ('2.00', 3, 'again'), ('3.0', 1, 'd')",
        "UPDATE t SET k = '3.00' WHERE k = 3",
    )
    yield
    rows = [(str(k), n, body) for k, n, body in lane.rows("t", "k", "n", "body")]
    assert sorted(rows) == [("1.00", 2, "a"), ("100.00", 1, "c"), ("2.00", 3, "again"), ("3.00", 1, "d")]


KINDS = {"plain": "numeric", "short": "numeric(10,2)", "long": "numeric(50,10)"}


@pytest.mark.promise("numbers kept as text")
@lockstep(*(TableRule(f"*.{table}_overridden", types={"k": "STRING"}) for table in KINDS))
def test_a_number_that_silver_keeps_as_text_is_found_by_its_text(lane: Lane) -> Steps:
    tables = {f"{table}{more}": kind for table, kind in KINDS.items() for more in ("", "_overridden")}

    def check() -> None:
        for table in tables:
            found = sorted((Decimal(k), n) for k, n in lane.rows(table, "k", "n"))
            assert found == lane.run(f"SELECT k, n FROM {table} ORDER BY k"), table

    for table, kind in tables.items():
        lane.run(
            f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n int)",
            f"INSERT INTO {table} VALUES (1.50, 1), (2.50, 1), (20, 1), (30.00, 1)",
        )
    yield
    for table in tables:
        lane.run(
            f"UPDATE {table} SET n = 2 WHERE k IN (1.5, 20)", f"DELETE FROM {table} WHERE k IN (2.5, 30)"
        )
    yield
    check()
    lane.rebuild(*tables)
    check()
    lane.resync(*tables)
    for table in tables:
        lane.run(f"UPDATE {table} SET n = 3 WHERE k = 20", f"DELETE FROM {table} WHERE k = 1.5")
    yield
    check()


MODES: tuple[RowMode, ...] = ("mirror", "soft_delete", "history")


@pytest.mark.promise("numbers kept as text")
@lockstep(*(TableRule(f"*.{mode}", types={"k": "STRING"}, mode=mode) for mode in MODES))
def test_a_key_kept_as_text_stays_the_same_when_its_number_gets_wider(lane: Lane) -> Steps:
    for table in MODES:
        lane.run(
            f"CREATE TABLE {table} (k numeric(10,2) PRIMARY KEY, v int)",
            f"INSERT INTO {table} VALUES (1, 0), (2, 1), (3, 2), (4, 3)",
        )
    yield
    for table in MODES:
        lane.run(
            f"UPDATE {table} SET v = 13 WHERE v = 3",
            f"ALTER TABLE {table} ALTER k TYPE numeric(12,2)",  # without a rewrite
            f"UPDATE {table} SET v = v + 100 WHERE v < 2",
            f"DELETE FROM {table} WHERE v = 2",
        )
    yield
    expected = [("1.00", 100), ("2.00", 101), ("4.00", 13)]
    assert sorted(lane.rows("mirror", "k", "v")) == expected
    deleted = lane.rows("soft_delete", "k", "v", "_deleted")
    assert sorted((k, v) for k, v, is_deleted in deleted if not is_deleted) == expected
    versions = lane.rows("history", "k", "v", "_is_current")
    assert sorted((k, v) for k, v, is_current in versions if is_current) == expected


MOMENTS = {"zoned": ("timestamp", "timestamptz"), "local": ("timestamptz", "timestamp")}


@pytest.mark.promise("type changes")
@lockstep(
    TableRule("*.zoned_overridden", types={"k": "TIMESTAMP"}),
    TableRule("*.local_overridden", types={"k": "TIMESTAMP_NTZ"}),
    TableRule("*.*", type_changes="rebuild"),
)
def test_a_moment_is_one_key_with_and_without_its_zone(lane: Lane) -> Steps:
    tables = {f"{table}{more}": types for table, types in MOMENTS.items() for more in ("", "_overridden")}
    for table, (before, _) in tables.items():
        lane.run(
            f"CREATE TABLE {table} (k {before} PRIMARY KEY, v int)",
            f"INSERT INTO {table} VALUES ('2024-01-01', 0), ('2024-01-02 10:00:00.5', 1), ('2024-01-03', 2)",
        )
    yield
    for table, (_, after) in tables.items():
        lane.run(
            f"UPDATE {table} SET v = 10 WHERE v = 0",
            f"ALTER TABLE {table} ALTER k TYPE {after}",  # in UTC without a rewrite
            f"UPDATE {table} SET v = v + 100 WHERE v < 20 AND v <> 2",
            f"DELETE FROM {table} WHERE v = 2",
        )
    yield
    for table in tables:
        lane.assert_equal(table)
    lane.rebuild(*tables)
    for table in tables:
        lane.assert_equal(table)


@pytest.mark.promise("rows without a key")
@lockstep()
def test_rows_leave_a_wide_table(lane: Lane) -> Steps:
    columns = ", ".join(f"c{i} int" for i in range(60))
    lane.run(f"CREATE TABLE wide ({columns})", "ALTER TABLE wide REPLICA IDENTITY FULL")
    yield
    lane.run("INSERT INTO wide (c0, c1) SELECT g % 3, 1 FROM generate_series(1, 9) g")
    yield
    lane.run("DELETE FROM wide WHERE c0 = 1", "UPDATE wide SET c59 = 1 WHERE ctid = '(0,2)'")
    yield
    lane.assert_equal("wide")


@lockstep()
def test_only_files_that_may_have_an_equal_row_are_read(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int, at timestamptz, big text, flag boolean)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    yield
    files: list[set[Path]] = []
    for number in range(3):
        known = {path for each in files for path in each}
        lane.run(
            f"INSERT INTO t SELECT g, '2024-01-0{number + 1}Z', nullif(g % 2, 0) || 'big', NULL "
            f"FROM generate_series({100 * number + 1}, {100 * number + 100}) AS g",
            f"INSERT INTO t VALUES ({100 * number + 1}, '2024-01-0{number + 1}Z', '1big')",
        )
        yield
        files.append({*Path(lane.silver("t").path).glob("*.parquet")} - known)
    with unreadable(files[0] | files[2]):
        lane.run(
            "UPDATE t SET flag = true WHERE id IN (110, 111)",  # a NULL, and a value
            "DELETE FROM t WHERE ctid = (SELECT ctid FROM t WHERE id = 101 LIMIT 1)",  # one of two equal rows
        )
        yield
    lane.assert_equal("t")
    lane.run("UPDATE t SET id = id + 1000 WHERE id % 50 = 0", "DELETE FROM t WHERE id = 1")
    yield
    lane.assert_equal("t")
