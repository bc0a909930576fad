"""`pgdelta maintain`: fewer files, the same rows, short logs, while jobs go on."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from pipeline.config.tables import RowMode, TableRule
from pipeline.delta import checkpoints, native_write
from pipeline.delta.checkpoints import write_checkpoint
from pipeline.delta.table import Lake
from pipeline.delta.table_log import TableLog
from pipeline.errors import ConfigError
from pipeline.maintenance.maintainer import MaintainedTable
from pipeline.operate.maintain import MaintenanceSummary, run_maintenance
from pipeline.operate.rebuild import run_rebuild
from pipeline.silver.read.as_of import as_of
from pipeline.silver.write import clustering
from pipeline.silver.write.data_layout import file_bounds
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from pipeline.verify.reconcile import run_reconcile
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_rules, with_writer
from tests.support.processes import run_command
from tests.support.servers import Database

DAY = 86_400
SILVER = ("silver", "public", "t")
CHANGES = ("bronze", "changes")


def maintain(pipeline: Pipeline, *globs: str, later: float = 0, **options: Any) -> MaintenanceSummary:
    """Maintain without Spark, as of so many seconds from now."""
    return run_maintenance(pipeline.config, globs, clock=lambda: time.time() + later, **options)


def with_few(pipeline: Pipeline, few: int) -> Pipeline:
    """Return the pipeline with another number of small files that are merged."""
    rules = replace(pipeline.config.maintenance, small_files=few)
    return replace(pipeline, config=replace(pipeline.config, maintenance=rules))


def file_count(pipeline: Pipeline, *names: str) -> int:
    return Lake(pipeline.root).table(*names).snapshot().file_count


def results(summary: MaintenanceSummary) -> dict[str, MaintainedTable]:
    assert summary.exit_code(strict=True) == 0, summary
    return {table.table: table for table in summary.tables}


@pytest.fixture
def grown(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose tables have several small files."""
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, body text)", "CREATE TABLE u (id int PRIMARY KEY)")
    for number in range(4):
        pipeline.run(f"INSERT INTO t VALUES ({number}, 'x')", f"INSERT INTO u VALUES ({number})")
        if number:
            pipeline.run(f"UPDATE t SET body = 'y{number}' WHERE id = {number - 1}")
        pipeline.catch_up()
    return with_few(pipeline, 3)


def assert_sound(pipeline: Pipeline) -> None:
    """Assert that silver equals its source, and that audit agrees."""
    pipeline.assert_equal("t", "u")
    assert run_audit(pipeline.config).findings == ()


def assert_all_readers_agree(grown: Pipeline) -> None:
    for names in (CHANGES, SILVER):
        path = str(grown.path(*names))
        by_rust = DeltaTable(path).to_pyarrow_table()
        files = [str(grown.path(*names, each)) for each in DeltaTable(path).file_uris()]
        by_duckdb = duckdb.read_parquet(files).aggregate("count(*)").fetchall()[0][0]
        assert grown.frame(*names).count() == by_rust.num_rows == by_duckdb
    columns = ["id", "body"]
    rows = DeltaTable(str(grown.path(*SILVER))).to_pyarrow_table(columns=columns).to_pylist()
    expected = [row.asDict() for row in grown.frame(*SILVER).select(*columns).collect()]
    assert sorted(rows, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])


@pytest.mark.promise("merged files")
def test_few_files_and_the_same_rows(grown: Pipeline) -> None:
    before, changes = file_count(grown, *CHANGES), grown.changes()
    assert before == 4
    with pytest.raises(ConfigError, match="neither has the source"):
        maintain(grown, "public.nothing")
    planned = results(maintain(grown, dry_run=True))
    assert file_count(grown, *CHANGES) == before
    named = results(maintain(grown, "public.u"))
    assert list(named) == ["public.u"]
    done = results(maintain(grown))
    assert done["bronze/changes"].merged == planned["bronze/changes"].merged == before
    assert file_count(grown, *CHANGES) == 1
    assert grown.changes() == changes
    assert_all_readers_agree(grown)
    assert not any(each.merged or each.removed_files for each in maintain(grown).tables)
    grown.catch_up("INSERT INTO t VALUES (100, 'z')", "DELETE FROM t WHERE id = 0")
    assert_sound(grown)
    succeeded(run_rebuild(grown.config, ["public.t"]))
    grown.assert_equal("t", "u")


@pytest.mark.spark
@pytest.mark.promise("maintenance keeps what is needed")
def test_old_versions_are_removed_and_the_pipeline_continues(grown: Pipeline) -> None:
    maintain(grown)
    log = grown.path(*CHANGES, "_delta_log")
    earlier = as_of(grown.session, grown.root)
    lsn, expected = earlier.lsn, earlier[TableName("public", "t")].count()
    recorded = Lake(grown.root).table(*CHANGES).snapshot().configuration
    assert recorded["delta.logRetentionDuration"] == "interval 86400 seconds"
    assert "delta.logRetentionDuration" not in Lake(grown.root).table(*SILVER).snapshot().configuration
    grown.ingest("INSERT INTO u VALUES (50)")
    newest = Lake(grown.root).table(*CHANGES).version()
    write_checkpoint(grown.path(*CHANGES), newest)
    assert not results(maintain(grown))["bronze/changes"].removed_files
    done = results(maintain(grown, later=2 * DAY))
    assert done["bronze/changes"].removed_files >= 4
    assert done["bronze/changes"].removed_log_files > newest
    assert [path.name for path in log.glob("*.json")] == [f"{newest:020}.json"]
    assert done["public.t"].removed_files == 0, "silver keeps its files for a week"
    assert len(list(grown.path(*CHANGES).glob("*.parquet"))) == file_count(grown, *CHANGES)
    grown.catch_up("INSERT INTO t VALUES (200, 'a')", "DELETE FROM u WHERE id = 1")
    assert as_of(grown.session, grown.root, lsn=lsn)[TableName("public", "t")].count() == expected
    assert_sound(grown)
    assert results(maintain(grown, later=30 * DAY))["public.t"].removed_files > 0
    assert_sound(grown)
    assert run_reconcile(grown.config, runs=True).exit_code(strict=True) == 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_retention_that_a_user_set_is_kept(grown: Pipeline) -> None:
    table = Lake(grown.root, grown.spark).table(*CHANGES)
    grown.session.sql(
        f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 9 days')"
    )
    maintain(grown)
    assert table.snapshot().configuration["delta.logRetentionDuration"] == "interval 9 days"
    relations = Lake(grown.root).table("bronze", "relations")
    rules = replace(grown.config.maintenance, log_retention=7200)
    maintain(replace(grown, config=replace(grown.config, maintenance=rules)))
    assert relations.snapshot().configuration["delta.logRetentionDuration"] == "interval 7200 seconds"


@pytest.mark.slow
@pytest.mark.spark
def test_what_only_spark_maintains_is_named(grown: Pipeline) -> None:
    table = Lake(grown.root, grown.spark).table(*SILVER)
    grown.session.sql(f"ALTER TABLE {table.identifier} ADD CONSTRAINT few CHECK (id < 1000)")
    before = file_count(grown, *SILVER)
    named = results(maintain(grown, "public.t"))["public.t"]
    assert named.needs_spark == "a table feature or property that only Spark writes"
    assert file_count(grown, *SILVER) == before
    done = results(maintain(grown, "public.t", by_spark=True))["public.t"]
    assert done.needs_spark is None
    assert file_count(grown, *SILVER) == 1
    grown.assert_equal("t", "u")


KILLED = """
import os, sys
from pipeline.config.load import load_config
from pipeline.delta import native_commit
from pipeline.operate.maintain import run_maintenance
def die(*arguments, **options):
    os._exit(9)
native_commit.create_version = die
run_maintenance(load_config(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.promise("maintenance keeps what is needed")
def test_a_kill_before_the_commit_leaves_the_tables_as_they_were(grown: Pipeline, tmp_path: Path) -> None:
    rules = replace(grown.config.maintenance, log_retention=0)
    file = tmp_path / "c.yaml"
    source = grown.config.source
    file.write_text(
        f"pipeline: {grown.config.pipeline}\nsource:\n  conninfo: {source.conninfo!r}\n"
        f"storage: {{root: {grown.root!r}}}\nmaintenance: {{small_files: 3, log_retention: 0}}\n"
    )
    before, files = grown.changes(), set(grown.path(*CHANGES).glob("*.parquet"))
    run_command(sys.executable, "-c", KILLED, str(file), code=9, env=os.environ)
    left = set(grown.path(*CHANGES).glob("*.parquet")) - files
    assert len(left) == 1
    assert grown.changes() == before
    assert_sound(grown)
    unfenced = replace(grown, config=replace(grown.config, maintenance=rules))
    results(maintain(unfenced, later=8 * DAY))
    assert not any(path.exists() for path in left)
    assert_sound(grown)


@pytest.mark.promise("merged files")
@pytest.mark.parametrize("batches", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_jobs_and_maintenance_at_the_same_time(grown: Pipeline, batches: int) -> None:
    busy = with_few(grown, 2)
    ended = threading.Event()
    merged: list[int] = []

    def keep() -> None:
        while not ended.is_set():
            merged.extend(table.merged for table in results(maintain(busy)).values())
            time.sleep(0.05)

    def work() -> None:
        for number in range(300, 300 + batches):
            busy.run(f"INSERT INTO t VALUES ({number}, 'x')", f"UPDATE t SET body = 'u{number}' WHERE id < 4")
            busy.ingest(f"INSERT INTO u VALUES ({number})")
            succeeded(busy.apply())

    with ThreadPoolExecutor(2) as pool:
        keeping = pool.submit(keep)
        try:
            pool.submit(work).result()
        finally:
            ended.set()
        keeping.result()
    assert sum(merged) > batches
    assert file_count(grown, *CHANGES) < 8
    grown.catch_up()
    assert_sound(grown)


@pytest.mark.slow
def test_a_hundred_tiny_runs_leave_few_files(grown: Pipeline) -> None:
    busy = with_few(grown, 10)
    for number in range(1000, 1100):
        busy.ingest(f"INSERT INTO t VALUES ({number}, 'x')", f"DELETE FROM u WHERE id = {number - 1000}")
        if number % 5 == 0:
            busy.apply()
            results(maintain(busy))
    busy.catch_up()
    results(maintain(busy, later=2 * DAY))
    assert file_count(busy, *CHANGES) < 20
    assert file_count(busy, *SILVER) < 20
    assert len(list(busy.path(*CHANGES).glob("*.parquet"))) < 30
    assert_sound(busy)


@pytest.mark.slow
@pytest.mark.spark
def test_files_of_random_keys_are_sorted_by_key(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "MAX_DEPTH", 2)
    monkeypatch.setattr(clustering, "_MIN_FILES", 4)
    pipeline = with_few(make_pipeline(create_publication="all"), 100)
    pipeline.ingest()
    pipeline.run(
        "CREATE TABLE t (body text, id uuid, n int, PRIMARY KEY (id, n))",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    for number in range(8):
        pipeline.run("INSERT INTO t SELECT 'x', gen_random_uuid(), g FROM generate_series(1, 50) AS g")
        pipeline.catch_up(f"INSERT INTO u VALUES ({number})")
    assert results(maintain(pipeline, dry_run=True))["public.t"].sorted == 8
    assert results(maintain(pipeline))["public.t"].sorted == 8
    found = Lake(pipeline.root).table(*SILVER).snapshot()
    ranges = sorted(file_bounds(add, {"id": "STRING"})[0] for add in found.files.values())
    assert len(ranges) == 8
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    pipeline.catch_up("UPDATE t SET body = 'y' WHERE n = 3", "DELETE FROM t WHERE n = 4")
    assert results(maintain(pipeline))["public.t"].is_unchanged
    assert_sound(pipeline)


def opened_bytes(pipeline: Pipeline, condition: str) -> int:
    """Return the size of the files of the table that Spark opens for a filter."""
    filtered = pipeline.spark_frame(*SILVER).where(condition)
    return int(filtered._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


@pytest.mark.spark
@pytest.mark.promise("clustered silver")
@pytest.mark.parametrize(
    ("writer", "mode"),
    [("native", "mirror"), pytest.param("spark", "history", marks=pytest.mark.slow)],
)
def test_files_are_sorted_by_the_configured_columns(
    make_pipeline: MakePipeline, writer: WriterSetting, mode: RowMode
) -> None:
    made = with_writer(with_few(make_pipeline(create_publication="all"), 100), writer)
    rule = TableRule("public.t", mode=mode, cluster_by=("Customer", "at"))
    pipeline = with_rules(made, rule, TableRule("public.*"))
    pipeline.ingest()
    pipeline.run(
        'CREATE TABLE t (id int PRIMARY KEY, "Customer" int, at date, body text)',
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    for number in range(5):
        pipeline.catch_up(
            f"INSERT INTO u VALUES ({number})",
            f"INSERT INTO t SELECT {number * 400} + g, (g * 7919 + {number}) % 400, "
            "date '2024-01-01' + g % 9, repeat(md5(g::text), 20) FROM generate_series(0, 399) AS g",
        )
    condition = "Customer = 123"
    before, rows = opened_bytes(pipeline, condition), pipeline.frame(*SILVER).count()
    files = file_count(pipeline, *SILVER)
    assert results(maintain(pipeline, dry_run=True))["public.t"].sorted == files
    assert results(maintain(pipeline))["public.t"].sorted == files
    after = opened_bytes(pipeline, condition)
    print(f"{before} bytes opened before, {after} after")
    assert after * 4 < before
    assert pipeline.frame(*SILVER).count() == rows
    assert pipeline.frame(*SILVER).where(condition).count() == 5
    pipeline.catch_up("UPDATE t SET body = 'y' WHERE id % 50 = 3", "DELETE FROM t WHERE id = 4")
    assert not results(maintain(pipeline))["public.t"].failure
    assert run_reconcile(pipeline.config, runs=True).exit_code(strict=True) == 0
    if mode == "mirror":
        assert_sound(pipeline)


@pytest.mark.promise("clustered silver")
def test_a_column_that_silver_does_not_have_is_reported(grown: Pipeline) -> None:
    pipeline = with_rules(grown, TableRule("public.t", cluster_by=("bodi",)), TableRule("public.*"))
    summary = maintain(pipeline)
    assert summary.exit_code(strict=False) == 1
    [found] = [table for table in summary.tables if table.failure]
    assert found.table == "public.t"
    [changes] = [table for table in summary.tables if table.table == "bronze/changes"]
    assert changes.merged  # all else is done
    assert found.failure == (
        "Files of public.t are not sorted: cluster_by names column bodi, and silver lacks that column,"
        " or its files lack exact statistics of it. Correct cluster_by in the rule of the table."
    )


def test_all_versions_that_maintenance_keeps_can_be_read(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SPARSE", 16)
    pipeline = NativePipeline.make(database, tmp_path)
    rules = replace(pipeline.config.maintenance, silver_log_commits=20)
    pipeline.config = replace(pipeline.config, maintenance=rules)
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    table = Lake(pipeline.config.storage).table(*SILVER)
    for number in range(60):  # with checkpoints of the versions 2, 4, …
        properties = {"delta.checkpointInterval": "2", "delta.dataSkippingNumIndexedCols": str(number)}
        native_write.set_properties(table.folder, table.snapshot(), properties, '{"pgdelta": 1}')
    pipeline.catch_up("INSERT INTO t VALUES (2)")
    succeeded(run_maintenance(pipeline.config, ("public.t",), clock=lambda: time.time() + 7200))
    kept = sorted(int(path.name[:20]) for path in (table.folder / "_delta_log").glob("*.json"))
    assert len(kept) >= 20
    assert kept[0] > 0
    for version in kept:
        TableLog.forget(table.path)
        assert table.rows(["id"], snapshot=table.snapshot(version)).num_rows > 0
