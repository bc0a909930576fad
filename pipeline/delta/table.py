"""Delta tables under the storage root, and the position that each carries in its own log.

A position is the `txn` action of a Delta commit: application id → version, the version being an LSN. It is
written in the same commit as the data, so what a table holds and how far it is complete cannot disagree.
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
# What a file system or Hadoop's globbing takes for something else than a name.
_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in "/\\%:*?[]{}")
# After so many versions the files of a table of small appends are merged. Delta's own compaction goes by what
# one process wrote: begun anew, it would merge all that there is at every commit.
MERGED_EACH = 50
_AUTO_COMPACTION = "delta.autoOptimize.autoCompact"


def path_segment(name: str) -> str:
    """Return the name unchanged where it is a valid path segment, else percent-encoded."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return "".join(c if ord(c) > 0x7E else quote(c, safe=_SAFE) for c in name)


def local_path(url: str) -> str:
    """Return a `file:` URL as a path of this machine."""
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
        """Return the lake; LakeError where commits of two processes would not exclude each other there."""
        lake = cls(spark, root)
        if lake.local_root is not None:
            require_log_store(spark)
        return lake

    @property
    def local_root(self) -> str | None:
        """Return the root as a path of this machine's file system, None where it is elsewhere."""
        return local_path(self.root) if urlparse(self.root).scheme == "file" else None

    def no_match(self) -> ConfigError:
        """Return what to say where `--table` matches none of the lake's tables, or the lake has none."""
        return ConfigError(
            f"no table of the lake {self.root} matches --table and the configuration: see pgdelta status for "
            "the tables, and whether this is the lake that you mean"
        )

    def path(self, *names: str) -> str:
        """Return the path of what lies under the root, each name one segment."""
        return "/".join([self.root, *map(path_segment, names)])

    def table(self, *names: str) -> "LakeTable":
        """Return the Delta table under the root, be it there or not."""
        return LakeTable(self.spark, self.path(*names))

    def table_at(self, path: str) -> "LakeTable":
        """Return the Delta table at a path of the lake, be it there or not."""
        return LakeTable(self.spark, path)


class Feature(enum.Enum):
    """A Delta table feature that readers have to know: the property that turns it on, and its value.

    Readers outside Spark refuse some of them, so each is turned on only for a table that needs it.
    """

    COLUMN_MAPPING = ("delta.columnMapping.mode", "name")
    TYPE_WIDENING = ("delta.enableTypeWidening", "true")
    TIMESTAMP_NTZ = ("delta.feature.timestampNtz", "supported")


def features_of(ddl: str) -> tuple[Feature, ...]:
    """Return what a type needs: Delta turns it on by itself only where a table is created."""
    return (Feature.TIMESTAMP_NTZ,) if "TIMESTAMP_NTZ" in ddl else ()


class LakeTable:
    """One Delta table by path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path

    def snapshot(self) -> Any:
        """Return the newest `Snapshot` of the table's log, Delta's own object in the JVM."""
        return newest_snapshot(self.spark, self.path)

    def exists(self) -> bool:
        """Say whether a Delta table is there."""
        return int(self.snapshot().version()) >= 0

    def version(self) -> int:
        """Return the newest version, -1 where there is no table."""
        return int(self.snapshot().version())

    def force_log(self) -> None:
        """Force the names of all commits to disk, where the table is on a file system of this machine.

        A commit does so itself. One whose writer died before that can be read, and could still be lost.
        """
        if urlparse(self.path).scheme == "file":
            sync_names(Path(local_path(self.path), "_delta_log"))

    def offset(self, txn: TxnId) -> LSN | None:
        """Return the LSN that this application last recorded, None where it recorded none."""
        return self.offsets().get(str(txn))

    def version_and_offset(self, txn: TxnId) -> tuple[int, LSN | None]:
        """Return the newest version and the LSN recorded in it, read from one snapshot."""
        snapshot = self.snapshot()
        return int(snapshot.version()), self.offsets(snapshot).get(str(txn))

    def offsets(self, snapshot: Any = None) -> dict[str, LSN]:
        """Return what each application last recorded (Delta's `txn` actions): now, or in a snapshot."""
        found = offsets_in(self.spark, self.snapshot() if snapshot is None else snapshot)
        return {app_id: LSN(version) for app_id, version in found.items()}

    def is_empty(self) -> bool:
        """Say whether the newest version holds no data files."""
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
        """Create the table empty unless it is there."""
        writer = local_frame(self.spark, [], ddl).write.format("delta").mode("ignore")
        for name, value in (properties or {}).items():
            writer = writer.option(name, value)
        writer.option("userMetadata", json.dumps({OURS: 1, "operation": "create"})).save(self.path)

    def ensure_growing(self, ddl: str) -> None:
        """Create the table of small appends empty unless it is there; Delta does not compact it by itself."""
        if not self.exists():
            self.ensure(ddl)
        found = self.snapshot().metadata().configuration().get(_AUTO_COMPACTION)
        if found.isDefined() and found.get() != "false":  # an older release, or the session, asked for it
            self.spark.sql(f"ALTER TABLE {self.identifier} UNSET TBLPROPERTIES ('{_AUTO_COMPACTION}')")

    def append(
        self, frame: DataFrame, commit: TableCommit | None = None, *, adds_columns: bool = False
    ) -> None:
        """Append rows; skipped by Delta where the table already records this commit's LSN or a later one."""
        self._write(frame, "append", commit, {"mergeSchema": str(adds_columns).lower()})

    def append_few(
        self, frame: DataFrame, commit: TableCommit | None = None, *, adds_columns: bool = False
    ) -> None:
        """Append as `append` does; where the version gets to a multiple of fifty, merge the small files."""
        before = self._last_version()
        self.append(frame, commit, adds_columns=adds_columns)
        if self._last_version() // MERGED_EACH > before // MERGED_EACH:
            # The rows are committed. Who loses against another writer leaves it to the next multiple.
            try:
                self.spark.sql(f"OPTIMIZE {self.identifier}")
            except Exception as error:
                report_error(error)

    def merge_files(self) -> tuple[int, int]:
        """Merge small files into larger ones; return how many were written and how many these replace."""
        row = self.spark.sql(f"OPTIMIZE {self.identifier}").head()
        assert row is not None
        return int(row.metrics.numFilesAdded), int(row.metrics.numFilesRemoved)

    def vacuum(self) -> int:
        """Remove the files that left the table longer ago than its retention; return how many."""
        found = self.spark.sql(f"VACUUM {self.identifier} DRY RUN").count()
        self.spark.sql(f"VACUUM {self.identifier}").collect()
        return found

    def _last_version(self) -> int:
        """Return the version that this process read or wrote last; the log is not asked."""
        return int(delta_log(self.spark, self.path).unsafeVolatileSnapshot().version())

    def history(self, limit: int | None = None) -> DataFrame:
        """Return Delta's history of the table, the newest commits first, at most `limit` of them."""
        table = DeltaTable.forPath(self.spark, self.path)
        return table.history() if limit is None else table.history(limit)

    def overwrite(
        self, frame: DataFrame, commit: TableCommit | None, *, replaces_schema: bool = False
    ) -> None:
        """Replace all rows in one commit; the schema is kept unless it is replaced too."""
        self._write(frame, "overwrite", commit, {"overwriteSchema": str(replaces_schema).lower()})

    def replace_where(self, condition: str, frame: DataFrame, commit: TableCommit) -> None:
        """Replace the rows that meet a condition by rows that do, in one commit."""
        self._write(frame, "overwrite", commit, {"replaceWhere": condition})

    def replace_by(self, other: "LakeTable", commit: TableCommit) -> None:
        """Put another table's columns and rows in the place of this one's, in one commit."""
        schema = other.schema()
        types = (field.dataType.simpleString().upper() for field in schema.fields)
        features = [feature for ddl in types for feature in features_of(ddl)]
        if needs_column_mapping(schema.names):
            features.append(Feature.COLUMN_MAPPING)
        self.enable(features)
        self.overwrite(other.frame(), commit, replaces_schema=True)

    def remove(self) -> None:
        """Take the table away with its files, be it there or not."""
        remove_folder(self.spark, self.path)

    def move(self, to: str) -> None:
        """Give the table's folder another path, where nothing is yet."""
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
        """Run a statement on the table; its commit says that it is ours, and which operation it is."""
        settings = metadata_settings(self.spark, {"operation": operation} if operation else {})
        with settings:
            self.spark.sql(statement)

    def add_columns(self, ddl: str) -> None:
        """Add columns behind the last one: `name TYPE, …` in Spark's DDL, names quoted."""
        self.enable(features_of(ddl))
        self.spark.sql(f"ALTER TABLE {self.identifier} ADD COLUMNS ({ddl})")

    def enable(self, features: Iterable[Feature]) -> None:
        """Turn on the table features that are not on yet; readers have to know them from then on."""
        for feature in self.missing(features):
            key, value = feature.value
            self.spark.sql(f"ALTER TABLE {self.identifier} SET TBLPROPERTIES ('{key}' = '{value}')")

    def missing(self, features: Iterable[Feature]) -> list[Feature]:
        """Return the features that are not on; all where there is no table."""
        found = self.snapshot().metadata().configuration()
        properties = {each: found.get(each.value[0]) for each in features}
        return [
            each
            for each, value in properties.items()
            if not (value.isDefined() and value.get() == each.value[1])
        ]

    def physical_names(self) -> dict[str, str]:
        """Return each column's name in data files: a rename does not change it."""
        return {f.name: f.metadata.get(_PHYSICAL_NAME, f.name) for f in self.schema().fields}

    @property
    def identifier(self) -> str:
        """Return the table as SQL names it."""
        return "delta." + quoted(self.path)


def local_frame(spark: SparkSession, rows: Sequence[Mapping[str, object]], ddl: str) -> DataFrame:
    """Return a frame of a few rows, made in the JVM: no executor needs a Python for it.

    Values are what JSON has, and datetimes; BINARY is not among them.
    """
    text = json.dumps(rows, default=lambda value: value.isoformat())
    parsed = F.from_json(F.lit(text), f"ARRAY<STRUCT<{ddl}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(parsed))


# Delta takes these in a column name only under column mapping.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def needs_column_mapping(names: Iterable[str]) -> bool:
    """Say whether a name needs Delta's column mapping, which readers outside Spark may refuse."""
    return any(_NEEDS_MAPPING & set(name) for name in names)
