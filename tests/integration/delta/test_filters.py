"""Readers that skip files and row groups find the rows that a filter describes, in natively written files.

Each table has a few small files with hostile values, so that most filters skip some. DuckDB and pyarrow skip
row groups by what Parquet says of them, polars and deltalake's dataset also files by what Delta's log says.
deltalake's dataset is right only for columns with both bounds in every file, whoever wrote it: it takes
a missing one for NULL.
Spark is compared in `test_writers_agree`.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from tests.support.seeds import printed_rng, seed_of_run

Value = Callable[[Random], Any]
_EXACT = Context(prec=60)


def _integer(bits: int) -> Value:
    limit = 2 ** (bits - 1)
    return lambda rng: rng.choice((-limit, limit - 1, rng.randint(-9, 9), rng.randint(-limit, limit - 1)))


def _decimal(precision: int, scale: int) -> Value:
    most = 10**precision - 1

    def value(rng: Random) -> Decimal:
        unscaled = rng.choice((0, 1, most, most - 1, rng.randint(-most, most), rng.randint(-99, 99)))
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return value


def _double(rng: Random) -> float:
    return rng.choice((0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308, rng.gauss(0, 1e10)))


def _text(rng: Random) -> str:
    last = rng.choice(("", "\uffff", "\U0001f600", "\U0010ffff", "é", "\x7f"))
    return rng.choice(("", "z", "\U0001f600", "\uffff", "日", '"\\', "it's")) * rng.randint(1, 40) + last


def _time(zone: timezone | None) -> Value:
    def value(rng: Random) -> datetime:
        return rng.choice(
            (
                datetime(1, 1, 1, tzinfo=zone),
                datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=zone),
                datetime(2024, 1, 1, tzinfo=zone) + timedelta(microseconds=rng.randint(0, 2000)),
                datetime(1582, 10, 10, tzinfo=zone) + timedelta(days=rng.randint(0, 100_000)),
            )
        )

    return value


COLUMNS: Mapping[str, Value] = {
    "flag BOOLEAN": lambda rng: rng.random() < 0.5,
    "i2 SMALLINT": _integer(16),
    "i4 INT": _integer(32),
    "i8 BIGINT": _integer(64),
    "f4 FLOAT": lambda rng: float(np.float32(_double(rng) if rng.random() < 0.5 else rng.gauss(0, 1))),
    "f8 DOUBLE": _double,
    "n5 DECIMAL(5,2)": _decimal(5, 2),
    "n18 DECIMAL(18,9)": _decimal(18, 9),
    "n20 DECIMAL(20,4)": _decimal(20, 4),
    "n38 DECIMAL(38,0)": _decimal(38, 0),
    "m38 DECIMAL(38,38)": _decimal(38, 38),
    "t STRING": _text,
    "x BINARY": lambda rng: rng.choice((b"", b"\0", b"\xff" * rng.randint(0, 70), rng.randbytes(3))),
    "day DATE": lambda rng: date(1, 1, 1) + timedelta(days=rng.choice((0, 3652058, rng.randint(0, 3652058)))),
    "z TIMESTAMP": _time(timezone.utc),
    "u TIMESTAMP_NTZ": _time(None),
}
DDL = ", ".join(COLUMNS)
ARROW = TableSchema.of_ddl(DDL).arrow
OPERATORS = {
    "=": (operator.eq, pc.equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}


class Filter(NamedTuple):
    column: str
    operator: str
    value: Any

    def count(self, rows: list[dict[str, Any]]) -> int:
        """Return how many rows it describes: NaN is the greatest number, and equal to itself."""
        holds, wanted = OPERATORS[self.operator][0], order(self.value)
        values = (row[self.column] for row in rows)
        return sum(holds(order(value), wanted) for value in values if value is not None)

    @property
    def arrow(self) -> pc.Expression:
        value = pa.scalar(self.value, ARROW.field(self.column).type)
        return OPERATORS[self.operator][1](pc.field(self.column), value)


def order(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


class Readers:
    """One version of a table, as each reader opens it."""

    def __init__(self, path: str) -> None:
        table = DeltaTable(path)
        self._files = table.file_uris()
        self._parquet = ds.dataset(self._files, schema=ARROW, format="parquet")
        self._dataset = table.to_pyarrow_dataset()
        self._frame = polars.scan_delta(path)
        self._types = self._frame.collect_schema()
        self._connection = duckdb.connect()
        self._connection.execute("SET timezone = 'UTC'")
        bounds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        self._bounded = {
            name
            for name in ARROW.names
            if all(row.get(f"{end}.{name}") is not None for row in bounds for end in ("min", "max"))
        }

    def counts(self, each: Filter, expected: int) -> dict[str, tuple[int, int]]:
        """Return how many rows each reader finds, and how many it should find."""
        found = {"DuckDB": (self._by_duckdb(each), expected), "polars": (self._by_polars(each), expected)}
        # To Arrow, NaN is in no order: what it finds without skipping anything is expected of it.
        whole = self._parquet.to_table(columns=[each.column]).filter(each.arrow).num_rows
        found["pyarrow"] = self._parquet.count_rows(filter=each.arrow), whole
        if each.column in self._bounded:
            found["deltalake"] = self._dataset.count_rows(filter=each.arrow), whole
        return found

    def _by_duckdb(self, each: Filter) -> int:
        query = f"SELECT count(*) FROM read_parquet({self._files!r}) WHERE {each.column} {each.operator} ?"
        [(count,)] = self._connection.execute(query, [each.value]).fetchall()
        return int(count)

    def _by_polars(self, each: Filter) -> int:
        column = polars.col(each.column)
        value = polars.lit(each.value, dtype=self._types[each.column])
        holds = OPERATORS[each.operator][0](column, value)
        return int(self._frame.filter(holds).select(polars.len()).collect().item())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tables", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_filters_find_what_they_describe(tmp_path: Path, tables: int) -> None:
    seed = seed_of_run()
    rng = printed_rng(seed)
    checked: Counter[str] = Counter()
    for number in range(tables):
        path = str(tmp_path / str(number))
        rows = write_table(rng, path)
        readers = Readers(path)
        for column in ARROW.names:
            values = [row[column] for row in rng.sample(rows, 3) if row[column] is not None]
            for value in values:
                each = Filter(column, rng.choice([*OPERATORS]), value)
                counts = readers.counts(each, each.count(rows))
                wrong = {reader: pair for reader, pair in counts.items() if pair[0] != pair[1]}
                assert not wrong, each
                checked.update(f"{reader} {column}" for reader in counts)
    assert {f"deltalake {column}" for column in ("n38", "t", "z", "i8")} <= checked.keys()


def write_table(rng: Random, path: str) -> list[dict[str, Any]]:
    """Write a table of three files, and return its rows."""
    table = LakeTable(path)
    table.ensure(DDL)
    found: list[dict[str, Any]] = []
    for _ in range(3):
        rows = [
            {
                column.split()[0]: None if rng.random() < 0.1 else value(rng)
                for column, value in COLUMNS.items()
            }
            for _ in range(rng.choice((1, 2, 5)))
        ]
        table.append_rows(pa.Table.from_pylist(rows, schema=ARROW), DDL)
        found += rows
    return found
