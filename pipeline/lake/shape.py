"""The shape of one silver table: made and evolved from relation versions, columns told from our own."""

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from pipeline.lake.records import Event, Records, Registered, RegisteredColumn
from pipeline.lake.session import committing
from pipeline.lake.tables import Commit, LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.rules import TableRule
from pipeline.silver.evolve import (
    AddColumn,
    CreateTable,
    Hold,
    Note,
    Operation,
    WidenColumn,
    needs_column_mapping,
    plan_evolution,
    shaped,
)
from pipeline.silver.fold import literal
from pipeline.silver.merge import MetadataNames, quoted
from pipeline.silver.plan import Survey
from pipeline.silver.relation import SourceRelation
from pipeline.silver.renames import Known, RenameColumn, name_alike, plan_renames
from pipeline.silver.sidecars import with_sidecars

COMMIT_LSN, COMMIT_TIME = "_commit_lsn", "_commit_time"


class Held(Exception):
    """The table cannot be followed beyond an LSN; what lies before it can."""

    def __init__(self, sentence: str, before: LSN) -> None:
        super().__init__(sentence)
        self.before = before


class SilverShape:
    """Reads and changes the columns of one silver table."""

    def __init__(
        self,
        spark: SparkSession,
        table: LakeTable,
        records: Records,
        name: tuple[str, str],
        rule: TableRule,
        app_id: str,
        *,
        metadata_columns: bool,
    ) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self._rule = rule
        self._app_id = app_id
        self._metadata_columns = metadata_columns

    def evolve(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
    ) -> tuple[Known, dict[int, SourceRelation]]:
        """Bring the table to the shape of all versions in order; return what is known of it then.

        Returned beside it: the relations as their columns are named in silver. Of a table that was created
        again only the newest counts. Raises Held, before anything is done, where one cannot be followed.
        """
        if not surveys:
            raise ValueError("a table's input names at least one relation version")
        # A shape that came back is the same version, and may be the last as well as the first.
        last = max(surveys, key=lambda s: s.last)
        newest = relations[last.version].oid
        others = (s for s in surveys if s is not last and relations[s.version].oid == newest)
        followed = [*sorted(others, key=lambda s: s.first), last]
        silver = self.columns() if self._table.exists() else None
        known = None
        if registered is not None and silver is not None:  # a table that was removed is built again
            known = self._known(registered)
        alike = name_alike(known, [relations[s.version] for s in followed])
        renames = plan_renames(known, alike) if known is not None else []
        known = known.renamed(renames) if known is not None else None
        renames = with_sidecars(renames, silver or {})
        # All is planned before anything is done.
        plans: list[tuple[LSN, Sequence[Operation]]] = [(LSN(last.last[0]), renames)]
        columns = shaped(silver, renames) if silver is not None else None
        was_certain = True
        for survey, relation, is_certain in zip(followed, alike.relations, alike.certain, strict=True):
            lsn = LSN(survey.first[0])
            evolution = plan_evolution(
                known, relation, columns, self._rule, is_certain=is_certain and was_certain
            )
            was_certain = is_certain
            for operation in evolution:
                if isinstance(operation, Hold):
                    raise Held(operation.sentence, lsn)
            plans.append((lsn, evolution))
            columns = shaped(columns, evolution)
            known = (known or Known(relation.oid, {})).after(relation)
        assert known is not None
        if registered is not None and silver is not None and registered.relation_id != newest:
            self._record("evolved", LSN(followed[0].first[0]), "the table was created again under its name")
        for lsn, operations in plans:
            self._perform(operations, lsn, newest)
        return known, {**relations, **{r.version: r for r in alike.relations}}

    def columns_of(self, known: Known) -> tuple[RegisteredColumn, ...]:
        """Return the columns to register, the source's names being silver's."""
        physical = self._table.physical_names()
        return tuple(
            RegisteredColumn(name, name, number, physical[name]) for name, number in known.numbers.items()
        )

    def _known(self, registered: Registered) -> Known:
        names = {physical: name for name, physical in self._table.physical_names().items()}
        columns = [c for c in registered.columns if c.physical_name in names]
        return Known(
            registered.relation_id,
            {names[c.physical_name]: c.attribute_number for c in columns},
            {c.name: c.attribute_number for c in columns if c.name != names[c.physical_name]},
        )

    def columns(self) -> dict[str, str]:
        """Return the source's columns in silver: name → DDL."""
        schema = self._table.schema()
        ours = self._our_names(schema.names)
        return {f.name: f.dataType.simpleString().upper() for f in schema.fields if f.name not in ours}

    def metadata(self) -> MetadataNames:
        """Return the names of our own two columns."""
        return MetadataNames(*(self._our_names(self._table.schema().names) or (None, None)))

    def _perform(self, operations: Sequence[Operation], lsn: LSN, oid: int) -> None:
        for operation in operations:
            match operation:
                case CreateTable():
                    self._create(operation)
                case RenameColumn():
                    self._table.rename_column(operation.name, operation.to)
                    if operation.sentence:
                        self._record("evolved", lsn, operation.sentence)
                case WidenColumn():
                    self._table.widen_column(operation.name, operation.type.ddl)
                    self._record("evolved", lsn, operation.sentence)
                case AddColumn():
                    if operation.name not in self.columns():
                        if needs_column_mapping([operation.name]):
                            self._table.map_columns()
                        self._table.add_columns(operation.ddl)
                    if operation.backfill is not None:
                        self._backfill(operation, lsn, oid)
                    self._record("evolved", lsn, operation.sentence)
                case Note():
                    self._record("diverged", lsn, operation.sentence)

    def _create(self, operation: CreateTable) -> None:
        ddl = [f"{quoted(name)} {kind.ddl}" for name, kind in operation.columns]
        names = self._free_names([name for name, _ in operation.columns])
        ddl += [f"{quoted(name)} {kind}" for name, kind in zip(names, ("BIGINT", "TIMESTAMP"), strict=False)]
        properties = {"delta.columnMapping.mode": "name"} if operation.needs_column_mapping else {}
        self._table.ensure(", ".join(ddl), properties)

    def _backfill(self, operation: AddColumn, lsn: LSN, oid: int) -> None:
        """Give the rows that are there what the source shows for them: the default of ADD COLUMN, once.

        Attribute numbers are never given twice in a table: whatever came later, what was filled is filled.
        """
        value = operation.type.value(literal(operation.backfill or ""))
        commit = Commit(f"{self._app_id}+{oid}.{operation.number}", lsn, {"operation": "backfill"})
        if self._table.position(commit.app_id) is not None:
            return
        with committing(self._spark, commit):
            self._spark.sql(f"UPDATE {self._table.identifier} SET {quoted(operation.name)} = {value}")

    def _record(self, kind: str, lsn: LSN, sentence: str) -> None:
        self._records.record_events([Event(*self._name, lsn, kind, sentence)])

    def _free_names(self, columns: list[str]) -> list[str]:
        """Return our columns' names; a source column of such a name keeps it, and ours gives way."""
        if not self._metadata_columns:
            return []
        taken = {column.lower() for column in columns}
        names = []
        for name in (COMMIT_LSN, COMMIT_TIME):
            while name in taken:
                name += "_"
            names.append(name)
        return names

    def _our_names(self, names: list[str]) -> list[str]:
        """Find our two columns again: of each name with underscores behind it, the longest is ours."""
        if not self._metadata_columns:
            return []
        return [
            max((n for n in names if n.lower().rstrip("_") == base), key=len, default=base)
            for base in (COMMIT_LSN, COMMIT_TIME)
        ]
