"""Which files may have changed keys, of every type whose statistics are sure, and how large files are."""

import json
from decimal import Decimal
from typing import Any

import pytest

from pipeline.delta.data_files import arrow_columns
from pipeline.delta.schema import TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.key_ranges import KeyRange
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.key_bounds import changed_values
from pipeline.silver.types.text_parsers import (
    BOOLEAN,
    DATE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SilverType,
    decimal,
)
from pipeline.silver.write.data_layout import (
    FILE_SIZE,
    FileChoice,
    column_bounds,
    file_size,
    may_have,
    small_size,
)
from tests.support.statistics import statistics_of

MIB = 1 << 20


def with_stats(files: list[str]) -> list[dict[str, str]]:
    """Return files that have these statistics."""
    return [{"stats": each} for each in files]


def choose(session: DuckSql, kind: SilverType, keys: list[str], files: list[str]) -> list[int]:
    """Return the numbers of the files with these statistics that may have the keys."""
    fold = Fold((FoldColumn("k", kind, {1: 0}),), (0,), (1,))
    values = ", ".join(f"({kind.value(session.engine.literal(key), session.engine)})" for key in keys)
    session.compute("folded", f"SELECT * FROM (VALUES {values}) AS v(k0)")
    return FileChoice.of_keys(session, fold).candidates(with_stats(files), Snapshot("/t"))


def stats(least: Any, greatest: Any) -> str:
    return json.dumps({"numRecords": 1, "minValues": {"k": least}, "maxValues": {"k": greatest}})


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (INT, ["-5", "7", "100"]),
        (decimal(15, 4), ["-0.5", "7.0001", "12345678901.5678"]),
        (STRING, ["a", "naïve", "z" * 40]),
        (DATE, ["0001-01-01", "2024-02-29", "9999-12-31"]),
        (TIMESTAMP, ["0001-01-01 00:00:00Z", "2024-02-29 12:00:00.0005+02", "9999-12-31 23:59:59.999999Z"]),
        (TIMESTAMP_NTZ, ["0001-01-01 00:00:00", "2024-02-29 12:00:00.0005", "9999-12-31 23:59:59.999999"]),
    ],
)
def test_each_key_is_found_in_its_file_only(session: DuckSql, kind: SilverType, texts: list[str]) -> None:
    files = []
    schema = arrow_columns(TableSchema.of_ddl(f"k {kind.ddl}"))
    for text in texts:
        sql = kind.value(session.engine.literal(text), session.engine)
        files.append(statistics_of(session.table(f"SELECT {sql} AS k").cast(schema)))
    for number, text in enumerate(texts):
        assert choose(session, kind, [text], files) == [number]
    assert choose(session, kind, texts[::2], files) == [0, 2]


@pytest.mark.parametrize(
    ("kind", "first", "last", "bounds"),
    [
        (INT, "-5", "7", (-5, 7)),
        (STRING, "a", "it's", ("a", "it's")),
        (DATE, "2024-02-29", "", ("2024-02-29", None)),
        (TIMESTAMP, "", "1970-01-01 00:00:01Z", (None, 1_000_000)),
        (BOOLEAN, "f", "t", None),
    ],
)
def test_bounds_of_key_ranges_are_those_of_statistics(
    session: DuckSql, kind: SilverType, first: str, last: str, bounds: tuple[Any, Any] | None
) -> None:
    fold = Fold((FoldColumn("k", kind, {1: 0}),), (0,), (1,))
    ranges = [KeyRange((first,) if first else (), (last,) if last else ()), KeyRange((), ())]
    expected = {} if bounds is None else {"k": [bounds, (None, None)]}
    assert column_bounds(session, fold, ranges) == expected


@pytest.mark.parametrize(
    ("between", "may_be_there"),
    [
        ((1, 4), False),
        ((1, 5), True),
        ((9, None), True),
        ((10, None), False),
        ((None, 4), False),
        ((None, None), True),
    ],
)
def test_a_file_may_have_keys_between_bounds(between: tuple[Any, Any], may_be_there: bool) -> None:
    assert may_have({"stats": stats(5, 9)}, {"k": [between]}, ()) is may_be_there


def test_rounded_statistics_of_wide_decimals_choose_no_file(session: DuckSql) -> None:
    key = "1234567890123456.7891"
    rounded = stats(float(key), float(key))
    assert choose(session, decimal(20, 4), [key], [rounded, stats(1, 2)]) == [0, 1]


@pytest.mark.parametrize(
    ("bounds", "is_chosen"),
    [
        # Spark cuts off a maximum of 12:00:00.000999 to its millisecond, and writes the session's zone
        (("2024-02-29T11:00:00.000Z", "2024-02-29T12:00:00.000Z"), True),
        (("2024-02-29T13:00:00.000+02:00", "2024-02-29T14:00:00.000+02:00"), True),
        (("2024-02-29T11:00:00.000Z", "2024-02-29T11:59:59.998Z"), False),
        (("2024-02-29T12:00:00.002Z", "2024-02-29T13:00:00.000Z"), False),
        (("2024-02-29T11:00:00.000Z", "+10000-01-01T00:00:00.000Z"), True),  # not known
    ],
)
def test_bounds_of_times_are_wide_enough_for_every_writer(
    session: DuckSql, bounds: tuple[str, str], is_chosen: bool
) -> None:
    found = choose(session, TIMESTAMP, ["2024-02-29 12:00:00.000999+00"], [stats(*bounds)])
    assert found == ([0] if is_chosen else [])


@pytest.mark.parametrize(
    ("kind", "keys", "inside", "outside"),
    [
        (INT, [1, 7], (7, 9), (2, 6)),
        (decimal(12, 2), [Decimal("1.50"), Decimal("1E+3")], (1.5, 1.7), (1.51, 999.99)),
        (STRING, ["a", "naïve"], ("naï", "o"), ("b", "n")),
        (DATE, [0, 19782], ("2024-02-29", "2024-03-01"), ("1970-01-02", "2024-02-28")),
        (TIMESTAMP, [0, 9000], ("1970-01-01T00:00:00.000Z",) * 2, ("1970-01-01T00:00:00.003Z",) * 2),
    ],
)
def test_a_file_has_no_changed_key_only_if_all_lie_outside(
    kind: SilverType, keys: list[Any], inside: tuple[Any, Any], outside: tuple[Any, Any]
) -> None:
    fold = Fold((FoldColumn("k", kind, {1: 0}),), (0,), (1,))
    times = ["k"] if kind is TIMESTAMP else []
    values = changed_values(fold, {"keys_k0": keys})
    assert may_have({"stats": stats(*inside)}, values, times)
    assert not may_have({"stats": stats(*outside)}, values, times)
    ends = changed_values(fold, {"ends_k0": [keys[0], keys[-1]]})
    assert may_have({"stats": stats(*inside)}, ends, times)
    assert may_have({"stats": stats(*outside)}, ends, times)  # it lies between the ends
    assert may_have({"stats": None}, values, times)
    assert may_have({"stats": stats(None, None)}, values, times)


def test_values_without_sure_statistics_are_left_out() -> None:
    kinds = (BOOLEAN, TIMESTAMP_NTZ, DATE, INT)
    fold = Fold(tuple(FoldColumn(f"c{i}", k, {1: i}) for i, k in enumerate(kinds)), (0, 1, 2, 3), (1,))
    keys: dict[str, list[Any]] = {"keys_k1": ["2024-02-29 12:00:00"], "keys_k2": [1 << 40], "keys_k3": []}
    assert changed_values(fold, keys) == {}


def test_without_sure_statistics_every_file_is_read(session: DuckSql) -> None:
    assert choose(session, BOOLEAN, ["t"], [stats(False, False)]) == [0]
    assert choose(session, INT, ["1"], ["{}", '{"minValues": null}', stats(None, 0)]) == [0, 1]


def test_equal_rows_are_found_by_every_column_without_null_and_misfit(session: DuckSql) -> None:
    names = ("k", "n", "day", "flag")
    columns = (INT, INT, DATE, BOOLEAN)
    fold = Fold(
        tuple(FoldColumn(n, t, {1: i}) for i, (n, t) in enumerate(zip(names, columns, strict=True))), (), (1,)
    )
    files = [
        json.dumps({"minValues": {"k": k, "n": n, "day": day}, "maxValues": {"k": k + 9, "n": n, "day": day}})
        for k, n, day in [
            (0, 1, "2020-01-01"),
            (10, 1, "2020-01-02"),
            (20, 2, "2020-01-03"),
            (10, 2, "2020-01-02"),
        ]
    ]

    def chosen(*rows: tuple[str | None, ...]) -> list[int]:
        texts = ", ".join(
            "(" + ", ".join("NULL" if x is None else f"'{x}'" for x in row) + ")" for row in rows
        )
        query = f"SELECT * FROM (VALUES {texts}) AS v(x0, x1, x2, x3)"
        return FileChoice.of_rows(session, fold, query).candidates(with_stats(files), Snapshot("/t"))

    assert chosen(("11", "1", "2020-01-02", "t")) == [1]
    assert chosen(("11", None, "2020-01-02", "t")) == [1, 3]
    assert chosen(("11", None, "infinity", "t"), ("12", "1", "2020-01-02", None)) == [1, 3]
    assert chosen(("11", None, None, "t"), ("25", None, None, "t")) == [1, 2, 3]
    assert chosen((None, None, None, "t")) == [0, 1, 2, 3]
    assert chosen(("99", "1", "2020-01-02", "t")) == []
    session.define("nothing", "SELECT NULL AS x0, NULL AS x1, NULL AS x2, NULL AS x3 WHERE false")
    assert (
        FileChoice.of_rows(session, fold, "SELECT * FROM nothing").candidates(
            with_stats(files[:1]), Snapshot("/t")
        )
        == []
    )


@pytest.mark.parametrize(
    ("table", "size"),
    [(0, 8 * MIB), (8000 * MIB, 8 * MIB), (64_000 * MIB, 64 * MIB), (1 << 50, FILE_SIZE)],
)
def test_files_grow_only_with_tables_that_would_have_many(table: int, size: int) -> None:
    assert file_size(table) == size
    assert small_size(table) == size // 4
