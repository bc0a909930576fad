"""One ingest of a slot and one apply of a lake: a second one is refused, and a kill leaves no lock behind."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline.delta.locks import lock_apply
from pipeline.delta.table import Lake
from pipeline.errors import LakeError, SlotBusyError
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import apply_tables
from pipeline.operate.resync import run_resync
from pipeline.operate.run import run_both
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.report.status import read_status
from pipeline.verify.reconcile import run_reconcile
from tests.support.paths import ROOT
from tests.support.pipelines import Crash, MakePipeline, Pipeline, crash
from tests.support.processes import in_own_session
from tests.support.running import CONFIG, ITEMS, applying, continuous
from tests.support.threads import wait_until

HOLDERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@contextmanager
def locked_by_apply(pipeline: Pipeline) -> Iterator[None]:
    """Apply continuously meanwhile."""
    lock = pipeline.path("_pgdelta", "locks", "apply")
    with applying(pipeline):
        wait_until(lambda: lock.exists() and lock.read_text())
        yield


@pytest.mark.spark
@pytest.mark.promise("one job at a time")
def test_a_second_apply_of_a_lake_is_refused(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ingest.job.lock_slot", functools.partial(lock_slot, busy_timeout=0.2))
    config, spark = pipeline.config, pipeline.spark
    pipeline.ingest(ITEMS)
    pipeline.ingest("INSERT INTO items VALUES (1, 'one')")
    with locked_by_apply(pipeline):
        for second in (
            pipeline.apply,
            lambda: apply_tables(config),
            lambda: run_both(config, spark=spark),
            lambda: run_both(config, trigger="continuous", spark=spark),
            lambda: run_resync(config, None, runs=True),
            lambda: run_reconcile(config, runs=True, repairs=True),
        ):
            with pytest.raises(LakeError, match=rf"Another apply .*\(process {os.getpid()} on .*Stop it"):
                second()
        make_plan(config)
        read_status(config)
        wait_until(lambda: pipeline.path("silver", "public", "items").exists())
    assert not pipeline.path("_pgdelta", "requests").exists(), "nothing was asked for"
    assert apply_tables(config).exit_code(strict=True) == 0
    pipeline.assert_equal("items")


@pytest.mark.promise("one job at a time")
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_a_second_ingest_of_a_slot_is_refused(
    route: str, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(route=route, create_publication="all")
    impatient = functools.partial(lock_slot, busy_timeout=0.2)
    monkeypatch.setattr("pipeline.ingest.job.lock_slot", impatient)
    with closing(connect(pipeline.config.source.conninfo)) as first:
        lock_slot(first, pipeline.config.source.slot)
        for second in (pipeline.ingest, lambda: run_both(pipeline.config)):
            with pytest.raises(SlotBusyError, match=f"is still busy .*PID {first.info.backend_pid}"):
                second()
    query = "SELECT FROM pg_replication_slots WHERE database = current_database()"
    assert pipeline.source.execute(query).rowcount == 0, "nothing was made"
    with lock_apply(Lake(pipeline.root, pipeline.spark), "shop"):
        pipeline.run(ITEMS)
        assert pipeline.ingest().captured_offset


@pytest.mark.spark
@pytest.mark.promise("one job at a time")
@pytest.mark.slow
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_an_ingest_whose_session_was_lost_takes_the_lock_again_or_ends(
    route: str, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(route=route, create_publication="all")
    pipeline.ingest(ITEMS)

    def holder() -> int | None:
        row = pipeline.source.execute(HOLDERS).fetchone()
        return row and row[0]

    def terminate() -> None:
        pipeline.run(f"SELECT pg_terminate_backend({holder()})")
        wait_until(lambda: holder() is None)

    with continuous(pipeline) as running:
        pipeline.run("INSERT INTO items VALUES (1, 'one')")
        wait_until(lambda: running.captured == 1)
        terminate()
        pipeline.run("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
        wait_until(lambda: running.captured == 2)
        assert holder() is not None
        impatient = functools.partial(lock_slot, busy_timeout=0.2)
        monkeypatch.setattr("pipeline.postgres.replication.slot_lock.lock_slot", impatient)
        terminate()
        with closing(connect(pipeline.config.source.conninfo)) as second:
            lock_slot(second, pipeline.config.source.slot)
            pipeline.run("CREATE TABLE third (id int PRIMARY KEY)", "INSERT INTO third VALUES (1)")
            running.join()
        assert isinstance(running.error, SlotBusyError)
    pipeline.assert_follows("items", "other", "third")


@pytest.mark.spark
@pytest.mark.promise("one job at a time")
@pytest.mark.slow
def test_jobs_are_refused_while_a_pipeline_runs_and_not_after_its_kill(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.ingest(ITEMS)
    pipeline.run("INSERT INTO items VALUES (1, 'one')")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        CONFIG.format(name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root)
    )
    environ = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    environ["PYTHONPATH"] = str(ROOT)

    def command(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pipeline.cli.main", name, "--config", str(file), *arguments]

    def run(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(name), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
        )

    with in_own_session(
        command("run", "--trigger", "continuous"),
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        silver = pipeline.path("silver", "public", "items", "_delta_log", f"{1:020d}.json")
        wait_until(silver.exists, 400)
        for name, sentence in (
            ("apply", f"pgdelta: Another apply is writing the silver tables of file:{pipeline.root} (pro"),
            (
                "ingest",
                f"pgdelta: The slot {pipeline.config.source.slot} is still busy after 60 seconds",
            ),
        ):
            done = run(name)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(sentence), done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert run("status").returncode == 0
    pipeline.ingest("INSERT INTO items VALUES (2, 'two')")
    with monkeypatch.context() as patch:
        # before the query begins: what is no Exception would never leave its callback
        patch.setattr("pipeline.apply.job._ApplyRun.apply", crash)
        with pytest.raises(Crash):
            pipeline.apply()
        patch.setattr("pipeline.apply.applier.Applier._run_batch", crash)
        with pytest.raises(Crash):
            apply_tables(pipeline.config)
    pipeline.assert_follows("items")
