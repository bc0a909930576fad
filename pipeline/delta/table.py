"""Delta tables under the storage root, and the offset that each records in its own log.

An offset is the `txn` action of a Delta commit: the version of a transaction id, which is an LSN. It is
committed together with the data, so the rows of a table and the LSN up to which they are complete cannot
disagree.

On a file system of this machine and on object stores, logs and small tables are read and written without
Spark; on other storage everything goes through Spark. What needs a frame starts the session.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from pipeline.delta import native_write
from pipeline.delta.features import Feature as Feature
from pipeline.delta.features import features_of as features_of
from pipeline.delta.features import needs_column_mapping as needs_column_mapping
from pipeline.delta.filesystem import default_scheme, forget_logs, is_local, move_folder, remove_folder
from pipeline.delta.lake_format import verify_format
from pipeline.delta.log import Actions, LoggedOperation, commit_info, logged_operations
from pipeline.delta.log_retention import short_log
from pipeline.delta.names import path_segment as path_segment
from pipeline.delta.native_commit import Action, Operation, Reads
from pipeline.delta.rows import Where, filter_rows, read_rows
from pipeline.delta.schema import TableSchema
from pipeline.delta.spark.frames import Rows, local_frame
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.sql import quoted
from pipeline.delta.store.hadoop import hadoop_settings
from pipeline.delta.store.mirror import fetch_all, use_store
from pipeline.delta.store.store import Location, is_store
from pipeline.delta.sync import sync_names
from pipeline.delta.table_log import Snapshot, TableLog, data_path, local_path
from pipeline.delta.txn import OURS, TableCommit, TxnId, metadata_settings
from pipeline.errors import report_error
from pipeline.protocol.lsn import LSN

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

# Versions after which the files of a table of small appends are compacted. Delta's auto compaction considers
# what one process has written: in a new process it would compact the entire table at every commit.
COMPACTION_INTERVAL = 50
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"


class Lake:
    """The storage root, and the Spark session that reads and writes what is not small."""

    def __init__(
        self,
        location: str | Location,
        spark: SparkSession | SparkProvider | None = None,
        *,
        application: str = "pgdelta",
        commits: bool = False,
        verifies: bool = True,
    ) -> None:
        """Use a session, or start one of the application's name where it is needed.

        With `commits` the session must be one whose commits to the root exclude those of others. With
        `verifies`, raises ConfigError if the lake's format is not known (`verify_format`).
        """
        root, options = (location, {}) if isinstance(location, str) else (location.root, location.options)
        use_store(root, options)
        parsed = urlparse(root)
        if (
            not parsed.scheme
            and default_scheme(None if isinstance(spark, SparkProvider) else spark) == "file"
        ):
            root = f"file:{os.path.abspath(root)}"
        self.root = root.rstrip("/")
        if isinstance(spark, SparkProvider):
            self.sessions = spark
        else:
            scheme, hadoop = urlparse(self.root).scheme, hadoop_settings(self.root, options)
            self.sessions = SparkProvider(
                spark, name=application, scheme=scheme, commits=commits, hadoop=hadoop
            )
        if verifies:
            verify_format(self)

    @classmethod
    def for_writing(
        cls, location: str | Location, spark: SparkSession | None = None, *, application: str = "pgdelta"
    ) -> Lake:
        """Return the lake; raise LakeError if two processes could commit the same version there."""
        lake = cls(location, spark, application=application, commits=True)
        if spark is not None:
            lake.sessions.check()
        return lake

    @property
    def spark(self) -> SparkSession:
        """The Spark session, which starts now if there is none yet."""
        return self.sessions.session

    @property
    def local_root(self) -> str | None:
        """The root as a path of this machine's file system, None if it is on other storage."""
        return local_path(self.root) if urlparse(self.root).scheme == "file" else None

    @property
    def working_root(self) -> str | None:
        """The local root, or the folder of what this process has of a root on an object store.

        None if only Spark reads and writes the root's storage.
        """
        return local_path(self.root) if is_store(self.root) else self.local_root

    def path(self, *names: str) -> str:
        """Return a path under the root, each name one segment."""
        return "/".join([self.root, *map(path_segment, names)])

    def table(self, *names: str) -> LakeTable:
        """Return a Delta table under the root, which need not exist."""
        return LakeTable(self.path(*names), self.sessions)

    def table_at(self, path: str) -> LakeTable:
        """Return the Delta table at a path of the lake, which need not exist."""
        return LakeTable(path, self.sessions)

    def in_session(self, spark: SparkSession | SparkProvider) -> Lake:
        """Return the same lake in another session."""
        if not isinstance(spark, SparkProvider):
            return Lake(self.root, spark)
        lake = copy(self)
        lake.sessions = spark
        return lake


class LakeTable:
    """A Delta table by path; it need not exist."""

    def __init__(self, path: str, spark: SparkSession | SparkProvider | None = None) -> None:
        self.path = path
        self.sessions = spark if isinstance(spark, SparkProvider) else SparkProvider(spark)
        has_copy = is_local(path) or is_store(path)
        self.local_path = local_path(path) if has_copy else None

    @property
    def spark(self) -> SparkSession:
        """The Spark session, which starts now if there is none yet."""
        return self.sessions.session

    @property
    def folder(self) -> Path:
        """The folder of a table on this machine's file system."""
        assert self.local_path is not None
        return Path(self.local_path)

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version, default the newest, read from the log now.

        The newest version of a table that does not exist is -1. Raises LakeError for a missing version.
        """
        if self.local_path is None:
            from pipeline.delta.spark.log import snapshot_of

            return snapshot_of(self.spark, self.path, version)
        log = TableLog.of(self.local_path)
        return log.snapshot() if version is None else log.snapshot_at(version)

    def exists(self) -> bool:
        """Return whether the table exists."""
        return self.snapshot().version >= 0

    def version(self) -> int:
        """Return the newest version, -1 if the table does not exist."""
        return self.snapshot().version

    def force_log(self) -> None:
        """Sync the names of all commits to disk, if the table is on a file system of this machine.

        A commit does so itself, but one whose writer was killed before that is visible and could still be
        lost.
        """
        if self.local_path is not None and not is_store(self.path):
            sync_names(self.folder / "_delta_log")

    def forget_log(self) -> None:
        """Read the log from its files again: Spark may have cached that of another table at this path."""
        forget_logs(self.sessions, self.path)

    def offset(self, txn: TxnId) -> LSN | None:
        """Return the version that the table records for a transaction id, None if it has none."""
        return self.version_and_offset(txn)[1]

    def version_and_offset(self, txn: TxnId) -> tuple[int, LSN | None]:
        """Return the newest table version and the LSN that it records for a transaction id."""
        snapshot = self.snapshot()
        recorded = snapshot.offsets.get(str(txn))
        return snapshot.version, None if recorded is None else LSN(recorded)

    def offsets(self, snapshot: Snapshot | None = None) -> dict[str, LSN]:
        """Return the version recorded for each application id, in the newest snapshot or a given one."""
        found = (self.snapshot() if snapshot is None else snapshot).offsets
        return {app_id: LSN(version) for app_id, version in found.items()}

    def is_empty(self) -> bool:
        """Return whether the newest version has no data files."""
        return self.snapshot().file_count == 0

    def row_count(self) -> int:
        """Return how many rows the newest version has, 0 if the table does not exist."""
        count = self.snapshot().row_count
        return self.frame().count() if count is None else count

    def actions_after(self, version: int, *, is_whole: bool = True) -> Iterator[tuple[int, Actions]]:
        """Yield the commits after a version in order, each with its actions as JSON.

        If the log lacks versions, LakeError is raised with `is_whole`; without it they are left out.
        """
        if self.local_path is None:
            from pipeline.delta.spark.log import actions_after

            return actions_after(self.spark, self.path, version, is_whole=is_whole)
        return TableLog.of(self.local_path).actions_after(version, is_whole=is_whole)

    def operations_after(self, version: int) -> Iterator[LoggedOperation]:
        """Yield the commits after a version that the log still has, in order."""
        return logged_operations(self.actions_after(version, is_whole=False))

    def newest_commits(self, version: int | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the `commitInfo` of the commits up to a version that the log still has, newest first."""
        newest = self.snapshot().version if version is None else version
        if self.local_path is None:
            columns = ("version", "operation", "userMetadata", "engineInfo")
            for limit in (100, None):  # in most cases the newest ones are enough
                found = self.history(limit).where(f"version <= {newest}")
                for row in found.selectExpr(*columns, "unix_millis(timestamp) AS timestamp").collect():
                    yield row.asDict()
            return
        log = TableLog.of(self.local_path)
        for each in range(newest, -1, -1):
            try:
                yield commit_info(log.actions(each)) or {}
            except FileNotFoundError:
                return

    def frame(self, version: int | None = None) -> DataFrame:
        """Return the rows of a version, default the newest."""
        reader = self.spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)

    def rows(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | Where | None = None,
        snapshot: Snapshot | None = None,
    ) -> pa.Table:
        """Return the rows of a small table, in memory: of the newest version, or of a snapshot.

        `where` may use all columns.
        """
        if self.local_path is not None:
            return read_rows(self.local_path, snapshot or self.snapshot(), columns, where)
        table = filter_rows(self.frame().toArrow(), where)
        return table if columns is None else table.select(list(columns))

    def file_paths(self) -> list[str] | None:
        """Return the data files of a table on this machine, None if rows are deleted in some of them."""
        assert self.local_path is not None
        files = self.snapshot().files.values()
        if any(add.get("deletionVector") for add in files):
            return None
        return fetch_all(data_path(self.local_path, add["path"]) for add in files)

    def scan(self, columns: Sequence[str], snapshot: Snapshot) -> Iterator[pa.Table]:
        """Yield rows of a version of a table on this machine, file by file or all at once."""
        assert self.local_path is not None
        files = snapshot.files
        if any(add.get("deletionVector") for add in files.values()):
            yield read_rows(self.local_path, snapshot, columns)
            return
        for key, add in files.items():
            yield read_rows(self.local_path, snapshot.with_files({key: add}), columns)

    def schema(self) -> TableSchema:
        """Return the columns of the newest version."""
        return TableSchema.of_json(self.snapshot().schema_string)

    def ensure(self, ddl: str, properties: Mapping[str, str] | None = None) -> None:
        """Create the table, empty, unless it exists."""
        metadata = json.dumps({OURS: 1, "operation": "create"})
        if self.local_path is not None and native_write.PLAIN_PROPERTIES.issuperset(properties or ()):
            if not self.exists():
                native_write.create(self.folder, TableSchema.of_ddl(ddl), dict(properties or {}), metadata)
            return
        writer = local_frame(self.spark, [], ddl).write.format("delta").mode("ignore")
        for name, value in (properties or {}).items():
            writer = writer.option(name, value)
        writer.option("userMetadata", metadata).save(self.path)

    def ensure_for_appends(self, ddl: str) -> None:
        """Create a table for `append_rows` with a short log unless it exists, without auto compaction."""
        snapshot = self.snapshot()
        if snapshot.version < 0:
            self.ensure(ddl, short_log())
            snapshot = self.snapshot()
        if snapshot.configuration.get(_AUTO_COMPACTION, "false") != "false":  # by the session's defaults
            self.spark.sql(f"ALTER TABLE {self.identifier} UNSET TBLPROPERTIES ('{_AUTO_COMPACTION}')")

    def append_rows(
        self, rows: Rows | pa.Table, ddl: str, commit: TableCommit | None = None, *, compacts: bool = False
    ) -> None:
        """Append a few rows, with columns of `ddl`, unless the table, which exists, records the commit.

        With `compacts` the table's files are compacted once every `COMPACTION_INTERVAL` versions.
        """
        snapshot = self.snapshot()
        if not self.writes_natively(snapshot):
            frame = local_frame(self.spark, rows, ddl)
            self.append(frame, commit)
            version = snapshot.version + 1
        elif commit is not None and snapshot.offsets.get(str(commit.txn), -1) >= commit.lsn:
            return
        else:
            version = native_write.append(self.folder, snapshot, rows, commit)
        if compacts and version // COMPACTION_INTERVAL > snapshot.version // COMPACTION_INTERVAL:
            # The rows are committed. A compaction that fails, as by a conflict, is left to the next interval.
            try:
                self.compact_rows()
            except Exception as error:
                report_error(error)

    def overwrite_rows(
        self,
        rows: Rows | pa.Table,
        ddl: str,
        *,
        replaces_schema: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Replace all rows by a few, in one commit, and with `replaces_schema` the columns by those of `ddl`.

        Without a snapshot that the commit follows, creates the table, with a short log, unless it exists.
        """
        if self.local_path is not None and snapshot is None:
            self.ensure(ddl, short_log())
        snapshot = snapshot or self.snapshot()
        if not self.writes_natively(snapshot, removes=True):
            frame = local_frame(self.spark, rows, ddl)
            self.overwrite(frame, None, replaces_schema=replaces_schema)
        else:
            schema = TableSchema.of_ddl(ddl) if replaces_schema else None
            native_write.overwrite(self.folder, snapshot, rows, schema)

    def delete_rows(self, where: pc.Expression, condition: str, columns: Sequence[str]) -> None:
        """Delete the rows that satisfy a condition on columns, given as an expression and as SQL.

        Files are read one by one, completely only if some of their rows stay.
        """
        snapshot = self.snapshot()
        if self.writes_natively(snapshot, removes=True):
            native_write.delete(self.folder, snapshot, where, condition, columns)
        else:
            self.spark.sql(f"DELETE FROM {self.identifier} WHERE {condition}")

    def compact_rows(self) -> None:
        """Compact the files of a small table into one."""
        snapshot = self.snapshot()
        if self.writes_natively(snapshot, removes=True):
            native_write.compact(self.folder, snapshot)
        else:
            self.spark.sql(f"OPTIMIZE {self.identifier}")

    def commit(
        self,
        snapshot: Snapshot,
        actions: Sequence[Action],
        versions: Mapping[str, int],
        operation: Operation,
        reads: Reads | None = None,
    ) -> int:
        """Commit actions that follow from a snapshot of a table on this machine, with versions by app id.

        Returns the table's version. Raises SameWriteError or ConflictError as `native_commit` does.
        """
        return native_write.commit_actions(self.folder, snapshot, actions, versions, operation, reads)

    def writes_natively(self, snapshot: Snapshot, *, removes: bool = False) -> bool:
        """Return whether a table exists on this machine whose rows are written without Spark, as they are."""
        return self.local_path is not None and native_write.writes_rows(snapshot, removes=removes)

    def append(
        self, frame: DataFrame, commit: TableCommit | None = None, *, adds_columns: bool = False
    ) -> None:
        """Append rows; Delta skips a commit whose LSN, or a later one, the table records already."""
        self._write(frame, "append", commit, {"mergeSchema": str(adds_columns).lower()})

    def compact(self) -> tuple[int, int]:
        """Compact small files; return how many files were added and removed."""
        row = self.spark.sql(f"OPTIMIZE {self.identifier}").head()
        assert row is not None
        return int(row.metrics.numFilesAdded), int(row.metrics.numFilesRemoved)

    def vacuum(self) -> int:
        """Remove files that no version within the table's retention needs; return how many."""
        count = self.spark.sql(f"VACUUM {self.identifier} DRY RUN").count()
        self.spark.sql(f"VACUUM {self.identifier}").collect()
        return count

    def history(self, limit: int | None = None) -> DataFrame:
        """Return Delta's history of the table, newest first, at most `limit` commits."""
        from delta.tables import DeltaTable

        table = DeltaTable.forPath(self.spark, self.path)
        return table.history() if limit is None else table.history(limit)

    def overwrite(
        self, frame: DataFrame, commit: TableCommit | None, *, replaces_schema: bool = False
    ) -> None:
        """Replace all rows in one commit, and with `replaces_schema` the schema too."""
        self._write(frame, "overwrite", commit, {"overwriteSchema": str(replaces_schema).lower()})

    def replace_where(self, condition: str, frame: DataFrame, commit: TableCommit) -> None:
        """Replace the rows that satisfy a condition by rows that satisfy it, in one commit."""
        self._write(frame, "overwrite", commit, {"replaceWhere": condition})

    def replace_with(self, other: LakeTable, commit: TableCommit | None) -> None:
        """Replace the columns, partitions and rows of this table by another table's, in one commit."""
        schema = other.schema()
        features = [feature for field in schema.fields for feature in features_of(field.ddl)]
        if needs_column_mapping(schema.names):
            features.append(Feature.COLUMN_MAPPING)
        if self.exists():
            self.enable(features)
            features = []  # a new table begins with them
        options = {"overwriteSchema": "true"} | dict(feature.value for feature in features)
        partitions = other.snapshot().partition_columns
        self._write(other.frame(), "overwrite", commit, options, partition_by=partitions)

    def replace_rows(self, frame: DataFrame, commit: TableCommit | None, partition_by: Sequence[str]) -> None:
        """Replace the columns, partitions and rows of the table by those of a frame, in one commit."""
        self._write(frame, "overwrite", commit, {"overwriteSchema": "true"}, partition_by=partition_by)

    def remove(self) -> None:
        """Remove the table and its files, if it exists."""
        remove_folder(self.sessions, self.path)

    def move(self, to: str, record: Callable[[], None] = lambda: None) -> None:
        """Move the table's folder to a path that does not exist yet, and record that (`move_folder`)."""
        move_folder(self.sessions, self.path, to, record)

    def _write(
        self,
        frame: DataFrame,
        mode: str,
        commit: TableCommit | None,
        options: Mapping[str, str] | None = None,
        *,
        partition_by: Sequence[str] = (),
    ) -> None:
        writer = frame.write.format("delta").mode(mode).options(**(options or {}))
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        if commit:
            writer = writer.option("txnAppId", str(commit.txn)).option("txnVersion", str(int(commit.lsn)))
            writer = writer.option("userMetadata", commit.user_metadata)
        writer.save(self.path)

    def run(self, statement: str, operation: str | None = None) -> None:
        """Run a statement on the table; its commit records that pgdelta made it, and the operation."""
        settings = metadata_settings(self.spark, {"operation": operation} if operation else {})
        with settings:
            self.spark.sql(statement)

    def enable(self, features: Iterable[Feature]) -> None:
        """Enable table features that are not enabled yet; readers must support them from then on."""
        for feature in self.missing_features(features):
            self.spark.sql(self.enable_statement(feature))

    def enable_statement(self, feature: Feature) -> str:
        """Return the SQL that enables a table feature."""
        key, value = feature.value
        return f"ALTER TABLE {self.identifier} SET TBLPROPERTIES ('{key}' = '{value}')"

    def missing_features(self, features: Iterable[Feature]) -> list[Feature]:
        """Return those of the features that the table does not have; all if it does not exist."""
        configuration = self.snapshot().configuration
        return [feature for feature in features if configuration.get(feature.value[0]) != feature.value[1]]

    def physical_names(self) -> dict[str, str]:
        """Return the physical name of each column: its name in data files, which a rename keeps."""
        return self.schema().physical_names

    @property
    def identifier(self) -> str:
        """The table as Spark SQL names it."""
        return "delta." + quoted(self.path)
