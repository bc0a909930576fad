"""Tables with `readers: widest`: any change of their columns, and no table feature that readers need."""

import pytest

from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.operate.plan import make_plan
from pipeline.silver.schema.schema_operations import LeaveFeatures
from pipeline.silver.write import batch_writer
from pipeline.table_name import TableName
from tests.support.lockstep import CAPTURED, STOPPED, Group, Lane, Steps, lockstep
from tests.support.pipelines import Crash, MakePipeline, crash, with_rules
from tools.readers.read import READERS, plain_rows, result_of

pytestmark = pytest.mark.postgres

GROUP = Group(writers=("native", "spark"))
NINE = "generate_series(1, 9) g"
PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
T = TableRule("*.t", readers="widest")


def assert_widest(lane: Lane, table: str = "t", *, ignore_left_columns: bool = False) -> None:
    """Assert that silver equals the source, asks nothing of readers, and that others read the same."""
    lane.assert_equal(table, ignore_left_columns=ignore_left_columns)
    silver = lane.silver(table)
    assert silver.snapshot().protocol == PLAIN
    names = silver.schema().names
    assert silver.physical_names() == dict(zip(names, names, strict=True))
    request = {"path": str(silver.local_path), "columns": names, "version": None, "is_feed": False}
    expected = plain_rows(lane.frame(table).select(*names).collect())
    for reader in ("delta-rs", "Polars"):
        assert result_of(READERS[reader]()[1], request) == {"rows": expected}


@pytest.mark.promise("widest readers")
@lockstep(T, TableRule("*.d", readers="widest", dropped_columns="drop"))
def test_columns_change_and_readers_need_no_feature(lane: Lane) -> Steps:
    for table in ("t", "d"):
        lane.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b text, n int, price numeric(8, 2), f real)",
            f"INSERT INTO {table} SELECT g, 'a' || g, 'b' || g, g, g * 1.25, 0.1 FROM {NINE}",
        )
    yield
    for table in ("t", "d"):
        assert_widest(lane, table)
        lane.run(
            f"UPDATE {table} SET a = 'x' WHERE id = 1",
            f"ALTER TABLE {table} RENAME a TO c",
            f"ALTER TABLE {table} RENAME b TO a",
            f"ALTER TABLE {table} RENAME c TO b",  # the two have swapped their names
            f"ALTER TABLE {table} ADD kind text DEFAULT 'new'",
            f"UPDATE {table} SET b = 'y' WHERE id = 2",
        )
    yield
    for table in ("t", "d"):
        assert_widest(lane, table)
        assert ("evolved", "Column kind was added with a default.") in lane.events(table)
        lane.run(
            f"ALTER TABLE {table} ALTER n TYPE bigint, ALTER price TYPE numeric(12, 3), ALTER f TYPE float8",
            f"UPDATE {table} SET n = 5000000000, price = 1.125 WHERE id = 3",
        )
    yield CAPTURED
    [steps] = [each.steps for each in lane.plan() if each.name.table == "t"]
    assert steps[0].cost == "writes 9 rows again, in one commit for all columns"
    yield
    for table in ("t", "d"):
        assert_widest(lane, table)
        lane.run(
            f"ALTER TABLE {table} RENAME id TO number",
            f"ALTER TABLE {table} DROP a",
            f"DELETE FROM {table} WHERE number = 4",
            f"ALTER TABLE {table} DROP kind, ADD kind int DEFAULT 7",
            f"INSERT INTO {table} (number) VALUES (20)",
        )
    yield
    assert_widest(lane, "d")
    assert_widest(lane, "t", ignore_left_columns=True)
    assert lane.rows("t", "a")[-1] == (None,)  # of the row that came later
    assert len(lane.rows("t", "a", "kind__7")) == 9


@lockstep(
    TableRule("*.t", readers="widest", mode="history"),
    TableRule("*.p", readers="widest", partition_by=("day",)),
)
def test_versions_and_partitions_stay_as_they_are(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE p (id int PRIMARY KEY, day date)",
        "INSERT INTO p SELECT g, DATE '2024-01-01' + g % 2 FROM generate_series(1, 6) g",
    )
    yield
    lane.run("UPDATE t SET v = 'c' WHERE id = 1")
    yield
    before = lane.rows("t", "id", "v", "_valid_from_lsn", "_valid_to_lsn")
    lane.run(
        "ALTER TABLE t RENAME v TO w",
        "INSERT INTO t VALUES (3, 'd')",
        "ALTER TABLE p RENAME day TO on_day",
        "ALTER TABLE p RENAME id TO number",
        "ALTER TABLE p ALTER number TYPE bigint",
        "UPDATE p SET on_day = NULL WHERE number = 1",
    )
    lane.set_rules(lane.rules[0], TableRule("*.p", readers="widest", partition_by=("on_day",)))
    yield
    assert [
        row for row in lane.rows("t", "id", "w", "_valid_from_lsn", "_valid_to_lsn") if row[0] < 3
    ] == before
    assert lane.silver("t").snapshot().protocol == PLAIN
    assert_widest(lane, "p")
    assert lane.silver("p").snapshot().partition_columns == ("on_day",)


@lockstep(T)
def test_a_name_that_needs_column_mapping_holds_the_table(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    yield
    lane.run('ALTER TABLE t RENAME v TO "a value"', "INSERT INTO t VALUES (2, 'b')")
    yield STOPPED
    assert "readers: widest" in (lane.state("t").held or "")
    assert lane.rows("t", "id", "v") == [(1, "a")]
    lane.run('ALTER TABLE t RENAME "a value" TO v')
    lane.set_rules(TableRule("*.t"))
    yield
    lane.assert_equal("t")


@lockstep(T, TableRule("*.n", readers="widest"))
def test_nothing_is_lost_where_one_hold_follows_another(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lane.run('CREATE TABLE n (id int PRIMARY KEY, "x y" text)', "INSERT INTO n VALUES (1, 'a')")
    yield STOPPED
    lane.run('ALTER TABLE t ADD "x y" text')
    for table in ("t", "n"):
        lane.run(f"INSERT INTO {table} VALUES (2, 'b')")
    yield STOPPED
    for table in ("t", "n"):
        assert "x y" in (lane.state(table).held or "")
        lane.run(f'ALTER TABLE {table} RENAME "x y" TO xy', f'ALTER TABLE {table} ADD "p q" text')
        lane.run(f"INSERT INTO {table} VALUES (3, 'c', 'd')")
    yield STOPPED
    for table in ("t", "n"):
        assert "p q" in (lane.state(table).held or "")
        lane.run(f'ALTER TABLE {table} RENAME "p q" TO pq', f"INSERT INTO {table} VALUES (4, 'e', 'f')")
    assert lane.rows("t", "id") == [(1,)]
    yield
    assert_widest(lane, "t")
    assert_widest(lane, "n")


@pytest.mark.promise("widest readers")
def test_an_edited_rule_takes_features_back_and_a_crash_swaps_no_column(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = make_pipeline(create_publication="all")
    mapped.ingest()
    mapped.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, n int)",
        "INSERT INTO t VALUES (1, 'a', 'b', 1), (2, 'c', 'd', 2)",
    )
    mapped.catch_up("ALTER TABLE t RENAME n TO m", "ALTER TABLE t ALTER m TYPE bigint", "UPDATE t SET m = 5")
    name = TableName("public", "t")
    table = LakeTable(str(mapped.path("silver", *name)))
    assert table.snapshot().protocol["minReaderVersion"] == 3
    widest = with_rules(mapped, TableRule("public.*", readers="widest"))
    [planned] = make_plan(widest.config).tables
    assert [(step.sentence, step.cost) for step in planned.steps] == [
        (
            LeaveFeatures().sentence,
            "writes 2 rows again, in one commit for all columns; with the table's next change",
        )
    ]
    widest.ingest(
        "ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME c TO b",
        "UPDATE t SET a = 'x' WHERE id = 1",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(batch_writer, "registrations", crash)  # after the table is written again
        with pytest.raises(Crash):
            widest.apply()
    assert table.snapshot().protocol == PLAIN
    widest.assert_follows("t")
    version = table.version()
    widest.catch_up("UPDATE t SET b = 'y' WHERE id = 2")
    widest.assert_equal("t")
    assert table.version() == version + 1  # nothing is written again
