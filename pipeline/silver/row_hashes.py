"""Hashes of silver's rows: sums by range, and single rows.

The other side of the comparison is `postgres.snapshot.hashed_rows`, which computes the same hashes in
PostgreSQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.delta.sql import quoted
from pipeline.postgres.snapshot.hashed_rows import RangeSum, RowHash
from pipeline.silver.comparable_text import text_sql


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A compared column of silver: name, DDL, and the delimiter of its array elements."""

    name: str
    ddl: str
    delimiter: str = ","


class SilverRows:
    """The rows of a silver table with hashes of the compared columns; `key` are the indexes of the key's.

    `text_bytes` is the size of all values as texts, once the sums of all rows were read.
    """

    text_bytes = 0

    def __init__(self, frame: DataFrame, columns: Sequence[SilverColumn], key: Sequence[int]) -> None:
        forms = [text_sql(c.ddl, quoted(c.name), c.delimiter) for c in columns]
        values = frame.select(*(F.expr(form).alias(f"c{i}") for i, form in enumerate(forms)))
        self._names = [f"c{i}" for i in range(len(columns))]
        self._key = [self._names[i] for i in key]
        hashed = values.withColumn("r", _hash(self._names))
        self._rows = hashed.withColumn("k", _hash(self._key) if self._key else F.col("r"))

    def sums(self, digits: int, within: Sequence[str] | None = None) -> dict[str, RangeSum]:
        """Return the sums of each range, a prefix of so many digits, for all rows or those in some ranges."""
        parts = (F.expr(f"sum(CAST(conv(substr(r, {at}, 15), 16, 10) AS DECIMAL(20,0)))") for at in (1, 17))
        size = " + ".join(["0L", *(f"coalesce(octet_length({name}), 0)" for name in self._names)])
        found = (
            self._within(within)
            .groupBy(F.substring("k", 1, digits).alias("range"))
            .agg(
                F.count("*").alias("rows"),
                F.expr(f"sum({size})").alias("bytes"),
                *(part.alias(f"s{i}") for i, part in enumerate(parts)),
            )
            .collect()
        )
        if within is None:
            self.text_bytes = sum(row.bytes for row in found)
        return {row.range: RangeSum(int(row["rows"]), int(row.s0), int(row.s1)) for row in found}

    def rows(self, within: Sequence[str]) -> list[RowHash]:
        """Return the rows in some ranges."""
        short = [F.substring(_hash([name]), 1, 8) for name in self._names]
        found = self._within(within).select(
            "k", "r", F.array(*short).alias("columns"), F.array(*self._key).alias("texts")
        )
        return [RowHash(row.k, row.r, tuple(row["columns"]), tuple(row.texts)) for row in found.collect()]

    def texts_without(self, keys: DataFrame) -> DataFrame:
        """Return the values of each row as the array `new`, without rows whose key's hash is in `keys.k`."""
        rest = self._rows.join(F.broadcast(keys), "k", "left_anti")
        return rest.select(F.array(*self._names).alias("new"))

    def _within(self, ranges: Sequence[str] | None) -> DataFrame:
        if ranges is None:
            return self._rows
        return self._rows.where(F.substring("k", 1, len(ranges[0])).isin(list(ranges)))


def _hash(names: Sequence[str]) -> Column:
    """Return the MD5 of values, each preceded by its length; NULL has no length."""
    parts = ", ".join(f"coalesce(concat(length({name}), ':', {name}), ':')" for name in names)
    return F.expr(f"md5(CAST(concat({parts}) AS BINARY))")
