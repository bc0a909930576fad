"""Pytest plugin: record for each test and fixture how its time divides into kinds of work.

Loaded with `-p tools.suite_profile.plugin`; it appends one line of JSON a test to `$PGDELTA_SUITE_PROFILE`, a
folder, in a file of each process. Only the main thread is measured. The outermost measured call counts: the
wait for a server's start is a server's start, not waiting. What no measured call contains is `other`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "PGDELTA_SUITE_PROFILE"

KINDS: dict[str, tuple[str, ...]] = {
    "servers": (
        "pipeline.postgres.embedded:start_server",
        "pipeline.postgres.embedded:EmbeddedServer.start",
        "pipeline.postgres.embedded:EmbeddedServer.stop",
        "tests.support.servers:drop_database",
        "tests.support.postgres.binaries:binaries_of",
    ),
    "spark": ("pipeline.delta.spark.session:start_session",),
    "jobs": (
        "pipeline.ingest.job:run_ingest",
        "pipeline.apply.job:run_apply",
        "pipeline.operate.run:run_both",
        "pipeline.cli.main:main",
    ),
    "comparing": (
        "tests.support.oracle:assert_silver_equals_source",
        "tests.support.oracle:bronze_has_no_duplicates",
    ),
    "processes": ("subprocess:Popen.wait", "subprocess:Popen.communicate"),
    "waiting": (
        "time:sleep",
        "threading:Event.wait",
        "threading:Condition.wait",
        "threading:Thread.join",
    ),
}

clock = time.perf_counter


class Recorder:
    """Adds up the time of the outermost measured call of the main thread, by kind."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.fixtures: defaultdict[str, float] = defaultdict(float)
        self._is_measuring = False

    def measured(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is measured."""

        @functools.wraps(call)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if self._is_measuring or threading.current_thread() is not threading.main_thread():
                return call(*arguments, **options)
            self._is_measuring, start = True, clock()
            try:
                return call(*arguments, **options)
            finally:
                self._is_measuring = False
                self.seconds[kind] += clock() - start

        return wrapper

    def install(self, package: str) -> None:
        """Measure the calls of KINDS in a package; modules that are imported later get the functions."""
        for kind, places in KINDS.items():
            for place in places:
                if place.startswith("tests.") != (package == "tests"):
                    continue
                module, _, path = place.partition(":")
                owner: Any = importlib.import_module(module)
                *outer, name = path.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                setattr(owner, name, self.measured(kind, getattr(owner, name)))


def jvm_seconds() -> float:
    """Return the processor time of this process's JVM so far, 0 without one."""
    gateway = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(gateway, "_gateway", None), "proc", None)
    if process is None:
        return 0.0
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


RECORDER = Recorder()
RECORDER.install("pipeline")


def pytest_configure(config: pytest.Config) -> None:
    """Open the file of this process."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    config.stash[_FILE] = folder / f"{os.getpid()}.jsonl"


def pytest_sessionstart() -> None:
    """Measure the helpers of the tests, which the suite's own conftest.py has prepared by now."""
    RECORDER.install("tests")


_FILE = pytest.StashKey[Path]()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Measure each fixture without those that it uses."""
    start = clock()
    try:
        return (yield)
    finally:
        RECORDER.fixtures[fixturedef.argname] += clock() - start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write the record of one test."""
    RECORDER.seconds.clear()
    RECORDER.fixtures.clear()
    start, used, used_by_jvm = clock(), time.process_time(), jvm_seconds()
    try:
        return (yield)
    finally:
        took = clock() - start
        record = {
            "test": item.nodeid,
            "began": time.time() - took,
            "seconds": took,
            "processor": time.process_time() - used,
            "jvm": jvm_seconds() - used_by_jvm,
            "kinds": {**RECORDER.seconds, "other": took - sum(RECORDER.seconds.values())},
            "fixtures": dict(RECORDER.fixtures),
        }
        with item.config.stash[_FILE].open("a") as file:
            file.write(json.dumps(record) + "\n")
