"""Bounds of partitions, as the catalog prints them, as ranges of columns."""

import pytest

from pipeline.key_ranges import ColumnRange
from pipeline.postgres.partition_bounds import read_bounds


def column(first: str | None, last: str | None, *, is_closed: bool = False) -> ColumnRange:
    return ColumnRange("a", first, last, is_closed)


@pytest.mark.parametrize(
    ("text", "columns", "ranges"),
    [
        ("FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')", ["a"], [column("2026-01-01", "2026-02-01")]),
        ("FOR VALUES FROM (MINVALUE) TO (5)", ["a"], [column(None, "5")]),
        ("FOR VALUES FROM ('-5') TO (MAXVALUE)", ["a"], [column("-5", None)]),
        ("FOR VALUES FROM ('-infinity') TO ('infinity')", ["a"], [column(None, None)]),
        ("FOR VALUES FROM (') TO (') TO ('MINVALUE')", ["a"], [column(") TO (", "MINVALUE")]),
        ("FOR VALUES FROM (1, 'x') TO (5, 'y')", ["a", "b"], [column("1", "5", is_closed=True)]),
        ("FOR VALUES FROM (1, 2) TO (5, MINVALUE)", ["a", None], [column("1", "5")]),
        ("FOR VALUES FROM (1, 2) TO (5, MAXVALUE)", ["a", "b"], [column("1", "5", is_closed=True)]),
        (r"FOR VALUES IN ('a''b', E'c\\d', 'NULL')", ["a"], [column(v, v) for v in ("a'b", r"c\d", "NULL")]),
        ("FOR VALUES IN (1, NULL)", ["a"], [column("1", "1")]),
        ("FOR VALUES IN (true)", ["a"], [column("t", "t")]),
        ("FOR VALUES IN (NULL)", ["a"], []),
    ],
)
def test_bounds_are_ranges_of_the_first_column(
    text: str, columns: list[str | None], ranges: list[ColumnRange]
) -> None:
    found = read_bounds(text, columns)
    assert found is not None
    assert [each.columns for each in found] == [(each,) for each in ranges]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("FOR VALUES WITH (modulus 4, remainder 0)", ["a"]),
        ("DEFAULT", ["a"]),
        ("FOR VALUES FROM (1) TO (2)", [None]),
        ("FOR VALUES IN (1)", []),
        ("FOR VALUES FROM (1, 2) TO (3, 4)", ["a"]),
        ("", ["a"]),
    ],
)
def test_other_bounds_give_no_range(text: str, columns: list[str | None]) -> None:
    assert read_bounds(text, columns) is None


def test_the_values_of_a_range_are_up_to_its_last_one() -> None:
    assert column("1", "5").bounds == [(">=", "1"), ("<", "5")]
    assert column(None, "5", is_closed=True).bounds == [("<=", "5")]
    assert column("5", "5").bounds == [("=", "5")]
    assert column(None, None).bounds == []
