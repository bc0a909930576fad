"""Plan and change the columns of one silver table.

`plan` reads the table's schema and returns an `Evolution`: operations in order, and the columns that the
table has afterwards. `apply` carries them out and records an event for each. Columns are recognized by their
physical names, which a rename does not change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.source_relations import Relations, SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.tables import TableRule
from pipeline.delta.column_lists import STATISTICS_COLUMNS, with_column_names
from pipeline.delta.definition import Definition
from pipeline.delta.filesystem import remove_empty_table
from pipeline.delta.native_write import create
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import Feature, LakeTable
from pipeline.delta.txn import OURS, TableCommit, TxnId, TxnKind, commit_settings
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, RegisteredColumn, RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.fold import modes
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.write_plan import surveys_of_newest
from pipeline.silver.schema.column_comments import column_comments, comments_of, differing, source_comment
from pipeline.silver.schema.column_mapping import (
    SUFFIX,
    AlignedVersions,
    SilverColumns,
    align_versions,
    find_metadata_columns,
    free_names,
    plan_leftovers,
    plan_metadata_renames,
    plan_renames,
    taken_name,
    with_sidecars,
)
from pipeline.silver.schema.foreign_commits import refuse_removed_columns
from pipeline.silver.schema.rule_names import (
    names_of_columns,
    properties_in_silver,
    rule_in_silver,
    rules_left_behind,
    silver_names,
    unknown_columns,
)
from pipeline.silver.schema.schema_evolution import (
    column_of_others,
    columns_after,
    keeps_former_rows,
    plan_evolution,
    plan_properties,
    refused_default,
)
from pipeline.silver.schema.schema_notes import default_is_misfit
from pipeline.silver.schema.schema_operations import (
    LAYOUT,
    NEEDS_FEATURES,
    AddColumn,
    CreateTable,
    DropColumn,
    Hold,
    LeaveFeatures,
    NeedsRebuild,
    RenameColumn,
    SchemaOperation,
    SetProperties,
)
from pipeline.silver.schema.swap import commit_beside_offset, successor_of
from pipeline.silver.schema.table_partitions import rule_of_table, with_renamed_partitions
from pipeline.silver.write.native_schema import (
    alter,
    alters_natively,
    default_is_lost,
    fills_natively,
    set_default,
)
from pipeline.silver.write.native_session import why_left_to_spark
from pipeline.silver.write.range_plan import Evolution, PlannedOperation
from pipeline.silver.write.registrations import columns_before, columns_to_register, recorded_columns
from pipeline.silver.write.table_rewrite import REWRITE, leaves_features, plan_rewrite, rewrite_table
from pipeline.silver.write.writer_choice import MAX_BYTES, WriterSetting
from pipeline.table_name import TableName


@dataclass(slots=True)
class _Planned:
    """The table after the operations planned so far; `stop` is the last one, if it stops the table."""

    recorded: SilverColumns | None
    columns: Mapping[str, str] | None  # of the source, None if there is no table yet
    metadata_names: list[str]
    operations: list[tuple[LSN, SchemaOperation]]
    stop: tuple[LSN, Hold | NeedsRebuild] | None = None


class SchemaWriter:
    """Reads and changes the columns of one silver table."""

    def __init__(
        self,
        table: LakeTable,
        records: Records,
        name: TableName,
        rule: TableRule,
        txn: TxnId,
        *,
        metadata_columns: bool,
        writer: WriterSetting = "spark",
    ) -> None:
        self._table = table
        self._records = records
        self._name = name
        self._rule = rule
        self._txn = txn
        self._own = modes.metadata_columns(
            rule.mode, has_commit=metadata_columns, has_intermediate=rule.has_intermediate
        )
        self._own_names = [column.name for column in self._own]
        self._writer = writer

    def plan(
        self, surveys: Sequence[Survey], relations: Relations, registered: RegisteredTable | None
    ) -> Evolution:
        """Plan what gives the table the columns of all versions in order; change nothing.

        If several source tables had the name, only the versions of the newest one count.
        """
        versions = surveys_of_newest(surveys, relations)
        last = versions[-1]
        newest = relations[last.version].oid
        exists = self._table.exists()
        rule = rule_of_table(self._rule, self._table.snapshot())
        recorded = recorded_columns(self._table, self._name, registered) if registered and exists else None
        sent = [relations[s.version] for s in versions]
        aligned = align_versions(recorded, sent)
        notes = rules_left_behind(rule, recorded, sent, aligned.source_names)
        source_names = {c.name for s in versions for c in relations[s.version].columns} | aligned.column_names
        metadata_names = self._metadata_names(registered, source_names) if exists else []
        silver = self._source_columns(metadata_names) if exists else None
        renames = plan_renames(recorded, aligned, silver or ()) if recorded is not None else []
        numbers = recorded.numbers if recorded is not None else {}
        recorded = recorded.renamed(renames) if recorded is not None else None
        rule = with_renamed_partitions(rule, renames)
        rule = rule_in_silver(rule, silver_names(aligned), has_partitions=exists)
        renames = with_sidecars(renames, silver or {}, numbers)
        renames = [*plan_leftovers(renames, silver or {}, numbers, aligned, rule), *renames]
        targets = {*aligned.column_names, *(rename.to for rename in renames)}
        metadata_renames = plan_metadata_renames(metadata_names, silver or {}, targets, self._own_names)
        first: list[SchemaOperation] = [*metadata_renames, *renames, *notes]
        operations: list[tuple[LSN, SchemaOperation]] = [(LSN(last.last[0]), each) for each in first]
        columns = columns_after(silver, renames) if silver is not None else None
        planned = _Planned(recorded, columns, metadata_names, operations)
        is_another = registered is not None and silver is not None and registered.relation_id != newest
        if is_another and self._rule.keeps_past:
            planned.stop = LSN(versions[0].first[0]), keeps_former_rows(self._name, self._rule)
        elif taken := taken_name(renames, silver or {}):
            planned.stop = LSN(last.first[0]), column_of_others(aligned.relations[-1], *taken)
        self._plan_versions(planned, versions, aligned, rule, registered if exists else None)
        if planned.stop is None and leaves_features(self._table.snapshot(), rule, self._writer):
            planned.operations.append((LSN(last.first[0]), LeaveFeatures()))
        if planned.stop is None:
            planned.operations += self._plan_wanted(planned, newest, relations, LSN(last.first[0]))
        renamed = {rename.name: rename.to for rename in metadata_renames}
        recorded = planned.recorded or SilverColumns(newest, {})
        return Evolution(
            self._with_statements(planned.operations, recorded.relation_id),
            recorded,
            aligned,
            planned.columns or {},
            self._named([renamed.get(name, name) for name in planned.metadata_names]),
            {**relations, **{r.version: r for r in aligned.relations}},
            LSN(versions[0].first[0]) if is_another else None,
            planned.stop,
            rule,
        )

    def _plan_versions(
        self,
        planned: _Planned,
        versions: Sequence[Survey],
        aligned: AlignedVersions,
        rule: TableRule,
        registered: RegisteredTable | None,
    ) -> None:
        """Plan the operations of each version in order, up to one that stops the table."""
        if planned.stop:
            planned.operations = [planned.stop]
            return
        was_certain = True
        later, created = list(aligned.relations), set[str]()
        for survey, relation, is_certain in zip(versions, aligned.relations, aligned.certain, strict=True):
            later.remove(relation)
            found = plan_evolution(
                planned.recorded,
                relation,
                planned.columns,
                rule,
                is_certain=is_certain and was_certain,
                later=later,
            )
            found = [each for each in found if not (isinstance(each, AddColumn) and each.name in created)]
            found = self._with_lost_defaults(found, relation, rule)
            was_certain = is_certain
            for operation in found:
                if isinstance(operation, CreateTable):
                    operation = self._with_metadata(operation, aligned.column_names)
                    created |= {*operation.partition_by} & {name for name, _ in operation.columns}
                    planned.metadata_names = [name for name, _ in operation.metadata_columns]
                planned.operations.append((LSN(survey.first[0]), operation))
                if isinstance(operation, Hold | NeedsRebuild):
                    planned.stop = LSN(survey.first[0]), operation
            if planned.stop:
                return
            if registered is not None:
                self._refuse_lost_sidecars(found, planned.recorded, registered)
            planned.columns = columns_after(planned.columns, found)
            planned.recorded = (planned.recorded or SilverColumns(relation.oid, {})).after(relation)

    def _plan_wanted(
        self, planned: _Planned, oid: int, relations: Relations, lsn: LSN
    ) -> list[tuple[LSN, SchemaOperation]]:
        """Plan the properties, comments and layout of the rule, for the columns after other operations."""
        known = planned.recorded or SilverColumns(oid, {})
        columns = planned.columns or {}
        wanted, found = self._rule, list[tuple[LSN, SchemaOperation]]()
        if STATISTICS_COLUMNS in wanted.properties:
            own = [relation for relation in relations.values() if relation.oid == known.relation_id]
            names, has = names_of_columns(known, own), {*columns, *planned.metadata_names}
            properties, missing = properties_in_silver(wanted.properties, names, has)
            wanted = replace(wanted, properties=properties)
            if missing:  # at the same LSN each time, so that the event is recorded once
                found.append((LSN(min(each.lsn for each in own)), unknown_columns(missing)))
        layout = self._plan_layout(wanted, known, columns, [each for _, each in planned.operations])
        return [*found, (lsn, layout)] if layout is not None else found

    def _refuse_lost_sidecars(
        self, added: Sequence[SchemaOperation], known: SilverColumns | None, registered: RegisteredTable
    ) -> None:
        """Raise LakeError if operations add a sidecar of a known column: a foreign commit removed it."""
        had = {name + SUFFIX for name in known.numbers} if known is not None else ()
        lost = [each.name for each in added if isinstance(each, AddColumn) and each.name in had]
        if lost:
            refuse_removed_columns(self._table, self._name, registered, lost)

    def _with_lost_defaults(
        self, planned: Sequence[SchemaOperation], relation: SourceRelation, rule: TableRule
    ) -> list[SchemaOperation]:
        """Return operations with what is recorded of defaults that are misfits in older rows, or a Hold."""
        found = list(planned)
        if not any(isinstance(each, AddColumn) and each.backfill is not None for each in planned):
            return found
        if not self._table.exists() or not self._table.snapshot().files:
            return found
        for each in planned:
            if isinstance(each, AddColumn) and default_is_lost(each):
                policy = rule.misfit_of(each.name)
                if policy == "error":
                    return [refused_default(relation, each.name)]
                found.append(default_is_misfit(each.name, policy))
        return found

    def _plan_layout(
        self,
        rule: TableRule,
        recorded: SilverColumns,
        columns: Collection[str],
        operations: Sequence[SchemaOperation] = (),
    ) -> SetProperties | None:
        """Plan the properties and comments of the table with columns that it has after operations."""
        table, comments = self._table.snapshot(), self._records.comments.read().get(self._name, ())
        if not rule.source_comments:
            comments = ()
        wanted = column_comments(comments, recorded.relation_id, recorded.numbers)
        found = comments_of(TableSchema.of_json(table.schema_string).fields, operations)
        names: dict[str, str | None] = {}
        for each in operations:
            if isinstance(each, RenameColumn | DropColumn):
                names[each.name] = each.to if isinstance(each, RenameColumn) else None
        return plan_properties(
            rule,
            with_column_names(table.configuration, names),
            table.metadata.get("description"),
            source_comment(comments, recorded.relation_id),
            differing(wanted, found, columns),
        )

    def set_comments(self, registered: RegisteredTable) -> None:
        """Give the table as it is registered the comments of the source, unless it has them."""
        recorded = recorded_columns(self._table, self._name, registered)
        rule = self._rule.without_properties()
        layout = self._plan_layout(rule, recorded, self._table.schema().names)
        if layout is not None:
            self._perform(PlannedOperation(INVALID, layout, (), layout.statements(self._table.identifier)))

    def only_creates(self, evolution: Evolution) -> bool:
        """Return whether an evolution creates the table without Spark, and at most gives it properties."""
        operations = [planned.operation for planned in evolution.operations]
        return self._writer != "spark" and all(
            isinstance(each, CreateTable | SetProperties) and each.is_native for each in operations
        )

    def apply(
        self, evolution: Evolution, registered: RegisteredTable | None
    ) -> tuple[tuple[RegisteredColumn, ...], tuple[str, ...], RegisteredTable | None]:
        """Carry out an evolution without a stop of a table as it is registered.

        Return the columns to register, `metadata_columns`, and the table with the names in data files that
        its columns have now.
        """
        if evolution.recreated_at is not None:
            sentence = "The table was created again under its name."
            self._record(evolution.recreated_at, "evolved", sentence)
        rewritten = [planned for planned in evolution.operations if planned.is_rewritten]
        for planned in evolution.operations:
            if not planned.is_rewritten:
                self._perform(planned)
                continue
            if planned is rewritten[0]:
                registered = self._rewrite(rewritten, evolution, registered)
            self._record(planned.lsn, planned.operation.kind, planned.operation.sentence)
        physical = self._table.physical_names()
        names = tuple(physical[name] for name, _ in evolution.metadata.pairs())
        return columns_to_register(evolution, physical), names, registered

    def _rewrite(
        self,
        rewritten: Sequence[PlannedOperation],
        evolution: Evolution,
        registered: RegisteredTable | None,
    ) -> RegisteredTable | None:
        """Write the table again with other columns; return it with their names in data files.

        It is registered before, so that the next run finds its columns if this one ends early.
        """
        before = Definition.of(self._table.snapshot())
        rewrite = plan_rewrite(before, [planned.operation for planned in rewritten])
        commit = commit_beside_offset(self._table, self._txn, {"operation": REWRITE, "table": [*self._name]})
        if registered is not None and registered.relation_id == evolution.recorded.relation_id:
            names = rewrite.new_names(self._table.physical_names())
            columns = (replace(c, physical_name=names.get(c.physical_name, "")) for c in registered.columns)
            named = replace(registered, columns=tuple(columns))
            after = columns_to_register(evolution, {f.name: f.name for f in rewrite.definition.fields})
            successor = successor_of(registered, columns_before(named, after), commit)
            self._records.tables.register(replace(registered, successor=successor))
            registered = named
        backfills = [planned.backfill[0] for planned in rewritten if planned.backfill is not None]
        versions = {str(each.txn): int(each.lsn) for each in backfills}
        rewrite_table(self._table, rewrite, commit, versions, self._writer)
        return registered

    def _named(self, names: Sequence[str]) -> MetadataNames:
        """Return the names of pgdelta's columns, given in the order of `self._own`."""
        found = {column.source: name for column, name in zip(self._own, names, strict=False)}
        lsn, time = found.pop("commit_lsn", None), found.pop("commit_time", None)
        return MetadataNames(lsn, time, tuple((name, source) for source, name in found.items()))

    def _with_statements(
        self, operations: Sequence[tuple[LSN, SchemaOperation]], oid: int
    ) -> list[PlannedOperation]:
        """Return the operations with their SQL for the table as it is; `oid` is the source table's."""
        identifier, exists = self._table.identifier, bool(operations) and self._table.exists()
        names = set(self._table.schema().names) if exists else set()
        enabled: set[Feature] = set()
        planned = []
        needs_rewrite = self._rule.readers == "widest" and any(
            isinstance(each, NEEDS_FEATURES) for _, each in operations
        )
        for lsn, operation in operations:
            enable: list[str] = []
            is_repeated = isinstance(operation, AddColumn) and operation.name in names
            if not is_repeated and not isinstance(operation, CreateTable):
                needed = self._table.missing_features(operation.features) if exists else operation.features
                enable = [
                    self._table.enable_statement(feature) for feature in needed if feature not in enabled
                ]
            enabled |= set(operation.features)
            planned.append(
                PlannedOperation(
                    lsn,
                    operation,
                    tuple(enable),
                    () if is_repeated else tuple(operation.statements(identifier)),
                    self._plan_backfill(operation, lsn, oid),
                    needs_rewrite and isinstance(operation, (AddColumn, *NEEDS_FEATURES)),
                )
            )
            match operation:
                case CreateTable():
                    names |= {name for name, _ in (*operation.columns, *operation.metadata_columns)}
                case AddColumn():
                    names.add(operation.name)
                case RenameColumn():
                    names = names - {operation.name} | {operation.to}
                case DropColumn():
                    names.discard(operation.name)
        return planned

    def _plan_backfill(
        self, operation: SchemaOperation, lsn: LSN, oid: int
    ) -> tuple[TableCommit, str] | None:
        """Return what sets the default of ADD COLUMN in existing rows, once for each attribute number."""
        if not isinstance(operation, AddColumn):
            return None
        statement = operation.backfill_statement(self._table.identifier)
        if statement is None:
            return None
        assert operation.number is not None
        txn = self._txn.of(TxnKind.BACKFILL, oid, operation.number)
        if self._table.exists() and self._table.offset(txn) is not None:
            return None
        return TableCommit(txn, lsn, {"operation": "backfill"}), statement

    def _perform(self, planned: PlannedOperation) -> None:
        if self._writer != "spark":
            planned = self._perform_natively(planned)
        self._perform_by_spark(planned)
        self._record(planned.lsn, planned.operation.kind, planned.operation.sentence)

    def _perform_natively(self, planned: PlannedOperation) -> PlannedOperation:
        """Carry out an operation without Spark, as far as that is possible; return what is left to Spark."""
        operation, max_bytes = planned.operation, None if self._writer == "native" else MAX_BYTES
        if isinstance(operation, CreateTable):
            if not operation.is_native:
                return planned
            schema, metadata = TableSchema.of_ddl(operation.ddl), json.dumps({OURS: 1, "operation": "create"})
            columns = operation.partition_by
            create(self._table.folder, schema, {}, metadata, by_statement=True, partition_by=columns)
            return replace(planned, statements=())
        snapshot, is_repeated = self._table.snapshot(), not planned.statements
        if not alters_natively(snapshot, operation, is_repeated=is_repeated):
            return planned
        if planned.backfill is not None and not fills_natively(snapshot, max_bytes):
            return planned
        if not is_repeated:
            alter(self._table, snapshot, operation)
        planned = replace(planned, enable=(), statements=())
        if isinstance(operation, AddColumn) and planned.backfill is not None:
            try:
                set_default(self._table, operation, planned.backfill[0], max_bytes)
            except Exception as error:
                if why_left_to_spark(error) is None:
                    raise
            else:
                return replace(planned, backfill=None)
        return planned

    def _perform_by_spark(self, planned: PlannedOperation) -> None:
        for statement in planned.enable:
            self._table.spark.sql(statement)
        name = None
        match planned.operation:
            case CreateTable():
                name = "create"
                if planned.statements and not self._table.exists():
                    remove_empty_table(self._table.sessions, self._table.path)
            case SetProperties():
                name = LAYOUT
        for statement in planned.statements:
            self._table.run(statement, name)
        if planned.backfill is not None:
            commit, statement = planned.backfill
            with commit_settings(self._table.spark, commit):
                self._table.spark.sql(statement)

    def _with_metadata(self, operation: CreateTable, source_names: Collection[str]) -> CreateTable:
        used = [*source_names, *(name for name, _ in operation.columns)]
        names = free_names(used, self._own_names)
        types = (column.ddl for column in self._own)
        return replace(operation, metadata_columns=tuple(zip(names, types, strict=True)))

    def _source_columns(self, metadata_names: Collection[str]) -> dict[str, str]:
        """Return the source's columns in silver: name → DDL."""
        fields = self._table.schema().fields
        return {f.name: f.ddl for f in fields if f.name not in metadata_names}

    def _metadata_names(self, registered: RegisteredTable | None, source_names: Collection[str]) -> list[str]:
        """Return the names of pgdelta's columns, as registered or found among the table's."""
        if not self._own:
            return []
        physical = self._table.physical_names()
        names = {physical_name: name for name, physical_name in physical.items()}
        is_registered = registered and len(registered.metadata_columns) == len(self._own)
        if registered and is_registered and names.keys() >= {*registered.metadata_columns}:
            return [names[physical_name] for physical_name in registered.metadata_columns]
        recorded = recorded_columns(self._table, self._name, registered).numbers if registered else ()
        return find_metadata_columns([*physical], recorded, source_names, self._own_names)

    def _record(self, lsn: LSN, kind: str, sentence: str | None) -> None:
        if sentence:
            self._records.events.record([Event(*self._name, lsn, kind, sentence)])
