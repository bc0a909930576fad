"""A silver table as one snapshot of the source sees it: its newest version, and what bronze has since.

A version of silver holds every transaction up to its position and no other; a snapshot of the source that is
taken later holds these and some more. Those are in bronze soon, and are applied to a shallow clone of that
version by what applies them to silver, whatever they are: rows, columns, a TRUNCATE. The clone holds then
what the snapshot holds, to the transaction. Silver itself is only read, and goes on meanwhile.

What a snapshot lacks though it ended before in the log (`running`) is left out of what is applied. Where
silver holds such a transaction already, which takes a commit that waits for standbys, or where its columns
are being changed, there is no such version just now.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from pipeline.bronze.copied_rows import InputStart
from pipeline.bronze.copy_states import SnapshotRanges
from pipeline.bronze.log import Bronze
from pipeline.bronze.new_files import BronzeOffset
from pipeline.bronze.survey import Survey
from pipeline.config.tables import TableRule
from pipeline.delta.filesystem import folders_in, remove_folder
from pipeline.delta.log import json_object
from pipeline.delta.spark.session import new_session
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.errors import LakeError
from pipeline.metadata.manifests import ManifestEntry
from pipeline.metadata.registry import Records, RegisteredColumn, RegisteredTable
from pipeline.postgres.snapshot.export import Snapshot
from pipeline.protocol.lsn import LSN
from pipeline.silver.swap import BufferedRecords
from pipeline.silver.table import SilverTable
from pipeline.table_copy.invisible_commits import find_invisible_commits, is_one_of
from pipeline.table_name import TableName

_SHAPING = frozenset({"ADD COLUMNS", "CHANGE COLUMN", "DROP COLUMNS", "RENAME COLUMN"})
_CLONES = ("_pgdelta", "reconcile")
_RUN = re.compile(r"(\d+)-[0-9a-f]{32}")
_LONGEST_RUN = 7 * 24 * 3600  # seconds
_COMMITS = 100  # behind so many no commit of ours is looked for


class NoStableVersion(LakeError):
    """There is no version of a table that can be compared just now; there will be."""


class SnapshotBronze(Bronze):
    """Bronze without what a snapshot of the source does not see."""

    def __init__(self, lake: Lake, pipeline: str, snapshot: Snapshot) -> None:
        super().__init__(lake, pipeline)
        self._snapshot = snapshot

    def in_session(self, spark: SparkSession) -> "SnapshotBronze":
        """Return the same tables seen through another session."""
        return SnapshotBronze(Lake(spark, self.lake.root), self.pipeline, self._snapshot)

    def table_changes(self, name: TableName, start: InputStart, through: LSN) -> DataFrame:
        """Return one table's changes up to an LSN, after a position, as far as the snapshot has them."""
        changes = super().table_changes(name, start, through)
        if not self._snapshot.running:
            return changes
        is_running = is_one_of(self._snapshot.running, self._snapshot.lsn)
        return changes.where(f"NOT coalesce({is_running}, false)")


class RecordsNowhere(BufferedRecords):
    """The records of a table that nobody shall see, and whose misfits are recorded where it comes from."""

    def record_misfits(self, frame: DataFrame) -> None:
        """Record nothing."""


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A version of a silver table, and the position up to which it is complete."""

    registered: RegisteredTable
    version: int
    offset: LSN

    @property
    def name(self) -> TableName:
        """Return schema and table."""
        return TableName(self.registered.schema_name, self.registered.table_name)


@dataclass(frozen=True, slots=True)
class TableAtSnapshot:
    """A silver table as of a snapshot: its rows, its columns, and how many changes silver itself lacks yet.

    `fields` are silver's columns by the names that data files have: (name, DDL).
    """

    frame: DataFrame
    columns: Sequence[RegisteredColumn]
    fields: Mapping[str, tuple[str, str]]
    pending: int


def pin_table(bronze: Bronze, registered: RegisteredTable, shown: ManifestEntry | None) -> PinnedTable:
    """Return the newest version of a silver table; raise Unsettled where that is not a whole one.

    `shown` is the table in the newest manifest, looked at before.
    """
    table = bronze.lake.table_at(registered.path)
    version, position = table.version_and_offset(bronze.txn)
    if shown is None or shown.is_behind or shown.path != registered.path or shown.version > version:
        shown = None
    is_known = shown is not None and shown.version == version
    if (
        position is None
        or registered.successor is not None
        or not (is_known or _is_whole(table, version, bronze.txn))
    ):
        raise NoStableVersion("apply is changing the table, or ended while it did: let apply run")
    # A table that stands still has the position of its last change only.
    return PinnedTable(registered, version, max(position, shown.applied_lsn) if shown else position)


def _is_whole(table: LakeTable, version: int, ours: TxnId) -> bool:
    """Say whether nothing came after the newest whole commit of ours but changes of rows by somebody else."""
    commits = table.history(_COMMITS)
    newest = commits.where(f"version <= {version}").orderBy("version", ascending=False)
    for operation, text in newest.select("operation", "userMetadata").collect():
        txn = TxnId.parse(str(json_object(text).get("app_id", "")))
        # What keys that were copied anew hold already comes once more, as where apply goes on.
        if txn is not None and txn.offset_id == ours:
            return txn.kind in (TxnKind.OFFSET, TxnKind.REBUILD, TxnKind.KEY_RANGES)
        if operation in _SHAPING:
            return False
    return True


class CloneFolder:
    """`{root}/_pgdelta/reconcile/{run}`: the clones of one run, apart from those of any other.

    What a run that was killed has left is removed by one that begins a week later: none lasts that long.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        began = int(time.time())
        self._run = f"{began}-{uuid4().hex}"
        for name in folders_in(lake.spark, lake.path(*_CLONES)):
            left = _RUN.fullmatch(name)
            if left and began - int(left[1]) > _LONGEST_RUN:
                remove_folder(lake.spark, lake.path(*_CLONES, name))

    def table(self, name: TableName) -> LakeTable:
        """Return where a table is cloned to; it is to be removed afterwards."""
        return self._lake.table(*_CLONES, self._run, *name)

    def close(self) -> None:
        """Remove what is left of them."""
        remove_folder(self._lake.spark, self._lake.path(*_CLONES, self._run))


class SnapshotCloner:
    """Brings silver tables to what a snapshot of the source holds, each in a clone of its own."""

    def __init__(
        self, spark: SparkSession, root: str, pipeline: str, snapshot: Snapshot, clones: CloneFolder
    ) -> None:
        """Bronze has to be complete beyond the snapshot."""
        self._spark = spark
        self._clones = clones
        self._snapshot = snapshot
        self._bronze = SnapshotBronze(Lake(spark, root), pipeline, snapshot)
        self._relations = self._bronze.source_relations()
        self._moved: set[TableName] = set()

    @property
    def end_lsn(self) -> LSN:
        """Return the position at which silver holds what the snapshot holds."""
        return LSN(self._snapshot.lsn + 1)

    def find_invisible(self, pinned: Sequence[PinnedTable]) -> dict[TableName, str]:
        """See what bronze has for the tables; return those that hold what the snapshot does not."""
        floors = {table.name: table.offset for table in pinned}
        self._moved = {*self._bronze.survey(BronzeOffset(-1, self.end_lsn), self.end_lsn, floors)}
        reading = SnapshotRanges(self._snapshot.lsn, self._snapshot.running, 0, ())
        late = find_invisible_commits(self._bronze.changes, {table.name: [reading] for table in pinned})
        return {
            table.name: "a transaction that silver holds was not visible at the source yet"
            for table in pinned
            if any(lsn <= table.offset for lsn in late.get(table.name, ()))
        }

    def table_at_snapshot(
        self, pinned: PinnedTable, rule: TableRule, *, metadata_columns: bool
    ) -> TableAtSnapshot:
        """Return a table as of the snapshot; raise Unsettled where it cannot be brought there."""
        table, start = self._bronze.lake.table_at(pinned.registered.path), InputStart(pinned.offset)
        surveys: Sequence[Survey] = ()
        if pinned.name in self._moved:
            surveys = self._bronze.survey_table(pinned.name, start, self.end_lsn)
        else:
            fields = fields_by_physical_name(table)
            if table.version() == pinned.version:
                rows = self._spark.read.format("delta").option("versionAsOf", pinned.version)
                return TableAtSnapshot(rows.load(table.path), pinned.registered.columns, fields, 0)
        place = self.clone_of(pinned.name)
        place.remove()
        _clone(table, pinned.version, place)
        columns, pending = pinned.registered.columns, 0
        if surveys:
            records = RecordsNowhere(Records(self._bronze.lake))
            beside = SilverTable(
                new_session(self._spark),
                self._bronze,
                records,
                pinned.name,
                place.path,
                replace(rule, type_changes="hold"),  # written anew is only silver itself
                self._bronze.copies.read(),
                metadata_columns=metadata_columns,
            )
            written = beside.apply(surveys, self._relations, pinned.registered, start, self.end_lsn)
            if written.held:
                raise NoStableVersion(f"silver cannot be brought to the snapshot: {written.held}")
            columns = records.registered_last.columns if records.registered_last else columns
            pending = written.changes
        return TableAtSnapshot(place.frame(), columns, fields_by_physical_name(place), pending)

    def clone_of(self, name: TableName) -> LakeTable:
        """Return where a table is brought to; it is to be removed afterwards."""
        return self._clones.table(name)


def _clone(table: LakeTable, version: int, to: LakeTable) -> None:
    """Make a table of its own of a version, which shares the data files."""
    table.spark.sql(f"CREATE TABLE {to.identifier} SHALLOW CLONE {table.identifier} VERSION AS OF {version}")


def fields_by_physical_name(table: LakeTable) -> dict[str, tuple[str, str]]:
    """Return a table's columns by the names that data files have: (name, DDL)."""
    in_files = table.physical_names()
    return {in_files[f.name]: (f.name, f.dataType.simpleString().upper()) for f in table.schema().fields}
