"""What a run of the tests runs, and in which of its processes.

Only tests marked `spark` may start the JVM of their process, and they share one process: any other one that
started Spark would spend a minute of a processor on it. They come first, because they take the longest. Other
tests go to the processes file by file, for fixtures that a module shares.

`sample(n)` leaves n cases of a parametrized test in the default tier and marks the others `slow`. The seed
that chooses cases, and what random tests draw, is $PGDELTA_SEED; the header of a run shows it.

Slow tests are divided into parts by topic, the folder of a test: `--part faults-2` runs every fifth slow
test of faults. SLOW_PARTS says into how many parts, so that none takes more than half an hour.
"""

import gc
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterable
from datetime import date
from functools import cache
from pathlib import Path
from random import Random, SystemRandom

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.postgres import templates

SEED = "PGDELTA_SEED"
GROUPS = "PGDELTA_TEST_GROUPS"
SLOW_PARTS = {
    **dict.fromkeys(("bronze", "demo", "forget", "postgres", "report", "tools"), 1),
    **dict.fromkeys(("apply", "ingest", "table_copy"), 2),
    **dict.fromkeys(("delta", "stores", "verify"), 3),
    **dict.fromkeys(("operate", "reading", "source_life"), 4),
    **dict.fromkeys(("faults", "silver"), 5),
}
DATABASES = frozenset({"database", "old_database", "make_pipeline", "make_server", "server_of"})
"""Fixtures that start PostgreSQL."""
TESTS = Path(__file__).resolve().parents[1]
CONTRIBUTING = TESTS.parent / "docs" / "contributing.md"
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed")
SLOW_TIMEOUT = 3 * 3600
"""Seconds for a test marked `slow` that does not say so itself."""


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Give each process the tests of a file, and one process those that use Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return _groups().get(nodeid, nodeid.partition("::")[0])


@cache
def _groups() -> dict[str, str]:
    """Return what the processes of a run wrote: the group of each test that uses Spark, by its id."""
    found: dict[str, str] = json.loads(Path(os.environ[GROUPS]).read_text())
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs one part of the slow tests."""
    parser.addoption("--part", help="run one part of the slow tests, such as faults-1", choices=parts())


def parts() -> list[str]:
    """Return the names of the parts of the slow tests."""
    return [f"{topic}-{number}" for topic, count in SLOW_PARTS.items() for number in range(1, count + 1)]


def of_part(items: Iterable[pytest.Item], part: str) -> list[pytest.Item]:
    """Return the slow tests of a part: those of a topic are dealt to its parts in turn."""
    topics: dict[str, list[pytest.Item]] = {topic: [] for topic in SLOW_PARTS}
    for item in items:
        if item.get_closest_marker("slow"):
            topics[item.path.relative_to(TESTS).parts[1]].append(item)
    topic, _, number = part.rpartition("-")
    return topics[topic][int(number) - 1 :: SLOW_PARTS[topic]]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Write the result of a whole part into *Contributing*, unless it was interrupted, or only listed."""
    part = config.getoption("part")
    is_whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    is_chosen = any(map(config.getoption, ("keyword", "file_or_dir", "collectonly")))
    if part is None or not is_whole or is_chosen:
        return
    outcomes = {outcome: len(terminalreporter.stats.get(outcome, ())) for outcome in OUTCOMES}
    result = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
    minutes, seconds = divmod(round(terminalreporter._session_start.elapsed().seconds), 60)
    row = f"| `{part}` | {result} | {minutes}:{seconds:02} | {date.today()} |"
    text, count = re.subn(rf"^\| `{part}` \|.*$", row, CONTRIBUTING.read_text(), flags=re.MULTILINE)
    assert count == 1, part
    CONTRIBUTING.write_text(text)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed of the run, and name the folder of servers and the file of groups for all processes."""
    os.environ.setdefault(SEED, str(SystemRandom().randrange(2**32)))
    if not hasattr(config, "workerinput"):
        os.environ[GROUPS] = str(Path(tempfile.gettempdir(), f"pgdelta-groups-{os.getpid()}.json"))
        templates.make_folder()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the file of groups, and the templates of servers."""
    if not hasattr(config, "workerinput"):
        Path(os.environ[GROUPS]).unlink(missing_ok=True)
        templates.remove_folder()


def pytest_report_header() -> str:
    """Show what repeats the run."""
    return f"seed: {SEED}={os.environ[SEED]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Scheduling | None:
    """Give tests to processes by group and file."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def _write_groups(items: Iterable[pytest.Item]) -> None:
    """Write the groups of tests that share a JVM; each process of a run writes the same."""
    with tempfile.NamedTemporaryFile("w", dir=tempfile.gettempdir(), delete=False) as file:
        json.dump({item.nodeid: group for item in items if (group := _group_of(item)) is not None}, file)
    Path(file.name).replace(os.environ[GROUPS])


def _group_of(item: pytest.Item) -> str | None:
    """Return the group of a test that uses Hadoop's file system, or Spark, and None of all others."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "hdfs" in {*getattr(item, "fixturenames", ()), *map(str, parameters.values())}:
        return "hdfs"  # which starts once
    if item.get_closest_marker("spark"):
        return "spark"
    return None


_CURRENT: list[pytest.Item] = []


def may_use_spark() -> bool:
    """Return whether the test that runs is marked `spark`."""
    return any(item.get_closest_marker("spark") for item in _CURRENT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Know which test runs."""
    _CURRENT[:] = [item]
    return (yield)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that get a database or a server, that get the session, or whose writer is Spark."""
    fixtures = getattr(item, "fixturenames", ())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if not DATABASES.isdisjoint(fixtures):
        item.add_marker(pytest.mark.postgres)
    if ("spark" in fixtures and "spark" not in parameters) or "spark" in parameters.values():
        item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no search for garbage go through what all tests keep, neither while it grows nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that only `make slow` runs, and bring the tests that use Spark together, first."""
    samples: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            samples[item.nodeid.partition("[")[0]].append(item)
    for name, cases in samples.items():
        mark = cases[0].get_closest_marker("sample")
        assert mark is not None
        drawn = Random(f"{os.environ[SEED]} {name}").sample(range(len(cases)), min(mark.args[0], len(cases)))
        for number, case in enumerate(cases):
            if number not in drawn:
                case.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    if hasattr(config, "workerinput"):
        _write_groups(items)
    if (part := config.getoption("part")) is not None:
        items[:] = of_part(items, part)
