"""An apply that stops for longer than its lease, while another one takes over: silver equals the source."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.delta.locks import SECONDS_VARIABLE, lock_apply
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId, TxnKind
from tests.support.orders import CHANGE, FILL, LINES, LOG, ORDERS
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.stores.lakes import COLUMNS, StorePipeline
from tests.support.threads import wait_until

pytestmark = pytest.mark.postgres

# applies, and stops itself once: before it reads a table that it has planned, or before the request that
# makes its first commit to silver
APPLY = """\
import os, pickle, signal, sys
from pipeline import crash_steps
from pipeline.apply.applier import Applier
from pipeline.crash_steps import CrashStep
from pipeline.delta.locks import lock_apply
from pipeline.delta.store.mirror import Mirror
from pipeline.errors import FencedError

stops = [signal.SIGSTOP]

def stop_once():
    if stops:
        os.kill(os.getpid(), stops.pop())

def observe(step, moment):
    if (step, moment) == (CrashStep.WRITE_TABLE, "before"):
        stop_once()

create = Mirror.create

def create_late(self, path, content):
    if "/silver/" in path:
        stop_once()
    return create(self, path, content)

with open(sys.argv[1], "rb") as file:
    config = pickle.load(file)
if sys.argv[2] == "before the commit":
    Mirror.create = create_late
else:
    crash_steps.observer = observe
applier = Applier(None, config)
try:
    with lock_apply(applier.lake, config.pipeline):
        applier.apply_pending()
    print("applied")
except FencedError as error:
    print("fenced", error)
"""


HDFS = pytest.param("hdfs_pipeline", marks=[pytest.mark.spark, pytest.mark.slow])


@pytest.fixture(params=["store_pipeline", HDFS], ids=["s3", "hdfs"])
def pipeline(request: pytest.FixtureRequest) -> StorePipeline:
    found: StorePipeline = request.getfixturevalue(request.param)
    return found


@contextmanager
def stopped_apply(pipeline: StorePipeline, where: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that applies and has stopped."""
    (folder / "config").write_bytes(pickle.dumps(pipeline.config))
    command = [sys.executable, "-c", APPLY, str(folder / "config"), where]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with ended(process):
        wait_until(lambda: state_of(process) == "T" or process.poll() is not None)
        assert process.poll() is None
        yield process


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def apply(pipeline: StorePipeline) -> None:
    applier = Applier(None, pipeline.config)
    with lock_apply(applier.lake, pipeline.config.pipeline):
        summary = applier.apply_pending()
    assert summary.exit_code(strict=True) == 0, summary.lines()


@pytest.mark.promise("one job at a time")
@pytest.mark.parametrize(
    ("where", "is_applied"),
    [
        ("before the commit", True),
        pytest.param("before the commit", False, marks=pytest.mark.slow),
        pytest.param("after the plan", True, marks=pytest.mark.slow),
        pytest.param("after the plan", False, marks=pytest.mark.slow),
    ],
)
def test_an_apply_that_stops_for_longer_than_its_lease_writes_nothing_more(
    pipeline: StorePipeline,
    where: str,
    is_applied: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECONDS_VARIABLE, "6")
    pipeline.ingest(*ORDERS, *LINES, *LOG, *FILL)
    apply(pipeline)
    pipeline.ingest(*CHANGE)
    with stopped_apply(pipeline, where, tmp_path) as late:
        pipeline.ingest("INSERT INTO log VALUES ('later')", "INSERT INTO log VALUES ('later')")
        if is_applied:
            apply(pipeline)
            os.kill(late.pid, signal.SIGCONT)
            output, _ = late.communicate(timeout=300)
        else:
            lake = Lake(pipeline.config.storage)
            with lock_apply(lake, pipeline.config.pipeline):
                os.kill(late.pid, signal.SIGCONT)
                output, _ = late.communicate(timeout=300)
        assert output.startswith("fenced "), output
        assert "taken over" in output
    apply(pipeline)
    for table, columns in COLUMNS.items():
        pipeline.assert_equal(table, *columns)
    assert_the_next_run_claims_no_table(pipeline)


def assert_the_next_run_claims_no_table(pipeline: StorePipeline) -> None:
    """Assert that a run after one that ended well adds only its own commit to a table."""
    table = Lake(pipeline.config.storage).table("silver", "public", "log")
    fence = str(TxnId(pipeline.config.pipeline, kind=TxnKind.FENCE))
    claimed = table.offsets()[fence]
    version = table.version()
    pipeline.ingest("INSERT INTO log VALUES ('more')")
    apply(pipeline)
    assert table.version() == version + 1
    assert table.offsets()[fence] == claimed
    pipeline.assert_equal("log", "line")
