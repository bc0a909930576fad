"""Processes that commit to one table on an object store without Spark: no acknowledged commit is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipeline.config.storage import Storage
from pipeline.delta.table import Lake
from tests.support.paths import ROOT
from tests.support.races.appends import DDL
from tests.support.stores.s3 import BUCKET, s3_server
from tests.support.stores.seaweed import seaweed_server, weed

PROCESSES = 3


def race(storage: Storage, count: int) -> None:
    """Let processes append rows to a table, and compare it with what they were told."""
    table = Lake(storage).table("t")
    table.ensure(DDL)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.races.appends", storage.root, f"w{number}", str(count)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(dict(storage.options)))
        process.stdin.close()
        process.stdin = None
    told = Counter[tuple[str, int]]()
    for number, process in enumerate(processes):
        output, _ = process.communicate()
        told.update((f"w{number}", int(line)) for line in output.splitlines())
        assert process.returncode == 0
    rows = Counter((row["writer"], row["number"]) for row in table.rows().to_pylist())
    assert told.total() == PROCESSES * count
    assert rows == told
    assert table.version() == PROCESSES * count


@pytest.mark.parametrize("count", [15, pytest.param(350, marks=pytest.mark.slow)])
def test_no_commit_is_lost_on_s3(count: int) -> None:
    with s3_server() as server:
        race(Storage(f"s3://{BUCKET}/race{count}", server.options), count)


def test_no_commit_is_lost_or_repeated_if_answers_are() -> None:
    with s3_server(loses=4) as server:
        race(Storage(f"s3://{BUCKET}/lost", server.options), 8)
        assert server.lost > 3


@pytest.mark.slow
@pytest.mark.skipif(weed() is None, reason="make stores installs SeaweedFS")
def test_no_commit_is_lost_on_seaweedfs(tmp_path: Path) -> None:
    with seaweed_server(tmp_path) as options:
        race(Storage("s3://lake/weed", options), 350)
