"""Columns are changed without Spark, and silver is as `silver.writer: spark` leaves it.

By default one test compares with a lake that Spark writes, the slow ones do all.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.apply.applier import Applier
from pipeline.config.tables import TableRule
from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.log import COLUMN_CHANGING
from pipeline.delta.schema import PHYSICAL_NAME, TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import TableLog
from pipeline.errors import LakeError
from pipeline.silver.schema.foreign_commits import refuse_foreign_commits
from pipeline.silver.write import schema_writer
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import backticked, silver_rows
from tests.support.pipelines import Crash, MakePipeline, Pipeline, crash, with_rules, with_writer

Lanes = Mapping[WriterSetting, Pipeline]
T = TableName("public", "t")
# column → its type and default, and a value of it as Spark's SQL
DEFAULTS = {
    "a text": ("text DEFAULT E'it''s \\\\ \\n größer'", r"'it\'s \\ \n größer'"),
    "number": ("int DEFAULT -7", "-7"),
    "price": ("numeric(10, 2) DEFAULT 12.50", "12.50BD"),
    "at": ("timestamptz DEFAULT '2024-02-29 12:00:00.123456+02'", "TIMESTAMP '2024-02-29 10:00:00.123456Z'"),
    "is_open": ("boolean DEFAULT true", "true"),
    "document": ("""jsonb DEFAULT '{"a": [1, "x"]}'""", """'{"a": [1, "x"]}'"""),
    "day": ("date DEFAULT '1999-12-31'", "DATE '1999-12-31'"),
    "numbers": ("int[] DEFAULT '{1,NULL,3}'", "array(1, NULL, 3)"),
    "ratio": ("float8 DEFAULT 0.1", "0.1D"),
    "raw": (r"bytea DEFAULT '\x00ff'", "X'00FF'"),
}


NATIVE, BOTH = ("auto",), ("auto", "spark")
both = pytest.mark.parametrize(
    "lanes", [pytest.param(BOTH, marks=pytest.mark.spark)], indirect=True, ids=["both"]
)
native = pytest.mark.parametrize(
    "lanes",
    [NATIVE, pytest.param(BOTH, marks=[pytest.mark.slow, pytest.mark.spark])],
    indirect=True,
    ids=["native", "both"],
)


@pytest.fixture
def lanes(request: pytest.FixtureRequest, make_pipeline: MakePipeline) -> dict[WriterSetting, Pipeline]:
    """Give a pipeline of each writer, of the same source; `t` has rows in three files of each lake."""
    writers: tuple[WriterSetting, ...] = request.param
    rule = TableRule("public.*", dropped_columns="drop")
    found = {w: with_rules(make_pipeline(name=w, create_publication="all"), rule) for w in writers}
    for lane in found.values():
        lane.ingest()
    source = found["auto"]
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for start in (1, 101, 201):
        source.run(f"INSERT INTO t SELECT g, 'v' || g FROM generate_series({start}, {start + 99}) g")
        for lane in found.values():
            lane.ingest()
            apply(with_writer(lane, "auto"))
    return {w: with_writer(lane, w) for w, lane in found.items()}


@contextmanager
def no_spark(lane: Pipeline) -> Iterator[Applier]:
    """Give an applier that has no session, and may not start one."""

    def refuse(name: str) -> object:
        raise LakeError("Spark is started.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.delta.spark.session.start_session", refuse)
        yield Applier(None, lane.config)


def apply(lane: Pipeline) -> None:
    """Apply what bronze holds; without Spark if the lane's writer is not Spark."""
    if lane.config.silver.writer == "spark":
        summary = Applier(lane.spark, lane.config).apply_pending()
    else:
        with no_spark(lane) as applier:
            summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0, summary.lines()


def follow(lanes: Lanes) -> None:
    for lane in lanes.values():
        lane.ingest()
        apply(lane)


def table_of(lane: Pipeline) -> LakeTable:
    return LakeTable(str(lane.path("silver", *T)))


def operations(lane: Pipeline) -> list[str]:
    """Return the operations of a lane's commits that changed columns or set their defaults, oldest first."""
    found = [str(commit["operation"]) for commit in table_of(lane).newest_commits()]
    return [each for each in reversed(found) if each in COLUMN_CHANGING or each == "UPDATE"]


def history(lane: Pipeline) -> list[tuple[Any, ...]]:
    """Return what DESCRIBE HISTORY shows of a lane's commits that changed columns or set their defaults.

    Spark writes rows into as many files as it has partitions.
    """
    rows = (
        lane.session.sql(f"DESCRIBE HISTORY delta.`{lane.path('silver', *T)}`").orderBy("version").collect()
    )
    return [
        (
            row.operation,
            row.operationParameters,
            {
                name: n
                for name, n in row.operationMetrics.items()
                if name in ("numUpdatedRows", "numCopiedRows")
            },
            row.isolationLevel,
            row.isBlindAppend,
            own(row.userMetadata),
        )
        for row in rows
        if row.operation in COLUMN_CHANGING or row.operation == "UPDATE"
    ]


def described(schema: TableSchema) -> list[tuple[Any, ...]]:
    """Return the columns, but for their names in data files, which are drawn."""
    return [
        (each.name, each.type, {k: v for k, v in each.metadata.items() if k != PHYSICAL_NAME})
        for each in schema.fields
    ]


def own(metadata: str) -> dict[str, Any]:
    """Return a commit's metadata without the name of its pipeline."""
    found = json.loads(metadata)
    if "app_id" in found:
        found["app_id"] = found["app_id"].rpartition(":")[2]
    return dict(found)


def compare(lanes: Lanes) -> None:
    """Assert that all lakes have the same table: rows, types, commits of its columns and events."""
    native = lanes["auto"]
    native.assert_equal("t")
    engines = {commit["engineInfo"].split("/")[0] for commit in table_of(native).newest_commits()}
    assert engines == {"pgdelta"}
    refuse_foreign_commits(table_of(native), T, 0)
    if (by_spark := lanes.get("spark")) is None:
        return
    schema = table_of(native).schema()
    assert described(schema) == described(table_of(by_spark).schema())
    found = silver_rows(native.session, native.root, *T, schema.names)
    assert found == arrow_rows(table_of(by_spark).path, schema.names)
    types = [lane.frame("silver", *T).dtypes for lane in lanes.values()]
    assert types[0] == types[1]
    assert history(native) == history(by_spark)
    assert sorted(native.events("t")) == sorted(by_spark.events("t"))


@native
def test_a_column_without_default_changes_no_file(lanes: Lanes) -> None:
    files = set(table_of(lanes["auto"]).snapshot().files)
    lanes["auto"].run("ALTER TABLE t ADD w text", "INSERT INTO t VALUES (1000, 'a', 'b')")
    follow(lanes)
    assert files < set(table_of(lanes["auto"]).snapshot().files)
    assert operations(lanes["auto"]) == ["ADD COLUMNS"]
    compare(lanes)


@both
@pytest.mark.slow
def test_a_column_is_added_to_a_table_that_is_read_from_a_checkpoint(lanes: Lanes) -> None:
    for lane in lanes.values():
        table = table_of(lane)
        write_checkpoint(table.folder, table.version())
        TableLog.forget(table.path)
    lanes["auto"].run("ALTER TABLE t ADD n int DEFAULT 7", "UPDATE t SET n = 8 WHERE id = 1")
    follow(lanes)
    compare(lanes)


@both
@pytest.mark.slow
def test_defaults_of_all_types_are_set_as_by_spark(lanes: Lanes) -> None:
    lanes["auto"].transact(
        *(f'ALTER TABLE t ADD "{name.replace(" ", "_")}" {kind}' for name, (kind, _) in DEFAULTS.items()),
        "UPDATE t SET v = 'changed' WHERE id = 7",
        "INSERT INTO t (id) VALUES (1000)",
    )
    follow(lanes)
    compare(lanes)
    for name, (_, value) in DEFAULTS.items():
        column = backticked(name.replace(" ", "_"))
        counts = [
            lane.spark_frame("silver", *T).where(f"{column} = {value} AND id < 1000").count()
            for lane in lanes.values()
        ]
        assert counts == [300, 300], name
        others = (
            lanes["auto"].spark_frame("silver", *T).where(f"{column} <> {value} OR {column} IS NULL").count()
        )
        assert others == 0, name


@both
@pytest.mark.slow
def test_statistics_bound_the_default_of_every_file(lanes: Lanes) -> None:
    lanes["auto"].run(
        "ALTER TABLE t ADD n int DEFAULT 7, ADD m int", "UPDATE t SET n = 9, m = 1 WHERE id = 1"
    )
    follow(lanes)
    compare(lanes)
    found = [json.loads(file["stats"]) for file in table_of(lanes["auto"]).snapshot().files.values()]
    assert [each["numRecords"] for each in found] == [100, 100, 100]
    bounds = sorted((each["minValues"]["n"], each["maxValues"]["n"]) for each in found)
    assert bounds == [(7, 7), (7, 7), (7, 9)]
    assert sorted(each["nullCount"].get("m", 100) for each in found) == [99, 100, 100]
    for condition, expected in (("n = 7", 299), ("n > 7", 1), ("n < 7", 0), ("m IS NULL", 299), ("m = 1", 1)):
        counts = [lane.frame("silver", *T).where(condition).count() for lane in lanes.values()]
        assert counts == [expected, expected], condition


@both
def test_columns_are_renamed_widened_and_dropped_as_by_spark(lanes: Lanes) -> None:
    lane = lanes["auto"]
    kinds = {"n": "smallint", "f": "real", "p": "numeric(5,2)", "d": "date", "gone": "int DEFAULT 7"}
    lane.transact(
        *(f"ALTER TABLE t ADD {name} {kind}" for name, kind in kinds.items()),
        "UPDATE t SET n = id, f = id + 0.1, p = id, d = date '2020-01-01' + id WHERE id % 3 = 0",
    )
    follow({"auto": lane, "spark": with_writer(lanes["spark"], "auto")})
    assert "columnMapping" not in str(table_of(lane).snapshot().protocol)
    lane.transact(
        'ALTER TABLE t RENAME v TO "a v"',
        "ALTER TABLE t ALTER n TYPE bigint, ALTER p TYPE numeric(9,2), ALTER f TYPE float8",
        "ALTER TABLE t ALTER d TYPE timestamp, DROP gone",
        "ALTER TABLE t ADD v int DEFAULT 3",  # apart: a table that is rewritten keeps no default
        "UPDATE t SET \"a v\" = 'changed', n = 5000000000, v = 8 WHERE id IN (3, 4, 250)",
        "DELETE FROM t WHERE id = 5",
        "INSERT INTO t SELECT g, 'new', g, g, g, now(), g FROM generate_series(1000, 1002) g",
    )
    follow(lanes)
    compare({"auto": lane})
    lane.transact(
        'ALTER TABLE t RENAME "a v" TO w',
        'ALTER TABLE t RENAME v TO "a v"',
        "ALTER TABLE t ADD gone text",
        "UPDATE t SET gone = w WHERE id > 290",
        "DELETE FROM t WHERE id = 1001",
        'ALTER TABLE t RENAME id TO "the id"',
    )
    follow(lanes)
    compare(lanes)
    changed = set(operations(lane))
    assert changed == {*COLUMN_CHANGING, "UPDATE"} - {"CHANGE COLUMNS"}


@native
def test_files_of_renamed_columns_are_chosen_by_their_statistics(lanes: Lanes) -> None:
    lane = lanes["auto"]
    lane.run('ALTER TABLE t RENAME id TO "the id"', "ALTER TABLE t RENAME v TO id")
    lane.run("UPDATE t SET id = 'changed' WHERE \"the id\" = 150")
    before = set(table_of(lane).snapshot().files)
    follow(lanes)
    compare(lanes)
    after = set(table_of(lane).snapshot().files)
    assert (len(before - after), len(after - before)) == (1, 1)
    found = [json.loads(file["stats"]) for file in table_of(lane).snapshot().files.values()]
    bounds = sorted((each["minValues"]["id"], each["maxValues"]["id"]) for each in found)
    assert bounds == [(1, 100), (101, 200), (201, 300)]
    for condition in ("`the id` = 150", "id = 'changed'", "id = 'v7'"):
        for each in lanes.values() if "spark" in lanes else ():
            assert each.spark_frame("silver", *T).where(condition).count() == 1, condition


@native
def test_a_run_that_ends_between_the_column_and_its_default_is_continued(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lanes["auto"]
    lane.run("ALTER TABLE t ADD n int DEFAULT 7", "UPDATE t SET v = 'x' WHERE id = 1")
    for each in lanes.values():
        each.ingest()
    with monkeypatch.context() as patch, no_spark(lane) as applier:
        patch.setattr(schema_writer, "set_default", crash)
        with pytest.raises(Crash):
            applier.apply_pending()
    assert "n" in table_of(lane).schema().names
    assert operations(lane) == ["ADD COLUMNS"]
    with monkeypatch.context() as patch, no_spark(lane) as applier:
        patch.setattr(schema_writer, "columns_to_register", crash)  # after the default is set
        with pytest.raises(Crash):
            applier.apply_pending()
    assert operations(lane) == ["ADD COLUMNS", "UPDATE"]
    follow(lanes)
    compare(lanes)
    lane.run("UPDATE t SET n = NULL WHERE id = 2")
    follow(lanes)
    compare(lanes)


@pytest.mark.parametrize("lanes", [NATIVE], indirect=True, ids=["native"])
def test_a_foreign_commit_during_the_schema_change_has_it_planned_again(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lanes["auto"]
    lane.ingest("ALTER TABLE t ADD n int DEFAULT 7", "INSERT INTO t VALUES (1000)")
    path = str(lane.path("silver", *T))
    before: dict[str, Callable[[], object]] = {
        "ADD COLUMNS": lambda: DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"}),
        "UPDATE": lambda: DeltaTable(path).optimize.compact(),
    }
    for operation, action in before.items():
        do_once_before(monkeypatch, operation, action)
    with no_spark(lane) as applier:
        summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0, summary.lines()
    lane.assert_equal("t")
    found = [each.operation for each in table_of(lane).operations_after(3)]
    assert found == ["SET TBLPROPERTIES", "ADD COLUMNS", "OPTIMIZE", "UPDATE", "MERGE"]


def do_once_before(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], object]) -> None:
    """Have something done once before a commit with the name of an operation, after its table was read."""
    commit, pending = LakeTable.commit, [action]

    def commit_after(
        self: LakeTable, snapshot: Any, actions: Any, versions: Any, operation: Any, *more: Any
    ) -> int:
        if operation.name == name and pending:
            pending.pop()()
        return commit(self, snapshot, actions, versions, operation, *more)

    monkeypatch.setattr(LakeTable, "commit", commit_after)


@both
@pytest.mark.slow
def test_an_empty_table_and_a_column_that_only_spark_writes(lanes: Lanes) -> None:
    lane = lanes["auto"]
    lane.run("TRUNCATE t", "INSERT INTO t VALUES (1, 'a')", "DELETE FROM t")
    follow(lanes)
    lane.run("ALTER TABLE t ADD n int DEFAULT 7", "INSERT INTO t VALUES (2, 'b')")
    follow(lanes)
    compare(lanes)
    lane = with_rules(lane, TableRule("public.*", types={"j": "VARIANT"}))
    lane.ingest("ALTER TABLE t ADD j jsonb DEFAULT '[1]'", "INSERT INTO t VALUES (3, 'c')")
    with no_spark(lane) as applier:
        summary = applier.apply_pending()
    assert "Spark is started" in str(summary.tables[T].failure)
    lane.apply()
    found = lane.spark_frame("silver", *T).selectExpr("id", "to_json(j) AS j").collect()
    assert sorted(map(tuple, found)) == [(2, "[1]"), (3, "[1]")]


@both
@pytest.mark.slow
def test_a_large_table_is_left_to_spark(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lanes["auto"]
    lane.ingest("ALTER TABLE t ADD n int DEFAULT 7", "INSERT INTO t VALUES (1000)")
    monkeypatch.setattr(schema_writer, "MAX_BYTES", 100)
    with no_spark(lane) as applier:
        assert "Spark is started" in str(applier.apply_pending().tables[T].failure)
    assert "n" not in table_of(lane).schema().names  # nothing is done by halves
    lane.apply()
    lane.assert_equal("t")
