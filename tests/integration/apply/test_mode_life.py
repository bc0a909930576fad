"""What a mode means beyond its rows: it is switched by a rebuild, held where it cannot be, and proven."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pipeline.config.tables import RowMode, TableRule
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange
from pipeline.metadata.reconciliations import EQUAL, UNPROVEN
from pipeline.metadata.registry import Records
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from pipeline.verify.reconcile import run_reconcile
from tests.support.modes.oracle import assert_equals_model
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, succeeded, with_rules, with_writer

NAME = TableName("public", "t")
MODES: tuple[RowMode, ...] = ("soft_delete", "append", "history")
WITH_ROWS: tuple[RowMode, ...] = ("soft_delete", "history")
IGNORING = TableRule("public.*", on_delete="ignore", on_truncate="ignore")


def in_mode(pipeline: Pipeline, mode: RowMode) -> Pipeline:
    return with_rules(pipeline, TableRule("public.*", mode=mode))


def begin(pipeline: Pipeline) -> None:
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.run("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 9) g", "DELETE FROM t WHERE id > 7")
    pipeline.catch_up()


def assert_is_model(pipeline: Pipeline, mode: RowMode) -> None:
    assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, NAME)


def rows(pipeline: Pipeline, table: str, columns: str = "id, v") -> list[tuple[Any, ...]]:
    found = pipeline.frame("silver", "public", table).selectExpr(*columns.split(", ")).collect()
    return sorted(tuple(row) for row in found)


@pytest.mark.promise("ignored deletes")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_deletes_and_truncates_that_are_ignored_leave_the_rows(pipeline: Pipeline, writer: Any) -> None:
    pipeline = with_writer(with_rules(pipeline, IGNORING), writer)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE bag (id int, v text)")
    pipeline.ingest("ALTER TABLE bag REPLICA IDENTITY FULL")
    for table in ("t", "bag"):
        pipeline.run(f"INSERT INTO {table} SELECT g, 'v' FROM generate_series(1, 4) g")
    pipeline.catch_up()
    for table in ("t", "bag"):
        pipeline.run(
            f"DELETE FROM {table} WHERE id < 3",
            f"UPDATE {table} SET id = 30 WHERE id = 3",
            f"TRUNCATE {table}",
            f"INSERT INTO {table} VALUES (1, 'again')",
        )
    pipeline.catch_up()
    assert rows(pipeline, "t") == [(1, "again"), (2, "v"), (4, "v"), (30, "v")]
    assert rows(pipeline, "bag") == [(1, "again"), (1, "v"), (2, "v"), (4, "v"), (30, "v")]
    [verdict] = run_reconcile(pipeline.config, ["public.t"], runs=True).verdicts
    assert (verdict.verdict, "ignores deletes" in (verdict.sentence or "")) == (UNPROVEN, True)


@pytest.mark.promise("modes", "switched modes")
def test_a_mode_is_switched_by_a_rebuild_and_back(pipeline: Pipeline) -> None:
    begin(pipeline)
    mirror = pipeline
    for mode in MODES:
        pipeline = in_mode(pipeline, mode)
        pipeline.ingest("DELETE FROM t WHERE id = 1")
        before = pipeline.version("t")
        plan = make_plan(pipeline.config)
        assert [step.holds for table in plan.tables for step in table.steps] == [True]
        summary = pipeline.apply()
        assert summary.exit_code(strict=False) == 0
        assert f"its rule has mode {mode}" in (summary.tables[NAME].held or "")
        assert pipeline.version("t") == before
        status = read_status(pipeline.config, is_offline=True)
        assert [(table.state, table.name) for table in status.tables] == [("held", NAME)]
        succeeded(run_rebuild(pipeline.config, ["public.t"]))
        assert_is_model(pipeline, mode)
        assert Records(Lake(pipeline.root)).tables.read()[NAME].mode == mode
        pipeline.catch_up("INSERT INTO t VALUES (1, 'again')", "DELETE FROM t WHERE id = 2")
        assert_is_model(pipeline, mode)
    run_rebuild(mirror.config, ["public.t"])
    mirror.assert_equal("t")


def test_a_switched_table_without_changes_is_held_too(pipeline: Pipeline) -> None:
    begin(pipeline)
    pipeline = in_mode(pipeline, MODES[0])
    assert "its rule has mode" in (pipeline.apply().tables[NAME].held or "")
    run_rebuild(pipeline.config)
    assert pipeline.apply().exit_code(strict=True) == 0
    assert_is_model(pipeline, MODES[0])


@pytest.mark.sample(1)
@pytest.mark.promise("comparison in every mode")
@pytest.mark.parametrize("mode", WITH_ROWS)
def test_the_current_rows_of_a_mode_are_compared_with_the_source(pipeline: Pipeline, mode: RowMode) -> None:
    pipeline = in_mode(pipeline, mode)
    begin(pipeline)
    pipeline.run("INSERT INTO t VALUES (8, 'again')", "UPDATE t SET id = 20 WHERE id = 1")
    [verdict] = run_reconcile(pipeline.config, runs=True).verdicts
    assert (verdict.verdict, verdict.source_rows) == (EQUAL, 8), verdict
    pipeline.catch_up()
    [verdict] = run_reconcile(pipeline.config, runs=True).verdicts
    assert (verdict.verdict, verdict.silver_rows) == (EQUAL, 8), verdict


@pytest.mark.sample(1)
@pytest.mark.promise("modes")
@pytest.mark.parametrize("key_ranges", [(), (KeyRange(("1",), ("2",)),)])
@pytest.mark.parametrize("mode", MODES)
def test_a_later_copy_corrects_a_table_and_keeps_its_past(
    make_pipeline: MakePipeline, mode: RowMode, key_ranges: tuple[KeyRange, ...]
) -> None:
    pipeline = in_mode(make_pipeline("public.*", copy="initial", create_publication="all"), mode)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pipeline.catch_up()
    pipeline.catch_up("DELETE FROM t WHERE id = 2")
    assert_is_model(pipeline, mode)
    before = rows(pipeline, "t", "id, v, _deleted_at") if mode == "soft_delete" else []
    run_resync(pipeline.config, ["public.t"], key_ranges=key_ranges)
    for number in (3, 4):  # of keys, a copy of all rows is requested at first
        pipeline.ingest()
        pipeline.catch_up(f"INSERT INTO t VALUES ({number}, 'c')")
    assert (
        len([copy for copy in pipeline.frame("bronze", "copies").collect() if copy.state == "complete"]) > 1
    )
    assert_is_model(pipeline, mode)
    assert {*before} <= {*(rows(pipeline, "t", "id, v, _deleted_at") if before else [])}
    succeeded(run_rebuild(pipeline.config, ["public.t"]))
    assert_is_model(pipeline, mode)
    pipeline.catch_up("DELETE FROM t WHERE id = 1")
    assert_is_model(pipeline, mode)


@pytest.mark.parametrize(("identity", "mode"), [("FULL", "soft_delete"), ("NOTHING", "history")])
def test_a_table_without_a_key_is_held_where_its_mode_needs_one(
    pipeline: Pipeline, identity: str, mode: RowMode
) -> None:
    pipeline = in_mode(pipeline, mode)
    pipeline.ingest("CREATE TABLE t (id int, v text)", f"ALTER TABLE t REPLICA IDENTITY {identity}")
    pipeline.ingest("INSERT INTO t VALUES (1, 'a')")
    held = pipeline.apply().tables[NAME].held or ""
    assert f"mode {mode} finds rows by a key" in held
    pipeline.run("TRUNCATE t", "ALTER TABLE t ADD PRIMARY KEY (id)", "ALTER TABLE t REPLICA IDENTITY DEFAULT")
    pipeline.ingest("INSERT INTO t VALUES (2, 'b')")
    assert "finds rows by a key" in (pipeline.apply().tables[NAME].held or "")


@pytest.mark.sample(1)
@pytest.mark.spark
@pytest.mark.parametrize(
    "rule", [TableRule("public.*", mode="soft_delete"), TableRule("public.*", on_delete="ignore")]
)
@pytest.mark.parametrize("is_one_batch", [False, True])
def test_another_key_holds_a_table_that_keeps_rows_by_key(
    make_pipeline: MakePipeline, rule: TableRule, is_one_batch: bool
) -> None:
    pipeline = with_rules(make_pipeline(copy="initial", create_publication="all"), rule)
    pipeline.ingest("CREATE TABLE t (id int, code text NOT NULL, v int, CONSTRAINT k PRIMARY KEY (id))")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'a', 1)")
    pipeline.run("DELETE FROM t", "INSERT INTO t VALUES (2, 'a', 2)")
    # a key that has the former columns too finds the same rows, also under another name
    pipeline.run("ALTER TABLE t DROP CONSTRAINT k, ADD CONSTRAINT k PRIMARY KEY (id, code)")
    pipeline.catch_up("ALTER TABLE t RENAME id TO number", "UPDATE t SET v = 3")
    assert {(1, "a", 1), (2, "a", 3)} == set(rows(pipeline, "t", "number, code, v"))
    statement = "UPDATE t SET v = 4"
    if is_one_batch:
        pipeline.run(statement)
    pipeline.ingest("ALTER TABLE t DROP CONSTRAINT k, ADD PRIMARY KEY (code)", "UPDATE t SET v = 5")
    held = pipeline.apply().tables[NAME].held or ""
    assert "its key was (code, number) and is (code)" in held
    assert {(1, "a", 1), (2, "a", 4 if is_one_batch else 3)} == set(rows(pipeline, "t", "number, code, v"))
    assert held == pipeline.apply().tables[NAME].held
    run_resync(pipeline.config, ["public.t"])
    pipeline.ingest()
    pipeline.ingest("INSERT INTO t VALUES (3, 'b', 6)")
    assert pipeline.apply().tables[NAME].held
    succeeded(run_rebuild(pipeline.config, ["public.t"]))
    pipeline.catch_up("UPDATE t SET code = 'c' WHERE code = 'a'")
    gone = {(2, "a", 5)} if rule.mode == "soft_delete" else set()
    assert {(2, "c", 5), (3, "b", 6)} | gone == set(rows(pipeline, "t", "number, code, v"))


def test_a_table_that_was_created_again_is_held(pipeline: Pipeline) -> None:
    pipeline = in_mode(pipeline, "soft_delete")
    begin(pipeline)
    pipeline.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.ingest("INSERT INTO t VALUES (5, 'new')")
    assert "it was created again" in (pipeline.apply().tables[NAME].held or "")
    run_rebuild(pipeline.config, ["public.t"])
    assert rows(pipeline, "t", "id, v, _deleted") == [(5, "new", False)]


@pytest.mark.promise("modes")
def test_a_table_that_was_gone_and_was_created_again_is_built_on_request(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="all")
    pipeline = in_mode(pipeline, "soft_delete")
    begin(pipeline)
    pipeline.catch_up("DROP TABLE t")
    config, named = pipeline.config, ["public.t"]
    detached: Sequence[Callable[[], object]] = (
        lambda: run_rebuild(config, named),
        lambda: run_resync(config, named),
        lambda: run_reconcile(config, named, runs=True),
    )
    for command in detached:
        with pytest.raises(ConfigError, match=r"not exist at the source.*follows the source no longer"):
            command()
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (5, 'new')")
    pipeline.ingest()
    assert "begin again with the copy" in (pipeline.apply().tables[NAME].held or "")
    assert [table.state for table in read_status(pipeline.config).tables] == ["held"]
    assert run_rebuild(pipeline.config, ["public.t"]).rebuilt == [NAME]
    pipeline.catch_up("INSERT INTO t VALUES (6, 'newer')")
    assert rows(pipeline, "t", "id, v, _deleted") == [(5, "new", False), (6, "newer", False)]
    assert [table.state for table in read_status(pipeline.config).tables] == ["current"]


@pytest.mark.slow
@pytest.mark.spark
def test_pgdelta_s_columns_give_way_to_the_source_s(pipeline: Pipeline) -> None:
    pipeline = in_mode(pipeline, "soft_delete")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, _deleted text)")
    pipeline.catch_up("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE FROM t WHERE id = 2")
    assert rows(pipeline, "t", "id, _deleted, _deleted_") == [(1, "a", False), (2, "b", True)]
    pipeline.catch_up("ALTER TABLE t ADD _deleted_at int", "UPDATE t SET _deleted_at = 7", "DELETE FROM t")
    found = rows(pipeline, "t", "id, _deleted_at, _deleted_, _deleted_at_ IS NOT NULL")
    assert found == [(1, 7, True, True), (2, None, True, True)]


def test_values_that_were_not_sent_are_those_of_earlier_rows(pipeline: Pipeline) -> None:
    pipeline = in_mode(pipeline, "append")
    pipeline.run("CREATE TABLE documents (id int PRIMARY KEY, n int, body text)")
    pipeline.ingest("ALTER TABLE documents ALTER body SET STORAGE EXTERNAL")
    body = "x" * 3000
    pipeline.catch_up(
        f"INSERT INTO documents VALUES (1, 1, '{body}'), (2, 1, NULL)",
        "UPDATE documents SET n = 2",
        "UPDATE documents SET body = NULL WHERE id = 1",
        "UPDATE documents SET n = 3",
        "DELETE FROM documents WHERE id = 2",
    )
    frame = pipeline.frame("silver", "public", "documents")
    found = frame.orderBy("id", "_commit_lsn", "_ordinal").collect()
    assert [(row.id, row.body) for row in found] == [
        (1, body),
        (1, body),
        (1, None),
        (1, None),
        *((2, None),) * 4,
    ]
    assert [row.n for row in found[:4]] == [1, 2, 2, 3]
    assert all(row._unchanged is None for row in found)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_marks_the_rows_that_a_truncate_removes(pipeline: Pipeline) -> None:
    rules = (TableRule(f"public.{mode}", mode=mode) for mode in MODES)
    pipeline = with_writer(with_rules(pipeline, *rules), "spark")
    pipeline.ingest(*(f"CREATE TABLE {mode} (id int PRIMARY KEY, v text)" for mode in MODES))
    pipeline.catch_up(*(f"INSERT INTO {mode} SELECT g, 'v' FROM generate_series(1, 6) g" for mode in MODES))
    for mode in MODES:
        pipeline.run(f"UPDATE {mode} SET v = 'w' WHERE id = 1", f"DELETE FROM {mode} WHERE id = 2")
        pipeline.transact(f"UPDATE {mode} SET id = 7 WHERE id = 3", f"TRUNCATE {mode}")
        pipeline.run(f"INSERT INTO {mode} VALUES (4, 'again'), (8, 'new')", f"TRUNCATE {mode}")
        pipeline.run(f"INSERT INTO {mode} VALUES (4, 'last')")
    pipeline.catch_up()
    for mode in MODES:
        name = TableName("public", mode)
        assert assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
