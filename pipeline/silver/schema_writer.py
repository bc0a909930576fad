"""The shape of one silver table: made and evolved from relation versions, columns told from our own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.survey import Survey
from pipeline.config.tables import TableRule
from pipeline.delta.sql import literal, quoted
from pipeline.delta.table import LakeTable, needs_column_mapping
from pipeline.delta.txn import TableCommit, TxnId, TxnKind, commit_settings
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, Registered, RegisteredColumn
from pipeline.protocol.lsn import LSN
from pipeline.silver.column_mapping import (
    AlignedVersions,
    RenameColumn,
    SilverColumns,
    align_versions,
    plan_renames,
)
from pipeline.silver.merge import MetadataNames
from pipeline.silver.metadata_columns import find_metadata_columns, free_names, plan_metadata_renames
from pipeline.silver.schema_evolution import (
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    NeedsRebuild,
    Operation,
    WidenColumn,
    plan_evolution,
    shaped,
)
from pipeline.silver.schema_notes import SchemaNote
from pipeline.silver.sidecars import with_sidecars
from pipeline.silver.write_plan import followed
from pipeline.table_name import TableName


class Held(Exception):
    """The table cannot be followed beyond an LSN; what lies before it can."""

    def __init__(self, sentence: str, before: LSN) -> None:
        super().__init__(sentence)
        self.before = before


class RebuildNeeded(Exception):
    """The table can be followed beyond an LSN only if it is written anew from bronze."""

    def __init__(self, sentence: str, lsn: LSN) -> None:
        super().__init__(sentence)
        self.lsn = lsn


@dataclass(frozen=True, slots=True)
class Evolution:
    """What brings a table to the shape of its newest version, each with the LSN of its first row.

    `known` is what is known of it then; a Hold or Rewrite is the last operation there is. `created_again_at`
    is where another table under the same name begins.
    """

    operations: Sequence[tuple[LSN, Operation]]
    known: SilverColumns
    alike: AlignedVersions
    created_again_at: LSN | None


class SchemaWriter:
    """Reads and changes the columns of one silver table."""

    def __init__(
        self,
        spark: SparkSession,
        table: LakeTable,
        records: Records,
        name: TableName,
        rule: TableRule,
        txn: TxnId,
        *,
        metadata_columns: bool,
    ) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self._rule = rule
        self._txn = txn
        self._metadata_columns = metadata_columns
        self.own: tuple[str, ...] = ()  # what data files call our own columns

    def evolve(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
    ) -> tuple[Evolution, dict[int, SourceRelation]]:
        """Bring the table to the shape of all versions in order; return how.

        Returned beside it: the relations as their columns are named in silver. Of a table that was created
        again only the newest counts. Raises Held or NeedsRewrite, before anything is done, where one cannot
        be followed.
        """
        evolution = self.plan(surveys, relations, registered)
        for lsn, operation in evolution.operations:
            match operation:
                case Hold():
                    raise Held(operation.sentence, lsn)
                case NeedsRebuild():
                    raise RebuildNeeded(operation.sentence, lsn)
        if evolution.created_again_at is not None:
            sentence = "the table was created again under its name"
            self._record("evolved", evolution.created_again_at, sentence)
        for lsn, operation in evolution.operations:
            self._perform(operation, lsn, evolution)
        return evolution, {**relations, **{r.version: r for r in evolution.alike.relations}}

    def plan(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
    ) -> Evolution:
        """Plan all that brings the table to the shape of all versions in order; nothing is done."""
        versions = followed(surveys, relations)
        last = versions[-1]
        newest = relations[last.version].oid
        is_there, known = self._table.exists(), None
        if registered is not None and is_there:  # a table that was removed is built again
            known = self._known(registered)
        alike = align_versions(known, [relations[s.version] for s in versions])
        coming = {c.name for s in versions for c in relations[s.version].columns} | _names(alike)
        self.own = self._find_own(registered, coming) if is_there else ()
        silver = self.columns() if is_there else None
        renames = plan_renames(known, alike) if known is not None else []
        known = known.renamed(renames) if known is not None else None
        renames = with_sidecars(renames, silver or {})
        wanted = {*_names(alike), *(rename.to for rename in renames)}
        moved = plan_metadata_renames(self._own_names(), silver or {}, wanted)
        operations: list[tuple[LSN, Operation]] = [(LSN(last.last[0]), r) for r in (*moved, *renames)]
        columns = shaped(silver, renames) if silver is not None else None
        was_certain = True
        for survey, relation, is_certain in zip(versions, alike.relations, alike.certain, strict=True):
            planned = plan_evolution(
                known, relation, columns, self._rule, is_certain=is_certain and was_certain
            )
            was_certain = is_certain
            operations += [(LSN(survey.first[0]), operation) for operation in planned]
            if any(isinstance(operation, Hold | NeedsRebuild) for operation in planned):
                break
            columns = shaped(columns, planned)
            known = (known or SilverColumns(relation.oid, {})).after(relation)
        is_another = registered is not None and silver is not None and registered.relation_id != newest
        begins = LSN(versions[0].first[0]) if is_another else None
        return Evolution(operations, known or SilverColumns(newest, {}), alike, begins)

    def columns_of(self, evolution: Evolution) -> tuple[RegisteredColumn, ...]:
        """Return the columns to register once the table has its new shape."""
        known, sources = evolution.known, evolution.alike.sources
        physical = self._table.physical_names()
        return tuple(
            RegisteredColumn(
                sources.get(number or 0, name),
                name,
                number,
                physical[name],
                *known.types.get(name, (None, None)),
            )
            for name, number in known.numbers.items()
            if name in physical
        )

    def _known(self, registered: Registered) -> SilverColumns:
        names = {physical: name for name, physical in self._table.physical_names().items()}
        names |= {"": ""}  # a run that wrote the table anew ended before it recorded what data files say
        named = {c: names.get(c.physical_name) for c in registered.columns}
        columns = {c: name or c.silver_name for c, name in named.items() if name is not None}
        return SilverColumns(
            registered.relation_id,
            {name: c.attribute_number for c, name in columns.items()},
            {c.name: c.attribute_number for c, name in columns.items() if c.name != name},
            {
                name: (c.type_oid, c.type_modifier)
                for c, name in columns.items()
                if c.type_oid is not None and c.type_modifier is not None
            },
        )

    def columns(self) -> dict[str, str]:
        """Return the source's columns in silver: name → DDL."""
        own = self._own_names()
        fields = self._table.schema().fields
        return {f.name: f.dataType.simpleString().upper() for f in fields if f.name not in own}

    def metadata(self) -> MetadataNames:
        """Return the names of our own two columns."""
        return MetadataNames(*(self._own_names() or (None, None)))

    def _own_names(self) -> list[str]:
        if not self.own:
            return []
        called = {physical: name for name, physical in self._table.physical_names().items()}
        return [called.get(physical, physical) for physical in self.own]

    def _find_own(self, registered: Registered | None, coming: Collection[str]) -> tuple[str, ...]:
        """Find our columns as they were recorded, or among those that are not known to be the source's."""
        if not self._metadata_columns:
            return ()
        physical = self._table.physical_names()
        if (
            registered
            and registered.metadata_columns
            and {*registered.metadata_columns} <= {*physical.values()}
        ):
            return registered.metadata_columns
        known = self._known(registered).numbers if registered else ()
        return tuple(physical.get(name, name) for name in find_metadata_columns([*physical], known, coming))

    def _perform(self, operation: Operation, lsn: LSN, evolution: Evolution) -> None:
        match operation:
            case CreateTable():
                self._create(operation, _names(evolution.alike))
                return
            case RenameColumn():
                self._table.rename_column(operation.name, operation.to)
            case WidenColumn():
                self._table.widen_column(operation.name, operation.type.ddl)
            case AddColumn():
                if operation.name not in self.columns():
                    if needs_column_mapping([operation.name]):
                        self._table.map_columns()
                    self._table.add_columns(operation.ddl)
                if operation.backfill is not None:
                    self._backfill(operation, lsn, evolution.known.relation_id)
            case DropColumn():
                self._table.drop_column(operation.name)
        if operation.sentence:
            kind = operation.kind if isinstance(operation, SchemaNote | RenameColumn) else "evolved"
            self._record(kind, lsn, operation.sentence)

    def _create(self, operation: CreateTable, coming: Collection[str]) -> None:
        ddl = [f"{quoted(name)} {kind.ddl}" for name, kind in operation.columns]
        taken = [*coming, *(name for name, _ in operation.columns)]
        own = free_names(taken) if self._metadata_columns else []
        ddl += [f"{quoted(name)} {kind}" for name, kind in zip(own, ("BIGINT", "TIMESTAMP"), strict=False)]
        properties = {"delta.columnMapping.mode": "name"} if operation.needs_column_mapping else {}
        self._table.ensure(", ".join(ddl), properties)
        physical = self._table.physical_names()
        self.own = tuple(physical[name] for name in own)

    def _backfill(self, operation: AddColumn, lsn: LSN, oid: int) -> None:
        """Give the rows that are there what the source shows for them: the default of ADD COLUMN, once.

        Attribute numbers are never given twice in a table: whatever came later, what was filled is filled.
        """
        value = operation.type.value(literal(operation.backfill or ""))
        assert operation.number is not None
        txn = self._txn.of(TxnKind.BACKFILL, oid, operation.number)
        commit = TableCommit(txn, lsn, {"operation": "backfill"})
        if self._table.offset(commit.txn) is not None:
            return
        with commit_settings(self._spark, commit):
            self._spark.sql(f"UPDATE {self._table.identifier} SET {quoted(operation.name)} = {value}")

    def _record(self, kind: str, lsn: LSN, sentence: str) -> None:
        self._records.record_events([Event(*self._name, lsn, kind, sentence)])


def _names(alike: AlignedVersions) -> set[str]:
    return {column.name for relation in alike.relations for column in relation.columns}
