"""A slot is created once open transactions have ended: the wait names them, and leaves nothing behind."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from pipeline.errors import NOTICES
from pipeline.ingest.job import run_ingest
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.replication import slot_creation
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.temporary_slot import start_temporary_slot
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.servers import Database, MakeServer
from tests.support.threads import wait_until

LEFT = (
    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgdelta%' UNION ALL"
    " SELECT 0 FROM pg_replication_slots"
)
INGEST = """\
import sys
from tests.support.servers import Database
from pipeline.ingest.job import run_ingest

run_ingest(Database(None, "shop", sys.argv[1]).config(root=sys.argv[2]))
"""


@pytest.fixture(params=[10, pytest.param(15, marks=pytest.mark.slow), 18])
def waiting(request: pytest.FixtureRequest, make_server: MakeServer, tmp_path: Path) -> Database:
    database = Database.of(
        make_server({"max_prepared_transactions": "5"}, major=None if request.param == 18 else request.param)
    )
    database.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE DATABASE other")
    return database


@contextmanager
def open_transactions(database: Database) -> Iterator[int]:
    """Leave a transaction open, and one of another database prepared; give the PID of the first."""
    with ExitStack() as stack:
        other = stack.enter_context(psycopg.connect(database.server.conninfo_of("other"), autocommit=True))
        for statement in ("BEGIN", "CREATE TABLE p ()", "PREPARE TRANSACTION 'gid ''1'"):
            other.execute(statement)
        stack.callback(other.execute, "ROLLBACK PREPARED 'gid ''1'")
        session = stack.enter_context(database.connect())
        session.execute("SET application_name = 'shop app'")
        stack.enter_context(session.transaction())
        session.execute("INSERT INTO t VALUES (1, 's3cr3t')")
        yield session.info.backend_pid


def wait_and_stop(work: Callable[[threading.Event], object], said: Callable[[], bool]) -> float:
    """Run the work until it has reported; return the seconds that it took to end after a stop."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    wait_until(said, 60)
    stop.set()
    stopped_at = time.monotonic()
    thread.join(60)
    return time.monotonic() - stopped_at


def test_a_wait_names_the_transactions_and_leaves_nothing_behind(
    waiting: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NOTICES, "propagate", True)
    monkeypatch.setattr(slot_creation, "FIRST_REPORT", 0.5)
    config = waiting.config(root=str(tmp_path / "lake"))
    options = pgoutput_options(waiting.server_major * 10000, config.source.protocol, "postgres")
    reports: list[str] = []

    def tail(stop: threading.Event) -> None:
        start_temporary_slot(
            waiting.conninfo,
            options=options,
            two_phase=False,
            should_stop=stop.is_set,
            report=reports.append,
            application_name="pgdelta tail",
        )

    with caplog.at_level(logging.INFO, NOTICES.name), open_transactions(waiting) as pid:
        seconds = wait_and_stop(lambda stop: run_ingest(config, stop=stop), lambda: len(caplog.messages) > 1)
        assert seconds < 2
        assert wait_and_stop(tail, lambda: len(reports) > 1) < 2
        assert waiting.run(LEFT) == []
        for sentence in (caplog.messages[0], reports[0]):
            assert " s for transactions to end: " in sentence
            assert f"PID {pid} (user postgres, database postgres, application shop app, since 20" in sentence
            assert "idle in transaction" in sentence
            assert "prepared transaction 'gid ''1' (user postgres, database other, since 20" in sentence
            assert "s3cr3t" not in sentence
        assert caplog.messages[-1].startswith("Stopped before the slot postgres was created")
        time.sleep(0.5)
        monkeypatch.setattr("pipeline.postgres.checks.source_checks.FIRST_REPORT", 0.5)
        [check] = [check for check in run_checks(config) if check.name == "open transactions"]
        assert not check.ok
        assert f"PID {pid} (" in check.sentence
        assert "prepared transaction 'gid ''1'" in check.sentence
    run_ingest(config)
    assert [check for check in run_checks(config) if check.name == "open transactions"] == []


def test_a_server_that_does_not_cancel_ends_the_session(
    waiting: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda self, timeout: None)
    config = waiting.config(root=str(tmp_path / "lake"))
    create = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgdelta' AND state = 'active'"
        " AND query LIKE '%pg_create_logical%'"
    )
    with open_transactions(waiting):
        seconds = wait_and_stop(lambda stop: run_ingest(config, stop=stop), lambda: bool(waiting.run(create)))
        assert seconds < 2
        wait_until(lambda: waiting.run(LEFT) == [])


def test_a_wait_does_not_outlive_a_kill(database: Database, tmp_path: Path) -> None:
    """By client_connection_check_interval, which 14 and newer have."""
    database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    create = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        " AND query LIKE '%pg_create_logical%' AND wait_event_type = 'Lock'"
    )
    with database.connect() as session, session.transaction():
        session.execute("INSERT INTO t VALUES (1)")
        command = [sys.executable, "-c", INGEST, database.conninfo, str(tmp_path / "lake")]
        process = subprocess.Popen(command, cwd=ROOT)
        with ended(process):
            wait_until(lambda: bool(database.run(create)))
            process.kill()
            wait_until(lambda: database.run(create) == [])
        assert database.run("SELECT FROM pg_replication_slots WHERE slot_name = 'shop'") == []
