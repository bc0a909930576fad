"""A Delta table that is queried without Spark: a part of Spark's DataFrame, in SQL that DuckDB runs.

delta-rs reads the table, or what can where delta-rs cannot. Names are quoted by backticks, as in
Spark. A frame reads when it counts, or collects its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row

from pipeline.delta.table import LakeTable
from tests.support.comparable import delta_rs
from tests.support.comparable.mapped import MappedTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class Frame:
    """The rows of a table, in SQL."""

    path: str
    sql: str = "SELECT * FROM rows"

    def where(self, condition: str) -> Frame:
        """Return the rows that satisfy a condition."""
        return self._of("SELECT *", f"WHERE {condition}")

    def select(self, *columns: str) -> Frame:
        """Return some columns."""
        return self._of(f"SELECT {', '.join(map(_quoted, columns))}")

    def selectExpr(self, *expressions: str) -> Frame:  # noqa: N802 - Spark's name
        """Return the values of expressions."""
        return self._of(f"SELECT {', '.join(expressions)}")

    def drop(self, *columns: str) -> Frame:
        """Return the other columns."""
        there = [name for name in columns if name in self.columns]
        return self._of(f"SELECT * EXCLUDE ({', '.join(map(_quoted, there))})") if there else self

    def distinct(self) -> Frame:
        """Return each row once."""
        return self._of("SELECT DISTINCT *")

    def orderBy(self, *columns: str) -> Frame:  # noqa: N802 - Spark's name
        """Return the rows in an order, in which NULL comes first as in Spark."""
        order = ", ".join(f"{name} ASC NULLS FIRST" for name in columns)
        return self._of("SELECT *", f"ORDER BY {order}")

    def groupBy(self, *columns: str) -> _Groups:  # noqa: N802 - Spark's name
        """Return groups of rows, to count them."""
        return _Groups(self, columns)

    def count(self) -> int:
        """Return the number of rows."""
        return int(self.arrow().num_rows)

    def collect(self) -> list[Row]:
        """Return the rows."""
        found = self.arrow()
        make = Row(*found.column_names)
        columns = [column.to_pylist() for column in found.columns]
        return [make(*map(_value, values)) for values in zip(*columns, strict=True)]

    def first(self) -> Row | None:
        """Return the first row, None if there is none."""
        return next(iter(self.collect()), None)

    head = first

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.arrow().column_names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """The names and types of the table's columns, as Spark shows them."""
        return [(field.name, field.ddl.lower()) for field in LakeTable(self.path).schema().fields]

    def arrow(self) -> pa.Table:
        """Return the rows as Arrow."""
        with _database().cursor() as session:
            session.register("rows", _read(self.path))
            return session.sql(self.sql.replace("`", '"')).to_arrow_table()

    def _of(self, select: str, rest: str = "") -> Frame:
        return replace(self, sql=f"{select} FROM ({self.sql}) {rest}")


@dataclass(frozen=True)
class _Groups:
    frame: Frame
    columns: tuple[str, ...]

    def count(self) -> Frame:
        """Return the number of rows in each group."""
        names = ", ".join(map(_quoted, self.columns))
        sql = f"SELECT {names}, count(*) AS count FROM ({self.frame.sql}) GROUP BY {names}"
        return replace(self.frame, sql=sql)


@cache
def _database() -> DuckDBPyConnection:
    """Return the database of all frames: to open one takes longer than most queries."""
    import duckdb

    return duckdb.connect()


def _read(path: str) -> pa.Table:
    if (table := delta_rs.open_table(path)) is not None:
        return table.to_pyarrow_table()
    mapped = MappedTable.open(path)
    return LakeTable(path).rows() if mapped is None else mapped.read()


def _quoted(name: str) -> str:
    return name if name.startswith("`") else "`" + name + "`"


def _value(value: Any) -> Any:
    """Return a value as Spark gives it: maps are dicts, structs are rows."""
    if isinstance(value, dict):
        return Row(**{key: _value(each) for key, each in value.items()})
    if isinstance(value, list):
        return [_value(each) for each in value]
    return value
