"""Search for rows that differ: ranges of key hashes whose sums differ are divided until rows are compared.

Both sides return sums and hashes of rows; no value is read here. What is found is bounded: if a table differs
everywhere, the rows of some ranges are compared, and the rest only counts as differing.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.fingerprint import Fingerprint, total
from pipeline.postgres.snapshot.hashed_rows import RowHash

FIRST_DIGITS = 3  # 4096 ranges
MORE_DIGITS = 2
MAX_DIGITS = 11
MAX_ROWS = 50_000  # that are compared one by one
MAX_RANGES = 256  # that are divided at a time


class Side(Protocol):
    """One of the two sides that are compared."""

    def sums(self, digits: int, within: Sequence[str] | None = None) -> Mapping[str, Fingerprint]:
        """Return the sums of each range of so many digits, of all rows or of those within some ranges."""

    def rows(self, within: Sequence[str]) -> Sequence[RowHash]:
        """Return the rows of some ranges."""


@dataclass(frozen=True, slots=True)
class DifferingRow:
    """A row that silver lacks (missing), has too many of (surplus), or has with other values (changed)."""

    kind: str
    key: tuple[str | None, ...]
    columns: tuple[int, ...] = ()  # the indexes of those whose values differ
    copies: int = 1
    key_hash: str = field(default="", compare=False)


@dataclass(slots=True)
class Differences:
    """What was found; not `is_whole` if more ranges differ than were compared row by row."""

    source_rows: int
    silver_rows: int
    rows: list[DifferingRow] = field(default_factory=list)
    is_whole: bool = True
    is_equal: bool = True
    fingerprint: Fingerprint | None = None  # of both sides, if they are equal

    def count(self, kind: str) -> int:
        """Return how many rows of a kind were found."""
        return sum(row.copies for row in self.rows if row.kind == kind)


def find_differences(
    source: Side, silver: Side, *, digits: int = FIRST_DIGITS, max_ranges: int | None = None
) -> Differences:
    """Compare the sums of all ranges, both sides at once, and then the rows of those that differ.

    The first ranges have so many digits; without digits all rows are one range. Of more than `max_ranges`
    (default: MAX_RANGES) that differ only the first ones are divided.
    """
    max_ranges = MAX_RANGES if max_ranges is None else max_ranges
    with ThreadPoolExecutor(1, thread_name_prefix="source") as pool:
        pending = pool.submit(source.sums, digits)
        of_silver = silver.sums(digits)
        of_source = pending.result()
    found = Differences(_row_count(of_source), _row_count(of_silver))
    ranges = differing(of_source, of_silver)
    if not ranges:
        found.fingerprint = total(of_source.values())
        return found
    found.is_equal = False
    while sum(ranges.values()) > MAX_ROWS and digits < MAX_DIGITS:
        found.is_whole &= len(ranges) <= max_ranges
        within = sorted(ranges)[:max_ranges]
        digits += MORE_DIGITS
        ranges = differing(source.sums(digits, within), silver.sums(digits, within))
    chosen = fitting(ranges)
    found.is_whole &= len(chosen) == len(ranges)
    found.rows = compare_rows(source.rows(chosen), silver.rows(chosen))
    return found


def _row_count(sums: Mapping[str, Fingerprint]) -> int:
    return total(sums.values()).rows


def differing(source: Mapping[str, Fingerprint], silver: Mapping[str, Fingerprint]) -> dict[str, int]:
    """Return the ranges that are not the same on both sides, with the rows of the larger side."""
    none = Fingerprint()
    return {
        name: max(source.get(name, none).rows, silver.get(name, none).rows)
        for name in source.keys() | silver.keys()
        if source.get(name) != silver.get(name)
    }


def fitting(ranges: Mapping[str, int]) -> list[str]:
    """Return the first ranges that together have no more rows than are compared, at least one."""
    chosen: list[str] = []
    rows = 0
    for name in sorted(ranges):
        rows += ranges[name]
        if chosen and rows > MAX_ROWS:
            break
        chosen.append(name)
    return chosen


def compare_rows(source: Sequence[RowHash], silver: Sequence[RowHash]) -> list[DifferingRow]:
    """Return the rows that differ, by key; equal rows differ by their count only."""
    only_source = _only_in(source, silver)
    only_silver = _only_in(silver, source)
    found: list[DifferingRow] = []
    for key in sorted(only_source.keys() | only_silver.keys()):
        missing, surplus = only_source.get(key, []), only_silver.get(key, [])
        pairs = min(len(missing), len(surplus))
        for one, other in zip(missing, surplus, strict=False):
            columns = (i for i, (a, b) in enumerate(zip(one.columns, other.columns, strict=True)) if a != b)
            found.append(DifferingRow("changed", one.texts, tuple(columns), key_hash=key))
        for kind, rest in (("missing", missing[pairs:]), ("surplus", surplus[pairs:])):
            if rest:
                found.append(DifferingRow(kind, rest[0].texts, copies=len(rest), key_hash=key))
    return found


def _only_in(rows: Sequence[RowHash], others: Sequence[RowHash]) -> dict[str, list[RowHash]]:
    """Return the rows of one side that the other lacks, or has less often, by the key's hash."""
    unmatched = Counter((row.key, row.row) for row in others)
    found: dict[str, list[RowHash]] = defaultdict(list)
    for row in rows:
        if unmatched[row.key, row.row] > 0:
            unmatched[row.key, row.row] -= 1
        else:
            found[row.key].append(row)
    return found
