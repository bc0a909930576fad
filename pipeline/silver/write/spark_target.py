"""Commit writes to a silver table with Spark: Delta's MERGE, or its writer of frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.partitions import partition_bounds
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import commit_settings
from pipeline.engine import SPARK
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.key_bounds import changed_values, key_aggregates, key_bounds
from pipeline.silver.fold.spark_sql import SparkSql
from pipeline.silver.fold.unchanged_values import EARLIER, EARLIER_VALUES, NEEDED, EarlierRows
from pipeline.silver.fold.write import FOLDED, Write, WriteKind
from pipeline.silver.write.data_layout import may_have
from pipeline.silver.write.step_writer import Target


class SparkTarget(Target):
    """A silver table that Spark writes."""

    session: SparkSql

    def __init__(self, spark: SparkSession, session: SparkSql, table: LakeTable, changes: int) -> None:
        self.session = session
        self._spark = spark
        self._table = table
        self._changes = changes

    def key_aggregates(self, fold: Fold) -> Mapping[str, str]:
        return key_aggregates(fold, self._changes)

    def define_silver(
        self, fold: Fold, aggregates: Mapping[str, Any] | None = None, *, with_values: bool = False
    ) -> None:
        rows = self._table.frame().alias("t")
        bounds = key_bounds(fold, aggregates or {})
        self.session.add("silver", rows if bounds is None else rows.where(bounds))

    define_whole_silver = define_silver_rows = define_silver

    def newest_lsn(self, rows: EarlierRows) -> int | None:
        self.session.add(EARLIER, self._table.frame())
        found: int | None = self.session.row(
            f"SELECT max({SPARK.quoted(rows.commit_lsn)}) AS newest FROM {EARLIER}"
        ).newest
        return found or 0

    def define_earlier(self, rows: EarlierRows) -> None:
        """Define `earlier`: the rows of files that may have a key of `needed`."""
        aggregates = key_aggregates(rows.fold, self._changes)
        bounds = None
        if aggregates:
            selected = ", ".join(f"{sql} AS {alias}" for alias, sql in aggregates.items())
            found = self.session.row(f"SELECT {selected} FROM {NEEDED}").asDict()
            bounds = key_bounds(rows.fold, found)
        frame = self._table.frame().alias("t")
        frame = frame if bounds is None else frame.where(bounds)
        for name in (EARLIER, EARLIER_VALUES):
            self.session.add(name, frame)

    def define_earlier_values(self, rows: EarlierRows, sources: str) -> None:
        """Do nothing: `define_earlier` has defined them."""

    def commit_rows(self, write: Write, fold: Fold) -> None:
        rows: DataFrame = self.session.table(
            FoldSql(fold, self.session.engine).final_rows(FOLDED, write.metadata)
        )
        match write.kind:
            case WriteKind.REPLACE_KEYS:
                assert write.condition is not None
                self._table.replace_where(write.condition, rows, write.commit)
            case WriteKind.OVERWRITE:
                self._table.overwrite(rows, write.commit)
            case _:
                self._table.append(rows, write.commit)

    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        if self._has_no_key(fold, aggregates):
            self.commit_rows(write, fold)
        else:
            bounds = None if fold.truncates else key_bounds(fold, aggregates)
            self._run(write, write.statement(bounds))

    def _has_no_key(self, fold: Fold, aggregates: Mapping[str, Any]) -> bool:
        """Return whether no file can have a changed key, by its statistics: the rows are appended then."""
        values = changed_values(fold, aggregates)
        if not values or fold.truncates or self._table.local_path is None:
            return False
        snapshot = self._table.snapshot()
        names = TableSchema.of_json(snapshot.schema_string).physical_names
        times = {names.get(c.name, c.name) for c in fold.columns if c.type.ddl == "TIMESTAMP"}
        found = {names.get(name, name): ranges for name, ranges in values.items()}
        return not any(
            may_have(file, found, times, partition_bounds(snapshot, file)) for file in snapshot.files.values()
        )

    def commit_multiset(self, write: Write, fold: Fold) -> None:
        """Delete all rows of a reduced image, and insert those that stay among the added ones."""
        sql, session = FoldSql(write.fold, self.session.engine), self.session
        inserted = session.table(f"SELECT * FROM {FOLDED}")
        inserted = inserted.drop(*(c for c in inserted.columns if c.startswith("x")))
        ranked = sql.ranked_rows("counted", "silver", write.metadata, sql.silver_values())
        kept = session.table(f"SELECT * FROM ({ranked}) AS r WHERE rank <= new_count")
        kept = kept.drop("image", "new_count", "rank").selectExpr("'I' AS op", "*")
        removed = session.table("SELECT 'D' AS op, image FROM counted WHERE new_count < silver_count")
        frame = inserted.unionByName(kept, allowMissingColumns=True)
        session.add(FOLDED, frame.unionByName(removed, allowMissingColumns=True).localCheckpoint(eager=False))
        self._run(write, write.statement())

    def _run(self, write: Write, statement: str) -> None:
        with commit_settings(self._spark, write.commit):
            self._spark.sql(statement)
