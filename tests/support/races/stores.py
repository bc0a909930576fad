"""Let processes append to one table on an object store without Spark, and find commits that were lost."""

import json
import subprocess
import sys
from collections import Counter

from pipeline.config.storage import Storage
from pipeline.delta.table import Lake
from tests.support.paths import ROOT
from tests.support.races.appends import DDL

PROCESSES = 3


def race(storage: Storage, count: int) -> None:
    """Let processes append rows to a table, and compare it with what was acknowledged."""
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
