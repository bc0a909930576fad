"""Fold pending changes onto a version of a silver table with Spark, as a frame, and write nothing.

What Delta's MERGE would do to the rows is a query here. Steps of one input follow one another on the same
frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.engine import SPARK
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.merge import GONE, Merge, merge_by_key
from pipeline.silver.fold.spark_sql import SparkSql
from pipeline.silver.fold.unchanged_values import EARLIER, EARLIER_VALUES, EarlierRows
from pipeline.silver.fold.write import FOLDED, Write, WriteKind, image_of_row
from pipeline.silver.write.step_writer import Target

_MAX_BROADCAST = 100_000  # changes


class FrameTarget(Target):
    """The rows of a silver table as a frame, which `frame` is after each write."""

    session: SparkSql

    def __init__(self, session: SparkSql, frame: DataFrame, changes: int) -> None:
        self.session = session
        self.frame = frame
        self._schema = frame.schema
        self._hint = "/*+ BROADCAST(s) */ " if changes <= _MAX_BROADCAST else ""

    def define_silver(
        self, fold: Fold, aggregates: Mapping[str, Any] | None = None, *, with_values: bool = False
    ) -> None:
        self.session.add("silver", self.frame)

    define_whole_silver = define_silver_rows = define_silver

    def newest_lsn(self, rows: EarlierRows) -> int | None:
        return None

    def define_earlier(self, rows: EarlierRows) -> None:
        for name in (EARLIER, EARLIER_VALUES):
            self.session.add(name, self.frame)

    def define_earlier_values(self, rows: EarlierRows, sources: str) -> None:
        """Do nothing: `define_earlier` has defined them."""

    def commit_rows(self, write: Write, fold: Fold) -> None:
        rows = self._complete(self.session.table(FoldSql(fold, SPARK).final_rows(FOLDED, write.metadata)))
        self.frame = rows if write.kind is WriteKind.OVERWRITE else self.frame.unionAll(rows)

    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        self.define_silver(fold)
        merge = merge_by_key(fold, write.metadata)
        stay, written = (
            self._complete(self.session.table(query))
            for query in (self._rows_that_stay(merge), self._written_rows(merge))
        )
        self.frame = stay.unionAll(written)

    def _written_rows(self, merge: Merge) -> str:
        """Return the query of the rows that replace others or are inserted, with what they keep of others."""
        source, kept = f"{FOLDED} AS s", merge.kept
        if kept:
            source += f" LEFT JOIN (SELECT *, true AS {_FOUND} FROM silver) AS t ON {merge.on}"
        columns = []
        for name, column in merge.values.items():
            value, own = f"s.{column}", SPARK.quoted(name)
            if name in kept:
                value = f"CASE WHEN {kept[name]} AND t.{_FOUND} THEN t.{own} ELSE {value} END"
            columns.append(f"{value} AS {own}")
        return f"SELECT {', '.join(columns)} FROM {source} WHERE s.op <> 'D'"

    def _rows_that_stay(self, merge: Merge) -> str:
        """Return the query of the rows of `silver` that nothing replaces, marked if they are gone."""
        if merge.marks is None:
            return f"SELECT {self._hint}t.* FROM silver AS t LEFT ANTI JOIN {FOLDED} AS s ON {merge.on}"
        columns = []
        for name in self._schema.names:
            value = f"t.{SPARK.quoted(name)}"
            if name in merge.marks:
                cases = f"WHEN {GONE} THEN s.{merge.values[name]}"
                if merge.truncated:
                    is_truncated = f"s.op IS NULL AND {merge.truncated.condition}"
                    cases += f" WHEN {is_truncated} THEN {merge.truncated.values[name]}"
                value = f"CASE {cases} ELSE {value} END"
            columns.append(f"{value} AS {SPARK.quoted(name)}")
        return (
            f"SELECT {self._hint}{', '.join(columns)} FROM silver AS t LEFT JOIN {FOLDED} AS s ON {merge.on} "
            f"WHERE s.op IS NULL OR {GONE}"
        )

    def commit_multiset(self, write: Write, fold: Fold) -> None:
        sql = FoldSql(write.fold, SPARK)
        names = [SPARK.quoted(name) for name in self._schema.names]
        own = [f"t.{name} AS {alias}" for name, alias in zip(names, self._aliases, strict=True)]
        ranked = sql.ranked_rows("counted", "silver", write.metadata, own)
        back = ", ".join(f"{alias} AS {name}" for name, alias in zip(names, self._aliases, strict=True))
        kept = self.session.table(f"SELECT {back} FROM ({ranked}) AS r WHERE rank <= new_count")
        image = image_of_row(write.fold.columns, "t")
        reduced = "SELECT image FROM counted WHERE new_count < silver_count"
        others = self.session.table(
            f"SELECT t.* FROM silver AS t LEFT ANTI JOIN ({reduced}) AS r ON {image} = r.image"
        )
        added = self._complete(self.session.table(sql.final_rows(FOLDED, write.metadata)))
        self.frame = self._complete(others).unionAll(self._complete(kept)).unionAll(added)

    @property
    def _aliases(self) -> list[str]:
        return [f"own{i}" for i in range(len(self._schema.names))]

    def _complete(self, rows: DataFrame) -> DataFrame:
        """Return rows with all columns of the table, in its order and with its types."""
        found = set(rows.columns)
        columns = []
        for field in self._schema.fields:
            column = F.col(SPARK.quoted(field.name)) if field.name in found else F.lit(None)
            columns.append(column.cast(field.dataType).alias(field.name))
        return rows.select(*columns)


_FOUND = "`pgdelta found`"
