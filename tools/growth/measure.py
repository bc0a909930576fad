"""What a batch costs: seconds, processor time, bytes read and written, and files replaced.

Processor time and bytes are those of this process and of Spark's JVM, as Linux counts them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.silver.write.writer_choice import WriterSetting

_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


@dataclass(slots=True)
class Cost:
    """What one batch took: seconds, seconds of processors, and bytes."""

    seconds: float = 0.0
    cpu: float = 0.0
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of a case's batches in a table of `size` rows; `is_law` if their growth has a limit."""

    case: str
    size: int
    files: int  # of the table
    replaced: float  # files
    cost: Cost
    is_law: bool

    def line(self) -> str:
        """Return the row as text."""
        cost = self.cost
        return (
            f"{self.case:<21}{self.size:>12,}{self.files:>6,}{self.replaced:>9g}{cost.seconds:>8.3f}"
            f"{cost.cpu:>7.2f}{cost.read / _MIB:>9.1f}{cost.written / _MIB:>8.1f}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the processor time of a case grows; `is_ok` is None without a law."""

    case: str
    sizes: tuple[int, int]
    ratio: float
    is_ok: bool | None

    def line(self) -> str:
        """Return the verdict as text."""
        verdict = {True: "the law holds", False: "the law does not hold", None: "no law"}[self.is_ok]
        return f"{self.case}: {self.sizes[1]:,} rows cost {self.ratio:.2f} x {self.sizes[0]:,}; {verdict}"


@dataclass
class Growth:
    """The folder and the sizes of a part, and what it measured."""

    folder: Path
    scale: float
    rounds: int
    writers: Sequence[WriterSetting]
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    limit: float = 1.3  # of the cost of the largest size, in that of the smallest

    def sizes(self, *full: int) -> list[int]:
        """Return sizes at this scale."""
        return [max(1, round(size * self.scale)) for size in full]

    @staticmethod
    def heading() -> str:
        """Return the heading of the rows."""
        return (
            f"{'case':<21}{'rows':>12}{'files':>6}{'replaced':>9}{'seconds':>8}{'CPU s':>7}{'MiB read':>9}"
            f"{'written':>8}"
        )

    def verdicts(self) -> list[Verdict]:
        """Return how the cost of each case grows from the smallest size to the largest."""
        found = []
        for case in dict.fromkeys(row.case for row in self.rows):
            rows = sorted((row for row in self.rows if row.case == case), key=lambda row: row.size)
            first, last = rows[0], rows[-1]
            ratio = last.cost.cpu / first.cost.cpu
            is_ok = ratio <= self.limit if first.is_law and len(rows) > 1 else None
            found.append(Verdict(case, (first.size, last.size), ratio, is_ok))
        return found


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each cost."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.cpu for cost in costs),
        round(statistics.median(cost.read for cost in costs)),
        round(statistics.median(cost.written for cost in costs)),
    )


@contextmanager
def measured(jvm: int | None = None) -> Iterator[Cost]:
    """Give a cost that has what the block took once it has ended; `jvm` is the process of Spark."""
    pids = [os.getpid(), *([jvm] if jvm else [])]
    cost, before, start = Cost(), [_usage(pid) for pid in pids], time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - start
    for pid, (cpu, read, written) in zip(pids, before, strict=True):
        now = _usage(pid)
        cost.cpu += now[0] - cpu
        cost.read += now[1] - read
        cost.written += now[2] - written


def _usage(pid: int) -> tuple[float, int, int]:
    """Return the processor time of a process, and the bytes that it read and wrote."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    found = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return (int(fields[11]) + int(fields[12])) / _TICKS, found["rchar"], found["wchar"]
