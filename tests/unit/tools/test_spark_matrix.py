"""`make spark-matrix`: what its topics are, and how it reads pytest's report."""

import sys
from pathlib import Path

import pytest

from pipeline.delta.spark.releases import SPARK_RELEASES
from tests.support.paths import ROOT
from tests.support.processes import run_command
from tools import spark_matrix
from tools.spark_matrix import TOPICS, Result, main, results_by_topic, table

TESTS = {
    "good.py": "def test_one(): print('text')\ndef test_two(): pass\n",
    "bad.py": (
        "import pytest\n"
        "def test_one(): pass\n"
        "def test_two(): raise ValueError\n"
        "@pytest.fixture\ndef broken(): raise ValueError\n"
        "def test_three(broken): pass\n"
        "def test_four(): pytest.skip('not here')\n"
    ),
    "more.py": (
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_one(n): pass\n"
        "def test_two(): raise ValueError\n"
    ),
}


def test_topics_are_tests_that_exist_and_none_is_in_two() -> None:
    chosen = [each for topic in TOPICS.values() for each in topic]
    assert len(set(chosen)) == len(chosen)
    whole = {each for each in chosen if "::" not in each}
    for each in chosen:
        file, _, name = each.partition("::")
        assert (
            f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).is_file()
        )
        assert not (name and file in whole), each


def test_a_report_of_pytest_becomes_results_by_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    command += ["--junitxml=report.xml", "-o", "junit_family=xunit1"]
    command += ["good.py", "bad.py", "more.py::test_one"]
    run_command(*command, code=1, cwd=tmp_path)
    topics = {"good": ("good.py",), "bad": ("bad.py",), "one": ("more.py::test_one",), "empty": ("empty.py",)}
    monkeypatch.setattr(spark_matrix, "TOPICS", topics)
    results = results_by_topic((tmp_path / "report.xml").read_text(encoding="utf-8"), tuple(topics))
    found = {topic: (each.passed, each.failed, each.skipped) for topic, each in results.items()}
    assert found == {"good": (2, 0, 0), "bad": (1, 2, 1), "one": (2, 0, 0), "empty": (0, 0, 0)}
    assert {topic for topic, each in results.items() if each.is_good} == {"good", "one"}


def test_results_are_a_table_with_a_column_for_each_version() -> None:
    columns = {"4.0.5": {"copy": Result(passed=3, seconds=4.2)}, "4.1.4": {"copy": Result(1, 2, 1, 9)}}
    assert table(columns, ["copy"]).splitlines() == [
        "| topic | Spark 4.0.5 | Spark 4.1.4 |",
        "|---|---|---|",
        "| copy | 3 passed (4 s) | 1 passed, 2 FAILED, 1 SKIPPED (9 s) |",
    ]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["4.0", "3.5"]) == 2
    message = capsys.readouterr().out
    assert message.startswith("3.5 is no release and no topic. Choose from: ")
    assert all(release.name in message for release in SPARK_RELEASES)
