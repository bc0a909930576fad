"""The rows of bronze compared with what its commits recorded: how many changes end between two LSNs.

Pure. The changes of a commit are its rows of op I, U, D and T, except those of prepared transactions, which
land in commits of their own. Rows of table copies and logical messages are not counted. All changes end in
(from, to] of their commit. One query counts the rows of many commits together, and only those that differ are
counted commit by commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.protocol.lsn import LSN
from pipeline.verify.commit_chain import COPY, OVERLAP, ROWS, SOURCE, CommitChain, Finding

AT_ONCE = 512  # intervals that one query counts
MOST = 20  # differences that are named
_NO_END = LSN(2**63 - 1)  # no row ends after it: LSNs are BIGINT

Count = Callable[[Sequence[LSN]], Sequence[int]]
"""Given n + 1 LSNs in ascending order, return how many rows end in each (lsn, next]."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The LSNs in (start, end], how many changes are recorded there, and by which version."""

    start: LSN
    end: LSN
    changes: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CountDifference:
    """An interval whose rows are not as many as recorded."""

    interval: Interval
    rows: int


def intervals_of(chain: CommitChain) -> tuple[Interval, ...] | None:
    """Return what was recorded as adjacent intervals; None if the commits of the chain overlap.

    In gaps, and after the last commit, there should be no row.
    """
    if any(finding.kind in (OVERLAP, SOURCE) for finding in chain.findings):
        return None
    found: list[Interval] = []
    for link in chain.links:
        if found and link.start > found[-1].end:
            found.append(Interval(found[-1].end, link.start, 0))
        elif found and link.start < found[-1].end:
            return None
        if link.end > link.start:
            found.append(Interval(link.start, link.end, 0 if link.gap else link.changes, link.version))
    if found:
        found.append(Interval(found[-1].end, _NO_END, 0))
    return tuple(found)


def compare_counts(
    intervals: Sequence[Interval], count: Count, *, at_once: int = AT_ONCE, most: int = MOST
) -> list[CountDifference]:
    """Return the intervals whose rows are not as many as recorded, at most the first `most`."""
    found: list[CountDifference] = []
    waiting: list[list[Interval] | CountDifference] = [list(intervals)] if intervals else []
    while waiting and len(found) < most:
        group = waiting.pop(0)
        if isinstance(group, CountDifference):
            found.append(group)
            continue
        size = -(-len(group) // at_once)
        parts = [group[i : i + size] for i in range(0, len(group), size)]
        counts = count([parts[0][0].start, *(part[-1].end for part in parts)])
        differing = [
            CountDifference(part[0], rows) if len(part) == 1 else part
            for part, rows in zip(parts, counts, strict=True)
            if rows != sum(interval.changes for interval in part)
        ]
        waiting = [*differing, *waiting]
    return found


def number_of_interval(bounds: Sequence[LSN], column: str = "end_lsn") -> str:
    """Return SQL for the number of the (bound, next] that a column lies in, -1 outside of all.

    The comparisons are a balanced tree: their number for a row is logarithmic.
    """

    def search(first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        low, high = search(first, middle), search(middle + 1, last)
        return f"IF({column} <= {int(bounds[middle + 1])}, {low}, {high})"

    inside = search(0, len(bounds) - 2)
    return f"IF({column} > {int(bounds[0])} AND {column} <= {int(bounds[-1])}, {inside}, -1)"


def row_findings(differences: Iterable[CountDifference]) -> list[Finding]:
    """Return the findings for intervals whose rows are not as many as recorded."""
    found = []
    for interval, rows in ((each.interval, each.rows) for each in differences):
        where = f"from {interval.start} to {interval.end}"
        if interval.version is None:
            where = f"after {interval.start}" if interval.end == _NO_END else where
            sentence = f"Bronze has {rows} changes {where} that no commit recorded."
        else:
            sentence = (
                f"Bronze has {rows} changes {where}, and version {interval.version} recorded "
                f"{interval.changes}."
            )
        versions = () if interval.version is None else (interval.version,)
        end = None if interval.end == _NO_END else interval.end
        found.append(Finding(ROWS, sentence, versions, interval.start, end))
    return found


def copy_findings(recorded: Mapping[int, tuple[str, int]], rows: Mapping[int, int]) -> list[Finding]:
    """Return the findings for complete copies, by id as (table, rows), whose rows are not as many."""
    return [
        Finding(COPY, f"Bronze has {rows.get(id_, 0)} rows of a copy of {table}, which had {count}.")
        for id_, (table, count) in recorded.items()
        if rows.get(id_, 0) != count
    ]
