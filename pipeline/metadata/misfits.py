"""`_pgdelta/misfits`: values that their silver type cannot hold, with the text of the source.

A batch that is applied again records its misfits once.
"""

import threading
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.delta.table import Lake
from pipeline.table_name import TableName

MISFITS = (
    "schema_name STRING, table_name STRING, column_name STRING, key STRING, raw_text STRING, lsn BIGINT, "
    "policy STRING"
)
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
        first, last = F.min("lsn").alias("first"), F.max("lsn").alias("last")
        span = misfits.agg(first, last).head()
        if span is None or span["first"] is None:
            return
        equal = (F.col(f"n.{name}").eqNullSafe(F.col(f"o.{name}")) for name in _COLUMNS)
        with self._lock:
            recorded = self._table.frame().where(F.col("lsn").between(span["first"], span["last"]))
            new = misfits.select(*_COLUMNS).alias("n")
            new = new.join(recorded.alias("o"), reduce(Column.__and__, equal), "left_anti")
            self._table.append_small(new)

    def counts(self) -> dict[TableName, dict[str, int]]:
        """Return how many misfits are recorded, by table and column."""
        counts: dict[TableName, dict[str, int]] = {}
        if self._table.exists():
            rows = self._table.frame().groupBy("schema_name", "table_name", "column_name").count().collect()
            for schema, table, column, count in rows:
                counts.setdefault(TableName(schema, table), {})[column] = count
        return counts
