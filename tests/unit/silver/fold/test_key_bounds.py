"""The bounds of changed keys include every key, are few, and are left out where an order is not sure."""

from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.sql import to_microseconds
from pipeline.silver.fold import key_bounds as module
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.key_bounds import MAX_KEYS, has_bounds, key_aggregates, key_bounds
from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SilverType,
    array_of,
    decimal,
)


def fold_of(*types: SilverType) -> Fold:
    columns = tuple(FoldColumn(f"c`{i}", kind, {1: i}) for i, kind in enumerate(types))
    return Fold(columns, tuple(range(len(types))), (1,))


MOMENT = to_microseconds(datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (SMALLINT, -32768, "-32768S"),
        (INT, 5, "5"),
        (BIGINT, 2**63 - 1, "9223372036854775807L"),
        (decimal(12, 2), Decimal("1E+1"), "10BD"),
        (STRING, "o'k$", "'o\\'k\\u0024'"),
        (DATE, -719162, "DATE'0001-01-01'"),
        (TIMESTAMP, MOMENT, "TIMESTAMP_LTZ'2024-02-29 12:00:00.000001+00:00'"),
        (TIMESTAMP_NTZ, "2024-02-29 12:00:00", "TIMESTAMP_NTZ'2024-02-29 12:00:00'"),
    ],
)
def test_a_bound_is_a_literal_of_the_column_s_type(kind: SilverType, value: Any, text: str) -> None:
    assert key_bounds(fold_of(kind), {"keys_k0": [value]}) == f"(t.`c``0` = {text})"


@pytest.mark.parametrize("kind", [BOOLEAN, BINARY, DOUBLE, array_of(INT)])
def test_types_without_a_sure_order_have_no_bounds(kind: SilverType) -> None:
    fold = fold_of(kind)
    assert not has_bounds(fold)
    assert key_aggregates(fold, 1) == {}
    assert key_bounds(fold, {}) is None


def test_each_column_of_a_key_has_bounds_if_its_type_allows() -> None:
    fold = fold_of(INT, DOUBLE, STRING)
    assert key_aggregates(fold, MAX_KEYS) == {"keys_k0": "collect_set(k0)", "keys_k2": "collect_set(k2)"}
    assert key_aggregates(fold, MAX_KEYS + 1) == {
        "ends_k0": "array(min(k0), max(k0))",
        "ends_k2": "array(min(k2), max(k2))",
    }
    found = key_bounds(fold, {"ends_k0": [1, 9], "ends_k2": ["a", "b"]})
    assert found == "(t.`c``0` >= 1 AND t.`c``0` <= 9) AND (t.`c``2` >= 'a' AND t.`c``2` <= 'b')"


@pytest.mark.parametrize(
    ("kind", "aggregates"),
    [
        (STRING, {"keys_k0": ["a", "x" * 201]}),
        (INT, {"ends_k0": [None, None]}),
        (INT, {"keys_k0": []}),
        (TIMESTAMP, {"keys_k0": [MOMENT, -62135596800000001]}),  # of year 0
    ],
)
def test_without_a_literal_there_are_no_bounds(kind: SilverType, aggregates: dict[str, Any]) -> None:
    assert key_bounds(fold_of(kind), aggregates) is None


@given(st.sets(st.integers() | st.integers(0, 200), min_size=1, max_size=150))
def test_ranges_of_numbers_have_every_key_and_part_at_the_widest_gaps(keys: set[int]) -> None:
    ranges = module._ranges(sorted(keys))
    check_ranges(sorted(keys), ranges)
    gaps = [after[0] - before[1] for before, after in pairwise(ranges)]
    assert 1 not in gaps
    inner = [
        after - before
        for before, after in pairwise(sorted(keys))
        if any(first <= before and after <= last for first, last in ranges)
    ]
    assert not gaps or max(inner, default=0) <= min(gaps)


@given(st.sets(st.text(max_size=4), min_size=1, max_size=150))
def test_ranges_of_texts_have_every_key(keys: set[str]) -> None:
    check_ranges(sorted(keys), module._ranges(sorted(keys)))


def check_ranges(keys: list[Any], ranges: Sequence[tuple[Any, Any]]) -> None:
    assert len(ranges) <= 32
    assert [key for key in keys if any(first <= key <= last for first, last in ranges)] == keys
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    ends = {end for each in ranges for end in each}
    assert ends <= set(keys)
