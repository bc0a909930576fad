"""Processes that race for the versions of a Delta log, and a comparison of their acknowledgements."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.races.racer import java_command


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many versions were contested, acknowledged to no process, and acknowledged to several."""

    races: int
    unwritten: int
    lost: int

    @classmethod
    def of(cls, races: int, told: Mapping[int, Sequence[str]]) -> Outcome:
        """Return the outcome, given the processes that each version was acknowledged to."""
        return cls(races, races - len(told), sum(len(tellers) > 1 for tellers in told.values()))


@dataclass(frozen=True, slots=True)
class Race:
    """A race for versions, from a first one on, of the log at a URL; `class_path` has the racing program.

    The processes meet in a file. The first `natives` of them commit without Spark's log store.
    """

    class_path: str
    log: str
    store: str
    meeting: Path
    processes: int
    races: int
    first: int = 0
    natives: int = 0

    def run(self) -> dict[int, list[str]]:
        """Race; return by version the transaction ids of the processes that it was acknowledged to."""
        self.meeting.write_bytes(bytes(64 * self.processes))
        java = [*java_command(self.class_path, "Race"), self.store, self.log]
        python = [sys.executable, "-m", "tests.support.races.native", self.log.removeprefix("file:")]
        told: dict[int, list[str]] = defaultdict(list)
        with ExitStack() as ending:
            running = [
                ending.enter_context(
                    ended(
                        subprocess.Popen(
                            [
                                *(python if number < self.natives else java),
                                *map(str, (self.meeting, number, self.processes, self.first, self.races)),
                            ],
                            cwd=ROOT,
                            stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL,
                            text=True,
                        )
                    )
                )
                for number in range(self.processes)
            ]
            for number, process in enumerate(running):
                out, _ = process.communicate(timeout=3600)
                assert process.returncode == 0
                for version in map(int, out.split()):
                    told[version].append(f"{number}-{version}")
        return told


def txn_ids(content: bytes) -> list[str]:
    """Return the transaction ids of an entry of a log, one of each commit in it."""
    return [json.loads(line)["commitInfo"]["txnId"] for line in content.splitlines()]
