"""An ingest process under the recorder: compile the recorder, run ingest, replay what was recorded."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.delta.store.files import SYNC_VARIABLE
from pipeline.delta.txn import TxnId
from tests.support.paths import ROOT
from tests.support.power.disk import FLUSHES, read_events
from tests.support.power.lakes import read_logs, sizes_below
from tests.support.power.replay import Verdict, replay
from tests.support.processes import in_own_session, run_command

SOURCE = Path(__file__).resolve().parent / "recorder.c"
PATIENCE = 300.0  # seconds
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
  copy: {copy}
  route: {route}
  protocol: {{two_phase: {two_phase}}}
storage: {{root: "{root}"}}
"""


def compile_recorder(folder: Path) -> Path:
    """Compile the recorder; skip the test where that cannot be done."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the recorder reads /proc and is preloaded by the linker of Linux")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc), which the recorder of file events needs")
    library = folder / "recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-U_FORTIFY_SOURCE"]
    run_command(*command, "-o", str(library), str(SOURCE), "-ldl")
    return library


@dataclass(slots=True)
class Recording:
    """A lake in a folder of its own, with a recording of every process that runs here."""

    name: str
    conninfo: str
    folder: Path  # is there, and empty, before the first process
    log: Path
    library: Path
    config: Path

    @property
    def lake(self) -> Path:
        return self.folder / "above" / "lake"

    @property
    def versions(self) -> int:
        """Return how many versions `bronze/changes` has."""
        return len(list((self.lake / "bronze" / "changes" / "_delta_log").glob("*.json")))

    def configure(self, *, copy: str = "never", route: str = "walsender", two_phase: bool = False) -> None:
        """Write the configuration."""
        text = CONFIG.format(
            name=self.name,
            conninfo=self.conninfo,
            root=self.lake,
            copy=copy,
            route=route,
            two_phase=str(two_phase).lower(),
        )
        self.config.write_text(text)

    @contextmanager
    def started(
        self, *, continuous: bool = False, syncs: bool = True, kill_at: str = ""
    ) -> Iterator[subprocess.Popen[str]]:
        """Start an ingest; it is killed once a link is made whose path ends with `kill_at`."""
        command = [str(ROOT / "jobs" / "ingest.py"), "--config", str(self.config)]
        if continuous:  # and lands several times a second
            command = ["-m", "tests.support.held_ingest", str(self.config), "any"]
        recorder = {
            "LD_PRELOAD": str(self.library),
            "PGDELTA_POWER_FOLDER": str(self.folder),
            "PGDELTA_POWER_LOG": str(self.log),
            "PGDELTA_POWER_KILL": kill_at,
        }
        options = {} if syncs else {SYNC_VARIABLE: "false"}
        with in_own_session(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **recorder, **options},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            yield process

    @contextmanager
    def running(self, *, syncs: bool = True) -> Iterator[subprocess.Popen[str]]:
        """Run a continuous ingest until the end of the block."""
        with self.started(continuous=True, syncs=syncs) as process:
            yield process
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == 0, said

    def run(self, *, syncs: bool = True, kill_at: str = "") -> None:
        """Run an ingest to its end, or until it is killed."""
        with self.started(syncs=syncs, kill_at=kill_at) as process:
            said = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == (-signal.SIGKILL if kill_at else 0), said

    def replay(self, *, forces_at_start: bool = True) -> Verdict:
        """Judge what was recorded; every file must exist as the recording has it, so none was missed.

        Without `forces_at_start` it is as if the threads that report to the slot had forced nothing.
        """
        events = list(read_events(self.log))
        if not forces_at_start:
            reporting = {event.thread for event in events if event.kind in FLUSHES}
            events = [e for e in events if e.kind not in ("begin", "force") or e.thread not in reporting]
        found = replay(events, str(self.folder), read_logs(self.lake, str(TxnId(self.name))))
        assert found.disk.sizes() == sizes_below(self.folder)
        return found.verdict
