"""Which small files are merged: neighbours, in groups of limited size, and none again and again."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.merge_plan import Groups, MergeLimits, SizedFile, plan_in_any_order, plan_in_order

KB, MB = 1 << 10, 1 << 20
LIMITS = MergeLimits(few_files=4, small_file=16 * MB, merged_file=64 * MB)


def files(*sizes: int, fixed: tuple[int, ...] = ()) -> list[SizedFile]:
    return [SizedFile(str(number), size, number not in fixed) for number, size in enumerate(sizes)]


def test_few_small_files_stay() -> None:
    assert plan_in_order(files(KB, KB, KB), LIMITS) == []
    assert plan_in_order(files(KB, KB, KB, KB), LIMITS) == [("0", "1", "2", "3")]
    assert plan_in_any_order(files(KB, KB, KB, 16 * MB), LIMITS) == []


def test_no_group_reaches_over_a_file_that_stays() -> None:
    assert plan_in_order(files(KB, KB, KB, 16 * MB, KB, KB, KB), LIMITS) == []
    assert plan_in_order(files(*[KB] * 9, fixed=(4,)), LIMITS) == [("0", "1", "2", "3"), ("5", "6", "7", "8")]
    assert plan_in_any_order(files(KB, KB, KB, 16 * MB, KB), LIMITS) == [("0", "1", "2", "4")]


def test_a_group_has_a_limited_size() -> None:
    groups = plan_in_order(files(*[15 * MB] * 10), LIMITS)
    assert [len(group) for group in groups] == [4, 4, 2]
    assert plan_in_order(files(*[15 * MB] * 9), LIMITS)[-1] == ("4", "5", "6", "7"), "one file stays as it is"


def test_a_merged_file_waits_until_enough_is_behind_it() -> None:
    assert plan_in_order(files(8 * MB, *[KB] * 4), LIMITS) == [("1", "2", "3", "4")]
    assert plan_in_order(files(8 * MB, *[MB] * 4), LIMITS) == [("0", "1", "2", "3", "4")]
    assert plan_in_any_order(files(*[KB] * 4, 8 * MB), LIMITS) == [("0", "1", "2", "3")]


@pytest.mark.parametrize("plan", [plan_in_order, plan_in_any_order])
def test_without_waiting_all_small_files_are_merged_and_then_none(
    plan: Callable[[Iterable[SizedFile], MergeLimits], Groups],
) -> None:
    limits = replace(LIMITS, few_files=2, waits=False)
    assert plan(files(8 * MB, KB), limits) == [("0", "1")]
    sizes = [15 * MB, KB] * 20
    groups = plan(files(*sizes), limits)
    assert sorted(int(key) for group in groups for key in group) == list(range(40))
    assert plan(files(*(sum(sizes[int(key)] for key in group) for group in groups)), limits) == []


@given(st.lists(st.integers(1, 20 * MB), max_size=60), st.sets(st.integers(0, 59)), st.booleans())
def test_groups_are_disjoint_of_small_files_and_limited(
    sizes: list[int], fixed: set[int], in_order: bool
) -> None:
    given_files = files(*sizes, fixed=tuple(fixed))
    by_key = {file.key: file for file in given_files}
    groups = (plan_in_order if in_order else plan_in_any_order)(given_files, LIMITS)
    keys = [key for group in groups for key in group]
    assert len(keys) == len(set(keys))
    for group in groups:
        assert len(group) > 1
        assert sum(by_key[key].size for key in group) <= LIMITS.merged_file
        assert all(by_key[key].movable and by_key[key].size < LIMITS.small_file for key in group)
        numbers = [int(key) for key in group]
        assert numbers == sorted(numbers)
        if in_order:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@given(st.integers(1, 4), st.integers(KB, 64 * KB))
def test_years_of_commits_leave_few_files_and_write_each_byte_a_few_times(each: int, size: int) -> None:
    table: list[int] = []
    written = 0
    for _ in range(300):  # rounds of maintenance
        table += [size] * (4 * each)
        for group in reversed(plan_in_order(files(*table), LIMITS)):
            first, last = int(group[0]), int(group[-1])
            merged = sum(table[first : last + 1])
            table[first : last + 1] = [merged]
            written += merged
    total = sum(table)
    assert len([one for one in table if one < LIMITS.small_file]) < 40
    assert written <= 12 * total + 300 * 512 * KB, "below 256 KiB a file is always written again"
