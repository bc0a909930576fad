"""A year of a pipeline that maintains itself: files, logs and the cost of a commit stay as they are.

The commits are made natively, without a server, with a batch after every tenth. No clock is moved, as file
systems have their own: a day of the retentions lasts a second, so what expires after days goes meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from pipeline.apply.applier import Applier
from pipeline.config.jobs import Maintenance
from pipeline.delta import native_write
from pipeline.delta.log_retention import FILE_RETENTION, LOG_RETENTION
from pipeline.delta.store.files import SYNC_VARIABLE
from pipeline.maintenance.background import JobMaintenance
from pipeline.maintenance.job_tables import DueTable, own_candidates, silver_candidates
from pipeline.progress import MaintenanceProgress
from tests.support.native_lakes import NativeLake
from tools.growth.parts.logs import apply_all, land

COMMITS, TWELFTHS, BATCH_EVERY, MAINTAINED_EVERY = 20_000, 12, 10, 100
LIMIT = 1.5  # of the last third in the one before, for each figure
_DAY = 1  # seconds
_RULES = Maintenance(every=0, log_retention=_DAY, log_commits=500)
_SILVER = {LOG_RETENTION: f"interval {30 * _DAY} seconds", FILE_RETENTION: f"interval {7 * _DAY} seconds"}


@dataclass(frozen=True, slots=True)
class Twelfth:
    """What the lake has at the end of a twelfth, and what a commit cost in it, with its part of a batch.

    `bytes` are those of the logs: bronze keeps all changes, so the data grows.
    """

    commits: int
    data_files: int
    log_files: int
    bytes: int
    seconds: float
    cpu: float

    def line(self) -> str:
        """Return it as text."""
        return (
            f"{self.commits:>9,}{self.data_files:>12,}{self.log_files:>11,}{self.bytes / 1e6:>9.2f}"
            f"{1000 * self.seconds:>12.2f}{1000 * self.cpu:>9.2f}"
        )


@contextmanager
def short_days() -> Iterator[None]:
    """Let what waits for hours or a day wait for a second, in a block, and sync nothing."""
    constants = {
        "pipeline.delta.log_retention.KEPT_SECONDS": _DAY / 24,
        "pipeline.delta.checkpoints.KEPT_SECONDS": _DAY / 24,
        "pipeline.delta.vacuum._UNCOMMITTED": float(_DAY),
        "pipeline.maintenance.job_tables.DAY": float(_DAY),
    }
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch.dict(os.environ, {SYNC_VARIABLE: "false"}))
        yield


class _Year:
    """A lake whose jobs commit, apply and maintain in turn."""

    def __init__(self, folder: Path) -> None:
        self.lake = NativeLake(folder / "lake", 1)
        silver = self.lake.lake.table("silver", *self.lake.names[0])
        native_write.set_properties(silver.folder, silver.snapshot(), _SILVER, '{"pgdelta": 1}')
        self.applier = Applier(None, self.lake.config)
        self.progress = MaintenanceProgress()
        self._maintenance = JobMaintenance(
            replace(self.lake.config, maintenance=_RULES),
            self.lake.lake,
            self._candidates,
            self.progress,
            stop=threading.Event(),
            gate=self.applier.tables.gate,
        )

    def _candidates(self) -> Iterator[DueTable]:
        manifest = self.applier.manifest
        for folder in ("bronze", "_pgdelta"):
            yield from own_candidates(self.lake.lake, folder)
        yield from silver_candidates(self.lake.lake, manifest.entries if manifest else ())

    def commit(self, number: int) -> None:
        """Make a commit of 20 changes, and what follows it."""
        land(self.lake)
        if number % BATCH_EVERY == 0:
            apply_all(self.applier)
        if number % MAINTAINED_EVERY == 0:
            self._maintenance.run(60)
            if self.progress.failures:
                raise RuntimeError("\n".join(self.progress.lines()))

    def twelfth(self, commits: int, count: int, seconds: float, cpu: float) -> Twelfth:
        """Return what the lake has now; `count` commits took so many seconds."""
        files = [path for path in self.lake.root.rglob("*") if path.is_file()]
        logs = [path.stat().st_size for path in files if "_delta_log" in path.parts]
        return Twelfth(commits, len(files) - len(logs), len(logs), sum(logs), seconds / count, cpu / count)


def measure_year(commits: int, folder: Path) -> Iterator[Twelfth]:
    """Give each twelfth of a year with so many commits."""
    count = max(1, commits // TWELFTHS)
    with short_days():
        year = _Year(folder)
        with closing(year.applier):
            for twelfth in range(TWELFTHS):
                began, cpu = time.perf_counter(), time.process_time()
                for number in range(1, count + 1):
                    year.commit(twelfth * count + number)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                yield year.twelfth((twelfth + 1) * count, count, seconds, cpu)


def growth_of(twelfths: list[Twelfth]) -> float:
    """Return how much the last third has or costs of what the third before has: the most of all figures."""
    before, last = twelfths[4:8], twelfths[8:]
    figures: tuple[Callable[[Twelfth], float], ...] = (
        lambda each: each.data_files,
        lambda each: each.log_files,
        lambda each: each.bytes,
        lambda each: each.cpu,
    )
    return max(sum(map(figure, last)) / sum(map(figure, before)) for figure in figures)


def print_year(scale: float, folder: Path | None) -> bool:
    """Measure and print a table; return whether nothing grows."""
    commits = max(TWELFTHS, round(COMMITS * scale))
    print(f"A year of {commits:,} commits that maintains itself; a day lasts {_DAY} s")
    print(
        f"{'commits':>9}{'data files':>12}{'log files':>11}{'log MB':>9}{'ms/commit':>12}{'CPU ms':>9}",
        flush=True,
    )
    found = []
    with tempfile.TemporaryDirectory(prefix="pgdelta-growth-", dir=folder) as own:
        for twelfth in measure_year(commits, Path(own)):
            found.append(twelfth)
            print(twelfth.line(), flush=True)
    ratio = growth_of(found)
    print(f"the last third to the one before, at most: {ratio:.2f} (limit {LIMIT})", flush=True)
    return ratio <= LIMIT
