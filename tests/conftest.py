"""Fixtures of the whole test suite, by what they need."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")
pytest_plugins = [  # those that others import come first
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

# How long an example takes says more of the machine than of the code; `make bench` measures.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

SLOW_TIMEOUT = 3 * 3600
"""Seconds for a test marked `slow` that does not say so itself."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests the time they need; all others have the limit in pyproject.toml."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
