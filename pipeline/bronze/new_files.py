"""The files that the commits between two offsets added to `bronze/changes`, if they did nothing else.

Reads the commits of Delta's log instead of all files of the newest version, and no data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pipeline.bronze.schema import CHANGES, spark_ddl
from pipeline.delta.log import json_object
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import local_path
from pipeline.delta.txn import TxnId
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.bronze.log import BronzeOffset

MAX_FILES = 32  # more are listed by a job of their own
MAX_COMMITS = 100


@dataclass(frozen=True, slots=True)
class NewFiles:
    """All files that hold rows whose end LSN lies in (start_lsn, end_lsn], and how many rows they have."""

    start_lsn: LSN
    end_lsn: LSN
    paths: tuple[str, ...]
    rows: int = 0

    def covers(self, start_lsn: LSN, end_lsn: LSN) -> bool:
        """Return whether these files hold all rows of (start_lsn, end_lsn]."""
        return bool(self.paths) and self.start_lsn <= start_lsn and end_lsn <= self.end_lsn

    def without(self, path: str) -> NewFiles:
        """Return the same but for a file at a path on this machine."""
        return replace(self, paths=tuple(each for each in self.paths if local_path(each) != path))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the files' rows."""
        # The name of a lake may hold what Spark would expand as a glob, which may match other lakes.
        reader = spark.read.option("__globPaths__", "false")
        return reader.schema(spark_ddl(CHANGES)).parquet(*self.paths)


def new_files_between(
    changes: LakeTable, txn: TxnId, start: BronzeOffset, end: BronzeOffset
) -> NewFiles | None:
    """Return the files between two offsets, None if the commits did more than add a few files.

    The commit at `start` must be the one that records its LSN: rows of earlier commits are of transactions
    that ended before that LSN.
    """
    if not 0 < end.version - start.version <= MAX_COMMITS:
        return None
    paths: list[str] = []
    rows = 0
    is_recorded = False
    try:
        for version, actions in changes.actions_after(start.version - 1):
            if version > end.version:
                break
            for action in actions:
                if version == start.version:
                    txn_action = action.get("txn")
                    if txn_action is not None and txn_action["appId"] == str(txn):
                        is_recorded = LSN(txn_action["version"]) == start.lsn
                elif "remove" in action:
                    return None
                elif (added := action.get("add")) is not None:
                    if not added["dataChange"]:
                        return None
                    paths.append(f"{changes.path}/{unquote(added['path'])}")
                    rows += json_object(added.get("stats") or "{}").get("numRecords", 0)
    except LakeError:  # the log is incomplete: reading the table raises a better error
        return None
    if not is_recorded or len(paths) > MAX_FILES:
        return None
    return NewFiles(start.lsn, end.lsn, tuple(paths), rows)
