"""Frames of a few rows, made in the JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Rows = Sequence[Mapping[str, object]]
"""A few rows by column name: JSON's types and datetimes."""


def local_frame(spark: SparkSession, rows: Rows | pa.Table, ddl: str) -> DataFrame:
    """Return a frame of a few rows, made in the JVM, so that executors need no Python.

    Values are JSON's types and datetimes; BINARY is not supported.
    """
    from pyspark.sql import functions as F

    rows = rows if isinstance(rows, Sequence) else rows.to_pylist()
    text = json.dumps(rows, default=lambda value: value.isoformat())
    parsed = F.from_json(F.lit(text), f"ARRAY<STRUCT<{ddl}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(parsed))


def in_session(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a frame as one of another session of the same application."""
    from pyspark.sql import DataFrame as Frame

    plan = frame._jdf.queryExecution().analyzed()
    datasets = spark._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]
    return Frame(datasets.ofRows(spark._jsparkSession, plan), spark)
