"""Steps of a run at which something may go wrong, and what may: each cell is one fault at one step.

A fault strikes once, before or after the step; what a process does after it is its own affair. `killed` ends
the process itself, as `kill -9` does, so it is for a process of its own: as a program this module runs
`pgdelta run --config FILE` under the fault of FILE STEP WHEN FAULT.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

STEPS: dict[str, tuple[str, str]] = {
    "changes are sealed": ("pipeline.bronze.spool", "Spool.seal"),
    "a file is moved": ("pipeline.bronze.staged_files", "StagingFolder.move"),
    "relations are recorded": ("pipeline.bronze.writer", "BronzeWriter.record_relations"),
    "bronze is committed": ("pipeline.bronze.writer", "BronzeWriter.commit"),
    "the slot is told": ("pipeline.ingest.capture", "Capture._acknowledge"),
    "copied rows are staged": ("pipeline.table_copy.reader_pool", "CopySpool.finish"),
    "a copy is recorded": ("pipeline.bronze.copies", "Copies.record"),
    "a shape evolves": ("pipeline.silver.schema_writer", "SchemaWriter.evolve"),
    "a table is written": ("pipeline.silver.step_writer", "StepWriter.write"),
    "a table is registered": ("pipeline.metadata.registry", "Records.register"),
    "a manifest is written": ("pipeline.metadata.manifests", "Manifests.record"),
}
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

    step: str
    when: str
    fault: str

    def __str__(self) -> str:
        return f"{self.fault}, {self.when} {self.step}"


CELLS = tuple(Cell(*cell) for cell in product(STEPS, WHEN, FAULTS))


@contextmanager
def struck(cell: Cell) -> Iterator[threading.Event]:
    """Let the fault strike once at its step; the event says whether it did."""
    module, name = STEPS[cell.step]
    owner_name, method = name.split(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original = getattr(owner, method)
    has_struck = threading.Event()

    def strike() -> None:
        if not has_struck.is_set():
            has_struck.set()
            FAULTS[cell.fault]()

    def step(*arguments: Any, **options: Any) -> Any:
        if cell.when == "before":
            strike()
        result = original(*arguments, **options)
        if cell.when == "after":
            strike()
        return result

    setattr(owner, method, step)
    try:
        yield has_struck
    finally:
        setattr(owner, method, original)


def main() -> int:
    """Run a pipeline under a fault."""
    from pipeline.cli.main import main as pgdelta

    file, *cell = sys.argv[1:]
    with struck(Cell(*cell)):
        return pgdelta(["run", "--config", file])


if __name__ == "__main__":
    sys.exit(main())
