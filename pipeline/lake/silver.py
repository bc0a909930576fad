"""One silver table: its input cut, folded and written, from the position in its own log onwards.

Each write records the LSN up to which the table is complete as its Delta transaction version. A cut that ends
inside a transaction records it under an application id of its own (`…#1`), as Delta skips a second write
under the same id and version in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from pipeline.errors import LakeError
from pipeline.lake.arrivals import Point
from pipeline.lake.beside import RecordsBeside
from pipeline.lake.bronze import Bronze, TableName, between, exact_runs
from pipeline.lake.copies import Request
from pipeline.lake.records import Event, Records, Registered, Successor
from pipeline.lake.replacing import put_in_place
from pipeline.lake.shape import Held, NeedsRewrite, SilverShape
from pipeline.lake.tables import Commit, LakeTable
from pipeline.lake.writer import CutWriter
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.rules import TableRule
from pipeline.silver.copies import Copy, Start
from pipeline.silver.evolve import Hold, Operation, rule_of_last
from pipeline.silver.plan import (
    Cut,
    Run,
    Survey,
    TableInput,
    followed,
    plain_runs,
    plan_cuts,
    plan_fold,
    signature,
)
from pipeline.silver.refusals import Refusal, refusal, refused_column
from pipeline.silver.relation import SourceRelation
from pipeline.silver.renames import name_alike
from pipeline.silver.types import stored


@dataclass(frozen=True, slots=True)
class Written:
    """What came of one table's input: how far it is applied, why not further, what did not fit."""

    applied: LSN
    held: str | None = None
    misfits: int = 0
    kind: str = "held"  # or refused: the event that says why
    changes: int = 0
    lost: int = 0  # values that were not sent, and that silver does not have either


class SilverTable:
    """Applies the input of one source table; used by one thread at a time, in a Spark session of its own."""

    def __init__(
        self,
        spark: SparkSession,
        bronze: Bronze,
        records: Records,
        name: TableName,
        path: str,
        rule: TableRule,
        *,
        metadata_columns: bool,
    ) -> None:
        self.name = name
        self.table = LakeTable(spark, path)
        self.bronze = bronze.in_session(spark)
        self._records = records
        self._rule = rule
        self._metadata_columns = metadata_columns
        self._app_id = bronze.app_id
        self._shape = SilverShape(
            spark, self.table, records, name, rule, bronze.app_id, metadata_columns=metadata_columns
        )
        self._writer = CutWriter(spark, self.table, records, name)
        self._version = -1

    def refuse_foreign_commits(self, since_version: int) -> None:
        """Raise LakeError where somebody else changed the table's rows."""
        if foreign := self.table.foreign_commit(max(since_version, self._version)):
            raise LakeError(
                f"silver table {'.'.join(self.name)} was changed by somebody else ({foreign}): RESTORE it to "
                f"the version before, or remove {self.table.path} to have it built again from bronze"
            )

    def apply(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: Point,
        start: Start,
    ) -> Written:
        """Bring the table from its start up to the point, or up to where it has to be held."""
        through, held, kind = point.lsn, None, "held"
        registered = self._settled(registered)
        if found := self._refusal(surveys, relations, start, through):
            through, held, kind = found.before, found.sentence, "refused"
            surveys = self.bronze.survey_table(self.name, start, through)
            if not surveys:
                return Written(start.floor, held, kind=kind)
        try:
            evolution, relations = self._shape.evolve(surveys, relations, registered)
        except NeedsRewrite as need:
            written = self._rewrite(relations, registered, through, need)
            return written if written.held else replace(written, held=held, kind=kind)
        except Held as hold:
            # The transactions before the one that cannot be followed end at its commit record at the latest.
            through, held, kind = hold.before, str(hold), "held"
            surveys = self.bronze.survey_table(self.name, start, through)
            if not surveys:
                return Written(start.floor, held)
            evolution, relations = self._shape.evolve(surveys, relations, registered)
        runs = self._runs(surveys, relations, start, through)
        table = TableInput(tuple(surveys), relations, through, runs, start.copy)
        cuts = plan_cuts(table, registered.relation_id if registered else None)
        # Columns are recorded before the rows: a run after a crash must know which is which. How the source
        # named them is recorded after the rows, which may come again. Of a table created again the first
        # write puts the new rows in the old ones' place.
        copy_id = registered.copy_id if registered else None
        copy_id = start.copy.id if start.copy else copy_id
        oid, columns_now = evolution.known.relation_id, self._shape.columns_of(evolution)
        entry = Registered(*self.name, self.table.path, oid, columns_now, copy_id=copy_id)
        names = {c.physical_name: c.name for c in registered.columns} if registered else {}
        columns = (replace(c, name=names.get(c.physical_name, c.name)) for c in entry.columns)
        before = replace(entry, columns=tuple(columns))
        if registered and registered.relation_id != oid:
            cut = cuts[0]
            successor = Successor(oid, entry.columns, self._app_of(cut, through), cut.through)
            before = replace(registered, successor=successor)
        if before != registered:
            self._records.register(before)
        misfits = sum(self._write(cut, table, start) for cut in cuts)
        if entry != before:
            self._records.register(entry)
        self._version = self.table.version()
        changes = sum(s.inserts + s.updates + s.deletes for s in surveys)
        return Written(through, held, misfits, kind, changes, self._writer.lost)

    def plan(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        start: Start,
        through: LSN,
    ) -> list[tuple[LSN, Operation]]:
        """Return what would change the table's shape or hold it, each with an LSN; nothing is done."""
        operations = [*self._shape.plan(surveys, relations, self._settled(registered)).operations]
        if found := self._refusal(surveys, relations, start, through):
            operations.append((found.before, Hold(found.sentence)))
        return operations

    def _refusal(
        self, surveys: Sequence[Survey], relations: Mapping[int, SourceRelation], start: Start, through: LSN
    ) -> Refusal | None:
        """Return the first change that a policy refuses."""
        column = refused_column(surveys, relations, self._rule)
        if column is None:
            return None
        truncates = [s.last_truncate for s in surveys if s.last_truncate]
        changes = between(
            self.bronze.table_changes(self.name, start, through),
            max(truncates, default=(0, -1)),
            max(s.last for s in surveys),
        )
        first = changes.selectExpr("commit_lsn", "ordinal", f"{column} AS refused").where(
            "refused IS NOT NULL"
        )
        for row in first.orderBy("commit_lsn", "ordinal").limit(1).collect():
            return refusal(self.name, row.commit_lsn, row.refused)
        return None

    def begin_with(
        self, copy: Copy, relations: Mapping[int, SourceRelation], registered: Registered | None, point: Point
    ) -> Written:
        """Put a copy of the source's rows, and what followed them, in the place of the table's rows."""
        if self.table.position(self._app_id) is None:
            # Nobody was told of this table yet: no need to write it beside itself.
            start = Start(copy=copy)
            surveys = self.bronze.survey_table(self.name, start, point.lsn)
            written = self.apply(surveys, relations, None, point, start)
        else:
            written = self._rewrite(relations, registered, point.lsn)
        if written.held:
            return written
        sentence, kind = "the table shows a copy of the source's rows, and what followed", "evolved"
        if written.lost and not copy.is_whole:
            # A row that moved, between two snapshots, from pages that were not read yet to some that were.
            kind = "resync"
            sentence = (
                f"{written.lost} values are missing in a copy that was cut off: the table is copied once more"
            )
            self.bronze.copies.request([Request.of(self.name, sentence)])
        self._records.record_events([Event(*self.name, copy.through, kind, sentence)])
        return written

    def rewrite(
        self, relations: Mapping[int, SourceRelation], registered: Registered, through: LSN
    ) -> Written:
        """Write the table anew from all that bronze has of it up to an LSN, as the configuration says now."""
        written = self._rewrite(relations, registered, through)
        if not written.held:
            sentence = "the table was written anew from bronze, as somebody asked"
            self._records.record_events([Event(*self.name, through, "evolved", sentence)])
        return written

    def _rewrite(
        self,
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        through: LSN,
        need: NeedsRewrite | None = None,
    ) -> Written:
        """Write the table beside itself, and put that in its place by one commit."""
        copy = self.bronze.copies.newest().get(self.name)
        start = Start(copy=copy if copy and copy.through < through else None)
        surveys = self.bronze.survey_table(self.name, start, through)
        place = self.bronze.lake.table("_pgdelta", "rewrites", *self.name)
        place.remove()
        records = RecordsBeside(self._records)
        beside = SilverTable(
            self.table.spark,
            self.bronze,
            records,
            self.name,
            place.path,
            self._rule_of_newest(surveys, relations),
            metadata_columns=self._metadata_columns,
        )
        written = beside.apply(surveys, relations, None, Point(-1, through), start)
        if written.held or records.registered_last is None:
            return Written(self.table.position(self._app_id) or INVALID, written.held)
        if need is not None:
            sentences = {
                "evolved": f"{need}: the table was written anew from bronze",
                "resync": f"{need}: rows from before have the values of their texts as they came then; what "
                "a cast or ALTER TABLE … USING computed is not in the stream, and only a resync brings it",
            }
            self._records.record_events([Event(*self.name, need.lsn, k, s) for k, s in sentences.items()])
        put_in_place(
            self.table, place, self._records, records.registered_last, registered, self._app_id, through
        )
        self._version = self.table.version()
        return replace(written, applied=through)

    def _rule_of_newest(
        self, surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]
    ) -> TableRule:
        """Return the rule that reads every version into the newest types, by the names in silver."""
        versions = [relations[s.version] for s in followed(surveys, relations)]
        return rule_of_last(name_alike(None, versions).relations, self._rule)

    def _settled(self, registered: Registered | None) -> Registered | None:
        """Return what the table's rows belong to: a run that ended early could not record it any more."""
        if registered is None or not self.table.exists():
            return None
        successor = registered.successor
        if successor is None or (self.table.position(successor.app_id) or INVALID) < successor.lsn:
            return registered
        return Registered(*self.name, self.table.path, successor.relation_id, successor.columns)

    def _runs(
        self, surveys: Sequence[Survey], relations: Mapping[int, SourceRelation], start: Start, through: LSN
    ) -> tuple[Run, ...]:
        runs = plain_runs(surveys, relations)
        if runs is not None:
            return runs
        signatures: dict[tuple[object, ...], int] = {}
        numbers = {
            s.version: signatures.setdefault(signature(relations[s.version]), len(signatures))
            for s in surveys
        }
        changes = self.bronze.table_changes(self.name, start, through)
        return tuple(Run(*run) for run in exact_runs(changes, numbers))

    def _app_of(self, cut: Cut, through: LSN) -> str:
        if cut.copy_id is not None and cut.through < through:
            return f"{self._app_id}#copied/{cut.copy_id}"
        return f"{self._app_id}#{cut.part}" if cut.part else self._app_id

    def _write(self, cut: Cut, table: TableInput, start: Start) -> int:
        """Write one cut, unless a run before did, and return how many values did not fit."""
        app = self._app_of(cut, table.through)
        if (self.table.position(app) or INVALID) >= cut.through:
            return 0
        columns = {name: stored(ddl) for name, ddl in self._shape.columns().items()}
        changes = between(self.bronze.table_changes(self.name, start, table.through), cut.after, cut.upto)
        fold = plan_fold(table, cut, columns, self._rule)
        commit = Commit(app, cut.through, {"table": list(self.name)})
        return self._writer.write(changes, fold, cut, commit, self._shape.metadata())
