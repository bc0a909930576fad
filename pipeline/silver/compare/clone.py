"""Silver tables as one snapshot of the source sees them: versions with the changes that they lack.

A version of silver shows every transaction up to its offset and no other. A snapshot of the source that is
exported later sees these and some more, which bronze has soon. They are folded onto that version in memory,
or applied to a shallow clone of it by Spark, by the code that applies them to silver: rows, TRUNCATE, on a
clone columns too. The table then has exactly what the snapshot sees. Silver itself is only read, and
continues meanwhile.

Transactions that the snapshot does not see although their commit LSN is lower (`SourceSnapshot.running`) are
left out. If silver shows such a transaction already, which happens with synchronous standbys, or if its
columns are being changed, there is no such version at the moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.copy_states import SnapshotChunks
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.table_input import InputStart, Survey
from pipeline.config.tables import TableRule
from pipeline.delta.filesystem import folders_in, remove_folder
from pipeline.delta.log import COLUMN_CHANGING, user_metadata_of
from pipeline.delta.pinned_lake import PinnedTable
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS, TxnId, TxnKind
from pipeline.errors import LakeError
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.postgres.snapshot.export import SourceSnapshot
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.compared_rows import ComparedRows, dataset_rows, frame_rows, rows_of, why_spark
from pipeline.silver.read.live_rows import fold_onto
from pipeline.silver.schema.foreign_commits import refuse_lost_offset, refuse_removed_columns
from pipeline.silver.schema.schema_operations import LAYOUT
from pipeline.silver.schema.swap import BufferedRecords
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.range_plan import RangePlan, WriteResult
from pipeline.silver.write.table import SilverTable
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_copy.invisible_commits import find_invisible_commits, was_running
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = ("_pgdelta", "reconcile")
_RUN = re.compile(r"(\d+)-[0-9a-f]{32}")
_MAX_RUN_SECONDS = 7 * 24 * 3600
_MAX_COMMITS = 100  # in which the newest commit of pgdelta is searched


class NoStableVersion(LakeError):
    """A table that has no version which can be compared at the moment; it will have one later."""


class SnapshotBronze(Bronze):
    """Bronze without the transactions that a snapshot of the source does not see."""

    def __init__(self, lake: Lake, pipeline: str, snapshot: SourceSnapshot) -> None:
        super().__init__(lake, pipeline)
        self._snapshot = snapshot
        if snapshot.running:
            self.visible = (
                f"NOT coalesce({was_running(snapshot.running, snapshot.lsn, self.copies.read())}, false)"
            )

    def in_session(self, spark: SparkSession | SparkProvider) -> SnapshotBronze:
        """Return the same tables in another session."""
        return SnapshotBronze(self.lake.in_session(spark), self.pipeline, self._snapshot)


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """A version of a silver table, and the LSN up to which it is complete."""

    registered: RegisteredTable
    table: PinnedTable
    offset: LSN

    @property
    def name(self) -> TableName:
        return self.registered.name

    @property
    def version(self) -> int:
        return self.table.version()


@dataclass(frozen=True, slots=True)
class TableAtSnapshot:
    """A silver table as of a snapshot, and how many changes silver itself still lacks.

    `version` has the columns of the rows.
    """

    rows: ComparedRows
    registered: RegisteredTable
    version: Snapshot
    pending: int = 0


def pin_table(bronze: Bronze, registered: RegisteredTable, entry: ManifestEntry | None) -> PinnedVersion:
    """Return the newest version of a silver table; raise NoStableVersion if it is an intermediate one.

    `entry` is the table in the newest manifest, which was read before. Raises LakeError if a foreign commit
    removed columns.
    """
    table = PinnedTable(registered.path, bronze.lake.sessions)
    version, offset = table.version_and_offset(bronze.txn)
    refuse_removed_columns(table, registered.name, registered)
    if offset is None:
        refuse_lost_offset(table, registered.name, bronze.txn)
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
    return PinnedVersion(registered, table, max(offset, entry.applied_lsn) if entry else offset)


def _is_complete(table: LakeTable, version: int, txn: TxnId) -> bool:
    """Return whether only foreign changes of rows follow the newest commit that completes an offset."""
    for information in islice(table.newest_commits(version), _MAX_COMMITS):
        metadata, operation = user_metadata_of(information), information.get("operation")
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
    """Shows silver tables as a snapshot of the source sees them; bronze must be complete beyond it.

    Tables that `writer`, as configured, leaves to Spark are cloned.
    """

    def __init__(
        self, lake: Lake, pipeline: str, snapshot: SourceSnapshot, clones: CloneFolder, writer: WriterSetting
    ) -> None:
        self._clones = clones
        self._snapshot = snapshot
        self._bronze = SnapshotBronze(lake, pipeline, snapshot)
        self._changes = ChangeRows(self._bronze)
        self._relations = self._bronze.source_relations()
        self._changed: set[TableName] = set()
        self._writer: WriterSetting = writer

    @property
    def end_lsn(self) -> LSN:
        """The LSN up to which silver shows what the snapshot sees."""
        return LSN(self._snapshot.lsn + 1)

    def find_invisible(self, pinned: Sequence[PinnedVersion]) -> dict[TableName, str]:
        """Survey the tables' changes; return the tables that show more than the snapshot sees, with why."""
        offsets = {table.name: table.offset for table in pinned}
        self._changed = {*self._bronze.survey(BronzeOffset(-1, self.end_lsn), self.end_lsn, offsets)}
        self._changed |= {name for name, offset in offsets.items() if self._bronze.why_unread(name, offset)}
        self._changes.begin_batch(max(offsets.values(), default=INVALID))
        snapshot = SnapshotChunks(self._snapshot.lsn, self._snapshot.running, 0, ())
        snapshots = {table.name: [snapshot] for table in pinned}
        invisible = find_invisible_commits(self._bronze.changes, snapshots, self._bronze.copies.read())
        sentence = "Silver shows a transaction that was not visible at the source yet. Compare again later."
        return {
            table.name: sentence
            for table in pinned
            if any(lsn <= table.offset for lsn in invisible.get(table.name, ()))
        }

    def table_at_snapshot(
        self, pinned: PinnedVersion, rule: TableRule, *, metadata_columns: bool
    ) -> TableAtSnapshot:
        """Return a table as of the snapshot; raise NoStableVersion if its changes cannot be applied."""
        surveys: Sequence[Survey] = ()
        if pinned.name in self._changed:
            surveys = self._bronze.survey_table(pinned.name, InputStart(pinned.offset), self.end_lsn)
        version = pinned.table.snapshot()
        if not surveys:
            rows = rows_of(pinned.table, version, pinned.registered, self._writer)
            return TableAtSnapshot(rows, pinned.registered, version)
        # A clone is never rebuilt, its comments are not read, and it has one reader.
        rule = replace(rule.without_layout(), type_changes="hold", source_comments=False, readers="spark")
        reason = why_spark(pinned.table, version, self._writer)
        folded = None if reason else self._fold(pinned, rule, surveys, metadata_columns=metadata_columns)
        if folded is not None:
            return folded
        reason = reason or "only Spark can add its pending changes"
        return self._apply_to_clone(pinned, rule, surveys, reason, metadata_columns=metadata_columns)

    def clone_of(self, name: TableName) -> LakeTable:
        """Return the clone of a table, which need not exist; remove it afterwards."""
        return self._clones.table(name)

    def _fold(
        self, pinned: PinnedVersion, rule: TableRule, surveys: Sequence[Survey], *, metadata_columns: bool
    ) -> TableAtSnapshot | None:
        """Return a table with its pending changes in memory, None if they need a clone."""
        table, name, registered = pinned.table, pinned.name, pinned.registered
        records = BufferedRecords(Records(self._bronze.lake), discards_misfits=True)
        writer = BatchWriter(
            table,
            self._bronze,
            records,
            name,
            rule,
            _no_rebuild,
            metadata_columns=metadata_columns,
            native=NativeWriting("auto", self._changes),
        )
        plan = writer.plan(surveys, self._relations, registered, InputStart(pinned.offset), self.end_lsn)
        if plan.stop is not None:
            raise NoStableVersion(plan.stop.sentence)
        if plan.changes_columns:
            return None
        overlay = fold_onto(table, plan, self._changes, records, name)
        if overlay is None:
            return None
        version = table.snapshot()
        rows = dataset_rows(table, version, registered, overlay)
        return TableAtSnapshot(rows, registered, version, plan.changes)

    def _apply_to_clone(
        self,
        pinned: PinnedVersion,
        rule: TableRule,
        surveys: Sequence[Survey],
        reason: str,
        *,
        metadata_columns: bool,
    ) -> TableAtSnapshot:
        """Return a table whose pending changes Spark applied to a clone of it."""
        clone, start = self.clone_of(pinned.name), InputStart(pinned.offset)
        clone.remove()
        _clone(pinned.table, pinned.version, clone)
        records = BufferedRecords(Records(self._bronze.lake), discards_misfits=True)
        writer = SilverTable(
            self._bronze.lake.sessions.new(),
            self._bronze,
            records,
            pinned.name,
            clone.path,
            rule,
            self._bronze.copies.read(),
            metadata_columns=metadata_columns,
        )
        written = writer.apply(surveys, self._relations, pinned.registered, start, self.end_lsn)
        if written.held:
            raise NoStableVersion(written.held)
        registered, version = records.tables.registered or pinned.registered, clone.snapshot()
        rows = frame_rows(clone.frame(), version, registered, reason)
        return TableAtSnapshot(rows, registered, version, written.changes)


def _no_rebuild(plan: RangePlan) -> WriteResult:
    raise AssertionError(f"a comparison rebuilds nothing up to {plan.end_lsn}")


def _clone(table: LakeTable, version: int, to: LakeTable) -> None:
    """Create a shallow clone of a version, which shares its data files."""
    table.spark.sql(f"CREATE TABLE {to.identifier} SHALLOW CLONE {table.identifier} VERSION AS OF {version}")
