"""What old logs cost: 300,000 commits of bronze and 50,000 of a silver table, with and without maintenance.

Lakes are made natively, without a server. An ingest commit and a batch of 20 changes are the means of many,
so that their part of a checkpoint counts. A start imports the jobs and reads where bronze and silver are.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from pipeline.apply.applier import Applier
from pipeline.maintenance.job_tables import tables_of
from pipeline.maintenance.maintainer import Maintainer
from tests.support.native_lakes import NativeLake
from tools.growth.aged_log import age_appends, age_replacements

BRONZE_COMMITS, SILVER_COMMITS = 300_000, 50_000
LIMIT = 1.3  # of the young lake's processor time
_KEPT = 3500  # commits of bronze before they are cleaned up
_COMMITS, _BATCHES, _RUNS = 100, 40, 5
_START = """
import sys
from pipeline.apply.applier import Applier
from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
import pipeline.ingest.job
lake = Lake(sys.argv[1])
bronze = Bronze(lake, "p")
bronze.captured_offset(), bronze.metadata(), lake.table("silver", "public", "t0000").offsets()
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """Seconds, and seconds of processors."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class LakeCost:
    """What a lake costs by case; files and bytes are those of its logs of bronze and of the silver table."""

    name: str
    costs: dict[str, Measure]
    files: tuple[int, int]
    bytes: tuple[int, int]


def make_lake(folder: Path, scale: float, *, is_aged: bool, is_kept: bool) -> NativeLake:
    """Return a lake with one table, whose logs have many commits if it is aged."""
    lake = NativeLake(folder / "lake", 1)
    land(lake)
    apply(lake)
    if not is_aged:
        return lake
    silver = lake.lake.table("silver", *lake.names[0])
    kept = _KEPT if is_kept else None
    age_appends(lake.bronze.changes, round(BRONZE_COMMITS * scale), kept=kept)
    age_replacements(silver, round(SILVER_COMMITS * scale), is_kept=is_kept)
    manifest = lake.manifests.last()
    assert manifest is not None
    entries = tuple(replace(entry, version=silver.version()) for entry in manifest.entries)
    lake.manifests.record(replace(manifest, entries=entries))
    if is_kept:
        rules = replace(lake.config.maintenance, vacuum=False, small_file_size=0)
        maintainer = Maintainer(rules, threading.Event().is_set, time.time)
        for done in maintainer.maintain_all(tables_of(lake.lake, lake.config, None)):
            if done.failure is not None:
                raise RuntimeError(f"{done.table}: {done.failure}")
    return lake


def land(lake: NativeLake) -> None:
    """Land a commit of 20 inserted rows."""
    lake.insert(lake.names, int(lake.offset) + 10, count=20)


def apply(lake: NativeLake) -> None:
    """Apply what was landed."""
    with closing(Applier(None, lake.config)) as applier:
        apply_all(applier)


def apply_all(applier: Applier) -> None:
    """Apply what was landed; raise RuntimeError if that failed."""
    summary = applier.apply_pending()
    if summary.exit_code(strict=True):
        raise RuntimeError("\n".join(summary.lines()))


def measure(name: str, lake: NativeLake) -> LakeCost:
    """Return what a lake costs; its logs are counted before."""
    folders = [lake.bronze.changes.folder, lake.lake.table("silver", *lake.names[0]).folder]
    logs = [[path.stat().st_size for path in (each / "_delta_log").iterdir()] for each in folders]
    config = str(lake.root.parent / f"{lake.root.name}.yaml")
    costs = {
        "start": _process([sys.executable, "-c", _START, str(lake.root)]),
        "status": _process([sys.executable, "-m", "pipeline.cli", "status", "--offline", "--config", config]),
    }
    land(lake)
    costs["ingest commit"] = _mean(lambda: land(lake), _COMMITS)
    with closing(Applier(None, lake.config)) as applier:
        apply_all(applier)

        def batch() -> None:
            land(lake)
            apply_all(applier)

        batch()
        costs["commit and batch"] = _mean(batch, _BATCHES)
    (bronze, silver) = logs
    return LakeCost(name, costs, (len(bronze), len(silver)), (sum(bronze), sum(silver)))


def _mean(step: Callable[[], None], count: int) -> Measure:
    seconds = []
    cpu = time.process_time()
    for _ in range(count):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return Measure(median(seconds), (time.process_time() - cpu) / count)


def _process(command: list[str]) -> Measure:
    found = []
    for _ in range(_RUNS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append((time.perf_counter() - began, cpu))
    return Measure(median(each[0] for each in found), median(each[1] for each in found))


def print_logs(scale: float, folder: Path | None) -> bool:
    """Measure and print a table; return whether nothing costs more in the maintained lake than it may."""
    commits = round(BRONZE_COMMITS * scale), round(SILVER_COMMITS * scale)
    print(f"Logs of {commits[0]:,} commits of bronze, {commits[1]:,} of silver")
    print(f"{'lake':<12}{'case':<18}{'seconds':>9}{'CPU s':>9}{'x young':>9}")
    lakes: list[LakeCost] = []
    for name, is_aged, is_kept in (
        ("young", False, False),
        ("maintained", True, True),
        ("left", True, False),
    ):
        with tempfile.TemporaryDirectory(prefix="pgdelta-growth-", dir=folder) as own:
            found = measure(name, make_lake(Path(own), scale, is_aged=is_aged, is_kept=is_kept))
        lakes.append(found)
        for case, cost in found.costs.items():
            ratio = cost.cpu / lakes[0].costs[case].cpu
            print(f"{name:<12}{case:<18}{cost.seconds:>9.4f}{cost.cpu:>9.4f}{ratio:>9.2f}", flush=True)
        for table, files, size in zip(("bronze", "silver"), found.files, found.bytes, strict=True):
            print(f"{name:<12}log of {table}: {files:,} files, {size / 1e6:,.1f} MB", flush=True)
    young, kept = lakes[:2]
    ratio = max(cost.cpu / young.costs[case].cpu for case, cost in kept.costs.items())
    print(f"maintained to young, at most: {ratio:.2f} (limit {LIMIT})", flush=True)
    return ratio <= LIMIT
