"""Silver tables as one snapshot of the source sees them: clones to which the missing changes are applied.

A version of silver shows every transaction up to its offset and no other. A snapshot of the source that is
exported later sees these and some more, which bronze has soon. They are applied to a shallow clone of that
version by the same code that applies them to silver: rows, columns, TRUNCATE. The clone then has exactly what
the snapshot sees. Silver itself is only read, and continues meanwhile.

Transactions that the snapshot does not see although their commit LSN is lower (`Snapshot.running`) are left
out. If silver shows such a transaction already, which happens with synchronous standbys, or if its columns
are being changed, there is no such version at the moment.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from pipeline.bronze.copy_states import SnapshotChunks
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.table_input import InputStart, Survey
from pipeline.config.tables import TableRule
from pipeline.delta.filesystem import folders_in, remove_folder
from pipeline.delta.log import COLUMN_CHANGING, json_object
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.spark.session import new_session
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import OURS, TxnId, TxnKind
from pipeline.errors import LakeError
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.registry import Records, RegisteredColumn, RegisteredTable
from pipeline.postgres.snapshot.export import Snapshot
from pipeline.protocol.lsn import LSN
from pipeline.silver.foreign_commits import refuse_removed_columns
from pipeline.silver.modes import current_rows
from pipeline.silver.schema_operations import LAYOUT
from pipeline.silver.swap import BufferedRecords
from pipeline.silver.table import SilverTable
from pipeline.table_copy.invisible_commits import find_invisible_commits, was_running
from pipeline.table_name import TableName

_FOLDER = ("_pgdelta", "reconcile")
_RUN = re.compile(r"(\d+)-[0-9a-f]{32}")
_MAX_RUN_SECONDS = 7 * 24 * 3600
_MAX_COMMITS = 100  # in which the newest commit of pgdelta is searched


class NoStableVersion(LakeError):
    """A table that has no version which can be compared at the moment; it will have one later."""


class SnapshotBronze(Bronze):
    """Bronze without the transactions that a snapshot of the source does not see."""

    def __init__(self, lake: Lake, pipeline: str, snapshot: Snapshot) -> None:
        super().__init__(lake, pipeline)
        self._snapshot = snapshot
        if snapshot.running:
            self.visible = f"NOT coalesce({was_running(snapshot.running, snapshot.lsn)}, false)"

    def in_session(self, spark: SparkSession | SparkProvider) -> "SnapshotBronze":
        """Return the same tables in another session."""
        return SnapshotBronze(self.lake.in_session(spark), self.pipeline, self._snapshot)


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A version of a silver table, and the LSN up to which it is complete."""

    registered: RegisteredTable
    version: int
    offset: LSN

    @property
    def name(self) -> TableName:
        return self.registered.name


@dataclass(frozen=True, slots=True)
class TableAtSnapshot:
    """A silver table as of a snapshot, and how many changes silver itself still lacks.

    `fields` are silver's columns by physical name: (name, DDL), and `partition_by` names some of them.
    """

    frame: DataFrame
    columns: Sequence[RegisteredColumn]
    fields: Mapping[str, tuple[str, str]]
    partition_by: tuple[str, ...]
    pending: int


def pin_table(bronze: Bronze, registered: RegisteredTable, entry: ManifestEntry | None) -> PinnedTable:
    """Return the newest version of a silver table; raise NoStableVersion if it is an intermediate one.

    `entry` is the table in the newest manifest, which was read before. Raises LakeError if a foreign commit
    removed columns.
    """
    table = bronze.lake.table_at(registered.path)
    version, offset = table.version_and_offset(bronze.txn)
    refuse_removed_columns(table, registered.name, registered)
    if entry is None or entry.is_behind or entry.path != registered.path or entry.version > version:
        entry = None
    is_in_manifest = entry is not None and entry.version == version
    if (
        offset is None
        or registered.successor is not None
        or not (is_in_manifest or _is_complete(table, version, bronze.txn))
    ):
        raise NoStableVersion("Apply is changing the table, or was interrupted while it did. Run apply.")
    # A table without newer changes records the offset of its last change only.
    return PinnedTable(registered, version, max(offset, entry.applied_lsn) if entry else offset)


def _is_complete(table: LakeTable, version: int, txn: TxnId) -> bool:
    """Return whether only foreign changes of rows follow the newest commit that completes an offset."""
    commits = table.history(_MAX_COMMITS)
    newest = commits.where(f"version <= {version}").orderBy("version", ascending=False)
    for operation, text in newest.select("operation", "userMetadata").collect():
        metadata = json_object(text)
        commit = TxnId.parse(str(metadata.get("app_id", "")))
        if commit is not None and commit.offset_id == txn and commit.kind is not TxnKind.FENCE:
            # Changes that copied keys include are applied again, as apply does.
            return commit.kind in (TxnKind.OFFSET, TxnKind.REBUILD, TxnKind.KEY_RANGES)
        if OURS in metadata and operation in COLUMN_CHANGING and metadata.get("operation") != LAYOUT:
            return False
    return True


class CloneFolder:
    """`_pgdelta/reconcile/{run}`: the clones of one run, or a table that it builds.

    Folders that killed runs left are removed by a run that starts a week later; no run lasts that long.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        started_at = int(time.time())
        self._run = f"{started_at}-{uuid4().hex}"
        for name in folders_in(lake.sessions, lake.path(*_FOLDER)):
            run = _RUN.fullmatch(name)
            if run and started_at - int(run[1]) > _MAX_RUN_SECONDS:
                remove_folder(lake.sessions, lake.path(*_FOLDER, name))

    def table(self, name: TableName) -> LakeTable:
        """Return the table for a clone, which need not exist; remove it afterwards."""
        return self._lake.table(*_FOLDER, self._run, *name)

    def close(self) -> None:
        """Remove the folder."""
        remove_folder(self._lake.sessions, self._lake.path(*_FOLDER, self._run))


class SnapshotCloner:
    """Clones silver tables as a snapshot of the source sees them; bronze must be complete beyond it."""

    def __init__(
        self, spark: SparkSession, root: str, pipeline: str, snapshot: Snapshot, clones: CloneFolder
    ) -> None:
        self._spark = spark
        self._clones = clones
        self._snapshot = snapshot
        self._bronze = SnapshotBronze(Lake(root, spark), pipeline, snapshot)
        self._relations = self._bronze.source_relations()
        self._changed: set[TableName] = set()

    @property
    def end_lsn(self) -> LSN:
        """The LSN up to which silver shows what the snapshot sees."""
        return LSN(self._snapshot.lsn + 1)

    def find_invisible(self, pinned: Sequence[PinnedTable]) -> dict[TableName, str]:
        """Survey the tables' changes; return the tables that show more than the snapshot sees, with why."""
        offsets = {table.name: table.offset for table in pinned}
        self._changed = {*self._bronze.survey(BronzeOffset(-1, self.end_lsn), self.end_lsn, offsets)}
        snapshot = SnapshotChunks(self._snapshot.lsn, self._snapshot.running, 0, ())
        invisible = find_invisible_commits(self._bronze.changes, {table.name: [snapshot] for table in pinned})
        sentence = "Silver shows a transaction that was not visible at the source yet. Compare again later."
        return {
            table.name: sentence
            for table in pinned
            if any(lsn <= table.offset for lsn in invisible.get(table.name, ()))
        }

    def table_at_snapshot(
        self, pinned: PinnedTable, rule: TableRule, *, metadata_columns: bool
    ) -> TableAtSnapshot:
        """Return a table as of the snapshot; raise NoStableVersion if its changes cannot be applied."""
        table, start = self._bronze.lake.table_at(pinned.registered.path), InputStart(pinned.offset)
        surveys: Sequence[Survey] = ()
        if pinned.name in self._changed:
            surveys = self._bronze.survey_table(pinned.name, start, self.end_lsn)
        else:
            fields, partition_by = fields_by_physical_name(table), table.snapshot().partition_columns
            if table.version() == pinned.version:  # and so were the fields
                rows = self._spark.read.format("delta").option("versionAsOf", pinned.version)
                frame = without_gone(rows.load(table.path), pinned.registered, fields)
                return TableAtSnapshot(frame, pinned.registered.columns, fields, partition_by, 0)
        clone = self.clone_of(pinned.name)
        clone.remove()
        _clone(table, pinned.version, clone)
        registered, pending = pinned.registered, 0
        if surveys:
            records = BufferedRecords(Records(self._bronze.lake), discards_misfits=True)
            writer = SilverTable(
                new_session(self._spark),
                self._bronze,
                records,
                pinned.name,
                clone.path,
                # A clone is never rebuilt, and its comments are not read.
                replace(rule.without_layout(), type_changes="hold", source_comments=False),
                self._bronze.copies.read(),
                metadata_columns=metadata_columns,
            )
            written = writer.apply(surveys, self._relations, pinned.registered, start, self.end_lsn)
            if written.held:
                raise NoStableVersion(written.held)
            registered = records.tables.registered or registered
            pending = written.changes
        fields = fields_by_physical_name(clone)
        frame = without_gone(clone.frame(), registered, fields)
        partition_by = clone.snapshot().partition_columns
        return TableAtSnapshot(frame, registered.columns, fields, partition_by, pending)

    def clone_of(self, name: TableName) -> LakeTable:
        """Return the clone of a table, which need not exist; remove it afterwards."""
        return self._clones.table(name)


def _clone(table: LakeTable, version: int, to: LakeTable) -> None:
    """Create a shallow clone of a version, which shares its data files."""
    table.spark.sql(f"CREATE TABLE {to.identifier} SHALLOW CLONE {table.identifier} VERSION AS OF {version}")


def without_gone(
    rows: DataFrame, registered: RegisteredTable, fields: Mapping[str, tuple[str, str]]
) -> DataFrame:
    """Return the rows of a silver table without those that the source does not have any more."""
    condition = current_rows(registered, {physical: name for physical, (name, _) in fields.items()})
    return rows if condition is None else rows.where(condition)


def fields_by_physical_name(table: LakeTable) -> dict[str, tuple[str, str]]:
    """Return a table's columns by physical name: (name, DDL)."""
    physical = table.physical_names()
    return {physical[f.name]: (f.name, f.ddl) for f in table.schema().fields}
