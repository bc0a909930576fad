"""Rows compared with what commits recorded: one row too many or too few is found, at its commit."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

import pytest

from pipeline.bronze.surveys import number_of_interval
from pipeline.protocol.lsn import LSN
from pipeline.verify.commit_chain import (
    Interval,
    compare_counts,
    copy_findings,
    intervals_of,
    read_chain,
    row_findings,
)
from tests.support.commit_chains import APP, CREATED, WHOLE, chain, link


class Rows:
    """Rows by the LSNs that they end at, and how often they were counted."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = sorted(ends)
        self.queries = 0

    def count(self, bounds: Sequence[LSN]) -> list[int]:
        self.queries += 1
        assert list(bounds) == sorted(set(bounds))
        counts = [bisect_right(self.ends, bound) for bound in bounds]
        return [b - a for a, b in pairwise(counts)]


def intervals(count: int) -> list[Interval]:
    """Return intervals of ten LSNs each, with one change an LSN."""
    return [Interval(LSN(10 * i), LSN(10 * i + 10), 10, i) for i in range(count)]


def test_a_whole_commit_chain_is_intervals_from_its_start_to_the_last_lsn() -> None:
    found = intervals_of(read_chain([*WHOLE, link(5, 190, 900, gap="lost", changes=3)], APP))
    assert found is not None
    assert [(i.start, i.end, i.changes, i.version) for i in found] == [
        (100, 130, 30, 2),
        (130, 150, 20, 3),
        (150, 190, 40, 4),
        (190, 900, 0, 5),
        (900, 2**63 - 1, 0, None),
    ]


def test_a_hole_is_an_interval_without_rows() -> None:
    found = intervals_of(read_chain([CREATED, *chain(100, 100, 130), link(3, 150, 160, changes=1)], APP))
    assert found is not None
    assert [(i.start, i.end, i.changes, i.version) for i in found[1:3]] == [
        (130, 150, 0, None),
        (150, 160, 1, 3),
    ]


def test_a_chain_with_overlaps_has_no_intervals() -> None:
    assert intervals_of(read_chain([*WHOLE, link(5, 180, 200)], APP)) is None
    assert intervals_of(read_chain([*WHOLE, link(5, 190, 170)], APP)) is None
    assert intervals_of(read_chain([*WHOLE, link(5, 190, 200, database="other")], APP)) is None


@pytest.mark.parametrize("at_once", [2, 3, 7, 64, 512])
def test_equal_rows_take_one_query(at_once: int) -> None:
    rows = Rows(range(1, 1001))
    assert compare_counts(intervals(100), rows.count, at_once=at_once) == []
    assert rows.queries == 1


def test_nothing_is_not_counted() -> None:
    rows = Rows([])
    assert compare_counts([], rows.count) == []
    assert rows.queries == 0


@pytest.mark.promise("the audit finds every hole")
@pytest.mark.parametrize("at_once", [2, 3, 7, 64])
@pytest.mark.parametrize("seed", range(10))
def test_differences_are_found_at_their_commits(seed: int, at_once: int) -> None:
    random_ = random.Random(seed)
    lost = sorted(random_.sample(range(1, 1001), 3))
    rows = Rows([end for end in range(1, 1001) if end not in lost])
    found = compare_counts(intervals(100), rows.count, at_once=at_once)
    expected = sorted({(end - 1) // 10 for end in lost})
    assert [difference.interval.version for difference in found] == expected
    for difference in found:
        inside = sum(difference.interval.start < end <= difference.interval.end for end in lost)
        assert difference.rows == 10 - inside


def test_no_more_are_named_than_requested() -> None:
    rows = Rows([])
    found = compare_counts(intervals(100), rows.count, at_once=4, most=5)
    assert [difference.interval.version for difference in found] == [0, 1, 2, 3, 4]
    assert rows.queries < 10


@pytest.mark.parametrize("count", [2, 3, 5, 9, 64])
def test_the_number_of_an_interval_is_searched_for_in_a_tree(count: int) -> None:
    bounds = [LSN(10 * i) for i in range(1, count + 1)]
    sql = number_of_interval(bounds)
    deepest = depth = 0
    for letter in sql:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        deepest = max(deepest, depth)
    assert deepest <= (count - 1).bit_length() + 1
    # IF(a, b, c) as Python reads it
    code = compile(sql.replace("IF(", "if_(").replace(" AND ", " and "), "sql", "eval")
    for end in range(10 * count + 20):
        is_inside = bounds[0] < end <= bounds[-1]
        expected = bisect_left(bounds, end) - 1 if is_inside else -1
        names = {"end_lsn": end, "if_": lambda condition, yes, no: yes if condition else no}
        assert eval(code, names) == expected


def test_differences_are_named_with_their_versions() -> None:
    links = [CREATED, *chain(100, 100, 130), link(3, 150, 160, changes=4)]
    found = intervals_of(read_chain(links, APP))
    rows = Rows([101] * 29 + [140] + [155] * 4 + [161, 162])
    findings = row_findings(compare_counts(found or (), rows.count))
    assert [(finding.versions, finding.start, finding.end) for finding in findings] == [
        ((2,), 100, 130),
        ((), 130, 150),
        ((), 160, None),
    ]
    assert [finding.sentence for finding in findings] == [
        "Bronze has 29 changes from 0/64 to 0/82, and version 2 recorded 30.",
        "Bronze has 1 change from 0/82 to 0/96 that no commit recorded.",
        "Bronze has 2 changes after 0/A0 that no commit recorded.",
    ]


def test_copies_have_the_rows_that_they_had() -> None:
    recorded = {1: ("public.t", 10), 2: ("public.u", 0), 3: ("public.v", 5)}
    assert copy_findings(recorded, {1: 10, 3: 5, 4: 9}) == []
    # a copy that is compacted may still have the rows that are to be removed
    assert copy_findings(recorded, {1: 12, 3: 5, 4: 9}, {1}) == []
    assert len(copy_findings(recorded, {1: 9, 3: 5, 4: 9}, {1})) == 1
    assert len(copy_findings(recorded, {1: 12, 3: 5, 4: 9})) == 1
    [finding] = copy_findings(recorded, {1: 10})
    assert finding.sentence == "Bronze has 0 rows of a copy of public.v, which had 5."
