"""Carry out planned writes with Spark: fold the changes of a step, and commit them to the silver table once.

By key this is a MERGE of at most one row per key, by complete rows a MERGE that removes and adds equal rows,
otherwise an append or an overwrite. Misfits, and values that neither the stream nor silver has, are recorded
before the commit.
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
from pipeline.silver import folded_frames
from pipeline.silver import write as write_module
from pipeline.silver.fold import INHERITED, UNKNOWN, Fold, pick_or_missing
from pipeline.silver.folded_frames import (
    final_rows,
    fold_by_key,
    follow_key_changes,
    from_silver,
    steps,
    typed,
    with_key_changes,
)
from pipeline.silver.write import FOLDED, KeyRangesUnusable, Write, WriteKind, bounds_are_values, keyless
from pipeline.silver.write_plan import Identity
from pipeline.table_name import TableName


class StepWriter:
    """Carries out the writes of one silver table."""

    def __init__(self, spark: SparkSession, table: LakeTable, records: Records, name: TableName) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self.missing_values = 0  # values that neither the stream nor the table has

    def write(self, changes: DataFrame, write: Write) -> int:
        """Write the changes of one step in one commit; return the number of misfits.

        Raises KeyRangesUnusable if silver's types cannot hold the bounds of copied key ranges.
        """
        if write.step.copy_id is not None or write.step.identity is Identity.NONE:
            return self._write_rows(changes, write)
        if write.step.identity is Identity.WHOLE_ROW:
            return self._write_multiset(changes, write)
        return self._write_by_key(changes, write)

    def _write_by_key(self, changes: DataFrame, write: Write) -> int:
        fold = write.fold
        key_steps = steps(changes, fold)
        folded = fold_by_key(key_steps, fold)
        source = _checkpointed(typed(folded, fold))
        found = _inspect(source, fold)
        if found.inherits:
            moved = typed(with_key_changes(folded, follow_key_changes(key_steps, fold), fold), fold)
            source = _checkpointed(from_silver(moved, self._table.frame(), fold))
            found = _inspect(source, fold)
        self._refuse_lost_keys(found, folded, fold)
        key = [fold.columns[i].name for i in fold.key]
        self._record_misfits(source, fold, found.misfits, key)
        self.missing_values += found.unknown
        if found.keeps:
            self._record_missing_values(source, fold, key, is_new=write.kind is not WriteKind.MERGE)
        self._commit(source, write, fold)
        return found.misfits

    def _write_multiset(self, changes: DataFrame, write: Write) -> int:
        (version,) = write.fold.versions
        columns, plain = write.fold.columns, keyless(write.fold)
        silver = self._table.frame() if write.kind is WriteKind.MERGE_ROWS else None
        rows = folded_frames.signed_rows(changes, columns, version)
        net = folded_frames.net_counts(rows, columns)
        counted = _checkpointed(folded_frames.with_silver_counts(net, silver, columns))
        self._record_absent(counted, write.commit)
        added = folded_frames.added_rows(counted, columns).withColumn("op", F.lit("I"))
        source = typed(added, plain)
        misfits = self._record_misfits_of_rows(rows, plain)
        if silver is None:
            self._commit(source, write, plain)
            return misfits
        removed = counted.where("new_count < silver_count").selectExpr("'D' AS op", "image")
        kept = folded_frames.kept_rows(counted, silver, columns, write.metadata).withColumn("op", F.lit("I"))
        inserted = source.drop(*(c for c in source.columns if c.startswith("x")))
        frame = inserted.unionByName(kept.drop("image"), allowMissingColumns=True)
        self._commit(_checkpointed(frame.unionByName(removed, allowMissingColumns=True)), write, plain)
        return misfits

    def _write_rows(self, changes: DataFrame, write: Write) -> int:
        """Write rows that no other change of the step updates or deletes."""
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
        if write.condition is not None:
            self._require_usable_ranges(source, write, write.condition)
        self._record_misfits(source, fold, found.misfits, key)
        self._commit(source, write, fold)
        return found.misfits

    def _commit(self, source: DataFrame, write: Write, fold: Fold) -> None:
        """Make the one commit of a write: merge `source`, or append or replace rows by its living rows."""
        if write.kind in (WriteKind.MERGE, WriteKind.MERGE_ROWS):
            assert write.statement is not None
            source.createOrReplaceTempView(FOLDED)
            with commit_settings(self._spark, write.commit):
                self._spark.sql(write.statement)
            return
        rows = final_rows(source, fold, write.metadata)
        match write.kind:
            case WriteKind.REPLACE_KEYS:
                assert write.condition is not None
                self._table.replace_where(write.condition, rows, write.commit)
            case WriteKind.OVERWRITE:
                self._table.overwrite(rows, write.commit)
            case WriteKind.APPEND:
                self._table.append(rows, write.commit)

    def _require_usable_ranges(self, source: DataFrame, write: Write, condition: str) -> None:
        """Raise KeyRangesUnusable unless silver can hold the bounds and finds all copied rows in them."""
        rows = final_rows(source, write.fold, write.metadata)
        bounds = bounds_are_values(write.fold, write.step.key_ranges)
        are_values = not self._spark.range(1).where(bounds).isEmpty()
        if not are_values or not rows.where(f"NOT coalesce({condition}, false)").isEmpty():
            raise KeyRangesUnusable

    def _record_absent(self, counted: DataFrame, commit: TableCommit) -> None:
        """Record that silver lacks rows that updates or deletes refer to."""
        row = counted.agg(F.expr(f"coalesce(sum({folded_frames.ABSENT}), 0)").alias("count")).head()
        assert row is not None
        if row["count"]:
            sentence = (
                f"Silver lacks {row['count']} rows that updates or deletes under REPLICA IDENTITY FULL "
                "refer to: they were never copied, or have other values in silver, or their partition has "
                "another replica identity. Give every partition REPLICA IDENTITY FULL, then run "
                f"{self._name.command('resync')}."
            )
            self._records.events.record([Event(*self._name, commit.lsn, "diverged", sentence)])

    def _record_misfits_of_rows(self, rows: DataFrame, fold: Fold) -> int:
        """Record the misfits of added rows, also if silver has equal rows already; return their number."""
        misfits = [
            misfit
            for i, column in enumerate(fold.columns)
            if (misfit := column.type.misfit(f"x{i}", f"({column.type.value(f'x{i}')})"))
        ]
        if not misfits:
            return 0
        added = folded_frames.surviving_rows(rows.where(" OR ".join(misfits)), fold.columns)
        source = _checkpointed(typed(added.withColumn("op", F.lit("I")), fold))
        count = _inspect(source, fold).misfits
        self._record_misfits(source, fold, count, [])
        return count

    def _refuse_lost_keys(self, found: "_Found", texts: DataFrame, fold: Fold) -> None:
        """Raise LakeError if rows have no key in silver; `texts` has the key texts of the source."""
        if not found.lost_keys:
            return
        missing = " OR ".join(f"{key} IS NULL" for key in fold.key_names)
        if not texts.where(f"op = 'D' AND ({missing})").isEmpty():
            raise LakeError(
                f"Table {self._name}: an update or delete has no key, because a partition has another "
                "replica identity than the table. Run ALTER TABLE … REPLICA IDENTITY FULL for each "
                f"partition that pgdelta check names, then {self._name.command('resync')}."
            )
        raise LakeError(
            f"Table {self._name}: {found.lost_keys} rows have a key that its silver type cannot hold. Set "
            f"tables[].types of that column to STRING, then run {self._name.command('rebuild')}."
        )

    def _record_missing_values(self, source: DataFrame, fold: Fold, key: list[str], *, is_new: bool) -> None:
        """Record values that were not sent, of rows that silver does not have: they become NULL."""
        rows = source.where(f"op = 'U' AND ({_keeps(fold)})")
        if not is_new:
            on = " AND ".join(
                write_module.same_key(fold, k, i) for k, i in zip(fold.key_names, fold.key, strict=True)
            )
            rows = rows.alias("s").join(self._table.frame().alias("t"), F.expr(on), "left_anti")
        unknown = {f"s{i}": F.expr(f"coalesce(s{i}, {UNKNOWN})") for i in fold.partial}
        count = rows.count()
        self.missing_values += count
        self._record_misfits(rows.withColumns(unknown), fold, count, key)

    def _record_misfits(self, source: DataFrame, fold: Fold, count: int, key: list[str]) -> None:
        found = write_module.misfits(fold)
        if not count or found is None:
            return
        texts = ", ".join(f"{literal(name)}, {_key_text(fold, i)}" for i, name in enumerate(key))
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
        self._records.misfits.record(rows)


def _key_text(fold: Fold, i: int) -> str:
    """Return SQL for a key column's value as text, different for different values."""
    kind = fold.columns[fold.key[i]].type
    if kind.ddl == "BINARY":
        return rf"concat('\\x', lower(hex(k{i})))"
    plain = kind.element is None and kind.is_comparable
    return f"CAST(k{i} AS STRING)" if plain else kind.canonical_value(f"k{i}")


def _checkpointed(frame: DataFrame) -> DataFrame:
    """Return a frame that is computed once: a MERGE reads its source twice, and refuses a cached one."""
    return frame.localCheckpoint(eager=False)


@dataclass(frozen=True, slots=True)
class _Found:
    inherits: bool  # some column has its value at the old key of a key change
    keeps: bool  # some column keeps silver's value
    misfits: int
    lost_keys: int  # rows whose key does not fit
    unknown: int  # rows with a value that was not sent


def _inspect(source: DataFrame, fold: Fold) -> _Found:
    """Count, in one scan of the folded rows, what needs more work and what does not fit."""
    inherits = " OR ".join(f"s{i} = {INHERITED}" for i in fold.partial) or "false"
    lost = " OR ".join(f"{name} IS NULL" for name in fold.key_names) or "false"
    unknown = " OR ".join(f"s{i} = {UNKNOWN}" for i in fold.partial if fold.columns[i].indexes) or "false"
    misfits = write_module.misfits(fold)
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
    """Return SQL that is true if a column of the relation keeps silver's value."""
    columns = (i for i in fold.partial if fold.columns[i].indexes)
    return " OR ".join(f"s{i} IS NULL" for i in columns) or "false"
