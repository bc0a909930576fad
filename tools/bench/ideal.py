"""The best that the same machine can do with Spark alone: warm MERGEs of net changes, and plain writes.

A MERGE is handed the net changes ready-made and typed: it neither reads bronze nor folds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 4  # tables that are merged side by side


class Ideal:
    """Spark in this process; it starts when it is needed first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_started = False

    @cached_property
    def _spark(self) -> SparkSession:
        from pipeline.delta.spark.session import start_session

        self._has_started = True
        return start_session("bench")

    def stop(self) -> None:
        """End Spark if it was started."""
        if self._has_started:
            self._spark.stop()

    def copy_table(self, table: Path, target: Path) -> None:
        """Write the rows of a Delta table as another one."""
        self._spark.read.format("delta").load(str(table)).write.format("delta").save(str(target))

    def write(self, table: Path, target: Path) -> float:
        """Write the rows of a Delta table as two others; return the seconds of the second."""
        seconds = 0.0
        for name in ("warm", "ideal"):
            began = time.monotonic()
            self.copy_table(table, target / name)
            seconds = time.monotonic() - began
        return seconds

    def merge_into_empty(self, table: Path, target: Path, key: str) -> float:
        """Merge the rows of a Delta table into two empty ones; return the seconds of the second."""
        rows = self._spark.read.format("delta").load(str(table))
        rows.selectExpr("*", "'U' AS op").write.parquet(str(target / "net"))
        seconds = 0.0
        for name in ("warm", "ideal"):
            rows.limit(0).write.format("delta").save(str(target / name))
            seconds = self.merge({target / name: target / "net"}, key)
        return seconds

    def write_net_changes(self, old: Path, new: Path, key: str, target: Path) -> int:
        """Write what differs between two Delta tables as Parquet with an `op` (U or D); return the rows."""
        before = self._spark.read.format("delta").load(str(old))
        after = self._spark.read.format("delta").load(str(new))
        upserts = after.exceptAll(before).selectExpr("*", "'U' AS op")
        deletes = before.join(after, key, "left_anti").selectExpr("*", "'D' AS op")
        upserts.unionByName(deletes).write.parquet(str(target))
        return self._spark.read.parquet(str(target)).count()

    def merge(self, changes: Mapping[Path, Path], key: str) -> float:
        """Merge the net changes of each table (by path), some side by side; return the seconds of all."""
        spark = self._spark

        def merge_one(table: Path, net: Path, view: str) -> None:
            spark.read.parquet(str(net)).createOrReplaceTempView(view)
            spark.sql(
                f"MERGE INTO delta.`{table}` t USING {view} s ON t.{key} = s.{key} "
                "WHEN MATCHED AND s.op = 'D' THEN DELETE WHEN MATCHED THEN UPDATE SET * "
                "WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT *"
            )

        began = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            merges = [
                pool.submit(merge_one, table, net, f"net_{number}")
                for number, (table, net) in enumerate(changes.items())
            ]
        for each in merges:
            each.result()
        return time.monotonic() - began

    def write_copied_rows(self, changes: Path, target: Path) -> tuple[int, float]:
        """Write the copied rows of bronze as Delta; return how many there are, and the seconds."""
        spark = self._spark
        copied = spark.read.format("delta").load(str(changes)).where("op = 'R'")
        files, rows = copied.inputFiles(), copied.count()
        spark.range(1000).write.format("delta").save(f"{target}-warm")
        began = time.monotonic()
        spark.read.parquet(*files).write.format("delta").save(str(target))
        return rows, time.monotonic() - began
