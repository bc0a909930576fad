"""Run the SQL of the fold in Spark: relations are temporary views of one session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.engine import SPARK
from pipeline.silver.fold.sql_session import SqlSession


class SparkSql(SqlSession):
    """The views of one Spark session, which nothing else may use meanwhile."""

    engine = SPARK

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._names: set[str] = set()

    def define(self, name: str, query: str) -> None:
        self.add(name, self.spark.sql(query))

    def compute(self, name: str, query: str) -> None:
        # A MERGE reads its source twice, and refuses a cached one.
        self.add(name, self.spark.sql(query).localCheckpoint(eager=False))

    def row(self, query: str) -> Any:
        row = self.spark.sql(query).head()
        assert row is not None
        return row

    def is_empty(self, query: str) -> bool:
        return self.spark.sql(query).isEmpty()

    def table(self, query: str) -> DataFrame:
        return self.spark.sql(query)

    def add(self, name: str, frame: DataFrame) -> None:
        """Name a frame."""
        frame.createOrReplaceTempView(name)
        self._names.add(name)

    def clear(self) -> None:
        for name in self._names:
            self.spark.catalog.dropTempView(name)
        self._names.clear()
