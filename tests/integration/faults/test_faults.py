"""A fault around ingest ends in one sentence; nothing is lost, and the next run continues."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pipeline.crash_steps import CrashStep
from pipeline.errors import GapError, ProtocolError, SourceError
from pipeline.postgres.replication.options import start_command
from pipeline.postgres.replication.walsender import Walsender, start_walsender
from pipeline.protocol.lsn import INVALID
from tests.support.fault_points import observed
from tests.support.paths import ROOT
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.processes import in_own_session
from tests.support.running import CONFIG, FILL, ITEMS, continuous
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

if TYPE_CHECKING:
    pass

# The slot ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("gaps are never silent")
def test_a_slot_that_another_reader_moved_is_refused(
    pipeline: Pipeline, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pipeline.cli.main import main

    pipeline.ingest(ITEMS)
    pipeline.database.free_slot()
    pipeline.run(
        FILL.format(1, 5),
        "SELECT pg_replication_slot_advance(current_database(), pg_current_wal_flush_lsn())",
    )
    with pytest.raises(GapError, match=rf"slot {pipeline.config.source.slot} .*ahead of bronze"):
        pipeline.ingest()
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        CONFIG.format(name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root)
    )
    capfd.readouterr()
    assert main(["ingest", "--config", str(file)]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("pgdelta: ")
    assert said.err.count("\n") == 1


@pytest.mark.promise("gaps are never silent")
def test_a_missing_slot_is_named_and_a_slot_created_again_is_refused(pipeline: Pipeline) -> None:
    slot = pipeline.config.source.slot
    pipeline.ingest(ITEMS)
    pipeline.run(FILL.format(1, 5))
    pipeline.drop_slot()
    pipeline.run(FILL.format(6, 9))
    with pytest.raises(SourceError, match=slot):
        pipeline.ingest()
    pipeline.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with pytest.raises(GapError, match=slot):
        pipeline.ingest()


def test_a_busy_slot_is_named_with_who_holds_it(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.ingest(ITEMS)
    pipeline.run(FILL.format(1, 5))
    source = pipeline.config.source
    impatient = functools.partial(start_walsender, busy_timeout=0.5)
    monkeypatch.setattr("pipeline.ingest.job.start_walsender", impatient)
    # a connection's own `with` would send a COMMIT, which a replication session under way does not take
    with closing(psycopg.connect(source.conninfo, autocommit=True, replication="database")) as other:
        options = {"proto_version": "1", "publication_names": source.publication}
        other.pgconn.exec_(start_command(source.slot, INVALID, options))
        pid = other.info.backend_pid
        with pytest.raises(SourceError, match=rf"{source.slot}.*{pid}"):
            pipeline.ingest()
    pipeline.assert_follows("items")


def test_an_idle_publication_advances_the_slot(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.items")
    pipeline.ingest(ITEMS, "CREATE TABLE other (id int)")
    for route in ("walsender", "sql"):
        pipeline.run("INSERT INTO other SELECT generate_series(1, 1000)")
        target = pipeline.database.flush_lsn()
        same = make_pipeline("public.items", route=route)
        summary = same.ingest()
        assert summary.changes == 0
        assert pipeline.confirmed_lsn() >= target
        assert summary.captured_offset >= pipeline.confirmed_lsn()
    assert pipeline.frame("bronze", "changes").count() == 0


# The server -------------------------------------------------------------------------------------------------


@pytest.mark.promise("server crashes")
def test_a_server_that_crashes_mid_stream_loses_nothing(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    server = make_server()
    database = Database(server, "shop", server.conninfo)
    pipeline = make_pipeline(database=database)
    pipeline.ingest(ITEMS)
    with continuous(pipeline) as running:
        pipeline.run(FILL.format(1, 1000))
        wait_until(lambda: running.captured)
        pipeline.run(FILL.format(1001, 2000))
        server.stop(mode="immediate")
        running.join()
    assert isinstance(running.error, SourceError)
    assert "\n" not in str(running.error)
    server.start()
    pipeline = make_pipeline(database=database)
    pipeline.catch_up("DELETE FROM items WHERE id % 100 = 0")
    pipeline.assert_equal("items")


@pytest.mark.quick
@pytest.mark.promise("server crashes")
def test_a_session_that_is_terminated_loses_nothing(pipeline: Pipeline) -> None:
    pipeline.ingest(ITEMS)
    with continuous(pipeline) as running:
        pipeline.run(FILL.format(1, 1000))
        wait_until(lambda: running.captured)
        pipeline.transact(
            FILL.format(1001, 2000),
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = current_database()",
        )
        running.join()
    assert isinstance(running.error, SourceError)
    assert pipeline.config.source.slot in str(running.error)
    pipeline.assert_follows("items")


@pytest.mark.quick
@pytest.mark.promise("hostile bytes")
def test_a_malformed_message_is_refused_and_nothing_of_it_acknowledged(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.ingest(ITEMS)
    confirmed = pipeline.confirmed_lsn()
    pipeline.run(FILL.format(1, 5))
    read = Walsender.read

    def cut(stream: Walsender, timeout: float) -> list[bytes]:
        messages = read(stream, timeout)
        return [m[:-1] if m[:1] == b"C" else m for m in messages]

    with monkeypatch.context() as patch:
        patch.setattr(Walsender, "read", cut)
        with pytest.raises(ProtocolError):
            pipeline.ingest()
    assert pipeline.confirmed_lsn() == confirmed
    pipeline.assert_follows("items")


# Signals ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("signals")
def test_sigterm_ends_continuous_jobs_with_0(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.ingest(ITEMS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        CONFIG.format(name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root)
    )
    pipeline.run(FILL.format(1, 100))
    environ = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    jobs: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as running:
        for name in ("ingest", "apply"):
            command = [sys.executable, str(ROOT / "jobs" / f"{name}.py"), "--config", str(file)]
            jobs[name] = running.enter_context(
                in_own_session(
                    [*command, "--trigger", "continuous"],
                    cwd=tmp_path,
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        silver = pipeline.path("silver", "public", "items", "_delta_log", f"{1:020d}.json")
        wait_until(silver.exists, 400)  # two JVMs start, beside whatever else the machine does
        pipeline.run(FILL.format(101, 200))
        for name, job in jobs.items():
            job.send_signal(signal.SIGTERM)
            started = time.monotonic()
            out, err = job.communicate(timeout=300)
            assert job.returncode == 0, (name, err)
            assert out.startswith(f"{name} {pipeline.config.pipeline}: "), out
            print(f"{name} ended {time.monotonic() - started:.1f} s after SIGTERM")
    pipeline.assert_follows("items")


# Slow -------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
def test_a_large_transaction_and_slow_commits_cause_no_sender_timeout(
    make_server: MakeServer, make_pipeline: MakePipeline
) -> None:
    rows = 5_000_000
    server = make_server({"wal_sender_timeout": "2s"})
    database = Database(server, "shop", server.conninfo)
    pipeline = make_pipeline(database=database)
    pipeline.ingest(ITEMS)

    def delay(step: CrashStep, moment: str) -> None:
        if (step, moment) == (CrashStep.COMMIT_BRONZE, "before"):
            time.sleep(8)

    pipeline.run(FILL.format(1, rows), FILL.format(rows + 1, rows + 10))
    with observed(delay):
        summary = pipeline.ingest()
    assert summary.changes == rows + 10
    found = pipeline.frame("bronze", "changes").where("xid IS NOT NULL").groupBy("commit_lsn").count()
    assert sorted(row["count"] for row in found.collect()) == [10, rows]
    print(f"{rows} rows in one transaction in {summary.seconds:.0f} s")
