"""Partitions that come, go or are emptied under their root: silver follows by their bounds.

No message carries these changes. Rows that need no copy are not copied, and what keeps all rows has no event.
"""

import pytest

from pipeline.config.tables import TableRule
from tests.support.lockstep import Group, Lane, Steps, lockstep
from tests.support.pipelines import MakePipeline
from tests.support.servers import Database

pytestmark = pytest.mark.postgres
GROUP = Group(copy="initial", via_root=True)

MONTHLY = "CREATE TABLE t (id int, at timestamptz, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)"
FILL = (
    "INSERT INTO t SELECT i, '2026-0{0}-01'::timestamptz + i * interval '1 day', 'v'"
    " FROM generate_series(0, 9) i"
)
BY_BOUNDS = "Silver's rows within these bounds become those of the source."


def month(number: int, name: str = "") -> str:
    return f"CREATE TABLE {name or f'm{number}'} PARTITION OF t {bounds(number)}"


def bounds(number: int) -> str:
    return f"FOR VALUES FROM ('2026-0{number}-01') TO ('2026-0{number + 1}-01')"


def attached(number: int) -> list[str]:
    """Return the statements by which tools create a partition ahead."""
    return [
        f"CREATE TABLE m{number} (LIKE t INCLUDING ALL)",
        f"ALTER TABLE t ATTACH PARTITION m{number} {bounds(number)}",
    ]


def copies(lane: Lane, table: str = "t") -> list[tuple[int, bool]]:
    """Return of each complete copy after the first: how many rows it has, and whether it is of all rows."""
    rows = lane.records("copies", table, "bronze")
    partial = {row.copy_id for row in rows if row.key_ranges is not None}
    done = sorted((row for row in rows if row.state == "complete"), key=lambda row: int(row.copy_id))
    return [(row.row_count, row.copy_id not in partial) for row in done][1:]


def events(lane: Lane, table: str = "t") -> list[tuple[str, str]]:
    """Return the events of a table after the one of its first copy."""
    return lane.events(table)[1:]


@lockstep()
def test_gone_and_emptied_partitions_leave_silver_by_bounds(lane: Lane) -> Steps:
    lane.run(MONTHLY, *map(month, range(1, 6)), *map(FILL.format, range(1, 6)))
    yield
    lane.run("DROP TABLE m1", "ALTER TABLE t DETACH PARTITION m2", "UPDATE m2 SET v = 'elsewhere'")
    lane.run("UPDATE t SET v = 'later' WHERE id = 3")
    yield
    lane.assert_equal("t")
    gone = "Partition {} was dropped, detached or made unlogged."
    assert events(lane) == [("evolved", f"{gone.format('m1')} {gone.format('m2')} {BY_BOUNDS}")]
    lane.run("TRUNCATE m3", "INSERT INTO t VALUES (77, '2026-03-05', 'after')")
    yield
    lane.assert_equal("t")
    emptied = "Partition m3 was truncated, or rewritten: no earlier row is left."
    assert events(lane)[1:] == [("evolved", f"{emptied} {BY_BOUNDS}")]
    assert copies(lane) == [(0, False), (1, False)]
    lane.rebuild("t")
    lane.assert_equal("t")


@lockstep()
def test_rows_of_a_new_partition_of_the_same_range_stay(lane: Lane) -> Steps:
    lane.run(MONTHLY, month(1), month(2), FILL.format(1), FILL.format(2))
    yield
    lane.run("DROP TABLE m1", month(1, "again"), FILL.format(1), "DELETE FROM t WHERE id = 4")
    yield
    lane.run("UPDATE t SET v = 'goes on'")
    yield
    lane.assert_equal("t")
    assert lane.run("SELECT count(*) FROM t") == [(18,)]


@lockstep()
def test_a_partition_attached_empty_and_filled_needs_nothing(lane: Lane) -> Steps:
    lane.run(MONTHLY, month(1), FILL.format(1))
    yield
    lane.run(*attached(2), FILL.format(2), "UPDATE t SET v = 'newer' WHERE id % 3 = 1")
    lane.transact(*attached(3))
    lane.run(FILL.format(3))
    lane.transact(FILL.format(2).replace("i,", "100 + i,", 1), "DELETE FROM t WHERE id = 5")
    yield
    lane.assert_equal("t")
    assert events(lane) == []
    assert copies(lane) == []


@lockstep()
def test_only_the_rows_of_an_attached_partition_are_copied(lane: Lane) -> Steps:
    lane.run(MONTHLY, month(1), FILL.format(1))
    yield
    create, attach = attached(2)
    lane.run(create, "INSERT INTO m2 VALUES (1, '2026-02-03', 'before'), (2, '2026-02-04', 'x')", attach)
    lane.run("INSERT INTO t VALUES (3, '2026-02-05', 'after'), (3, '2026-01-30', 'after')")
    yield
    lane.assert_equal("t")
    sentence = f"Partition m2 was attached and may have had rows. {BY_BOUNDS}"
    assert events(lane) == [("evolved", sentence)]
    assert copies(lane) == [(3, False)]
    # in the transaction that attached it, and by one that wrote to both before
    create, attach = attached(3)
    lane.transact(create, "INSERT INTO m3 VALUES (1, '2026-03-03', 'before')", attach)
    create, attach = attached(4)
    lane.run(create)
    lane.transact("INSERT INTO t VALUES (9, '2026-01-05', 'a')", "INSERT INTO m4 VALUES (1, '2026-04-03')")
    lane.run(attach)
    yield
    lane.assert_equal("t")
    assert copies(lane)[1:] == [(2, False)]


@lockstep()
def test_what_changed_while_a_partition_was_out_is_copied(lane: Lane) -> Steps:
    lane.run(MONTHLY, month(1), month(2), FILL.format(1), FILL.format(2))
    yield
    lane.run("ALTER TABLE t DETACH PARTITION m1", "DELETE FROM m1 WHERE id > 3", "UPDATE m1 SET v = 'out'")
    lane.run(f"ALTER TABLE t ATTACH PARTITION m1 {bounds(1)}")
    yield
    lane.assert_equal("t")
    returned = f"Partition m1 was detached and attached again. {BY_BOUNDS}"
    assert events(lane) == [("evolved", returned)]
    assert copies(lane) == [(4, False)]


UUID = "{}0000000-0000-0000-0000-000000000000"
BOUNDS: dict[str, tuple[str, str, str, list[str]]] = {
    "texts": (
        "r text, PRIMARY KEY (id, r)) PARTITION BY LIST (r)",
        "FOR VALUES IN ('a''b', 'c\\d', '', E'x\\ny')",
        "FOR VALUES IN ('z')",
        ["'a''b'", "'c\\d'", "''", "E'x\\ny'", "'z'"],
    ),
    "booleans": (
        "r bool, PRIMARY KEY (r, id)) PARTITION BY LIST (r)",
        "FOR VALUES IN (true)",
        "FOR VALUES IN (false)",
        ["true", "false"],
    ),
    "no_lower_bound": (
        "r date, PRIMARY KEY (id, r)) PARTITION BY RANGE (r)",
        "FOR VALUES FROM (MINVALUE) TO ('2026-01-01')",
        "FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)",
        ["'2025-12-31'", "'2026-01-01'", "'1999-01-01'"],
    ),
    "two_columns": (
        "r int, PRIMARY KEY (r, id)) PARTITION BY RANGE (r, id)",
        "FOR VALUES FROM (-5, 2) TO (7, 1)",
        "FOR VALUES FROM (7, 1) TO (9, MINVALUE)",
        ["-5", "0", "7", "8"],
    ),
    "local_times": (
        "r timestamp, PRIMARY KEY (id, r)) PARTITION BY RANGE (r)",
        "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01 12:30')",
        "FOR VALUES FROM ('2026-02-01 12:30') TO ('infinity')",
        ["'2026-01-01'", "'2026-02-01 12:29:59.999999'", "'2026-02-01 12:30'"],
    ),
    "times_of_zones": (
        "r timestamptz, PRIMARY KEY (id, r)) PARTITION BY RANGE (r)",
        "FOR VALUES FROM ('2026-01-01 00:00+02') TO ('2026-02-01 00:00+02')",
        "FOR VALUES FROM ('2026-02-01 00:00+02') TO (MAXVALUE)",
        ["'2026-01-01 00:00+02'", "'2026-01-31 23:59:59.999999+02'", "'2026-02-01 00:00+02'"],
    ),
    "uuids": (
        "r uuid, PRIMARY KEY (id, r)) PARTITION BY RANGE (r)",
        f"FOR VALUES FROM ('{UUID.format(0)}') TO ('{UUID.format(7)}')",
        f"FOR VALUES FROM ('{UUID.format(7)}') TO (MAXVALUE)",
        [f"'{UUID.format(digit)}'" for digit in "17AF"],
    ),
    "numbers": (
        "r numeric(9,2), PRIMARY KEY (id, r)) PARTITION BY RANGE (r)",
        "FOR VALUES FROM ('-1.50') TO (2.25)",
        "FOR VALUES FROM (2.25) TO (100)",
        ["-1.5", "2.24", "2.25"],
    ),
    "by_bytes": (
        'r text COLLATE "C", PRIMARY KEY (id, r)) PARTITION BY RANGE (r)',
        "FOR VALUES FROM ('A') TO ('a')",
        "FOR VALUES FROM ('a') TO (MAXVALUE)",
        ["'B'", "'_'", "'a'", "'é'"],
    ),
}


@lockstep()
def test_bounds_of_each_kind_select_the_same_rows_in_silver(lane: Lane) -> Steps:
    for name, (columns, first, second, values) in BOUNDS.items():
        lane.run(
            f"CREATE TABLE {name} (id int, v int, {columns}",
            f"CREATE TABLE {name}_1 PARTITION OF {name} {first}",
            f"CREATE TABLE {name}_2 PARTITION OF {name} {second}",
            *(
                f"INSERT INTO {name} VALUES ({i}, 1, {each})"
                for each in values
                for i in (1, 2, 3)
                if name != "two_columns" or (each, i) not in (("-5", 1), ("7", 1))
            ),
        )
    yield
    for name in BOUNDS:
        lane.run(f"ALTER TABLE {name} DETACH PARTITION {name}_1")
    yield
    lane.assert_equal(*BOUNDS)
    for name in BOUNDS:
        [(kind, sentence)] = events(lane, name)
        assert (kind, sentence[-len(BY_BOUNDS) :]) == ("evolved", BY_BOUNDS), name
        [(rows, is_whole)] = copies(lane, name)
        assert (rows, is_whole) == (2 if name == "two_columns" else 0, False), name


@lockstep()
def test_partitions_below_partitions_go_by_all_their_bounds(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int, r text, at date, PRIMARY KEY (id, r, at)) PARTITION BY LIST (r)",
        "CREATE TABLE eu PARTITION OF t FOR VALUES IN ('de', 'fr') PARTITION BY RANGE (at)",
        "CREATE TABLE eu1 PARTITION OF eu FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE eu2 PARTITION OF eu DEFAULT",
        "CREATE TABLE us PARTITION OF t FOR VALUES IN ('us') PARTITION BY HASH (id)",
        "CREATE TABLE us1 PARTITION OF us FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE us2 PARTITION OF us FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO t SELECT i, r, '2026-01-20'::date + i FROM generate_series(1, 20) i,"
        " unnest('{de,fr,us}'::text[]) r",
    )
    yield
    lane.run("DROP TABLE eu1")
    yield
    lane.assert_equal("t")
    assert copies(lane) == [(0, False)]
    rows = lane.run("SELECT count(*) FROM us2")[0][0]
    lane.run("DROP TABLE us1")
    yield
    lane.assert_equal("t")
    assert copies(lane)[1:] == [(rows, False)], "the rows of its parent"
    lane.run("TRUNCATE eu2", "DROP TABLE us")
    yield
    lane.assert_equal("t")
    assert copies(lane)[2:] == [(0, False)]
    assert [kind for kind, _ in events(lane)] == ["evolved"] * 3


@lockstep()
def test_partitions_without_bounds_are_compared(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY HASH (id)",
        *(f"CREATE TABLE h{n} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {n})" for n in range(3)),
        "CREATE TABLE d (id int, r int, PRIMARY KEY (id, r)) PARTITION BY LIST (r)",
        "CREATE TABLE d1 PARTITION OF d FOR VALUES IN (1)",
        "CREATE TABLE d2 PARTITION OF d DEFAULT",
        "CREATE TABLE keyless (id int, r int) PARTITION BY LIST (r)",
        "CREATE TABLE k1 PARTITION OF keyless FOR VALUES IN (1, NULL)",
        "CREATE TABLE k2 PARTITION OF keyless FOR VALUES IN (2)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("keyless", "k1", "k2")),
        "INSERT INTO t SELECT i, i FROM generate_series(1, 30) i",
        "INSERT INTO d SELECT i, i % 3 FROM generate_series(1, 30) i",
        "INSERT INTO keyless VALUES (1, 1), (2, 2), (3, NULL)",
    )
    yield
    lane.run("ALTER TABLE t DETACH PARTITION h1", "DROP TABLE d2", "DROP TABLE k1")
    yield
    yield
    lane.assert_equal("t", "d", "keyless")
    for name in ("t", "d", "keyless"):
        sentences = [row.sentence for row in lane.records("events", name)]
        assert any(
            "It is compared with the source, and what differs is copied." in each for each in sentences
        )


@pytest.mark.promise("partitions that come and go")
@lockstep(TableRule("*.t", dropped_partitions="keep"), TableRule("*.u", dropped_partitions="resync"))
def test_the_policy_decides_on_the_rows_of_partitions_that_are_gone(lane: Lane) -> Steps:
    lane.run(MONTHLY, *map(month, range(1, 4)), *map(FILL.format, range(1, 4)))
    lane.run(
        "CREATE TABLE u (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE u2 PARTITION OF u FOR VALUES FROM (10) TO (30)",
        "INSERT INTO u SELECT generate_series(0, 29)",
    )
    yield
    lane.run(
        "DROP TABLE m1",
        "ALTER TABLE t DETACH PARTITION m2",
        "DROP TABLE u1",
        FILL.format(3) + " ON CONFLICT DO NOTHING",
    )
    yield
    gone = "Partition {} was dropped, detached or made unlogged."
    why = "Silver keeps its rows, also those that the source does not have (dropped_partitions: keep)."
    assert events(lane) == [("info", f"{gone.format('m1')} {gone.format('m2')} {why}")]
    assert len(lane.rows("t", "id")) == 30
    assert copies(lane) == []
    lane.assert_equal("u")
    copied = "All rows of the table are copied (dropped_partitions: resync)."
    assert events(lane, "u")[0] == ("evolved", f"{gone.format('u1')} {copied}")
    assert copies(lane, "u") == [(20, True)]


@lockstep(TableRule("*.t", mode="soft_delete"), TableRule("*.u", mode="append"))
def test_modes_with_a_past_mark_or_keep_the_rows(lane: Lane) -> Steps:
    lane.run(MONTHLY, month(1), month(2), FILL.format(1), FILL.format(2))
    lane.run(
        "CREATE TABLE u (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (10)",
        "INSERT INTO u SELECT generate_series(0, 9)",
    )
    yield
    lane.run("DROP TABLE m1", "DROP TABLE u1")
    yield
    yield
    assert len(lane.rows("t", "id")) == 20
    assert sum(1 for (is_deleted,) in lane.rows("t", "_deleted") if is_deleted) == 10
    assert events(lane, "u")[0][0] == "info"
    assert "(mode: append)" in events(lane, "u")[0][1]
    assert len(lane.rows("u", "id")) == 10


@pytest.mark.promise("partitions that come and go")
def test_bounds_with_backslashes_are_read_whatever_the_database_sets(
    make_pipeline: MakePipeline, database: Database
) -> None:
    database.run(f"ALTER DATABASE {database.name} SET standard_conforming_strings = off")
    pipeline = make_pipeline(copy="initial")
    pipeline.catch_up(
        "CREATE TABLE t (id int, r text, PRIMARY KEY (id, r)) PARTITION BY LIST (r)",
        r"CREATE TABLE t_a PARTITION OF t FOR VALUES IN (E'a\\b')",
        "CREATE TABLE t_d PARTITION OF t DEFAULT",
        r"INSERT INTO t VALUES (1, E'a\\b'), (2, 'c')",
    )
    pipeline.assert_equal("t")
    pipeline.catch_up("DROP TABLE t_a")
    pipeline.catch_up()
    pipeline.assert_equal("t")


@pytest.mark.promise("rewrites")
def test_a_truncate_is_no_proof_if_its_transaction_alters_columns(
    make_pipeline: MakePipeline,
) -> None:
    pipeline = make_pipeline(copy="initial")
    fill_root = "INSERT INTO root SELECT i, 'v' || i FROM generate_series(1, 150) i"
    pipeline.catch_up(
        "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (100) TO (200)",
        fill_root,
    )
    pipeline.transact("TRUNCATE root", fill_root, "ALTER TABLE root ALTER v TYPE text USING v || 'r'")
    pipeline.catch_up()
    pipeline.catch_up()
    pipeline.assert_equal("root")
