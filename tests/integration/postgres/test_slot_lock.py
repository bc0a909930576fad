"""One ingest of a slot at a time: the lock at the source ends with the session that has it."""

import logging
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import NOTICES, SlotBusyError, SlotWaitStopped, SourceError
from pipeline.ingest.job import run_ingest
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot_lock import lock_key, lock_slot
from pipeline.postgres.replication.walsender import start_walsender
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

HOLD = """\
import sys, time
from pipeline.postgres.connection import connect
from pipeline.postgres.replication.slot_lock import lock_slot

connection = connect(sys.argv[1])
lock_slot(connection, "shop")
print(connection.info.backend_pid, flush=True)
time.sleep(600)
"""
SLOTS = ("shop", "shop_2", "a", "s" * 63)  # keys of both signs


@pytest.mark.parametrize("fixture", ["database", "old_database"])
def test_a_second_session_is_refused_with_the_holder(fixture: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(fixture)
    assert len({lock_key(slot) > 0 for slot in SLOTS}) == 2
    with closing(connect(database.conninfo)) as one, closing(connect(database.conninfo)) as two:
        pid = one.info.backend_pid
        for slot in SLOTS:
            lock_slot(one, slot)
        for slot in SLOTS:
            began = time.monotonic()
            sentence = rf"slot {slot} is still busy after 1 seconds .*PID {pid}\)"
            with pytest.raises(SlotBusyError, match=sentence):
                lock_slot(two, slot, busy_timeout=0.6)
            assert time.monotonic() - began < 5
        with pytest.raises(SlotWaitStopped, match=rf"Stopped while the slot shop was in use .*PID {pid}\)"):
            lock_slot(two, "shop", should_stop=lambda: True)
        lock_slot(two, "other", busy_timeout=0)


def test_it_is_acquired_once_the_first_has_ended(database: Database) -> None:
    one = connect(database.conninfo)
    lock_slot(one, "shop")
    timer = threading.Timer(1.0, one.close)
    with closing(connect(database.conninfo)) as two:
        began = time.monotonic()
        timer.start()
        lock_slot(two, "shop", busy_timeout=20)
        # it tries again after pauses of at most two seconds
        assert 1.0 <= time.monotonic() - began < 10
    timer.join()


def test_a_stop_ends_the_wait_without_an_error(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NOTICES, "propagate", True)
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    config = database.config(root=str(tmp_path / "lake"), create_publication="all")
    stop = threading.Event()
    with closing(connect(database.conninfo)) as other, caplog.at_level(logging.INFO, NOTICES.name):
        lock_slot(other, config.source.slot)
        threading.Timer(0.5, stop.set).start()
        before = run_ingest(config, stop=stop)
        assert f"PID {other.info.backend_pid}" in caplog.messages[-1]
    assert before.lines() == [f"ingest {config.pipeline}: 0 changes of 0 transactions in 0 commits, 0.0 s"]
    last = run_ingest(config)
    stop.clear()
    caplog.clear()
    options = pgoutput_options(180000, config.source.protocol, database.name)
    reader = start_walsender(database.conninfo, database.name, database.name, options=options)
    with closing(reader), caplog.at_level(logging.INFO, NOTICES.name):
        threading.Timer(0.5, stop.set).start()
        busy = run_ingest(config, stop=stop)
    assert busy.captured_offset == last.captured_offset
    assert caplog.messages[-1].startswith(f"Stopped while the slot {database.name} was in use")


@pytest.mark.promise("one job at a time")
def test_it_does_not_outlive_a_kill(database: Database) -> None:
    command = [sys.executable, "-c", HOLD, database.conninfo]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        with closing(connect(database.conninfo)) as other:
            with pytest.raises(SlotBusyError, match=f"PID {pid}"):
                lock_slot(other, "shop", busy_timeout=0.2)
            process.kill()
            lock_slot(other, "shop", busy_timeout=10)


def test_a_lost_session_is_a_source_error(database: Database) -> None:
    with closing(connect(database.conninfo)) as one:
        database.run(f"SELECT pg_terminate_backend({one.info.backend_pid})")
        with pytest.raises(SourceError, match=r"Cannot acquire the lock of the slot shop: .*\."):
            lock_slot(one, "shop")
