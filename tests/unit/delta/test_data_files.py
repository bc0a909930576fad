"""Statistics of data files: never wrong, for every type."""

import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.data_files import DataFiles, write_data_file
from pipeline.delta.statistics import Statistics
from tests.support.statistics import statistics_of

UTC = timezone.utc


def bounds(values: list[Any], kind: pa.DataType) -> tuple[Any, Any]:
    rows = pa.table({"c": pa.array(values, kind)})
    found = json.loads(statistics_of(rows), parse_float=Decimal)
    by_parts = Statistics(["c"])
    for start in range(len(values)):
        by_parts.add(rows.slice(start, 1))
    assert json.loads(by_parts.json(), parse_float=Decimal) == found
    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"c": values.count(None)}
    return found["minValues"].get("c"), found["maxValues"].get("c")


@pytest.mark.parametrize(
    ("kind", "values", "least", "greatest"),
    [
        (pa.int64(), [3, None, -(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
        (pa.int8(), [-1, 1], -1, 1),
        (pa.string(), ["b", "a", None, "ä"], "a", "ä"),
        (pa.string(), ["x" * 32, "y" * 33], "x" * 32, "y" * 32 + "\U0010ffff"),
        (pa.string(), ["y" * 32 + "\U0010fffe"], "y" * 32, "y" * 32 + "\U0010ffff"),
        (pa.string(), ["y" * 32 + "\U0010ffffz"], "y" * 32, None),
        (pa.string(), ['"\\\n\u2028'], '"\\\n\u2028', '"\\\n\u2028'),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], "0001-01-01", "9999-12-31"),
        (
            pa.decimal128(20, 4),
            [Decimal("1.5000"), Decimal("-2.0001")],
            Decimal("-2.0001"),
            Decimal("1.5000"),
        ),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1)], 1, 10**38 - 1),
        (pa.float64(), [1.5, -2.25], Decimal("-2.25"), Decimal("1.5")),
        (pa.float64(), [1.5, math.nan], None, None),
        (pa.float64(), [1.5, math.inf], Decimal("1.5"), None),
        (pa.float64(), [None, -math.inf], None, None),
        (pa.float32(), [math.nan, None], None, None),
        (pa.bool_(), [True, False], None, None),
        (pa.binary(), [b"a"], None, None),
        (pa.list_(pa.int32()), [[1], None], None, None),
        (pa.int32(), [None, None], None, None),
    ],
)
def test_bounds_are_never_wrong(kind: pa.DataType, values: list[Any], least: Any, greatest: Any) -> None:
    assert bounds(values, kind) == (least, greatest)


@pytest.mark.parametrize("zone", [UTC, None])
def test_times_are_rounded_outwards(zone: timezone | None) -> None:
    kind = pa.timestamp("us", tz="UTC" if zone else None)
    mark = "Z" if zone else ""
    low = datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=zone)
    high = datetime(2020, 12, 31, 23, 59, 59, 999001, tzinfo=zone)
    assert bounds([high, low], kind) == (f"2020-01-01T00:00:00.123{mark}", f"2021-01-01T00:00:00.000{mark}")
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=zone)
    assert bounds([last], kind) == (f"9999-12-31T23:59:59.999{mark}", None)
    exact = datetime(1, 1, 1, tzinfo=zone)
    assert bounds([exact], kind) == (f"0001-01-01T00:00:00.000{mark}",) * 2


def test_times_that_python_does_not_have_are_left_out() -> None:
    column = pa.array([-(2**62), 0], pa.int64()).cast(pa.timestamp("us"))
    assert json.loads(statistics_of(pa.table({"c": column})))["minValues"] == {}


@given(st.lists(st.text(max_size=40) | st.text("a\U0010ffff", min_size=30, max_size=40), min_size=1))
def test_texts_lie_within_their_bounds(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    low, high = bounds(list(texts), pa.string())
    assert all(low.encode() <= text.encode() for text in texts)
    assert high is None or all(text.encode() <= high.encode() for text in texts)


@given(st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), min_size=1))
def test_times_lie_within_their_bounds(times: list[datetime]) -> None:
    low, high = bounds(list(times), pa.timestamp("us"))
    assert datetime.fromisoformat(low) <= min(times) < datetime.fromisoformat(low) + timedelta(milliseconds=1)
    assert max(times) <= datetime.fromisoformat(high) < max(times) + timedelta(milliseconds=1)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1))
def test_floats_are_their_bounds(numbers: list[float]) -> None:
    low, high = bounds(list(numbers), pa.float32())
    assert (float(low), float(high)) == (min(numbers), max(numbers))


def test_only_the_first_columns_have_statistics() -> None:
    table = pa.table({f"c{number}": [number] for number in range(40)})
    assert [*json.loads(statistics_of(table))["nullCount"]] == [f"c{number}" for number in range(32)]


def test_a_file_has_its_rows_and_no_more_names(tmp_path: Path) -> None:
    rows = pa.table(
        {"a b": [1, 2], "t": pa.array([datetime(2020, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC"))}
    )
    file = write_data_file(tmp_path, rows)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert pq.read_table(tmp_path / file.name).equals(rows)
    action = file.action(data_change=False)["add"]
    assert (action["size"], action["dataChange"]) == ((tmp_path / file.name).stat().st_size, False)


def test_rows_that_are_added_in_parts_fill_files_in_their_order(tmp_path: Path) -> None:
    rows = pa.table({"n": range(10_000)})
    files = DataFiles(tmp_path, rows.schema, lambda size: 1 << 30, 30_000)
    for start in range(0, 10_000, 1000):
        files.write(rows.slice(start, 1000))
    found = files.close()
    assert [file.row_count for file in found] == [4000, 4000, 2000]
    assert pq.read_table([tmp_path / file.name for file in found]).equals(rows)
    assert [json.loads(file.stats)["minValues"]["n"] for file in found] == [0, 4000, 8000]
    assert [file.size for file in found] == [(tmp_path / file.name).stat().st_size for file in found]


def test_a_file_that_is_large_enough_ends_within_a_part(tmp_path: Path) -> None:
    rows = pa.table({"n": [str(number) * 1000 for number in range(50_000)]})
    files = DataFiles(tmp_path, rows.schema, lambda size: 1, 1 << 40)
    files.write(rows)
    found = files.close()
    assert sum(file.row_count for file in found) == 50_000
    assert len(found) == -(-rows.nbytes // (16 << 20))


def test_no_rows_make_no_file_and_discarded_files_are_deleted(tmp_path: Path) -> None:
    rows = pa.table({"n": range(1000)})
    files = DataFiles(tmp_path, rows.schema, lambda size: 1 << 30, 1000)
    files.write(rows.slice(0, 0))
    assert files.close() == []
    files.write(rows)
    files.write(rows)
    files.discard()
    assert list(tmp_path.iterdir()) == []
    files = DataFiles(tmp_path, rows.schema, lambda size: 1 << 30, 1 << 30)
    files.write(rows)
    files.discard()
    assert list(tmp_path.iterdir()) == []


def test_only_columns_with_few_values_have_a_dictionary(tmp_path: Path) -> None:
    count = 5_000
    numbers = range(count)
    few = [None if number % 7 == 0 else f"value {number % 5}" for number in numbers]
    tag = pa.struct([("few", pa.string()), ("unique", pa.int64())])
    rows = pa.table(
        {
            "unique": pa.array(numbers, pa.int64()),
            "few": pa.array(few, pa.string()),
            "price": pa.array([Decimal(number) / 100 for number in numbers], pa.decimal128(12, 2)),
            "nothing": pa.nulls(count, pa.float64()),
            "list": pa.array([[number % 3] for number in numbers], pa.list_(pa.field("element", pa.int32()))),
            "map": pa.array([[("key", number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"few": f, "unique": u} for f, u in zip(few, numbers, strict=True)], tag),
        }
    )
    assert columns_with_dictionary(tmp_path, rows) == {
        *("few", "list.list.element", "map.key_value.key", "struct.few")
    }
    assert columns_with_dictionary(tmp_path, rows.slice(0, 10)) == set()


def columns_with_dictionary(folder: Path, rows: pa.Table) -> set[str]:
    file = write_data_file(folder, rows)
    metadata = pq.ParquetFile(folder / file.name).metadata.row_group(0)
    columns = (metadata.column(number) for number in range(metadata.num_columns))
    assert pq.read_table(folder / file.name, schema=rows.schema).equals(rows)
    return {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
