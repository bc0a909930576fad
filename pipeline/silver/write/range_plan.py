"""The plan and the result of applying one range of changes to a silver table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.source_relations import Relations
from pipeline.bronze.table_input import InputStart, Survey
from pipeline.config.tables import TableRule
from pipeline.delta.txn import TableCommit
from pipeline.metadata.registry import RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.write import Write
from pipeline.silver.schema.column_mapping import AlignedVersions, SilverColumns
from pipeline.silver.schema.schema_operations import (
    Hold,
    NeedsRebuild,
    NeedsResync,
    SchemaOperation,
    SetProperties,
    rewrite_cost,
)
from pipeline.silver.write.writer_choice import CHANGE_DATA_FEED


@dataclass(frozen=True, slots=True)
class PlannedOperation:
    """An operation, the LSN of the first change that needs it, and all SQL that carries it out.

    Features are enabled first. What an earlier run carried out, and could not register, has no SQL. Nor have
    operations that `is_rewritten`: one commit writes the table again for all of them.
    """

    lsn: LSN
    operation: SchemaOperation
    enable: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    backfill: tuple[TableCommit, str] | None = None
    is_rewritten: bool = False

    def cost(self, rows: int, changes: int) -> str:
        """Return what it costs in a table of so many rows and changes in bronze."""
        return rewrite_cost(rows) if self.is_rewritten else self.operation.cost(rows, changes)

    @property
    def sql(self) -> tuple[str, ...]:
        """The statements, in order."""
        if self.is_rewritten:
            return ()
        return (*self.enable, *self.statements, *((self.backfill[1],) if self.backfill else ()))


@dataclass(frozen=True, slots=True)
class Evolution:
    """What gives a table the columns of its newest relation version.

    `operations` are in order. A Hold or NeedsRebuild is the last one, and `stop`. `columns` (name → DDL) are
    the source's columns in silver afterwards, `metadata` the names of pgdelta's. `relations` have their
    columns under silver's names, and so has `rule`; its partition columns are those of the table.
    """

    operations: Sequence[PlannedOperation]
    recorded: SilverColumns
    aligned: AlignedVersions
    columns: Mapping[str, str]
    metadata: MetadataNames
    relations: Relations
    recreated_at: LSN | None  # where another source table with the same name begins
    stop: tuple[LSN, Hold | NeedsRebuild] | None
    rule: TableRule

    @property
    def new_feature(self) -> str | None:
        """What only Spark writes and the table has not had before, None if there is nothing."""
        found = (each.operation for each in self.operations)
        enables = any(isinstance(each, SetProperties) and each.enables_change_feed for each in found)
        return CHANGE_DATA_FEED if enables else None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a range: the LSN up to which it is applied, and why the table is held there."""

    applied: LSN
    held: str | None = None
    misfits: int = 0
    kind: str = "held"  # or refused, resync: of the event that says why
    changes: int = 0
    missing_values: int = 0  # that neither the stream nor silver has
    copy_lsn: LSN | None = None  # the type change after which the table waits for a copy
    uncompared: CompleteCopy | None = None  # the last copy, if it lacks values that were not sent

    @property
    def why_uncompared(self) -> str | None:
        """Return why the rows are not those of the last copy, None if they are."""
        if self.uncompared is None:
            return None
        return (
            f"The copy at {self.uncompared.end_lsn} lacks values that the source did not send, so the table "
            "is not compared with it."
        )

    def then(self, other: WriteResult) -> WriteResult:
        """Return the result of this range and of the one that follows it."""
        return replace(
            other,
            misfits=self.misfits + other.misfits,
            changes=self.changes + other.changes,
            missing_values=self.missing_values + other.missing_values,
            uncompared=other.uncompared or self.uncompared,
        )


@dataclass(frozen=True, slots=True)
class RangeStop:
    """Why a table is applied up to an LSN and no further; `kind` is the event's."""

    sentence: str
    kind: str = "held"
    copy_lsn: LSN | None = None  # of the change, if only a copy helps

    @classmethod
    def of(cls, hold: Hold, lsn: LSN) -> RangeStop:
        """Return the stop before a change that cannot be followed."""
        return cls(hold.sentence, hold.kind, lsn if isinstance(hold, NeedsResync) else None)


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What one range does to a table, from `start` (exclusive) to `end_lsn` (inclusive).

    Without an evolution there is nothing to write. With `rebuild` the table is rebuilt from bronze instead.
    """

    start: InputStart
    end_lsn: LSN
    registered: RegisteredTable | None
    stop: RangeStop | None = None
    surveys: tuple[Survey, ...] = ()
    relations: Relations = field(default_factory=dict)
    evolution: Evolution | None = None
    rebuild: tuple[LSN, NeedsRebuild] | None = None
    writes: tuple[Write, ...] = ()

    @property
    def changes(self) -> int:
        """The number of its changes."""
        return sum(survey.changes for survey in self.surveys)

    def changes_of(self, write: Write) -> int:
        """Return how many changes a write has, or some more."""
        return sum(survey.changes for survey in self.surveys if survey.version in write.step.versions)

    @property
    def changes_columns(self) -> bool:
        """Whether it changes columns or replaces the table, beyond properties."""
        if self.evolution is None:
            return False
        operations = (planned.operation for planned in self.evolution.operations)
        is_other = any(not isinstance(operation, SetProperties) for operation in operations)
        return is_other or self.rebuild is not None or self.evolution.recreated_at is not None

    @property
    def statements(self) -> list[str]:
        """The SQL of every write, in order."""
        return [write.sql for write in self.writes]
