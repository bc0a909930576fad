"""The shape of one silver table: made and evolved from relation versions, columns told from our own."""

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from pipeline.lake.records import Event, Records, Registered
from pipeline.lake.session import committing
from pipeline.lake.tables import Commit, LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.silver.evolve import AddColumn, CreateTable, Hold, Known, Note, Operation, plan_evolution
from pipeline.silver.fold import literal
from pipeline.silver.merge import MetadataNames, quoted
from pipeline.silver.plan import Survey
from pipeline.silver.relation import SourceRelation

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
        overrides: Mapping[str, str],
        app_id: str,
        *,
        metadata_columns: bool,
    ) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self._overrides = overrides
        self._app_id = app_id
        self._metadata_columns = metadata_columns

    def evolve(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
    ) -> Known:
        """Bring the table to the shape of all versions in order; return what is known of it then.

        Raises Held, before anything of that version is done, where one cannot be followed.
        """
        silver = self.columns() if self._table.exists() else None
        known = None
        if registered is not None and silver is not None:  # a table that was removed is built again
            known = Known(registered.relation_id, registered.numbers)
        for survey in sorted(surveys, key=lambda s: s.first):
            relation, lsn = relations[survey.version], LSN(survey.first[0])
            operations = plan_evolution(known, relation, silver, self._overrides)
            for operation in operations:
                if isinstance(operation, Hold):
                    raise Held(operation.sentence, lsn)
            silver = self._perform(operations, silver, lsn)
            if known is not None and known.relation_id != relation.oid:
                self._record("evolved", lsn, "the table was created again under its name")
            known = (known or Known(relation.oid, {})).after(relation)
        if known is None:
            raise ValueError("a table's input names at least one relation version")
        return known

    def columns(self) -> dict[str, str]:
        """Return the source's columns in silver: name → DDL."""
        schema = self._table.schema()
        ours = self._our_names(schema.names)
        return {f.name: f.dataType.simpleString().upper() for f in schema.fields if f.name not in ours}

    def metadata(self) -> MetadataNames:
        """Return the names of our own two columns."""
        return MetadataNames(*(self._our_names(self._table.schema().names) or (None, None)))

    def _perform(
        self, operations: Sequence[Operation], silver: dict[str, str] | None, lsn: LSN
    ) -> dict[str, str]:
        columns = dict(silver or {})
        for operation in operations:
            match operation:
                case CreateTable():
                    columns = {name: kind.ddl for name, kind in operation.columns}
                    self._create(operation)
                case AddColumn():
                    if operation.name not in columns:
                        self._table.add_columns(operation.ddl)
                    columns[operation.name] = operation.type.ddl
                    if operation.backfill is not None:
                        self._backfill(operation, lsn)
                    self._record("evolved", lsn, operation.sentence)
                case Note():
                    self._record("diverged", lsn, operation.sentence)
        return columns

    def _create(self, operation: CreateTable) -> None:
        ddl = [f"{quoted(name)} {kind.ddl}" for name, kind in operation.columns]
        names = self._free_names([name for name, _ in operation.columns])
        ddl += [f"{quoted(name)} {kind}" for name, kind in zip(names, ("BIGINT", "TIMESTAMP"), strict=False)]
        properties = {"delta.columnMapping.mode": "name"} if operation.needs_column_mapping else {}
        self._table.ensure(", ".join(ddl), properties)

    def _backfill(self, operation: AddColumn, lsn: LSN) -> None:
        """Give the rows that are there what the source shows for them: the default of ADD COLUMN, once."""
        value = operation.type.value(literal(operation.backfill or ""))
        commit = Commit(f"{self._app_id}+{operation.name}", lsn, {"operation": "backfill"})
        if (self._table.position(commit.app_id) or -1) >= lsn:
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
