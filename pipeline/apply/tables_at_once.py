"""Default number of silver tables that are written at once, by the machine.

The native writer uses the cores and the memory of this process, as far as its affinity and its control group
let it. Spark uses its own, here or on a cluster: `defaultParallelism`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.config import Config
from pipeline.delta.store.store import is_store
from pipeline.delta.table import Lake

LEAST = 2  # so that a large table leaves a thread to small ones
MAX_BY_SPARK = 16
MAX_NATIVELY = 8  # DuckDB's memory is for all of them
MEMORY_OF_PROCESS = 2 << 30  # bytes: Python, DuckDB, and the rows of bronze that are kept
MEMORY_OF_TABLE = 512 << 20  # bytes: the rows of a small table's changes, and of the files that have them
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores and the bytes of memory that this process may use."""

    cores: int
    memory: int


def configured_tables_at_once(config: Config, lake: Lake) -> int:
    """Return how many silver tables of a lake are written at once."""
    setting = config.apply.tables_at_once
    if setting != "auto":
        return setting
    machine = this_machine()
    if is_store(lake.root):  # whose answers a thread waits for
        machine = replace(machine, cores=max(machine.cores, MAX_NATIVELY))
    return tables_at_once(machine, spark_cores(lake, config.silver.writer))


def tables_at_once(machine: Machine, spark_cores: int | None) -> int:
    """Return how many tables are written at once; `spark_cores` is Spark's parallelism if it writes them.

    One more than the cores, because a write also waits for the disk and for the driver of Spark.
    """
    if spark_cores is not None:
        return max(LEAST, min(spark_cores + 1, MAX_BY_SPARK))
    by_memory = (machine.memory - MEMORY_OF_PROCESS) // MEMORY_OF_TABLE
    return max(LEAST, min(machine.cores + 1, by_memory, MAX_NATIVELY))


def spark_cores(lake: Lake, writer: str) -> int | None:
    """Return the parallelism of Spark if it writes all tables, which starts it; None if it does not."""
    if writer != "spark" and lake.table("silver").local_path is not None:
        return None
    return int(lake.spark.sparkContext.defaultParallelism)


def this_machine(groups: Path = _GROUPS) -> Machine:
    """Return what this process may use: `groups` are the files of its control group, if it is in one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu = groups / "cpu"
    quota, period = _numbers(groups / "cpu.max", cpu / "cpu.cfs_quota_us", cpu / "cpu.cfs_period_us")[:2]
    if quota > 0 and period > 0:
        cores = min(cores, max(1, round(quota / period)))
    limit = _numbers(groups / "memory.max", groups / "memory/memory.limit_in_bytes")[0]
    return Machine(cores, min(memory, limit) if limit > 0 else memory)


def _numbers(*paths: Path) -> list[int]:
    """Return the numbers in the files that there are, and two zeros; a limit that is not set is 0."""
    words: list[str] = []
    for path in paths:
        with suppress(OSError):
            words += path.read_text().split()
    return [int(word) if word.isdigit() else 0 for word in words] + [0, 0]
