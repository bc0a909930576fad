"""The changes between two offsets of bronze, read from the files that its commits added.

To read a Delta table, Delta computes which files its newest version has: after every commit that is a job
over the log. If the commits since an offset only added files, these are all there is to read.
"""

from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from pipeline.bronze.schema import CHANGES, spark_ddl
from pipeline.delta.log import JVM_ERRORS, action_name, actions_after
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TxnId
from pipeline.protocol.lsn import LSN

MOST_FILES = 32  # more are listed by a job of their own
MOST_COMMITS = 100


@dataclass(frozen=True, slots=True)
class BronzeOffset:
    """A state of bronze: in this version `changes` is complete up to an LSN."""

    version: int
    lsn: LSN


@dataclass(frozen=True, slots=True)
class NewFiles:
    """All files that hold rows whose end LSN lies in (start_lsn, end_lsn]."""

    start_lsn: LSN
    end_lsn: LSN
    paths: tuple[str, ...]

    def covers(self, start_lsn: LSN, end_lsn: LSN) -> bool:
        """Return whether these files hold all rows of (start_lsn, end_lsn]."""
        return bool(self.paths) and self.start_lsn <= start_lsn and end_lsn <= self.end_lsn

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the files' rows."""
        # The name of a lake may hold what Spark would expand as a glob, which may match other lakes.
        reader = spark.read.option("__globPaths__", "false")
        return reader.schema(spark_ddl(CHANGES)).parquet(*self.paths)


def new_files_between(
    changes: LakeTable, txn: TxnId, start: BronzeOffset, end: BronzeOffset
) -> NewFiles | None:
    """Return the files between two offsets, None if the commits did more than add a few files.

    The commit at `start` has to be the one that records its LSN: rows of earlier commits are of transactions
    that ended before that LSN.
    """
    if not 0 < end.version - start.version <= MOST_COMMITS:
        return None
    paths: list[str] = []
    is_recorded = False
    try:
        for version, actions in actions_after(changes.spark, changes.path, start.version - 1, is_whole=True):
            if version > end.version:
                break
            for action in actions:
                kind = action_name(action)
                if version == start.version:
                    if kind == "SetTransaction" and action.appId() == str(txn):
                        is_recorded = LSN(action.version()) == start.lsn
                elif kind == "RemoveFile" or (kind == "AddFile" and not action.dataChange()):
                    return None
                elif kind == "AddFile":
                    paths.append(f"{changes.path}/{unquote(action.path())}")
    except JVM_ERRORS:  # a log that is not whole any more: reading the table raises a better error
        return None
    if not is_recorded or len(paths) > MOST_FILES:
        return None
    return NewFiles(start.lsn, end.lsn, tuple(paths))
