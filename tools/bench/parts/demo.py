"""Demo: `pgdelta demo` in a terminal: how long it takes, and the greatest lag that its live table shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.rig import Rig

SECONDS = 55  # the default
LOADING = "changing the shop"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TITLE = re.compile(r"\s*[0-9,]+ s, (?P<stage>[a-z ]+?)\s*")
_ROW = re.compile(r"\s*shop\.\w+.*?\s(?P<lag>[0-9]+\.[0-9]) s\s.*")


def measure_demo(rig: Rig) -> Iterator[Measured]:
    """Run the demo."""
    run = rig.demo(rig.size(SECONDS, 10))
    yield Measured("demo_lag", greatest_lag(run.output))
    yield Measured("demo_seconds", run.seconds)


def greatest_lag(output: str) -> float:
    """Return the greatest lag of a table, in seconds, in the frames that show the load."""
    stage, lags = "", []
    for line in _ESCAPE.sub("", output).replace("\r", "\n").split("\n"):
        if title := _TITLE.fullmatch(line):
            stage = title["stage"]
        elif stage == LOADING and (row := _ROW.fullmatch(line)):
            lags.append(float(row["lag"]))
    if not lags:
        raise RuntimeError("the demo showed no lag")
    return max(lags)
