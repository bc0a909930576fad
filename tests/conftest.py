"""Fixtures of the whole test suite, by what they need."""

from hypothesis import settings

pytest_plugins = ["tests.servers", "tests.postgres.majors", "tests.spark_sessions"]

# How long an example takes says more of the machine than of the code; `make bench` measures.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
