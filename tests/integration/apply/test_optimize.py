"""`pgdelta optimize`: fewer files, the same rows, while jobs run."""

import threading

import pytest

from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import ConfigError
from pipeline.operate.optimize import OptimizedTable, run_optimize
from pipeline.verify.audit import run_audit
from tests.support.pipelines import Pipeline, succeeded


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
    merge = LakeTable.compact

    def fail_for_one(table: LakeTable) -> tuple[int, int]:
        if table.path.endswith("bronze/changes"):
            raise OSError("no space left")
        return merge(table)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "compact", fail_for_one)
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
