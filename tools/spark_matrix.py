"""Run the core of the tests with each release of Spark: `python -m tools.spark_matrix`, `make spark-matrix`.

Each release has an environment of its own in `build/spark-matrix`, made from the package registries at the
first run and kept. A release is one run of pytest; a table of results by topic comes at the end. Names of
releases and topics as arguments choose some of them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from pipeline.delta.spark.log_store import JAR_NAME
from pipeline.delta.spark.releases import SPARK_RELEASES, SparkRelease
from tests.support.paths import ROOT

FOLDER = ROOT / "build" / "spark-matrix"
TOPICS = {
    "start by spark-submit": (
        "tests/unit/delta/test_settings.py",
        "tests/integration/operate/test_spark_submit.py::test_jobs_need_nothing_on_the_line",
    ),
    "commits": (
        "tests/integration/delta/test_log_store.py",
        "tests/integration/delta/test_s3_log_store_races.py"
        "::test_a_commit_whose_answer_is_lost_is_acknowledged_to_its_process",
    ),
    "types": ("tests/unit/silver/types/test_types.py",),
    "life of a lake": ("tests/integration/operate/test_whole_life.py",),
}
"""Test files, or tests of them, by what they show."""

# PySpark 4.0 and 4.1 leave sockets of their own to the garbage collector
_WARNINGS = ("-W", "ignore:unclosed <socket.socket:ResourceWarning")
_SECONDS_FOR_A_RELEASE = 2 * 3600


@dataclass(slots=True)
class Result:
    """How the tests of a topic ended with a release; a topic without a test has failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0

    @property
    def is_good(self) -> bool:
        """Whether tests ran and all of them passed."""
        return self.passed > 0 and self.failed == 0 and self.skipped == 0

    def __str__(self) -> str:
        counts = [f"{self.passed} passed"]
        counts += [f"{self.failed} FAILED"] if self.failed else []
        counts += [f"{self.skipped} SKIPPED"] if self.skipped else []
        return f"{', '.join(counts)} ({self.seconds:.0f} s)"


def make_environment(release: SparkRelease) -> Path:
    """Make the environment of a release, or bring it up to date; return its Python."""
    folder = FOLDER / release.name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--use-pep517"]
    install += ["--editable", ".[demo,dev]", f"pyspark~={release.name}.0"]
    subprocess.run(install, cwd=ROOT, check=True)
    subprocess.run([str(python), "-m", "pipeline.delta.spark.jars", "s3"], cwd=ROOT, check=True)
    return python


def version_of(python: Path) -> str:
    """Return the version of pyspark in an environment."""
    code = "from importlib.metadata import version; print(version('pyspark'))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def run_tests(python: Path, report: Path, topics: Sequence[str]) -> int:
    """Run the tests of the topics in an environment; return pytest's exit code."""
    # the commands of the environment come first on the PATH; no Spark of another one is found
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    environ["PATH"] = os.pathsep.join([str(python.parent), environ["PATH"]])
    command = [str(python), "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    command += [*_WARNINGS, f"--junitxml={report}", "-o", "junit_family=xunit1"]
    command += [chosen for topic in topics for chosen in TOPICS[topic]]
    with report.with_suffix(".log").open("w", encoding="utf-8") as output:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environ,
            stdout=output,
            stderr=output,
            timeout=_SECONDS_FOR_A_RELEASE,
            check=False,
        ).returncode


def results_by_topic(report: str, topics: Sequence[str]) -> Mapping[str, Result]:
    """Return the results of each topic from pytest's report in JUnit's format, which names the files."""
    topic_of = {chosen: topic for topic in topics for chosen in TOPICS[topic]}
    results = {topic: Result() for topic in topics}
    for case in ElementTree.fromstring(report).iter("testcase"):
        file, name = case.attrib["file"], case.attrib["name"].partition("[")[0]
        result = results[topic_of.get(file) or topic_of[f"{file}::{name}"]]
        result.seconds += float(case.attrib["time"])
        result.failed += any(case.find(each) is not None for each in ("failure", "error"))
        result.skipped += case.find("skipped") is not None
        result.passed += len(case.findall("*")) == len(case.findall("system-out"))
    return results


def log_store_classes(python: Path) -> str:
    """Return a hash of the log store's classes as compiled in an environment."""
    jar = next(python.parents[1].glob(f"lib/python*/site-packages/pyspark/jars/{JAR_NAME}"))
    digest = hashlib.sha256()
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            digest.update(name.encode() + archive.read(name))
    return digest.hexdigest()


def table(columns: Mapping[str, Mapping[str, Result]], topics: Sequence[str]) -> str:
    """Return the results as a table with a column for each version of Spark."""
    lines = ["| topic | " + " | ".join(f"Spark {version}" for version in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    lines += [
        f"| {topic} | " + " | ".join(str(results[topic]) for results in columns.values()) + " |"
        for topic in topics
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen topics with the chosen releases; return 1 if a test failed."""
    names = {release.name: release for release in SPARK_RELEASES}
    unknown = [each for each in arguments if each not in names and each not in TOPICS]
    if unknown:
        print(f"{unknown[0]} is no release and no topic. Choose from: {', '.join([*names, *TOPICS])}.")
        return 2
    releases = [names[each] for each in arguments if each in names] or list(SPARK_RELEASES)
    topics = [each for each in arguments if each in TOPICS] or list(TOPICS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Mapping[str, Result]] = {}
    failed, classes = False, set()
    for release in releases:
        print(f"Spark {release.name}: preparing {FOLDER / release.name}", flush=True)
        python = make_environment(release)
        version = version_of(python)
        classes.add(log_store_classes(python))
        report = FOLDER / f"{release.name}.xml"
        report.unlink(missing_ok=True)
        code = run_tests(python, report, topics)
        if not report.exists():
            print(f"Spark {version}: pytest ended with {code}; see {report.with_suffix('.log')}")
            return 1
        results = columns[version] = results_by_topic(report.read_text(encoding="utf-8"), topics)
        for topic, result in results.items():
            print(f"Spark {version}, {topic}: {result}", flush=True)
        if code or not all(result.is_good for result in results.values()):
            failed = True
            print(f"  see {report.with_suffix('.log')}", flush=True)
    print(f"\n{table(columns, topics)}")
    if len(classes) > 1:
        print("The log store's classes differ between the releases: one JAR does not fit all.")
    return int(failed or len(classes) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
