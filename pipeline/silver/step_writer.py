"""Carry out planned writes with Spark: fold the changes of a step, and commit them to the silver table once.

By key one MERGE of at most one row per key; by whole rows one MERGE that removes rows of an image and adds
some; else an append, or an overwrite where the step replaces the table's rows. Values that do not fit, and
values that were not sent and that nobody has, are recorded before the commit.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.delta.sql import literal
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, commit_settings
from pipeline.errors import LakeError
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.silver import merge, multiset
from pipeline.silver.fold import INHERITED, UNKNOWN, Fold, pick_or_missing
from pipeline.silver.folded_frames import final_rows, fold_by_key, from_silver, steps, typed, with_key_changes
from pipeline.silver.key_changes import follow_key_changes
from pipeline.silver.key_ranges import KeyRangesUnusable, bounds_are_values
from pipeline.silver.write import FOLDED, Write, WriteKind, keyless
from pipeline.silver.write_plan import Identity
from pipeline.table_name import TableName


class StepWriter:
    """Carries out the writes of one silver table."""

    def __init__(self, spark: SparkSession, table: LakeTable, records: Records, name: TableName) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self.missing_values = 0  # values that were not sent, and that the table does not have either

    def write(self, changes: DataFrame, write: Write) -> int:
        """Write the changes of one step in one commit, and return how many values did not fit.

        Raise KeysUnknown where the bounds of copied key ranges are not values of the key's types.
        """
        if write.step.copy_id is not None or write.step.identity is Identity.NONE:
            return self._write_as_they_are(changes, write)
        if write.step.identity is Identity.WHOLE_ROW:
            return self._write_multiset(changes, write)
        return self._write_by_key(changes, write)

    def _write_by_key(self, changes: DataFrame, write: Write) -> int:
        fold = write.fold
        stepped = steps(changes, fold)
        folded = fold_by_key(stepped, fold)
        source = _kept(typed(folded, fold))
        found = _inspect(source, fold)
        if found.inherits:
            linked = typed(with_key_changes(folded, follow_key_changes(stepped, fold), fold), fold)
            source = _kept(from_silver(linked, self._table.frame(), fold))
            found = _inspect(source, fold)
        self._refuse_lost_keys(found, folded, fold)
        key = [fold.columns[i].name for i in fold.key]
        self._record_misfits(source, fold, found.misfits, key)
        self.missing_values += found.unknown
        if found.keeps:
            self._record_unsent(source, fold, key, is_new=write.kind is not WriteKind.MERGE)
        self._commit(source, write, final_rows(source, fold, write.metadata))
        return found.misfits

    def _write_multiset(self, changes: DataFrame, write: Write) -> int:
        (version,) = write.fold.versions
        columns, plain = write.fold.columns, keyless(write.fold)
        silver = self._table.frame() if write.kind is WriteKind.MERGE_ROWS else None
        copies = multiset.signed_rows(changes, columns, version)
        counted = _kept(multiset.with_silver_counts(multiset.net_counts(copies, columns), silver, columns))
        self._record_absent(counted, write.commit)
        added = multiset.added_rows(counted, columns).withColumn("op", F.lit("I"))
        source = typed(added, plain)
        misfits = self._record_misfits_of_copies(copies, plain)
        if silver is None:
            self._commit(source, write, final_rows(source, plain, write.metadata))
            return misfits
        removed = counted.where("wanted < held").selectExpr("'D' AS op", "image")
        kept = multiset.kept_rows(counted, silver, columns, write.metadata).withColumn("op", F.lit("I"))
        rows = source.drop(*(c for c in source.columns if c.startswith("x")))
        frame = rows.unionByName(kept.drop("image"), allowMissingColumns=True)
        self._commit(_kept(frame.unionByName(removed, allowMissingColumns=True)), write, None)
        return misfits

    def _write_as_they_are(self, changes: DataFrame, write: Write) -> int:
        """Write rows that no other change of the step speaks of."""
        fold = write.fold
        picked = [
            *zip(fold.key_names, fold.key, strict=True),
            *((f"x{i}", i) for i in range(len(fold.columns))),
        ]
        texts = (F.expr(pick_or_missing(fold, i, "new")).alias(name) for name, i in picked)
        rows = changes.where("op = 'I'")
        source = typed(rows.select(F.lit("I").alias("op"), "commit_lsn", "commit_time", *texts), fold)
        found = _inspect(source, fold)
        self._refuse_lost_keys(found, source, fold)
        key = [fold.columns[i].name for i in fold.key]
        final = final_rows(source, fold, write.metadata)
        if write.condition is not None:
            self._require_known_keys(final, write, write.condition)
        self._record_misfits(source, fold, found.misfits, key)
        self._commit(source, write, final)
        return found.misfits

    def _commit(self, source: DataFrame, write: Write, rows: DataFrame | None) -> None:
        """Make the one commit of a write: `source` is merged, `rows` are appended or put in others' place."""
        match write.kind:
            case WriteKind.MERGE | WriteKind.MERGE_ROWS:
                assert write.statement is not None
                source.createOrReplaceTempView(FOLDED)
                with commit_settings(self._spark, write.commit):
                    self._spark.sql(write.statement)
            case WriteKind.REPLACE_KEYS:
                assert rows is not None
                assert write.condition is not None
                self._table.replace_where(write.condition, rows, write.commit)
            case WriteKind.OVERWRITE:
                assert rows is not None
                self._table.overwrite(rows, write.commit)
            case WriteKind.APPEND:
                assert rows is not None
                self._table.append(rows, write.commit)

    def _require_known_keys(self, rows: DataFrame, write: Write, condition: str) -> None:
        """Raise KeysUnknown unless the bounds are values of the key, and all copied rows lie within them."""
        bounds = bounds_are_values(write.fold, write.step.key_ranges)
        is_known = not self._spark.range(1).where(bounds).isEmpty()
        if not is_known or not rows.where(f"NOT coalesce({condition}, false)").isEmpty():
            raise KeyRangesUnusable

    def _record_absent(self, counted: DataFrame, commit: TableCommit) -> None:
        """Record that updates or deletes meant rows that silver does not have."""
        row = counted.agg(F.expr(f"coalesce(sum({multiset.ABSENT}), 0)").alias("count")).head()
        assert row is not None
        if row["count"]:
            sentence = (
                f"{row['count']} updates or deletes under REPLICA IDENTITY FULL meant rows that silver does "
                "not have: rows from before that were not copied, or that silver has otherwise, or of a "
                "partition that has not REPLICA IDENTITY FULL itself (give it that); only a resync brings "
                "the table to what the source has"
            )
            self._records.record_events([Event(*self._name, commit.lsn, "diverged", sentence)])

    def _record_misfits_of_copies(self, copies: DataFrame, fold: Fold) -> int:
        """Record what the added copies of rows bring, also where silver holds another copy alike."""
        lost = [
            misfit
            for i, column in enumerate(fold.columns)
            if (misfit := column.type.misfit(f"x{i}", f"({column.type.value(f'x{i}')})"))
        ]
        if not lost:
            return 0
        rows = multiset.surviving_rows(copies.where(" OR ".join(lost)), fold.columns).withColumn(
            "op", F.lit("I")
        )
        source = _kept(typed(rows, fold))
        count = _inspect(source, fold).misfits
        self._record_misfits(source, fold, count, [])
        return count

    def _refuse_lost_keys(self, found: "_Found", texts: DataFrame, fold: Fold) -> None:
        """Raise LakeError where rows have no key in silver; `texts` has the keys as they came."""
        if not found.lost_keys:
            return
        name = str(self._name)
        unsaid = " OR ".join(f"{key} IS NULL" for key in fold.key_names)
        if not texts.where(f"op = 'D' AND ({unsaid})").isEmpty():
            raise LakeError(
                f"{name}: an update or delete does not say the key of the row that it means: a partition has "
                "another replica identity than the table. Run ALTER TABLE … REPLICA IDENTITY FULL for each "
                f"partition, as pgdelta check names them, then {self._name.command('resync')}"
            )
        raise LakeError(
            f"{name}: {found.lost_keys} rows have a key that its silver type cannot "
            "hold; set tables[].types of that column to STRING and remove the silver table to rebuild it"
        )

    def _record_unsent(self, source: DataFrame, fold: Fold, key: list[str], *, is_new: bool) -> None:
        """Record the values that were not sent of rows that silver does not have: they become NULL."""
        rows = source.where(f"op = 'U' AND ({_keeps(fold)})")
        if not is_new:
            on = " AND ".join(
                merge.same_key(fold, k, i) for k, i in zip(fold.key_names, fold.key, strict=True)
            )
            rows = rows.alias("s").join(self._table.frame().alias("t"), F.expr(on), "left_anti")
        unknown = {f"s{i}": F.expr(f"coalesce(s{i}, {UNKNOWN})") for i in fold.partial}
        count = rows.count()
        self.missing_values += count
        self._record_misfits(rows.withColumns(unknown), fold, count, key)

    def _record_misfits(self, source: DataFrame, fold: Fold, count: int, key: list[str]) -> None:
        found = merge.misfits(fold)
        if not count or found is None:
            return
        texts = ", ".join(f"{literal(name)}, {_shown(fold, i)}" for i, name in enumerate(key))
        rows = (
            source.withColumn("misfit", F.explode(F.expr(found)))
            .withColumns(
                {
                    "schema_name": F.lit(self._name[0]),
                    "table_name": F.lit(self._name[1]),
                    "key": F.expr(f"to_json(map({texts}))" if key else "CAST(NULL AS STRING)"),
                    "lsn": F.col("commit_lsn"),
                }
            )
            .select("schema_name", "table_name", "key", "lsn", "misfit.*")
        )
        self._records.record_misfits(rows)


def _shown(fold: Fold, i: int) -> str:
    """Return SQL for a key's value as text, by which rows are told apart."""
    kind = fold.columns[fold.key[i]].type
    if kind.ddl == "BINARY":
        return rf"concat('\\x', lower(hex(k{i})))"
    plain = kind.element is None and kind.is_comparable
    return f"CAST(k{i} AS STRING)" if plain else kind.canonical_value(f"k{i}")


def _kept(frame: DataFrame) -> DataFrame:
    """Compute a frame once, at its first use: a MERGE reads its source twice, and refuses a cached one."""
    return frame.localCheckpoint(eager=False)


@dataclass(frozen=True, slots=True)
class _Found:
    inherits: bool
    keeps: bool
    misfits: int
    lost_keys: int
    unknown: int


def _inspect(source: DataFrame, fold: Fold) -> _Found:
    """Look once over the folded rows: is there anything to link, and what does not fit."""
    inherits = " OR ".join(f"s{i} = {INHERITED}" for i in fold.partial) or "false"
    lost = " OR ".join(f"{name} IS NULL" for name in fold.key_names) or "false"
    unknown = " OR ".join(f"s{i} = {UNKNOWN}" for i in fold.partial if fold.columns[i].indexes) or "false"
    misfits = merge.misfits(fold)
    row = source.agg(
        F.expr(f"coalesce(bool_or(op = 'U' AND ({inherits})), false)").alias("inherits"),
        F.expr(f"coalesce(bool_or(op = 'U' AND ({_keeps(fold)})), false)").alias("keeps"),
        F.expr(f"coalesce(sum(CASE WHEN op <> 'D' THEN size({misfits}) END), 0)" if misfits else "0").alias(
            "misfits"
        ),
        F.expr(f"count_if({lost})").alias("lost_keys"),
        F.expr(f"count_if(op <> 'D' AND ({unknown}))").alias("unknown"),
    ).head()
    assert row is not None
    return _Found(row.inherits, row.keeps, row.misfits, row.lost_keys, row.unknown)


def _keeps(fold: Fold) -> str:
    """Return SQL that is true where a column that the relation has keeps what silver has."""
    columns = (i for i in fold.partial if fold.columns[i].indexes)
    return " OR ".join(f"s{i} IS NULL" for i in columns) or "false"
