"""Ranges of keys: which of them select the same rows at the source and in silver, and by what condition."""

from itertools import pairwise

import pytest

from pipeline.key_ranges import KeyRange, cover_keys, describe_unusable, has_same_order
from pipeline.postgres.key_conditions import key_condition
from pipeline.protocol.pg_types import PgType


def span(first: tuple[str, ...], last: tuple[str, ...]) -> KeyRange:
    return KeyRange(first, last)


@pytest.mark.parametrize(
    ("types", "each", "fault"),
    [
        ((), span(("1",), ("2",)), "no key"),
        ((PgType.INT8,), span((), ()), "no bound. Give a first key or a last key."),
        ((PgType.INT8,), span(("1", "2"), ("1", "2")), "The range has 2 values, the key 1 column."),
        ((PgType.INT8,), span(("1",), ("1", "2")), "The range has 2 values, the key 1 column."),
        ((PgType.TIMESTAMPTZ,), span(("a",), ("b",)), "single keys"),
        ((PgType.INT8, PgType.TIMESTAMPTZ), span(("1",), ("1", "b")), "single keys"),
        ((PgType.INT8, PgType.TIMESTAMPTZ), span(("1",), ("2",)), None),
        ((PgType.TIMESTAMPTZ,), span(("a",), ("a",)), None),
        ((PgType.TEXT,), span(("a",), ()), None),
        ((PgType.TEXT,), span((), ("a",)), None),
    ],
)
def test_ranges_that_cannot_select_rows_are_described(
    types: tuple[int, ...], each: KeyRange, fault: str | None
) -> None:
    found = describe_unusable(types, [each])
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize(
    ("oid", "ddl", "is_same"),
    [
        (PgType.INT8, "BIGINT", True),
        (PgType.INT8, "STRING", False),  # by tables[].types: "10" comes before "9"
        (PgType.NUMERIC, "DECIMAL(38,9)", True),
        (PgType.NUMERIC, "STRING", False),
        (PgType.NUMERIC, "DOUBLE", False),
        (PgType.UUID, "STRING", True),
        (PgType.DATE, "DATE", True),
        (PgType.OID, "BIGINT", True),
        (PgType.BOOL, "BOOLEAN", True),
        (PgType.TIMESTAMPTZ, "TIMESTAMP", False),
    ],
)
def test_which_silver_types_sort_as_the_server_does(oid: int, ddl: str, is_same: bool) -> None:
    assert has_same_order(oid, ddl) is is_same


def test_the_condition_at_the_source() -> None:
    ranges = [
        span(("1", "o'k"), ("2",)),
        span((), ("0",)),
        span(("7", "x"), ("7", "x")),
        span(("8", "y"), ("8", "y")),
        span(("9",), ("9",)),
    ]
    found = key_condition(["id", 'odd"name'], [PgType.INT8, PgType.TEXT], ranges).as_string(None)
    assert found == (
        """((("id", "odd""name" COLLATE "C") >= ('1', 'o''k') AND ("id") <= ('2')) OR (("id") <= ('0')) OR """
        """(("id", "odd""name") IN (('7', 'x'), ('8', 'y'))) OR (("id") IN (('9'))))"""
    )


def test_few_keys_are_covered_one_by_one() -> None:
    assert cover_keys([("2", "b"), ("1", "a")], (PgType.INT8, PgType.TEXT), 2) == (
        span(("1", "a"), ("1", "a")),
        span(("2", "b"), ("2", "b")),
    )
    assert cover_keys([], (PgType.INT8,), 2) == ()


def test_many_keys_are_covered_by_their_first_columns() -> None:
    keys = [(text, str(number)) for text in "ab" for number in range(5)]
    assert cover_keys(keys, (PgType.TEXT, PgType.INT8), 3) == (span(("a",), ("a",)), span(("b",), ("b",)))
    assert cover_keys(keys, (PgType.TEXT, PgType.INT8), 1) == ()


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_ranges_of_integers_have_all_keys_and_leave_out_the_widest_spaces(most: int) -> None:
    numbers = [-50, -49, 3, 4, 5, 90, 1000, 1001, 1002, 5000]
    ranges = cover_keys([(str(number),) for number in numbers], (PgType.INT8,), most)
    assert len(ranges) == most
    bounds = [(int(each.first[0]), int(each.last[0])) for each in ranges]
    assert all(any(first <= number <= last for first, last in bounds) for number in numbers)
    assert all(last < first for (_, last), (first, _) in pairwise(bounds))
    if most == 3:
        assert bounds == [(-50, 90), (1000, 1002), (5000, 5000)]
