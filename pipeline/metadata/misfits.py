"""`_pgdelta/misfits`: values that their silver type cannot hold, with the text of the source.

A batch that is applied again records its misfits once.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING

from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake
from pipeline.table_name import TableName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MISFITS = (
    "schema_name STRING, table_name STRING, column_name STRING, key STRING, raw_text STRING, lsn BIGINT, "
    "policy STRING"
)
MAX_ROWS = 10_000  # in memory; more are compared by Spark
_COLUMNS = tuple(column.split()[0] for column in MISFITS.split(", "))


class MisfitLog:
    """Reads and writes `_pgdelta/misfits`; safe to use from several threads."""

    def __init__(self, lake: Lake) -> None:
        self._table = lake.table("_pgdelta", "misfits")
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Create the table unless it exists."""
        self._table.ensure_for_appends(MISFITS)

    def record(self, misfits: DataFrame) -> None:
        """Append the misfits that are not recorded yet; `misfits` has the table's columns, in any order."""
        from pyspark.sql import Column
        from pyspark.sql import functions as F

        first, last = F.min("lsn").alias("first"), F.max("lsn").alias("last")
        span = misfits.agg(first, last, F.count("*").alias("count")).head()
        if span is None or span["first"] is None:
            return
        if span["count"] <= MAX_ROWS:
            self.record_rows(misfits.select(*_COLUMNS).toArrow())
            return
        equal = (F.col(f"n.{name}").eqNullSafe(F.col(f"o.{name}")) for name in _COLUMNS)
        with self._lock:
            recorded = self._table.frame().where(F.col("lsn").between(span["first"], span["last"]))
            new = misfits.select(*_COLUMNS).alias("n")
            new = new.join(recorded.alias("o"), reduce(Column.__and__, equal), "left_anti")
            self._table.append(new)

    def record_rows(self, misfits: pa.Table) -> None:
        """Append the misfits that are not recorded yet; `misfits` has the table's columns, in any order."""
        import pyarrow.compute as pc

        if misfits.num_rows == 0:
            return
        misfits = misfits.select(list(_COLUMNS))
        span = pc.min_max(misfits.column("lsn"))
        with self._lock:
            is_near = (pc.field("lsn") >= span["min"]) & (pc.field("lsn") <= span["max"])
            is_near &= pc.field("table_name").isin(pc.unique(misfits.column("table_name")))
            recorded = {tuple(row.values()) for row in self._table.rows(_COLUMNS, is_near).to_pylist()}
            rows = misfits.to_pylist()
            new = [row for row in rows if tuple(row.values()) not in recorded]
            if new:
                retry_conflicts(lambda: self._table.append_rows(new, MISFITS, compacts=True))

    def counts(self) -> dict[TableName, dict[str, int]]:
        """Return how many misfits are recorded, by table and column."""
        counts: dict[TableName, dict[str, int]] = {}
        if self._table.exists():
            rows = self._table.rows(["schema_name", "table_name", "column_name"])
            found = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            for (schema, table, column), count in found.items():
                counts.setdefault(TableName(schema, table), {})[column] = count
        return counts

    def counts_by_policy(self) -> dict[TableName, dict[str, dict[str, int]]]:
        """Return how many misfits are recorded, by table, column and policy."""
        found: dict[TableName, dict[str, dict[str, int]]] = {}
        if self._table.exists():
            rows = self._table.rows(["schema_name", "table_name", "column_name", "policy"])
            counted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            for (schema, table, column, policy), count in counted.items():
                found.setdefault(TableName(schema, table), {}).setdefault(column, {})[policy] = count
        return found
