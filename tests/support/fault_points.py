"""Faults at the crash steps of a run: each cell is one fault, before or after one step.

A fault strikes once, the first time that the step is reached. `killed` ends the process itself, as `kill -9`
does, so it needs a process of its own: as a program this module runs `pgdelta COMMAND --config FILE` under
the fault of COMMAND FILE STEP WHEN FAULT. `crash_at` ends a run of the test itself at a step.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pipeline import crash_steps
from pipeline.crash_steps import CrashStep, NamedStep
from tests.support.paths import ROOT
from tests.support.pipelines import Crash

WHEN = ("before", "after")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fill_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _refuse() -> None:
    raise RuntimeError("503 Slow Down")


def _exhaust() -> None:
    raise MemoryError


FAULTS: dict[str, Callable[[], None]] = {
    "killed": _kill,
    "disk full": _fill_disk,
    "storage error": _refuse,
    "out of memory": _exhaust,
    "slow": lambda: time.sleep(3),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one step."""

    step: CrashStep
    when: str
    fault: str

    def __str__(self) -> str:
        return f"{self.fault}, {self.when} {self.step.value}"


CELLS = tuple(Cell(*cell) for cell in product(CrashStep, WHEN, FAULTS))


@contextmanager
def observed(observer: Callable[[Any, str], None]) -> Iterator[None]:
    """Call a function before and after every step until the end of the block."""
    previous, crash_steps.observer = crash_steps.observer, observer
    try:
        yield
    finally:
        crash_steps.observer = previous


@contextmanager
def crash_at(
    wanted: NamedStep,
    when: str = "before",
    *,
    passing: int = 0,
    error: type[BaseException] | BaseException = Crash,
) -> Iterator[None]:
    """Raise an error each time a step is reached, but for the first `passing` times."""
    count = 0
    lock = threading.Lock()

    def observe(step: NamedStep, moment: str) -> None:
        nonlocal count
        if (step, moment) == (wanted, when):
            with lock:
                count += 1
                is_due = count > passing
            if is_due:
                raise error

    with observed(observe):
        yield


@contextmanager
def struck(cell: Cell) -> Iterator[threading.Event]:
    """Let the fault strike once at its step; the event is set once it did."""
    has_struck = threading.Event()

    def strike(step: NamedStep, moment: str) -> None:
        if (step, moment) == (cell.step, cell.when) and not has_struck.is_set():
            has_struck.set()
            FAULTS[cell.fault]()

    with observed(strike):
        yield has_struck


def run_killed(command: str, cell: Cell, config: Path) -> bool:
    """Run a command in a process that ends at a step; return whether it did."""
    program = [sys.executable, "-m", "tests.support.fault_points", command, str(config)]
    done = subprocess.run(
        [*program, cell.step.value, cell.when, cell.fault],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    return done.returncode == -signal.SIGKILL


def main() -> int:
    """Run a command under a fault."""
    from pipeline.cli.main import main as pgdelta

    command, file, step, when, fault = sys.argv[1:]
    with struck(Cell(CrashStep(step), when, fault)):
        return pgdelta([command, "--config", file])


if __name__ == "__main__":
    sys.exit(main())
