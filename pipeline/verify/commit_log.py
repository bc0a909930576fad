"""The commits of `bronze/changes` in Delta's log, and the counts of the rows that they recorded."""

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.delta.log import ROW_PRESERVING, json_object
from pipeline.delta.table import LakeTable
from pipeline.delta.timestamps import from_microseconds
from pipeline.protocol.lsn import LSN
from pipeline.verify.commit_chain import LoggedCommit
from pipeline.verify.row_counts import number_of_interval

_CHANGES = "op IN ('I', 'U', 'D', 'T')"


class LoggedChanges:
    """`bronze/changes` as of one version: the commits up to it, and its rows."""

    def __init__(self, changes: LakeTable, version: int) -> None:
        self._table = changes
        self._version = version

    def commits(self) -> Iterator[LoggedCommit]:
        """Yield the commits that the log still has, in the order of their versions."""
        log = self._table.history()
        rows = log.where(F.col("version") <= self._version).orderBy("version")
        columns = ("version", "operation", "userMetadata", "unix_micros(timestamp) AS committed_at")
        for row in rows.selectExpr(*columns).toLocalIterator():
            yield LoggedCommit(
                row.version,
                row.operation,
                row.operation not in ROW_PRESERVING,
                json_object(row.userMetadata),
                from_microseconds(row.committed_at),
            )

    def count(self, bounds: Sequence[LSN]) -> list[int]:
        """Return how many changes that commits count end in each (bound, next]."""
        rows = self._rows().where(_CHANGES).where("gid IS NULL")
        numbers = rows.select(F.expr(number_of_interval(bounds)).alias("number"))
        counts = {row.number: row["count"] for row in numbers.groupBy("number").count().collect()}
        return [counts.get(number, 0) for number in range(len(bounds) - 1)]

    def prepared_rows(self) -> int:
        """Return how many changes of prepared transactions there are."""
        return self._rows().where(_CHANGES).where("gid IS NOT NULL").count()

    def copied_rows(self) -> dict[int, int]:
        """Return how many rows of each copy there are, by its id."""
        found = self._rows().where("op = 'R'").groupBy("copy_id").count().collect()
        return {row.copy_id: row["count"] for row in found}

    def _rows(self) -> DataFrame:
        reader = self._table.spark.read.format("delta").option("versionAsOf", self._version)
        return reader.load(self._table.path)
