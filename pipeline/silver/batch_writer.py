"""One stretch of a silver table's input: what lies between two positions, cut, folded and written.

Each write records the LSN up to which the table is complete as its Delta transaction version. A cut that ends
inside a transaction records it under an application id of its own (`…#1`), as Delta skips a second write
under the same id and version in silence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.copied_rows import InputStart
from pipeline.bronze.log import Bronze, between, exact_runs
from pipeline.bronze.new_files import BronzeOffset
from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.survey import Survey
from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.metadata.registry import Records, Registered, Successor
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.policies import Refusal, blind_update, refusal, refused_column
from pipeline.silver.schema_evolution import Hold, Operation
from pipeline.silver.schema_writer import Held, RebuildNeeded, SchemaWriter
from pipeline.silver.types import stored
from pipeline.silver.write_plan import (
    Run,
    TableInput,
    WriteStep,
    plain_runs,
    plan_fold,
    plan_write_steps,
    signature,
)
from pipeline.silver.writer import StepWriter
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a stretch of input: how far it is applied, why not further, what did not fit."""

    applied: LSN
    held: str | None = None
    misfits: int = 0
    kind: str = "held"  # or refused: the event that says why
    changes: int = 0
    lost: int = 0  # values that were not sent, and that silver does not have either

    def then(self, other: "Written") -> "Written":
        """Return what came of this and of the stretch behind it."""
        return replace(
            other,
            misfits=self.misfits + other.misfits,
            changes=self.changes + other.changes,
            lost=self.lost + other.lost,
        )


Rewrite = Callable[[Mapping[int, SourceRelation], Registered | None, LSN, RebuildNeeded], Written]


class BatchWriter:
    """Applies stretches of one table's input; `rewrite` writes the table anew where only that follows."""

    def __init__(
        self,
        table: LakeTable,
        bronze: Bronze,
        records: Records,
        name: TableName,
        rule: TableRule,
        rewrite: Rewrite,
        *,
        metadata_columns: bool,
    ) -> None:
        self.registered: Registered | None = None  # as the last write left it
        self._table = table
        self._bronze = bronze
        self._records = records
        self._name = name
        self._rule = rule
        self._rewrite = rewrite
        self._txn = bronze.txn
        self._schema = SchemaWriter(
            table.spark, table, records, name, rule, bronze.txn, metadata_columns=metadata_columns
        )
        self._writer = StepWriter(table.spark, table, records, name)

    def apply(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: BronzeOffset,
        start: InputStart,
    ) -> Written:
        """Bring the table from a start up to a point, or up to where it has to be held."""
        through, held, kind = point.lsn, None, "held"
        registered = self._settled(registered)
        if found := self._refusal(surveys, relations, start, through):
            through, held, kind = found.before, found.sentence, found.kind
            surveys = self._survey_before(start, through)
            if not surveys:
                return Written(start.offset, held, kind=kind)
        try:
            evolution, relations = self._schema.evolve(surveys, relations, registered)
        except RebuildNeeded as need:
            written = self._rewrite(relations, registered, through, need)
            return written if written.held else replace(written, held=held, kind=kind)
        except Held as hold:
            # The transactions before the one that cannot be followed end at its commit record at the latest.
            through, held, kind = hold.before, str(hold), "held"
            surveys = self._survey_before(start, through)
            if not surveys:
                return Written(start.offset, held)
            evolution, relations = self._schema.evolve(surveys, relations, registered)
        runs = self._runs(surveys, relations, start, through)
        table = TableInput(tuple(surveys), relations, through, runs, start.copy)
        cuts = plan_write_steps(table, registered.relation_id if registered else None)
        # Columns are recorded before the rows: a run after a crash must know which is which. How the source
        # named them is recorded after the rows, which may come again, and so is a patch. Of a table created
        # again the first write puts the new rows in the old ones' place.
        copy_before = registered.copy_id if registered else None
        copy_id = start.copy.id if start.copy else copy_before
        oid, columns_now = evolution.known.relation_id, self._schema.columns_of(evolution)
        entry = Registered(
            *self._name,
            self._table.path,
            oid,
            columns_now,
            copy_id=copy_id,
            metadata_columns=self._schema.own,
        )
        names = {c.physical_name: c.name for c in registered.columns} if registered else {}
        columns = (replace(c, name=names.get(c.physical_name, c.name)) for c in entry.columns)
        before = replace(entry, columns=tuple(columns))
        if start.copy and start.copy.key_ranges:
            before = replace(before, copy_id=copy_before)
        if registered and registered.relation_id != oid:
            cut = cuts[0]
            successor = Successor(oid, entry.columns, self._txn_of(cut, through), cut.end_lsn)
            before = replace(registered, successor=successor, metadata_columns=entry.metadata_columns)
        if before != registered:
            self._records.register(before)
        lost_before = self._writer.lost
        misfits = sum(self._write(cut, table, start) for cut in cuts)
        if entry != before:
            self._records.register(entry)
        self.registered = entry
        changes = sum(s.inserts + s.updates + s.deletes for s in surveys)
        return Written(through, held, misfits, kind, changes, self._writer.lost - lost_before)

    def plan(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        start: InputStart,
        through: LSN,
    ) -> list[tuple[LSN, Operation]]:
        """Return what would change the table's shape or hold it, each with an LSN; nothing is done."""
        operations = [*self._schema.plan(surveys, relations, self._settled(registered)).operations]
        if found := self._refusal(surveys, relations, start, through):
            operations.append((found.before, Hold(found.sentence)))
        return operations

    def _survey_before(self, start: InputStart, through: LSN) -> list[Survey]:
        """Survey what lies before a change that holds the table; rows of a copy come all at once, or not."""
        if start.copy and through <= start.copy.end_lsn:
            return []
        return self._bronze.survey_table(self._name, start, through)

    def _refusal(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        start: InputStart,
        through: LSN,
    ) -> Refusal | None:
        """Return the first change that a policy refuses, or that does not say which row it means."""
        column, blind = refused_column(surveys, relations, self._rule), blind_update(surveys, relations)
        if column is None and blind is None:
            return None
        truncates = [s.last_truncate for s in surveys if s.last_truncate]
        changes = between(
            self._bronze.table_changes(self._name, start, through),
            max(truncates, default=(0, -1)),
            max(s.last for s in surveys),
        )
        wanted = (f"{column or 'CAST(NULL AS STRING)'} AS refused", f"{blind or 'false'} AS is_blind")
        first = changes.selectExpr("commit_lsn", "ordinal", *wanted).where("refused IS NOT NULL OR is_blind")
        for row in first.orderBy("commit_lsn", "ordinal").limit(1).collect():
            return refusal(self._name, row.commit_lsn, row.refused)
        return None

    def _settled(self, registered: Registered | None) -> Registered | None:
        """Return what the table's rows belong to: a run that ended early could not record it any more."""
        if registered is None or not self._table.exists():
            return None
        successor = registered.successor
        if successor is None or (self._table.offset(successor.txn) or INVALID) < successor.lsn:
            return registered
        return replace(
            registered,
            path=self._table.path,
            relation_id=successor.relation_id,
            columns=successor.columns,
            successor=None,
            # What data files call the columns of a table that was written anew was not recorded any more.
            metadata_columns=registered.metadata_columns
            if all(c.physical_name for c in successor.columns)
            else (),
        )

    def _runs(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        start: InputStart,
        through: LSN,
    ) -> tuple[Run, ...]:
        runs = plain_runs(surveys, relations)
        if runs is not None:
            return runs
        signatures: dict[tuple[object, ...], int] = {}
        numbers = {
            s.version: signatures.setdefault(signature(relations[s.version]), len(signatures))
            for s in surveys
        }
        changes = self._bronze.table_changes(self._name, start, through)
        return tuple(Run(*run) for run in exact_runs(changes, numbers))

    def _txn_of(self, cut: WriteStep, through: LSN) -> TxnId:
        if cut.key_ranges:
            return self._txn.of(TxnKind.KEY_RANGES)
        if cut.copy_id is not None and cut.end_lsn < through:
            return self._txn.of(TxnKind.COPIED, cut.copy_id)
        return self._txn.of(TxnKind.PART, cut.part) if cut.part else self._txn

    def _write(self, cut: WriteStep, table: TableInput, start: InputStart) -> int:
        """Write one cut, unless a run before did, and return how many values did not fit."""
        app = self._txn_of(cut, table.end_lsn)
        if (self._table.offset(app) or INVALID) >= cut.end_lsn:
            return 0
        columns = {name: stored(ddl) for name, ddl in self._schema.columns().items()}
        changes = between(self._bronze.table_changes(self._name, start, table.end_lsn), cut.start, cut.end)
        fold = plan_fold(table, cut, columns, self._rule)
        commit = TableCommit(app, cut.end_lsn, {"table": list(self._name), "after": str(start.offset)})
        return self._writer.write(changes, fold, cut, commit, self._schema.metadata())
