"""Jobs raced: two or three processes that commit to one table of a lake at the same moments.

Each process is a Spark of its own, and commits by the functions by which ingest, apply, resync, reconcile and
optimize do. What was acknowledged is held against the table: every row once, every offset recorded. The races
for a log that run by default are in test_log_store_races.py.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.delta.spark.settings import log_store_setting
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from tests.support.paths import ROOT
from tests.support.races.jobs import NAME, PIPELINE, SLOT, prepare

pytestmark = pytest.mark.slow

# each pair of jobs at a table that both write, and what three jobs write; optimize meets each job where that
# writes most
PAIRS = [
    (("ingest", "optimize"), "changes"),
    (("apply", "optimize"), "silver"),
    (("resync", "reconcile"), "requests"),
    (("reconcile", "optimize"), "reconciliations"),
    (("ingest", "apply", "resync"), "requests"),
    (("apply", "resync", "optimize"), "requests"),
    (("ingest", "apply", "optimize"), "events"),
    (("ingest", "apply"), "events"),
    (("ingest", "resync"), "requests"),
    (("ingest", "reconcile"), "requests"),
    (("apply", "resync"), "requests"),
    (("apply", "reconcile"), "requests"),
    (("resync", "optimize"), "requests"),
]
RACES = 80
COLUMNS = {"requests": "request_id", "events": "sentence", "reconciliations": "run_id", "silver": "tag"}


@dataclass(slots=True)
class Outcome:
    """The commits acknowledged to jobs, the refused ones, and those that are lost or doubled in the table."""

    told: Counter[str]
    refused: list[str]
    lost: list[str]
    doubled: list[str]


class Racers:
    """Processes that wait for what to race for."""

    def __init__(self, root: Path, count: int, store: str = "", jar: Path | None = None) -> None:
        self._folder = root.parent
        self._first = 0
        settings = "--conf spark.sql.shuffle.partitions=1 --conf spark.master=local[1]"
        classes = f"--driver-class-path {jar} --conf {log_store_setting('file')}={store} " if jar else ""
        java = '--driver-memory 1g --driver-java-options "-XX:TieredStopAtLevel=1"'
        environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{settings} {classes}{java} pyspark-shell"}
        self._answers = [self._folder / f"answers-{number}" for number in range(count)]
        for answers in self._answers:
            answers.touch()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.races.jobs", str(root), store, str(answers)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for answers in self._answers
        ]
        self._files = [answers.open() for answers in self._answers]

    def wait_until_ready(self) -> None:
        """Wait until every process is ready."""
        for number in range(len(self.processes)):
            assert self._answer(number) == "ready"

    def race(self, jobs: Sequence[str], table: str, races: int) -> list[Any]:
        """Have each job commit so many times; return what they say."""
        meeting = self._folder / f"meeting-{self._first}"
        meeting.write_bytes(bytes(SLOT * len(jobs)))
        for number, job in enumerate(jobs):
            task = {"job": job, "table": table, "number": number, "count": len(jobs)}
            task |= {"first": self._first, "races": races, "meeting": str(meeting)}
            stdin = self.processes[number].stdin
            assert stdin is not None
            print(json.dumps(task), file=stdin, flush=True)
        self._first += races
        said = []
        for number in range(len(jobs)):
            while (answer := self._answer(number)) != "done":
                said.append(answer)
        return said

    def _answer(self, number: int, seconds: float = 600) -> Any:
        deadline = time.monotonic() + seconds
        while not (line := self._files[number].readline()).endswith("\n"):
            assert self.processes[number].poll() is None, "a process of the race ended"
            assert time.monotonic() < deadline, "a process of the race says nothing"
            assert not line
            time.sleep(0.02)
        return json.loads(line)

    def end(self) -> None:
        for process, file in zip(self.processes, self._files, strict=True):
            file.close()
            process.kill()
            process.communicate()


@contextmanager
def racing(root: Path, count: int, **options: Any) -> Iterator[Racers]:
    racers = Racers(root, count, **options)
    try:
        racers.wait_until_ready()
        yield racers
    finally:
        racers.end()


@pytest.fixture(scope="module")
def raced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lake, Racers]]:
    """Give a lake and three processes."""
    root = tmp_path_factory.mktemp("raced") / "lake"
    lake = Lake.for_writing(str(root), spark)
    prepare(lake)
    with racing(root, 3) as racers:
        yield lake, racers


def race(lake: Lake, racers: Racers, jobs: Sequence[str], table: str, races: int) -> Outcome:
    """Race, and compare the acknowledged commits with the table."""
    said = racers.race(jobs, table, races)
    told = Counter(answer["told"] for answer in said if "told" in answer)
    rows = {tag for tag in told if not tag.startswith("optimize-")}
    present = _positions(lake) if table == "changes" else _tags(lake, table)
    lost = sorted(tag for tag in rows if not present[tag])
    if table == "silver":
        lost += sorted(tag for tag in rows if not _positions(lake, "silver", *NAME)[tag])
    if rows and table in ("changes", "silver"):
        segments = ("bronze", "changes") if table == "changes" else ("silver", *NAME)
        recorded = lake.table(*segments).offset(TxnId(PIPELINE))
        assert recorded == max(int(tag.rpartition("-")[2]) for tag in rows) + 1, "an offset is lost"
    doubled = sorted(tag for tag in rows if present[tag] > 1)
    return Outcome(told, [a["error"] for a in said if "refused" in a], lost, doubled)


def _tags(lake: Lake, table: str) -> Counter[str]:
    segments = ("silver", *NAME) if table == "silver" else ("_pgdelta", table)
    column = COLUMNS[table]
    # Not by Spark: a store that loses commits leaves log entries that differ from Hadoop's checksum of them.
    rows = DeltaTable(lake.table(*segments).path).to_pyarrow_table(columns=[column])
    return Counter(rows[column].to_pylist())


def _positions(lake: Lake, *segments: str) -> Counter[str]:
    """Count the commits of a table's log by the tags under which they were acknowledged."""
    table = lake.table(*(segments or ("bronze", "changes")))
    job, kind = ("apply", "silver") if segments else ("ingest", "changes")
    found = [operation.metadata.get("lsn") for operation in table.operations_after(-1)]
    texts = [text.split("/") for text in found if isinstance(text, str)]
    return Counter(f"{job}-{kind}-{(int(high, 16) << 32 | int(low, 16)) - 1}" for high, low in texts)


@pytest.mark.promise("one winner of each version")
@pytest.mark.parametrize(
    ("jobs", "table"), PAIRS, ids=lambda value: "-".join(value) if isinstance(value, tuple) else value
)
def test_no_acknowledged_commit_is_lost(
    raced: tuple[Lake, Racers], jobs: tuple[str, ...], table: str
) -> None:
    outcome = race(*raced, jobs, table, RACES)
    assert (outcome.lost, outcome.doubled) == ([], [])
    assert outcome.refused == [], "each commits in the end: none of them is in another's way"
    assert outcome.told.total() == RACES * len(jobs)
    print(f"{' and '.join(jobs)} at {table}: {RACES} races, {outcome.told.total()} acknowledged, 0 lost")


@pytest.mark.promise("one winner of each version")
def test_the_race_finds_what_a_store_loses(spark: SparkSession, racer: Path, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    lake = Lake.for_writing(str(root), spark)
    prepare(lake)
    # Both do the same work, so that each looks for the version while the other is about to write it.
    with racing(root, 2, store="SlowLogStore", jar=racer) as racers:
        said = racers.race(("append", "another append"), "silver", 5)
    told = [answer["told"] for answer in said if "told" in answer]
    present = _tags(lake, "silver")
    lost = [tag for tag in told if not present[tag]]
    print(f"with the window held open: {len(lost)} of {len(told)} acknowledged commits lost")
    assert lost
