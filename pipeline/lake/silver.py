"""One silver table: its Delta table brought to the source's shape, and one write per cut of its input.

Each write records the LSN up to which the table is complete as its Delta transaction version. A cut that ends
inside a transaction records it under an application id of its own (`…#1`), as Delta skips a second write
under the same id and version in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.errors import LakeError
from pipeline.lake.bronze import Bronze, Point, TableName, between, exact_runs
from pipeline.lake.records import Event, Records, Registered
from pipeline.lake.session import committing
from pipeline.lake.tables import Commit, LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.silver import bag, merge
from pipeline.silver.evolve import AddColumn, CreateTable, Hold, Known, Note, plan_evolution
from pipeline.silver.fold import INHERITED, Fold, fold_by_key, literal, pick, steps
from pipeline.silver.link import link
from pipeline.silver.merge import MetadataNames
from pipeline.silver.plan import (
    Cut,
    Identity,
    Run,
    Survey,
    TableInput,
    plain_runs,
    plan_cuts,
    plan_fold,
    signature,
)
from pipeline.silver.relation import SourceRelation
from pipeline.silver.types import overridden

COMMIT_LSN, COMMIT_TIME = "_commit_lsn", "_commit_time"


class Held(Exception):
    """The table cannot be followed beyond an LSN; what lies before it can."""

    def __init__(self, sentence: str, before: LSN) -> None:
        super().__init__(sentence)
        self.before = before


@dataclass(slots=True)
class Written:
    """What came of one table's input."""

    applied: LSN
    counts: dict[str, int] = field(default_factory=dict)
    held: str | None = None
    misfits: int = 0


class SilverTable:
    """Applies the input of one source table to its silver table; one instance per thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        bronze: Bronze,
        records: Records,
        name: TableName,
        path: str,
        overrides: Mapping[str, str],
        *,
        metadata_columns: bool,
    ) -> None:
        self.spark = spark
        self.bronze = Bronze(bronze.lake.with_session(spark), bronze.app_id.split(":")[1])
        self.records = records
        self.name = name
        self.table = LakeTable(spark, path)
        self.overrides = overrides
        self.metadata_columns = metadata_columns
        self.app_id = bronze.app_id
        self._version = -1

    def position(self) -> LSN:
        """Return the LSN up to which the table is complete, 0 where it never was written."""
        return self.table.position(self.app_id) or LSN(0)

    def refuse_foreign_commits(self, since_version: int) -> None:
        """Raise LakeError where somebody else changed the table's rows."""
        if foreign := self.table.foreign_commit(max(since_version, self._version)):
            raise LakeError(
                f"silver table {'.'.join(self.name)} was changed by somebody else ({foreign} of {self.table.path}): "
                "RESTORE it to the version before, or remove the table to have it built again from bronze"
            )

    def apply(
        self,
        surveys: list[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: Point,
        floor: LSN,
    ) -> Written:
        """Bring the table from its floor up to the point, or up to where it has to be held."""
        through, held = point.lsn, None
        try:
            numbers = self._evolve(surveys, relations, registered, through)
        except Held as hold:
            through, held = hold.before, str(hold)
            surveys = [s.survey for s in self.bronze.survey_table(point, self.name, floor, hold.before)]
            if not surveys:
                return Written(applied=floor, held=held)
            numbers = self._evolve(surveys, relations, registered, through)
        table = TableInput(tuple(surveys), relations, through, self._runs(surveys, relations, point, floor))
        written = Written(applied=through, held=held)
        for cut in plan_cuts(table):
            written.misfits += self._write(cut, table, point, floor)
        oid = table.in_order[-1].oid
        if registered is None or dict(registered.numbers) != numbers or registered.relation_id != oid:
            self.records.register(Registered(*self.name, self.table.path, oid, numbers))
        self._version = self.table.version()
        return written

    def _runs(
        self, surveys: list[Survey], relations: Mapping[int, SourceRelation], point: Point, floor: LSN
    ) -> tuple[Run, ...]:
        runs = plain_runs(surveys, relations)
        if runs is not None:
            return runs
        signatures: dict[tuple[object, ...], int] = {}
        numbers = {
            s.version: signatures.setdefault(signature(relations[s.version]), len(signatures))
            for s in surveys
        }
        changes = self.bronze.table_changes(point, self.name, floor, point.lsn)
        return tuple(Run(*run) for run in exact_runs(changes, numbers))

    def _evolve(
        self,
        surveys: list[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        through: LSN,
    ) -> dict[str, int | None]:
        """Bring the Delta table to the shape of all versions in order; return the columns' attribute numbers."""
        known = Known(registered.relation_id, registered.numbers) if registered else None
        numbers: dict[str, int | None] = dict(registered.numbers) if registered else {}
        silver = self._columns() if self.table.exists() else None
        for survey in sorted(surveys, key=lambda s: s.first):
            relation = relations[survey.version]
            operations = plan_evolution(known, relation, silver, self.overrides)
            for operation in operations:
                if isinstance(operation, Hold):
                    raise Held(operation.sentence, LSN(survey.first[0]))
            silver = self._perform(operations, silver, LSN(survey.first[0]))
            if known is not None and known.relation_id != relation.oid:
                numbers = {}
                self._record("evolved", LSN(survey.first[0]), "the table was created again under its name")
            numbers |= {column.name: column.attribute_number for column in relation.columns}
            known = Known(relation.oid, dict(numbers))
        return numbers

    def _perform(self, operations: list[Any], silver: dict[str, str] | None, lsn: LSN) -> dict[str, str]:
        columns = dict(silver or {})
        for operation in operations:
            match operation:
                case CreateTable():
                    columns = {name: kind.ddl for name, kind in operation.columns}
                    self._create(operation)
                case AddColumn():
                    if operation.name not in columns:
                        self.table.add_columns(operation.ddl)
                    columns[operation.name] = operation.type.ddl
                    if operation.backfill is not None:
                        self._backfill(operation, lsn)
                    self._record("evolved", lsn, operation.sentence)
                case Note():
                    self._record("diverged", lsn, operation.sentence)
        return columns

    def _create(self, operation: CreateTable) -> None:
        ddl = [f"{merge.quoted(name)} {kind.ddl}" for name, kind in operation.columns]
        for name, kind in zip(
            self._metadata([n for n, _ in operation.columns]), ("BIGINT", "TIMESTAMP"), strict=False
        ):
            ddl.append(f"{merge.quoted(name)} {kind}")
        properties = {"delta.columnMapping.mode": "name"} if operation.needs_column_mapping else {}
        self.table.ensure(", ".join(ddl), properties)

    def _backfill(self, operation: AddColumn, lsn: LSN) -> None:
        """Give the rows that are there what the source shows for them: the default of ADD COLUMN, once."""
        value = operation.type.value(literal(operation.backfill or ""))
        commit = Commit(f"{self.app_id}+{operation.name}", lsn, {"operation": "backfill"})
        if (self.table.position(commit.app_id) or -1) >= lsn:
            return
        with committing(self.spark, commit):
            name = merge.quoted(operation.name)
            self.spark.sql(f"UPDATE {self.table.identifier} SET {name} = {value}")

    def _record(self, kind: str, lsn: LSN, sentence: str) -> None:
        self.records.record_events([Event(*self.name, lsn, kind, sentence)])

    def _metadata(self, columns: list[str]) -> list[str]:
        """Return our columns' names; a source column of such a name keeps it, and ours gives way."""
        if not self.metadata_columns:
            return []
        taken = {column.lower() for column in columns}
        names = []
        for name in (COMMIT_LSN, COMMIT_TIME):
            while name in taken:
                name += "_"
            names.append(name)
        return names

    def _columns(self) -> dict[str, str]:
        """Return the source's columns in silver: name → DDL."""
        fields = self.table.schema().fields
        names = [field.name for field in fields]
        ours = self._our_names(names)
        return {f.name: _ddl(f.dataType) for f in fields if f.name not in ours}

    def _our_names(self, names: list[str]) -> list[str]:
        """Find our two columns again: of each name with underscores behind it, the longest is ours."""
        if not self.metadata_columns:
            return []
        return [
            max((n for n in names if n.rstrip("_") == base), key=len, default=base)
            for base in (COMMIT_LSN, COMMIT_TIME)
        ]

    def _write(self, cut: Cut, table: TableInput, point: Point, floor: LSN) -> int:
        """Write one cut and return how many values did not fit."""
        app = f"{self.app_id}#{cut.part}" if cut.part else self.app_id
        if (self.table.position(app) or 0) >= cut.through:
            return 0
        columns = {name: overridden(ddl) for name, ddl in self._columns().items()}
        names = self.table.schema().names
        metadata = MetadataNames(*(self._our_names(names) or (None, None)))
        commit = Commit(app, cut.through, {"table": list(self.name)})
        changes = between(self.bronze.table_changes(point, self.name, floor, point.lsn), cut.after, cut.upto)
        fold = plan_fold(table, cut, columns, self.overrides)
        match cut.identity:
            case Identity.KEY:
                return self._write_by_key(changes, fold, cut, commit, metadata)
            case Identity.WHOLE_ROW:
                return self._write_bag(changes, fold, cut, commit, metadata)
            case Identity.NONE:
                return self._append_inserts(changes, fold, cut, commit, metadata)

    def _write_by_key(
        self, changes: DataFrame, fold: Fold, cut: Cut, commit: Commit, metadata: MetadataNames
    ) -> int:
        stepped = steps(changes, fold)
        folded = fold_by_key(stepped, fold)
        source = _kept(merge.typed(folded, fold))
        found = _inspect(source, fold)
        if found.inherits:
            linked = merge.typed(merge.with_links(folded, link(stepped, fold), fold), fold)
            source = _kept(merge.from_silver(linked, self.table.frame(), fold))
            found = _inspect(source, fold)
        if found.lost_keys:
            raise LakeError(
                f"{'.'.join(self.name)}: {found.lost_keys} rows have a key value that its silver type cannot "
                "hold; set tables[].types of that column to STRING and remove the silver table to rebuild it"
            )
        key = [fold.columns[i].name for i in fold.key]
        self._record_misfits(source, fold, commit, found.misfits, key)
        if cut.replaces or self.table.is_empty():
            self._replace(merge.final_rows(source, fold, metadata), cut, commit)
        else:
            self._merge(source, merge.merge_by_key(self.table.identifier, "folded", fold, metadata), commit)
        return found.misfits

    def _write_bag(
        self, changes: DataFrame, fold: Fold, cut: Cut, commit: Commit, metadata: MetadataNames
    ) -> int:
        if fold.has_key_changes:
            raise LakeError(
                f"{'.'.join(self.name)}: an update under REPLICA IDENTITY FULL carries a key tuple only"
            )
        (version,) = fold.versions
        plain = _keyless(fold)
        silver = None if cut.replaces or self.table.is_empty() else self.table.frame()
        net = bag.net_copies(bag.copies(changes, fold.columns, version), fold.columns)
        counted = _kept(bag.against_silver(net, silver, fold.columns))
        added = bag.added_rows(counted, fold.columns).withColumn("op", F.lit("I"))
        source = merge.typed(added, plain)
        found = _inspect(source, plain)
        self._record_misfits(source, plain, commit, found.misfits, [])
        removed = counted.where("wanted < held").selectExpr("'D' AS op", "image")
        if silver is None or removed.isEmpty():
            self._replace(merge.final_rows(source, plain, metadata), cut, commit)
            return found.misfits
        kept = bag.kept_rows(counted, silver, fold.columns, metadata).withColumn("op", F.lit("I"))
        rows = source.drop(*(c for c in source.columns if c.startswith("x")))
        frame = rows.unionByName(kept.drop("image"), allowMissingColumns=True)
        frame = frame.unionByName(removed, allowMissingColumns=True)
        image = bag.image_of_row(fold.columns, "t")
        statement = merge.merge_by_image(self.table.identifier, "folded", image, fold.columns, metadata)
        self._merge(_kept(frame), statement, commit)
        return found.misfits

    def _append_inserts(
        self, changes: DataFrame, fold: Fold, cut: Cut, commit: Commit, metadata: MetadataNames
    ) -> int:
        texts = (F.expr(pick(fold, i, "new")).alias(f"x{i}") for i in range(len(fold.columns)))
        rows = changes.where("op = 'I'").select("op", "commit_lsn", "commit_time", *texts)
        source = merge.typed(rows, _keyless(fold))
        found = _inspect(source, _keyless(fold))
        self._record_misfits(source, _keyless(fold), commit, found.misfits, [])
        self._replace(merge.final_rows(source, fold, metadata), cut, commit)
        return found.misfits

    def _replace(self, rows: DataFrame, cut: Cut, commit: Commit) -> None:
        """Append, or put the rows in place of all others, by what the cut says."""
        if cut.replaces:
            self.table.overwrite(rows, commit)
        else:
            self.table.append(rows, commit)

    def _merge(self, source: DataFrame, statement: str, commit: Commit) -> None:
        source.createOrReplaceTempView("folded")
        with committing(self.spark, commit):
            self.spark.sql(statement)

    def _record_misfits(
        self, source: DataFrame, fold: Fold, commit: Commit, count: int, key: list[str]
    ) -> None:
        found = merge.misfits(fold)
        if not count or found is None:
            return
        texts = ", ".join(f"{literal(name)}, CAST(k{i} AS STRING)" for i, name in enumerate(key))
        rows = (
            source.withColumn("misfit", F.explode(F.expr(found)))
            .withColumns(
                {
                    "schema_name": F.lit(self.name[0]),
                    "table_name": F.lit(self.name[1]),
                    "key": F.expr(f"to_json(map({texts}))" if key else "CAST(NULL AS STRING)"),
                    "lsn": F.col("commit_lsn"),
                }
            )
            .select("schema_name", "table_name", "key", "lsn", "misfit.*")
        )
        own = Commit(f"{commit.app_id}/{'.'.join(self.name)}", commit.lsn)
        self.records.record_misfits(rows, own)


def _kept(frame: DataFrame) -> DataFrame:
    """Compute a frame once, at its first use: a MERGE reads its source twice, and refuses a cached one."""
    return frame.localCheckpoint(eager=False)


@dataclass(frozen=True, slots=True)
class _Found:
    inherits: bool
    misfits: int
    lost_keys: int


def _inspect(source: DataFrame, fold: Fold) -> _Found:
    """Look once over the folded rows: is there anything to link, and what does not fit."""
    inherits = " OR ".join(f"s{i} = {INHERITED}" for i in fold.partial) or "false"
    lost = " OR ".join(f"{name} IS NULL" for name in fold.key_names) or "false"
    misfits = merge.misfits(fold)
    row = source.agg(
        F.expr(f"coalesce(bool_or(op = 'U' AND ({inherits})), false)").alias("inherits"),
        F.expr(f"coalesce(sum(CASE WHEN op <> 'D' THEN size({misfits}) END), 0)" if misfits else "0").alias(
            "misfits"
        ),
        F.expr(f"count_if({lost})").alias("lost_keys"),
    ).head()
    assert row is not None
    return _Found(row.inherits, row.misfits, row.lost_keys)


def _keyless(fold: Fold) -> Fold:
    """Return the fold of rows that are added as they are."""
    columns = tuple(
        type(c)(c.name, c.type, c.positions, is_partial=False, missing_value=c.missing_value)
        for c in fold.columns
    )
    return Fold(columns, (), fold.versions, has_key_changes=False)


def _ddl(data_type: Any) -> str:
    """Return a Spark type as `silver.types` spells it."""
    return str(data_type.simpleString()).upper()
