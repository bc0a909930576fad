"""`pgdelta optimize`: fewer files, the same rows, while jobs run."""

import threading
from pathlib import Path

import pytest

from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.maintenance import maintainer
from pipeline.operate.optimize import OptimizedTable, run_optimize
from pipeline.verify.audit import run_audit
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import MakePipeline, Pipeline, succeeded
from tests.support.servers import Database


def files_of(pipeline: Pipeline, *names: str) -> int:
    return len(pipeline.spark_frame(*names).inputFiles())


def grow(pipeline: Pipeline, rounds: int) -> None:
    for number in range(rounds):
        pipeline.run(f"INSERT INTO t VALUES ({number}, 'x')", f'INSERT INTO "Odd,name" VALUES ({number})')
        pipeline.catch_up()


@pytest.fixture
def grown(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose tables have several small files."""
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, body text)", 'CREATE TABLE "Odd,name" (id int)')
    grow(pipeline, 2)
    return pipeline


def parts(pipeline: Pipeline) -> int:
    return len(list(pipeline.path("silver", "public", "t").glob("*.parquet")))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("merged files")
def test_small_files_become_few_and_rows_stay(grown: Pipeline) -> None:
    before = {names: files_of(grown, *names) for names in (("bronze", "changes"), ("silver", "public", "t"))}
    assert min(before.values()) > 1
    with pytest.raises(ConfigError, match="neither has the source"):
        run_optimize(grown.config, ["public.nothing"])
    named = run_optimize(grown.config, ["public.t"])
    assert [table.table for table in named.tables] == ["public.t"]
    assert files_of(grown, "bronze", "changes") == before[("bronze", "changes")]
    shown: list[OptimizedTable] = []
    summary = succeeded(run_optimize(grown.config, progress=shown.append))
    assert shown == list(summary.tables)
    assert all(files_of(grown, *names) == 1 for names in before)
    merged = {table.table: table.removed for table in summary.tables}
    assert merged["bronze/changes"] == before[("bronze", "changes")]
    assert {"_pgdelta/tables", "_pgdelta/manifests", "public.t", "public.Odd,name"} <= merged.keys()
    stop = threading.Event()
    last = run_optimize(grown.config, stop=stop, progress=lambda table: stop.set())
    assert len(last.tables) == 1, "after a signal no other table is begun"
    assert (last.tables[0].removed, last.tables[0].vacuumed) == (0, 0)
    grown.catch_up("INSERT INTO t VALUES (100, 'y')", "DELETE FROM t WHERE id = 0")
    grown.assert_equal("t", "Odd,name")
    assert run_audit(grown.config).findings == ()


@pytest.mark.spark
@pytest.mark.promise("merged files")
@pytest.mark.slow
def test_one_table_that_fails_keeps_no_other_from_being_done(
    grown: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(maintainer, "plan_changes", fail)  # of bronze/changes
        summary = run_optimize(grown.config, vacuums=True)
    assert summary.exit_code(strict=False) == 1
    assert [table.table for table in summary.tables if table.failure] == ["bronze/changes"]
    assert files_of(grown, "silver", "public", "t") == 1
    assert parts(grown) > 1, "what was merged left just now, and stays a week"
    table = Lake(grown.root, grown.spark).table("silver", "public", "t")
    properties = "'delta.deletedFileRetentionDuration' = 'interval 0 seconds'"
    grown.session.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ({properties})")
    summary = run_optimize(grown.config, ["public.t"], vacuums=True)
    assert summary.tables[0].vacuumed > 0, summary
    assert parts(grown) == 1
    grown.assert_equal("t")


@pytest.mark.promise("merged files")
@pytest.mark.usefixtures("without_spark")
def test_small_files_of_all_tables_become_few_without_spark(database: Database, tmp_path: Path) -> None:
    pipeline = NativePipeline.make(database, tmp_path)
    names = ("t", "u", "v")
    pipeline.ingest(*(f"CREATE TABLE {name} (id int PRIMARY KEY, body text)" for name in names))
    for number in range(5):
        pipeline.catch_up(*(f"INSERT INTO {name} VALUES ({number}, 'x{number}')" for name in names))
    lake = Lake(pipeline.config.storage)
    tables = {f"public.{name}": lake.table("silver", "public", name) for name in names}
    tables["bronze/changes"] = lake.table("bronze", "changes")
    files = {name: table.snapshot().file_count for name, table in tables.items()}
    assert min(files.values()) > 1
    rows = {name: pipeline.rows(name, "id", "body") for name in names}
    done = {table.table: table for table in succeeded(run_optimize(pipeline.config, vacuums=True)).tables}
    assert {name: (done[name].removed, done[name].added) for name in tables} == {
        name: (count, 1) for name, count in files.items()
    }
    assert all(table.snapshot().file_count == 1 for table in tables.values())
    assert {name: pipeline.rows(name, "id", "body") for name in names} == rows
    assert run_audit(pipeline.config).findings == ()
    again = succeeded(run_optimize(pipeline.config, vacuums=True))
    assert not any(table.removed or table.added or table.vacuumed for table in again.tables)


@pytest.mark.spark
@pytest.mark.promise("merged files")
def test_spark_starts_only_if_a_table_of_its_own_has_small_files(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    for number in range(2):
        pipeline.catch_up(f"INSERT INTO t VALUES ({number})", f"INSERT INTO u VALUES ({number})")
    table = Lake(pipeline.root, pipeline.spark).table("silver", "public", "t")
    pipeline.session.sql(f"ALTER TABLE {table.identifier} ADD CONSTRAINT few CHECK (id < 1000)")
    started: list[object] = []
    session = SparkProvider.__dict__["session"]

    def start(provider: SparkProvider) -> object:
        started.append(provider)
        found: object = session.fget(provider)
        return found

    monkeypatch.setattr(SparkProvider, "session", property(start))
    done = {each.table: each for each in succeeded(run_optimize(pipeline.config, ["public.u"])).tables}
    assert (done["public.u"].removed, started) == (2, [])
    done = {each.table: each for each in succeeded(run_optimize(pipeline.config)).tables}
    assert (done["public.t"].removed, done["public.t"].added) == (2, 1)
    assert started
    started.clear()
    again = succeeded(run_optimize(pipeline.config, vacuums=True))
    assert not any(each.removed or each.vacuumed for each in again.tables)
    assert started == []
    pipeline.assert_equal("t", "u")
