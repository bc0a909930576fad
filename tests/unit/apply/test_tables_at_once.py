"""How many tables are written at once: by cores, memory and Spark, within bounds."""

import os
from pathlib import Path

import pytest

from pipeline.apply.tables_at_once import Machine, spark_cores, tables_at_once, this_machine
from pipeline.delta.table import Lake

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "memory", "spark", "count"),
    [
        (1, 64 * GIB, None, 2),
        (2, 16 * GIB, None, 3),
        (4, 16 * GIB, None, 5),
        (64, 256 * GIB, None, 8),
        (8, 4 * GIB, None, 4),
        (8, 1 * GIB, None, 2),
        (64, 1 * GIB, 2, 3),
        (2, 4 * GIB, 1, 2),
        (2, 4 * GIB, 400, 16),
    ],
)
def test_the_number_follows_the_cores_within_bounds(
    cores: int, memory: int, spark: int | None, count: int
) -> None:
    assert tables_at_once(Machine(cores, memory), spark) == count


def test_the_affinity_of_the_process_counts(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory > 256 << 20
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    try:
        assert this_machine(tmp_path).cores == 1
    finally:
        os.sched_setaffinity(0, own)


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.max": "100000 100000\n", "memory.max": "1073741824\n"},
        {
            "cpu/cpu.cfs_quota_us": "100000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "1073741824\n",
        },
    ],
)
def test_a_control_group_limits_both(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert this_machine(tmp_path) == Machine(1, GIB)


def test_a_control_group_without_limits_limits_nothing(tmp_path: Path) -> None:
    free = this_machine(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert this_machine(tmp_path) == free
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert this_machine(tmp_path) == free


def test_a_lake_that_is_written_natively_starts_no_spark(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    assert spark_cores(lake, "auto") is None
    assert spark_cores(lake, "native") is None
    assert lake.sessions._spark is None
