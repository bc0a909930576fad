"""How long changes took to become visible: from what was committed when, and what a log showed when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """One transaction: its table, an LSN before its commit and the time (monotonic) after it."""

    table: str
    lsn: int
    at: float


class Seen(NamedTuple):
    """An offset that a log recorded, and when it was found there (monotonic)."""

    offset: int
    at: float


def delays(samples: Iterable[Sample], seen: Mapping[str, Sequence[Seen]]) -> list[float]:
    """Return the seconds from each commit until its table's log went beyond its LSN.

    `seen` has the offsets of each table in ascending order. Raise ValueError for a change that no log shows.
    """
    found = []
    for sample in samples:
        shown = seen[sample.table]
        place = bisect_right(shown, sample.lsn, key=lambda each: each.offset)
        if place == len(shown):
            raise ValueError(f"a change of {sample.table} is not visible")
        found.append(max(0.0, shown[place].at - sample.at))
    return found


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * round(share * 1000) // 1000)  # rounded up
    return ordered[max(rank, 1) - 1]
