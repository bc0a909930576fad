"""Fixtures of the whole test suite, by what they need."""

pytest_plugins = ["tests.servers", "tests.postgres.majors", "tests.spark_sessions"]
