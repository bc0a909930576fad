"""One cut of a table's input, folded and written to its silver table in one Delta commit.

How depends on how rows are identified: by key one MERGE of at most one row per key; by whole rows one MERGE
that takes copies away and adds some; without identity an append. Where the cut replaces the table's rows, or
the table is empty, the rows are written as they are.
"""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.delta.sql import literal
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, commit_settings
from pipeline.errors import LakeError
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.silver import merge, multiset
from pipeline.silver.fold import INHERITED, UNKNOWN, Fold, fold_by_key, pick_or_missing, steps
from pipeline.silver.key_changes import follow_key_changes
from pipeline.silver.key_ranges import KeysUnknown, key_range_condition, known_bounds
from pipeline.silver.merge import MetadataNames
from pipeline.silver.write_plan import Identity, WriteStep
from pipeline.table_name import TableName


class StepWriter:
    """Writes the cuts of one silver table."""

    def __init__(self, spark: SparkSession, table: LakeTable, records: Records, name: TableName) -> None:
        self._spark = spark
        self._table = table
        self._records = records
        self._name = name
        self.lost = 0  # values that were not sent, and that the table does not have either

    def write(
        self, changes: DataFrame, fold: Fold, cut: WriteStep, commit: TableCommit, metadata: MetadataNames
    ) -> int:
        """Write the changes of one cut and return how many values did not fit.

        The rows of a patch take the place of all that have its keys; raise NotTold where silver cannot tell.
        """
        if cut.copy_id is not None:
            return self._write_as_they_are(changes, _all_sent(fold), cut, commit, metadata)
        match cut.identity:
            case Identity.KEY:
                return self._write_by_key(changes, fold, cut, commit, metadata)
            case Identity.WHOLE_ROW:
                return self._write_bag(changes, fold, cut, commit, metadata)
            case Identity.NONE:
                return self._write_as_they_are(changes, _keyless(fold), cut, commit, metadata)

    def _write_by_key(
        self, changes: DataFrame, fold: Fold, cut: WriteStep, commit: TableCommit, metadata: MetadataNames
    ) -> int:
        stepped = steps(changes, fold)
        folded = fold_by_key(stepped, fold)
        source = _kept(merge.typed(folded, fold))
        found = _inspect(source, fold)
        if found.inherits:
            linked = merge.typed(
                merge.with_key_changes(folded, follow_key_changes(stepped, fold), fold), fold
            )
            source = _kept(merge.from_silver(linked, self._table.frame(), fold))
            found = _inspect(source, fold)
        self._refuse_lost_keys(found, folded, fold)
        is_new = cut.replaces or self._table.is_empty()
        key = [fold.columns[i].name for i in fold.key]
        self._record_misfits(source, fold, found.misfits, key)
        self.lost += found.unknown
        if found.keeps:
            self._record_unsent(source, fold, key, is_new=is_new)
        if is_new:
            self._replace(merge.final_rows(source, fold, metadata), cut, commit)
        else:
            statement = merge.merge_by_key(self._table.identifier, "folded", fold, metadata)
            self._merge(source, statement, commit)
        return found.misfits

    def _write_bag(
        self, changes: DataFrame, fold: Fold, cut: WriteStep, commit: TableCommit, metadata: MetadataNames
    ) -> int:
        (version,) = fold.versions
        plain = _keyless(fold)
        silver = None if cut.replaces or self._table.is_empty() else self._table.frame()
        copies = multiset.copies(changes, fold.columns, version)
        net = multiset.net_copies(copies, fold.columns)
        counted = _kept(multiset.against_silver(net, silver, fold.columns))
        self._note_absent(counted, commit)
        added = multiset.added_rows(counted, fold.columns).withColumn("op", F.lit("I"))
        source = merge.typed(added, plain)
        misfits = self._record_misfits_of_copies(copies, plain)
        removed = counted.where("wanted < held").selectExpr("'D' AS op", "image")
        if silver is None or removed.isEmpty():
            self._replace(merge.final_rows(source, plain, metadata), cut, commit)
            return misfits
        kept = multiset.kept_rows(counted, silver, fold.columns, metadata).withColumn("op", F.lit("I"))
        rows = source.drop(*(c for c in source.columns if c.startswith("x")))
        frame = rows.unionByName(kept.drop("image"), allowMissingColumns=True)
        frame = frame.unionByName(removed, allowMissingColumns=True)
        image = multiset.image_of_row(fold.columns, "t")
        statement = merge.merge_by_image(self._table.identifier, "folded", image, fold.columns, metadata)
        self._merge(_kept(frame), statement, commit)
        return misfits

    def _note_absent(self, counted: DataFrame, commit: TableCommit) -> None:
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
        rows = multiset.left_over(copies.where(" OR ".join(lost)), fold.columns).withColumn("op", F.lit("I"))
        source = _kept(merge.typed(rows, fold))
        count = _inspect(source, fold).misfits
        self._record_misfits(source, fold, count, [])
        return count

    def _write_as_they_are(
        self, changes: DataFrame, fold: Fold, cut: WriteStep, commit: TableCommit, metadata: MetadataNames
    ) -> int:
        """Write rows that no other change of the cut speaks of."""
        picked = [
            *zip(fold.key_names, fold.key, strict=True),
            *((f"x{i}", i) for i in range(len(fold.columns))),
        ]
        texts = (F.expr(pick_or_missing(fold, i, "new")).alias(name) for name, i in picked)
        rows = changes.where("op = 'I'")
        source = merge.typed(rows.select(F.lit("I").alias("op"), "commit_lsn", "commit_time", *texts), fold)
        found = _inspect(source, fold)
        self._refuse_lost_keys(found, source, fold)
        key = [fold.columns[i].name for i in fold.key]
        final = merge.final_rows(source, fold, metadata)
        keys = self._told_keys(final, fold, cut) if cut.key_ranges else None
        self._record_misfits(source, fold, found.misfits, key)
        if keys:
            self._table.replace_where(keys, final, commit)
        else:
            self._replace(final, cut, commit)
        return found.misfits

    def _told_keys(self, rows: DataFrame, fold: Fold, cut: WriteStep) -> str:
        """Return SQL that is true for the rows of a patch's keys, as it is for all rows that came."""
        keys = key_range_condition(fold, cut.key_types, cut.key_ranges)
        is_known = not self._spark.range(1).where(known_bounds(fold, cut.key_ranges)).isEmpty()
        if not is_known or not rows.where(f"NOT coalesce({keys}, false)").isEmpty():
            raise KeysUnknown
        return keys

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

    def _replace(self, rows: DataFrame, cut: WriteStep, commit: TableCommit) -> None:
        """Append, or put the rows in place of all others, by what the cut says."""
        if cut.replaces:
            self._table.overwrite(rows, commit)
        else:
            self._table.append(rows, commit)

    def _merge(self, source: DataFrame, statement: str, commit: TableCommit) -> None:
        source.createOrReplaceTempView("folded")
        with commit_settings(self._spark, commit):
            self._spark.sql(statement)

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
        self.lost += count
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


def _all_sent(fold: Fold) -> Fold:
    """Return the fold of rows of which every column is there."""
    columns = tuple(replace(column, is_partial=False) for column in fold.columns)
    return replace(fold, columns=columns, has_key_changes=False)


def _keyless(fold: Fold) -> Fold:
    """Return the fold of rows that are added as they are, and found by nothing."""
    return replace(_all_sent(fold), key=())
