"""Delta tables under the storage root, and the offset that each records in its own log.

An offset is the `txn` action of a Delta commit: the version of a transaction id, which is an LSN. It is
committed together with the data, so the rows of a table and the LSN up to which they are complete cannot
disagree.
"""

import enum
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.delta.filesystem import move_folder, remove_folder, sync_names
from pipeline.delta.log import delta_log, newest_snapshot, offsets_in
from pipeline.delta.spark.log_store import require_log_store
from pipeline.delta.sql import quoted
from pipeline.delta.txn import OURS, TableCommit, TxnId, metadata_settings
from pipeline.errors import ConfigError, report_error
from pipeline.protocol.lsn import LSN

_PHYSICAL_NAME = "delta.columnMapping.physicalName"
# without the characters that a file system or Hadoop's globbing gives a meaning
_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in "/\\%:*?[]{}")
# Versions after which the files of a table of small appends are compacted. Delta's auto compaction considers
# what one process has written: in a new process it would compact the entire table at every commit.
COMPACTION_INTERVAL = 50
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"


def path_segment(name: str) -> str:
    """Return a name as a path segment: unchanged if it is a valid one, else percent-encoded."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return "".join(c if ord(c) > 0x7E else quote(c, safe=_SAFE) for c in name)


def local_path(url: str) -> str:
    """Return the path of a `file:` URL."""
    return url.removeprefix("file://").removeprefix("file:")


def _default_scheme(spark: SparkSession) -> str:
    session: Any = spark._jsparkSession
    return str(urlparse(session.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")).scheme)


class Lake:
    """The storage root and the Spark session that writes to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        parsed = urlparse(root)
        if not parsed.scheme and _default_scheme(spark) == "file":
            root = f"file:{os.path.abspath(root)}"
        self.root = root.rstrip("/")

    @classmethod
    def for_writing(cls, spark: SparkSession, root: str) -> "Lake":
        """Return the lake; raise LakeError if two processes could commit the same version there."""
        lake = cls(spark, root)
        if lake.local_root is not None:
            require_log_store(spark)
        return lake

    @property
    def local_root(self) -> str | None:
        """The root as a path of this machine's file system, None if it is on other storage."""
        return local_path(self.root) if urlparse(self.root).scheme == "file" else None

    def no_match(self) -> ConfigError:
        """Return the error for a `--table` that matches none of the lake's tables."""
        return ConfigError(
            f"No table of the lake {self.root} matches --table and the configuration. Run pgdelta status to "
            "list its tables, and check storage.root."
        )

    def path(self, *names: str) -> str:
        """Return a path under the root, each name one segment."""
        return "/".join([self.root, *map(path_segment, names)])

    def table(self, *names: str) -> "LakeTable":
        """Return a Delta table under the root, which need not exist."""
        return LakeTable(self.spark, self.path(*names))

    def table_at(self, path: str) -> "LakeTable":
        """Return the Delta table at a path of the lake, which need not exist."""
        return LakeTable(self.spark, path)


class Feature(enum.Enum):
    """A Delta table feature that readers must support: the property that enables it, and its value.

    Some readers outside Spark support few of them, so each is enabled only for a table that needs it.
    """

    COLUMN_MAPPING = ("delta.columnMapping.mode", "name")
    TYPE_WIDENING = ("delta.enableTypeWidening", "true")
    TIMESTAMP_NTZ = ("delta.feature.timestampNtz", "supported")


def features_of(ddl: str) -> tuple[Feature, ...]:
    """Return the features that a type needs; Delta enables them by itself only when it creates a table."""
    return (Feature.TIMESTAMP_NTZ,) if "TIMESTAMP_NTZ" in ddl else ()


class LakeTable:
    """A Delta table by path; it need not exist."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path

    def snapshot(self) -> Any:
        """Return the newest `Snapshot` of the table, Delta's object in the JVM."""
        return newest_snapshot(self.spark, self.path)

    def exists(self) -> bool:
        """Return whether the table exists."""
        return int(self.snapshot().version()) >= 0

    def version(self) -> int:
        """Return the newest version, -1 if the table does not exist."""
        return int(self.snapshot().version())

    def force_log(self) -> None:
        """Sync the names of all commits to disk, if the table is on a file system of this machine.

        A commit does so itself, but one whose writer was killed before that is visible and could still be
        lost.
        """
        if urlparse(self.path).scheme == "file":
            sync_names(Path(local_path(self.path), "_delta_log"))

    def offset(self, txn: TxnId) -> LSN | None:
        """Return the version that the table records for a transaction id, None if it has none."""
        return self.offsets().get(str(txn))

    def version_and_offset(self, txn: TxnId) -> tuple[int, LSN | None]:
        """Return the newest table version and the LSN that it records for a transaction id."""
        snapshot = self.snapshot()
        return int(snapshot.version()), self.offsets(snapshot).get(str(txn))

    def offsets(self, snapshot: Any = None) -> dict[str, LSN]:
        """Return the version recorded for each application id, in the newest snapshot or a given one."""
        found = offsets_in(self.spark, self.snapshot() if snapshot is None else snapshot)
        return {app_id: LSN(version) for app_id, version in found.items()}

    def is_empty(self) -> bool:
        """Return whether the newest version has no data files."""
        snapshot = self.snapshot()
        checksum = snapshot.checksumOpt()
        return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()) == 0

    def frame(self) -> DataFrame:
        """Return the newest version's rows."""
        return self.spark.read.format("delta").load(self.path)

    def schema(self) -> StructType:
        """Return the schema of the newest version."""
        return StructType.fromJson(json.loads(str(self.snapshot().metadata().schemaString())))

    def ensure(self, ddl: str, properties: Mapping[str, str] | None = None) -> None:
        """Create the table, empty, unless it exists."""
        writer = local_frame(self.spark, [], ddl).write.format("delta").mode("ignore")
        for name, value in (properties or {}).items():
            writer = writer.option(name, value)
        writer.option("userMetadata", json.dumps({OURS: 1, "operation": "create"})).save(self.path)

    def ensure_for_appends(self, ddl: str) -> None:
        """Create a table for `append_small` unless it exists, without Delta's auto compaction."""
        if not self.exists():
            self.ensure(ddl)
        found = self.snapshot().metadata().configuration().get(_AUTO_COMPACTION)
        if found.isDefined() and found.get() != "false":  # by the session's defaults
            self.spark.sql(f"ALTER TABLE {self.identifier} UNSET TBLPROPERTIES ('{_AUTO_COMPACTION}')")

    def append(
        self, frame: DataFrame, commit: TableCommit | None = None, *, adds_columns: bool = False
    ) -> None:
        """Append rows; Delta skips a commit whose LSN, or a later one, the table records already."""
        self._write(frame, "append", commit, {"mergeSchema": str(adds_columns).lower()})

    def append_small(self, frame: DataFrame, commit: TableCommit | None = None) -> None:
        """Append a few rows, and compact the table's files once every `COMPACTION_INTERVAL` versions."""
        before = self._cached_version()
        self.append(frame, commit)
        if self._cached_version() // COMPACTION_INTERVAL > before // COMPACTION_INTERVAL:
            # The rows are committed. A compaction that fails, as by a conflict, is left to the next interval.
            try:
                self.spark.sql(f"OPTIMIZE {self.identifier}")
            except Exception as error:
                report_error(error)

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

    def _cached_version(self) -> int:
        """Return the version that this process read or wrote last, without reading the log."""
        return int(delta_log(self.spark, self.path).unsafeVolatileSnapshot().version())

    def history(self, limit: int | None = None) -> DataFrame:
        """Return Delta's history of the table, newest first, at most `limit` commits."""
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

    def replace_with(self, other: "LakeTable", commit: TableCommit) -> None:
        """Replace the columns and rows of this table by another table's, in one commit."""
        schema = other.schema()
        types = (field.dataType.simpleString().upper() for field in schema.fields)
        features = [feature for ddl in types for feature in features_of(ddl)]
        if needs_column_mapping(schema.names):
            features.append(Feature.COLUMN_MAPPING)
        self.enable(features)
        self.overwrite(other.frame(), commit, replaces_schema=True)

    def remove(self) -> None:
        """Remove the table and its files, if it exists."""
        remove_folder(self.spark, self.path)

    def move(self, to: str) -> None:
        """Move the table's folder to a path that does not exist yet."""
        move_folder(self.spark, self.path, to)

    def _write(
        self,
        frame: DataFrame,
        mode: str,
        commit: TableCommit | None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        writer = frame.write.format("delta").mode(mode).options(**(options or {}))
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
        configuration = self.snapshot().metadata().configuration()
        values = {feature: configuration.get(feature.value[0]) for feature in features}
        return [
            feature
            for feature, value in values.items()
            if not (value.isDefined() and value.get() == feature.value[1])
        ]

    def physical_names(self) -> dict[str, str]:
        """Return the physical name of each column: its name in data files, which a rename keeps."""
        return {f.name: f.metadata.get(_PHYSICAL_NAME, f.name) for f in self.schema().fields}

    @property
    def identifier(self) -> str:
        """The table as Spark SQL names it."""
        return "delta." + quoted(self.path)


def local_frame(spark: SparkSession, rows: Sequence[Mapping[str, object]], ddl: str) -> DataFrame:
    """Return a frame of a few rows, made in the JVM, so that executors need no Python.

    Values are JSON's types and datetimes; BINARY is not supported.
    """
    text = json.dumps(rows, default=lambda value: value.isoformat())
    parsed = F.from_json(F.lit(text), f"ARRAY<STRUCT<{ddl}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(parsed))


# Delta accepts these in column names with column mapping only.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def needs_column_mapping(names: Iterable[str]) -> bool:
    """Return whether a column name needs column mapping, which some readers outside Spark refuse."""
    return any(_NEEDS_MAPPING & set(name) for name in names)
