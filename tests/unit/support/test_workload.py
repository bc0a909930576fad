"""The oracle's own reading of PostgreSQL text, and the workload's coverage on a live server."""

from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tests.support import oracle
from tests.support.comparable.silver import decimal_text, numeric_type, utc_text
from tests.support.comparable.source import double_text, parse_array, real_text
from tests.support.workload.values import array_text, random_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", ()),
        ("{1,NULL,null}", ("1", None, None)),
        (
            '{"NULL","",a b,"a,b","\\"q\\"","back\\\\slash","{x}"}',
            ("NULL", "", "a b", "a,b", '"q"', "back\\slash", "{x}"),
        ),
        ("{{1,2},{3,NULL}}", (("1", "2"), ("3", None))),
        ("[0:1]={a,b}", ("a", "b")),
        ("[-2:-1][5:6]={{1,2},{3,4}}", (("1", "2"), ("3", "4"))),
        ('{"line\nbreak"}', ("line\nbreak",)),
        ("{\u2028,\xa0}", ("\u2028", "\xa0")),
        ('{"2024-01-01 00:00:00+00"}', ("2024-01-01 00:00:00+00",)),
    ],
)
def test_array_text_is_read_as_postgresql_writes_it(text: str, expected: object) -> None:
    assert parse_array(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1", "{", "{1", "{1,}", "{,1}", "{1}{2}", "{1}x", '{"a}', '{"a"b}', "{{1}2}"]
)
def test_malformed_array_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="array literal"):
        parse_array(text)


def test_array_text_round_trips() -> None:
    rng = Random(1)
    for _ in range(500):
        elements = [random_value(rng, "text") for _ in range(rng.randint(0, 4))]
        assert parse_array(array_text(elements)) == tuple(elements)


def test_floats_compare_by_value_but_minus_zero_is_not_zero() -> None:
    assert double_text("1e+15") == double_text(1e15)
    assert double_text("-0") != double_text("0")
    assert double_text("NaN") == double_text(float("nan"))
    assert real_text("0.1") == real_text(0.10000000149011612)


def test_moments_read_as_postgresql_prints_them() -> None:
    assert utc_text(0) == "1970-01-01 00:00:00+00"
    assert utc_text(-1) == "1969-12-31 23:59:59.999999+00"
    assert utc_text(-62135596800000000) == "0001-01-01 00:00:00+00"
    assert utc_text(253402300799120000) == "9999-12-31 23:59:59.12+00"
    assert "since 1970" in utc_text(253402300800000000)


def test_decimals_keep_their_scale() -> None:
    cases = (("0E-9", 9), ("1.50", 2), ("-0.001", 3), ("100E-12", 10), ("9" * 28 + "." + "9" * 10, 10))
    assert [decimal_text(Decimal(text), scale) for text, scale in cases] == [
        "0.000000000",
        "1.50",
        "-0.001",
        "0.0000000001",
        "9" * 28 + "." + "9" * 10,
    ]


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (12, 3, "decimal(12,3)"),
        (38, 9, "decimal(38,9)"),
        (39, 9, "string"),
        (3, -2, "decimal(5,0)"),
        (3, 5, "decimal(5,5)"),
    ],
)
def test_numeric_modifier_gives_the_decimal_that_holds_it(precision: int, scale: int, expected: str) -> None:
    assert numeric_type(((precision << 16) | (scale & 0x7FF)) + 4) == expected
    assert numeric_type(-1) == "string"


def test_difference_names_rows_on_both_sides_and_counts_duplicates() -> None:
    lines = list(oracle.row_faults(["a"], Counter({("x",): 2}), Counter({("x",): 1, ("y" * 99,): 1})))
    assert lines[:2] == ["1 rows missing from silver (source 2, silver 2)", "  1 × a='x'"]
    assert lines[2].startswith("1 rows too many")
    assert "(101 characters)" in lines[3]


def test_values_stay_within_what_silver_holds() -> None:
    rng = Random(2)
    for _ in range(3000):
        for type_ in ("date", "timestamp", "timestamptz", "timestamptz(1)"):
            value: Any = random_value(rng, type_)
            assert value is None or ("0001" <= value[:4] <= "9999" and value[4] == "-")
