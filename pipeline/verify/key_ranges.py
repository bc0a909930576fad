"""Which rows differ: ranges of keys whose sums differ are cut smaller until their rows can be looked at.

Both sides give sums and rows; nothing here knows what a row holds. What is found is bounded: of a table that
differs everywhere, some ranges are looked into, and the rest is said to differ too.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.postgres.snapshot.hashed_rows import RangeSum, RowHash

FIRST_DIGITS = 3  # 4096 ranges
MORE_DIGITS = 2
MOST_DIGITS = 11
MOST_ROWS = 50_000  # that are looked at one by one
MOST_RANGES = 256  # that are cut smaller at a time


class Side(Protocol):
    """One of the two sides that are compared."""

    def sums(self, digits: int, within: Sequence[str] | None = None) -> Mapping[str, RangeSum]:
        """Return the sums of each range of so many digits, of all rows or of those within some ranges."""

    def rows(self, within: Sequence[str]) -> Sequence[RowHash]:
        """Return the rows of some ranges."""


@dataclass(frozen=True, slots=True)
class DifferingRow:
    """A row that silver lacks (missing), has too many of (surplus), or has with other values (changed)."""

    kind: str
    key: tuple[str | None, ...]
    columns: tuple[int, ...] = ()  # the places of those whose values differ
    copies: int = 1


@dataclass(slots=True)
class Differences:
    """What was found; not `is_whole` where more ranges differ than were looked into."""

    source_rows: int
    silver_rows: int
    rows: list[DifferingRow] = field(default_factory=list)
    is_whole: bool = True
    is_equal: bool = True

    def count(self, kind: str) -> int:
        """Return how many rows of a kind were found."""
        return sum(row.copies for row in self.rows if row.kind == kind)


def find_differences(source: Side, silver: Side) -> Differences:
    """Compare all ranges, at once on both sides, and look into those that differ."""
    digits = FIRST_DIGITS
    with ThreadPoolExecutor(1, thread_name_prefix="source") as pool:
        reading = pool.submit(source.sums, digits)
        ours = silver.sums(digits)
        theirs = reading.result()
    found = Differences(_row_count(theirs), _row_count(ours))
    ranges = differing(theirs, ours)
    if not ranges:
        return found
    found.is_equal = False
    while sum(ranges.values()) > MOST_ROWS and digits < MOST_DIGITS:
        found.is_whole &= len(ranges) <= MOST_RANGES
        within = sorted(ranges)[:MOST_RANGES]
        digits += MORE_DIGITS
        ranges = differing(source.sums(digits, within), silver.sums(digits, within))
    chosen = fitting(ranges)
    found.is_whole &= len(chosen) == len(ranges)
    found.rows = compare_rows(source.rows(chosen), silver.rows(chosen))
    return found


def _row_count(sums: Mapping[str, RangeSum]) -> int:
    return sum(found.rows for found in sums.values())


def differing(source: Mapping[str, RangeSum], silver: Mapping[str, RangeSum]) -> dict[str, int]:
    """Return the ranges that are not the same on both sides, with the rows of the larger side."""
    none = RangeSum(0, 0, 0)
    return {
        name: max(source.get(name, none).rows, silver.get(name, none).rows)
        for name in source.keys() | silver.keys()
        if source.get(name) != silver.get(name)
    }


def fitting(ranges: Mapping[str, int]) -> list[str]:
    """Return the first ranges that have together no more rows than are looked at, at least one."""
    chosen: list[str] = []
    rows = 0
    for name in sorted(ranges):
        rows += ranges[name]
        if chosen and rows > MOST_ROWS:
            break
        chosen.append(name)
    return chosen


def compare_rows(source: Sequence[RowHash], silver: Sequence[RowHash]) -> list[DifferingRow]:
    """Return the rows that differ, by key; equal rows are told apart by their number only."""
    left = _only_in(source, silver)
    right = _only_in(silver, source)
    found: list[DifferingRow] = []
    for key in sorted(left.keys() | right.keys()):
        theirs, ours = left.get(key, []), right.get(key, [])
        pairs = min(len(theirs), len(ours))
        for one, other in zip(theirs, ours, strict=False):
            places = (i for i, (a, b) in enumerate(zip(one.columns, other.columns, strict=True)) if a != b)
            found.append(DifferingRow("changed", one.texts, tuple(places)))
        for kind, rest in (("missing", theirs[pairs:]), ("surplus", ours[pairs:])):
            if rest:
                found.append(DifferingRow(kind, rest[0].texts, copies=len(rest)))
    return found


def _only_in(rows: Sequence[RowHash], others: Sequence[RowHash]) -> dict[str, list[RowHash]]:
    """Return what one side has and the other has not, or not as often, by the key's hash."""
    there = Counter((row.key, row.row) for row in others)
    found: dict[str, list[RowHash]] = defaultdict(list)
    for row in rows:
        if there[row.key, row.row] > 0:
            there[row.key, row.row] -= 1
        else:
            found[row.key].append(row)
    return found
