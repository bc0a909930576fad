"""Fixtures of the whole test suite, by what they need."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from pipeline.cli.arrow import use_lean_arrow

use_lean_arrow()  # as the commands do: pandas takes a second to import
pytest.register_assert_rewrite("tests.support")
pytest_plugins = [  # those that others import come first
    "tests.support.tiers",
    "tests.support.servers",
    "tests.support.postgres.majors",
    "tests.support.stores.jars",
    "tests.support.stores.hdfs",
    "tests.support.stores.cloud",
    "tests.support.stores.run",
    "tests.support.spark_sessions",
    "tests.support.pipelines",
    "tests.support.lives",
    "tests.support.races.racer",
    "tests.support.stores.lakes",
    "tests.support.silver.small_session",
    "tests.support.modes.workloads",
]

_MEMORY = Path("/dev/shm")
_MIN_FREE = 8 << 30


def pytest_configure() -> None:
    """Keep the folders of tests in memory where it is large: all workers would wait for one disk to sync."""
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MIN_FREE:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


# How long an example takes says more of the machine than of the code; `make bench` measures.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
