"""Into which parts a range that is too large for memory is divided."""

import random

import pytest

from pipeline.protocol.lsn import LSN
from pipeline.silver.write.range_parts import MAX_VALUES, count_parts, part_ends
from pipeline.silver.write.writer_choice import MAX_CHANGES


@pytest.mark.parametrize(
    ("values", "changes", "count"),
    [
        (0, 0, 1),
        (MAX_VALUES, MAX_CHANGES, 1),
        (MAX_VALUES + 1, 10, 3),
        (4 * MAX_VALUES, 10, 8),
        (10, MAX_CHANGES + 1, 3),
        (MAX_VALUES, 20_000_000, 40),
    ],
)
def test_only_a_large_range_is_divided(values: int, changes: int, count: int) -> None:
    assert count_parts(values, changes) == count


@pytest.mark.parametrize(
    ("values", "table", "count"), [(90, 1, 3), (90, 50, 1), (200, 100, 1), (201, 100, 3), (800, 9000, 5)]
)
def test_parts_of_a_large_table_are_larger(values: int, table: int, count: int) -> None:
    assert count_parts(values << 20, 10, [{"size": table << 19}] * 2) == count


def test_parts_have_about_equally_many_bytes() -> None:
    values = [(LSN(lsn), 10.0) for lsn in range(1, 101)]
    assert part_ends(values, 4) == [LSN(25), LSN(50), LSN(75)]
    assert part_ends(values, 1) == []


def test_a_transaction_is_not_divided() -> None:
    assert part_ends([(LSN(7), 100.0)] * 9, 3) == []
    assert part_ends([(LSN(7), 100.0)] * 9 + [(LSN(8), 1.0)], 3) == [LSN(7)]
    assert part_ends([(LSN(6), 1.0)] + [(LSN(7), 100.0)] * 9, 3) == []


@pytest.mark.parametrize("seed", range(200))
def test_every_part_has_rows_and_ends_before_the_next(seed: int) -> None:
    randomly = random.Random(seed)
    lsns = sorted(randomly.choices(range(1, 50), k=randomly.randint(1, 60)))
    values = [(LSN(lsn), randomly.random() * 100) for lsn in lsns]
    count = randomly.randint(1, 20)
    ends = part_ends(values, count)
    assert ends == sorted(set(ends))
    assert len(ends) < count
    assert set(ends) <= set(lsns[:-1])
    assert all(end < lsns[-1] for end in ends)
