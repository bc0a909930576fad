"""Changes as Spark frames: split into steps, folded to one row per key, then typed. Nothing is written here.

The columns of these frames are numbered (k0…, x0…, c0…, s0…), so that no name of a source table can collide
with them. Changes without a key are folded as a multiset: each adds or removes rows equal to an image, and an
update does both, with unchanged TOAST copied from the old image. Images are compared as canonical text, in
which NULL equals NULL and -0 differs from 0.

An upsert after a key change inherits unchanged TOAST from the row at its old key. Chains of key changes are
resolved by pointer doubling, in 17 joins for 100,000 of them (`follow_key_changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.delta.sql import literal, quoted
from pipeline.silver.fold import (
    FROM_SILVER,
    INHERITED,
    UNKNOWN,
    Fold,
    FoldColumn,
    column_state,
    is_sent,
    key_text,
    pick,
)
from pipeline.silver.write import MetadataNames, image_of_row, image_of_texts


def steps(changes: DataFrame, fold: Fold) -> DataFrame:
    """Return one row per step: key texts k0…, sequence key (commit_lsn, ordinal, part) and tuple.

    `is_key_change` is true for the two steps of a key change, which have one commit LSN and ordinal.
    """
    rows = changes
    if fold.has_key_changes:
        rows = rows.withColumn("is_key_change", F.expr(_is_key_change(fold)))
        rows = rows.withColumn(
            "step", F.explode(F.expr("CASE WHEN is_key_change THEN array('D', 'K') ELSE array(op) END"))
        )
    else:
        rows = rows.withColumns({"is_key_change": F.lit(False), "step": F.col("op")})
    keys = {
        name: F.expr(
            f"CASE WHEN step = 'D' THEN {key_text(fold, i, 'old')} ELSE {key_text(fold, i, 'new')} END"
        )
        for name, i in zip(fold.key_names, fold.key, strict=True)
    }
    return rows.select(
        *(expression.alias(name) for name, expression in keys.items()),
        F.expr("struct(commit_lsn, ordinal, CAST(step = 'K' AS INT) AS part)").alias("sequence_key"),
        "is_key_change",
        "step",
        "commit_lsn",
        "commit_time",
        "relation_version",
        "new",
        *([] if not fold.partial else ["unsent"]),
    )


def fold_by_key(steps: DataFrame, fold: Fold) -> DataFrame:
    """Return one row per key: k0…, op (D or U), commit_lsn, commit_time, texts x0…, states s<i>."""
    # No two steps of a key have one sequence key, so the greatest struct is the last step's; max of a struct
    # is a third faster than max_by.
    last = F.expr("max(struct(sequence_key, step, commit_lsn, commit_time, relation_version, new))")
    partial = [
        F.expr(
            f"max(struct(sequence_key, {column_state(fold, i)} AS value)) FILTER (WHERE "
            f"{_has_state(fold, i)}).value"
        ).alias(f"p{i}")
        for i in fold.partial
    ]
    folded = steps.groupBy(*fold.key_names).agg(last.alias("last"), *partial)
    texts = [F.expr(_text(fold, i)).alias(f"x{i}") for i in range(len(fold.columns))]
    return folded.select(
        *fold.key_names,
        F.expr("CASE WHEN last.step = 'D' THEN 'D' ELSE 'U' END").alias("op"),
        F.col("last.commit_lsn").alias("commit_lsn"),
        F.col("last.commit_time").alias("commit_time"),
        *texts,
        *(F.col(f"p{i}.state").alias(f"s{i}") for i in fold.partial),
    )


def _text(fold: Fold, i: int) -> str:
    if i in fold.partial:
        return f"p{i}.text"
    if fold.columns[i].is_partial:
        return f"k{fold.key.index(i)}"
    return pick(fold, i, "last.new", "last.relation_version")


def _has_state(fold: Fold, i: int) -> str:
    return f"step <> 'U' OR {is_sent(fold, i)}"


def _is_key_change(fold: Fold) -> str:
    same = " AND ".join(f"({key_text(fold, i, 'old')} <=> {key_text(fold, i, 'new')})" for i in fold.key)
    return f"op = 'U' AND old_kind IS NOT NULL AND NOT ({same})"


def typed(folded: DataFrame, fold: Fold) -> DataFrame:
    """Return the values c0… and key values k0… in their silver types.

    Texts x0… of types that may not hold them are kept, and so are the texts b0… of `with_key_changes`.
    """
    return folded.select(
        "op",
        "commit_lsn",
        "commit_time",
        *(
            F.expr(fold.columns[i].type.value(name)).alias(name)
            for name, i in zip(fold.key_names, fold.key, strict=True)
        ),
        *(F.expr(column.type.value(f"x{i}")).alias(f"c{i}") for i, column in enumerate(fold.columns)),
        *(F.col(f"s{i}") for i in fold.partial),
        *(F.col(f"x{i}") for i, column in enumerate(fold.columns) if not column.type.is_total),
        *(F.col(b) for b in base_key_names(fold) if b in folded.columns),
    )


def with_key_changes(folded: DataFrame, followed: DataFrame, fold: Fold) -> DataFrame:
    """Replace inherited columns by those of `follow_key_changes`, and add b0…, the key of the silver row."""
    renamed = followed.select(
        *(F.col(k).alias(f"l{k}") for k in fold.key_names),
        *base_key_names(fold),
        *(F.col(f"s{i}").alias(f"ls{i}") for i in fold.partial),
        *(F.col(f"x{i}").alias(f"lx{i}") for i in fold.partial),
    )
    on = [F.col(k).eqNullSafe(F.col(f"l{k}")) for k in fold.key_names]
    replaced = {}
    for i in fold.partial:
        replaced[f"x{i}"] = F.expr(f"CASE WHEN s{i} = {INHERITED} THEN lx{i} ELSE x{i} END")
        replaced[f"s{i}"] = F.expr(
            f"CASE WHEN s{i} = {INHERITED} THEN coalesce(ls{i}, {UNKNOWN}) ELSE s{i} END"
        )
    kept = [replaced[c].alias(c) if c in replaced else F.col(c) for c in folded.columns]
    return folded.join(renamed, on, "left").select(*kept, *base_key_names(fold))


def from_silver(source: DataFrame, silver: DataFrame, fold: Fold) -> DataFrame:
    """Fill the columns in state FROM_SILVER from the silver row with the key texts b0…."""
    keys = [fold.columns[i] for i in fold.key]
    rows = silver.select(
        *(F.col(quoted(column.name)).alias(f"t{i}") for i, column in enumerate(keys)),
        *(F.col(quoted(fold.columns[i].name)).alias(f"v{i}") for i in fold.partial),
        F.lit(True).alias("found"),
    )
    on = [
        F.expr(f"{_comparable(column, f'b{i}')} <=> {column.type.comparable(f't{i}')} AND b{i} IS NOT NULL")
        for i, column in enumerate(keys)
    ]
    filled = {}
    for i in fold.partial:
        filled[f"c{i}"] = F.expr(f"CASE WHEN s{i} = {FROM_SILVER} THEN v{i} ELSE c{i} END")
        filled[f"s{i}"] = F.expr(
            f"CASE WHEN s{i} = {FROM_SILVER} AND found IS NULL THEN {UNKNOWN} ELSE s{i} END"
        )
    kept = [c for c in source.columns if not (c.startswith("b") and c[1:].isdigit())]
    return source.join(rows, on, "left").select(
        *(filled[c].alias(c) if c in filled else F.col(c) for c in kept)
    )


def _comparable(column: FoldColumn, text: str) -> str:
    return column.type.comparable(f"({column.type.value(text)})")


def final_rows(source: DataFrame, fold: Fold, metadata: MetadataNames) -> DataFrame:
    """Return the rows that exist, under silver's column names, for an append or an overwrite."""
    return source.where("op <> 'D'").select(
        *(F.col(f"c{i}").alias(column.name) for i, column in enumerate(fold.columns)),
        *(F.col(source_name).alias(name) for name, source_name in metadata.pairs()),
    )


_CHANGE = "named_struct('lsn', sequence_key.commit_lsn, 'ordinal', sequence_key.ordinal)"


def base_key_names(fold: Fold) -> list[str]:
    """Return the names of the key texts of the silver row from which a moved row inherits: b0, b1, …"""
    return [f"b{i}" for i in range(len(fold.key))]


def follow_key_changes(steps: DataFrame, fold: Fold) -> DataFrame:
    """Return one row for each row that exists at a new key: k0…, b0…, s<i>, x<i>, with no column INHERITED.

    A column in state FROM_SILVER has its value in the silver row with the key b0….
    """
    segments = _segments(steps, fold).localCheckpoint()
    while _has_inherited(segments, fold):
        segments = _inherit(segments, fold).localCheckpoint()
    existing = segments.where("moved_out IS NULL")
    columns = [c for i in fold.partial for c in (f"s{i}", f"x{i}")]
    return existing.select(*fold.key_names, *base_key_names(fold), *columns)


def _segments(steps: DataFrame, fold: Fold) -> DataFrame:
    """Return the segments that begin or end with a key change: `moved_in` and `moved_out`."""
    at_key = Window.partitionBy(*fold.key_names)
    in_order = at_key.orderBy("sequence_key")
    begins = F.col("step").isin("I", "K") | F.coalesce(F.lag("step").over(in_order) == "D", F.lit(False))
    states = [
        F.expr(f"max_by({column_state(fold, i)}, sequence_key) FILTER (WHERE {_determines(fold, i)})").alias(
            f"p{i}"
        )
        for i in fold.partial
    ]
    segments = (
        steps.withColumn("begins", begins)
        .withColumn("segment", F.sum(F.expr("CAST(begins AS INT)")).over(in_order))
        .withColumn("last_segment", F.max("segment").over(at_key))
        .groupBy(*fold.key_names, "segment")
        .agg(
            F.expr(f"max(CASE WHEN step = 'K' THEN {_CHANGE} END)").alias("moved_in"),
            F.expr(f"max(CASE WHEN step = 'D' AND is_key_change THEN {_CHANGE} END)").alias("moved_out"),
            # A row may end without a delete: an insert or upsert at its key replaces it.
            F.expr("bool_or(step = 'D' OR segment < last_segment)").alias("ended"),
            *states,
        )
        .where("moved_out IS NOT NULL OR (moved_in IS NOT NULL AND NOT ended)")
    )
    # Only the first segment at a key can be silver's row.
    from_silver = "segment = 0"
    default_state = f"CASE WHEN {from_silver} THEN {FROM_SILVER} ELSE {UNKNOWN} END"
    return segments.select(
        *fold.key_names,
        "moved_in",
        "moved_out",
        *(
            F.expr(f"CASE WHEN {from_silver} THEN {k} END").alias(b)
            for k, b in zip(fold.key_names, base_key_names(fold), strict=True)
        ),
        *(F.expr(f"coalesce(p{i}.state, {default_state})").alias(f"s{i}") for i in fold.partial),
        *(F.expr(f"p{i}.text").alias(f"x{i}") for i in fold.partial),
    )


def _determines(fold: Fold, i: int) -> str:
    """Return SQL that is true for the steps that determine column i of a segment."""
    return f"step = 'K' OR step = 'I' OR ({is_sent(fold, i)} AND step <> 'D')"


def _has_inherited(segments: DataFrame, fold: Fold) -> bool:
    inherits = reduce(Column.__or__, (F.col(f"s{i}") == INHERITED for i in fold.partial))
    return not segments.where(inherits & F.col("moved_in").isNotNull()).isEmpty()


def _inherit(segments: DataFrame, fold: Fold) -> DataFrame:
    """Replace inherited columns by the predecessor's, and point to the predecessor's own predecessor."""
    predecessors = segments.where("moved_out IS NOT NULL").select(
        F.col("moved_out").alias("change"),
        F.col("moved_in").alias("before"),
        *(F.col(b).alias(f"o{b}") for b in base_key_names(fold)),
        *(F.col(f"s{i}").alias(f"os{i}") for i in fold.partial),
        *(F.col(f"x{i}").alias(f"ox{i}") for i in fold.partial),
    )
    inherited = [
        column
        for i in fold.partial
        for column in (
            # Without its predecessor in the input a value is unknown, never NULL by accident.
            _inherited(f"s{i}", f"coalesce(os{i}, {UNKNOWN})", i),
            _inherited(f"x{i}", f"ox{i}", i),
        )
    ]
    return segments.join(predecessors, F.col("moved_in") == F.col("change"), "left").select(
        *fold.key_names,
        F.col("before").alias("moved_in"),
        "moved_out",
        *(F.expr(f"coalesce({b}, o{b})").alias(b) for b in base_key_names(fold)),
        *inherited,
    )


def _inherited(name: str, predecessor: str, i: int) -> Column:
    inherits = f"s{i} = {INHERITED} AND moved_in IS NOT NULL"
    return F.expr(f"CASE WHEN {inherits} THEN {predecessor} ELSE {name} END").alias(name)


ABSENT = "greatest(0, -(silver_count + lowest))"
"""SQL for the number of removed rows that silver does not have."""


def signed_rows(changes: DataFrame, columns: Sequence[FoldColumn], version: int) -> DataFrame:
    """Return one row per removed (sign -1) or added (+1) row: sequence_key, sign, commit, x0…, image."""
    old = _signed_texts("old", columns, version)
    new = _signed_texts("new", columns, version)
    both = f"CASE op WHEN 'I' THEN array({new}) WHEN 'D' THEN array({old}) ELSE array({old}, {new}) END"
    exploded = changes.withColumn("signed", F.explode(F.expr(both)))
    rows = exploded.select(
        F.expr("struct(commit_lsn, ordinal, signed.sign)").alias("sequence_key"),
        F.col("signed.sign").alias("sign"),
        "commit_lsn",
        "commit_time",
        *(F.col(f"signed.x{i}").alias(f"x{i}") for i in range(len(columns))),
    )
    return rows.withColumn("image", F.expr(image_of_texts(columns)))


def _signed_texts(side: str, columns: Sequence[FoldColumn], version: int) -> str:
    """Return SQL for the struct of sign and texts of one tuple of a change."""
    fields = [f"'sign', {1 if side == 'new' else -1}"]
    for i, column in enumerate(columns):
        index, missing = column.indexes.get(version), column.missing_value
        text = "CAST(NULL AS STRING)" if missing is None else literal(missing)
        text = text if index is None else f"get({side}, {index})"
        if side == "new" and index is not None:
            text = f"CASE WHEN array_contains(unsent, {index}) THEN get(old, {index}) ELSE {text} END"
        fields.append(f"'x{i}', {text}")
    return f"named_struct({', '.join(fields)})"


def net_counts(rows: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return one row per image: net, lowest, and the texts and commit of its last added row."""
    running = F.sum("sign").over(Window.partitionBy("image").orderBy("sequence_key"))
    texts = ", ".join(f"x{i}" for i in range(len(columns)))
    return (
        rows.withColumn("running", running)
        .groupBy("image")
        .agg(
            F.sum("sign").alias("net"),
            F.min("running").alias("lowest"),
            F.expr(f"max_by(struct(commit_lsn, commit_time, {texts}), sequence_key)").alias("last"),
        )
        .select("image", "net", "lowest", "last.*")
    )


def surviving_rows(rows: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return the added rows (x0…, commit_lsn, commit_time) that were not removed, compared as texts."""
    texts = [f"x{i}" for i in range(len(columns))]
    last = F.expr("max_by(struct(commit_lsn, commit_time), sequence_key)").alias("last")
    net = rows.groupBy(*texts).agg(F.sum("sign").alias("net"), last).where("net > 0")
    return net.withColumn("number", F.expr("explode(sequence(1, net))")).select("last.*", *texts)


def with_silver_counts(net: DataFrame, silver: DataFrame | None, columns: Sequence[FoldColumn]) -> DataFrame:
    """Add `silver_count`, the number of equal rows in silver, and `new_count`, the number after the write."""
    if silver is None:
        counted = net.withColumn("silver_count", F.lit(0))
    else:
        # Silver is read only for images whose rows are removed; the others grow by `net`.
        reduced = net.where("lowest < 0").select("image")
        images = silver.alias("t").select(F.expr(image_of_row(columns, "t")).alias("image"))
        counts = images.join(reduced, "image").groupBy("image").agg(F.count("*").alias("silver_count"))
        counted = net.join(counts, "image", "left").withColumn(
            "silver_count", F.expr("coalesce(silver_count, 0)")
        )
    return counted.withColumn("new_count", F.expr(f"silver_count + net + {ABSENT}"))


def added_rows(counted: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return one row (image, commit, texts x0…) for each row to add."""
    numbers = F.expr("explode(sequence(1, new_count - silver_count))")
    added = counted.where("new_count > silver_count").withColumn("number", numbers)
    return added.select("image", "commit_lsn", "commit_time", *(f"x{i}" for i in range(len(columns))))


def kept_rows(
    counted: DataFrame, silver: DataFrame, columns: Sequence[FoldColumn], metadata: MetadataNames
) -> DataFrame:
    """Return silver's rows that stay: the MERGE deletes all rows of a reduced image, then inserts these."""
    reduced = counted.where("new_count < silver_count AND new_count > 0").select("image", "new_count")
    newest = F.col("commit_lsn").desc() if metadata.commit_lsn else F.lit(0)
    rows = silver.alias("t").select(
        F.expr(image_of_row(columns, "t")).alias("image"),
        *(F.col("t." + quoted(column.name)).alias(f"c{i}") for i, column in enumerate(columns)),
        *(F.col("t." + quoted(name)).alias(source) for name, source in metadata.pairs()),
    )
    ranked = rows.join(reduced, "image").withColumn(
        "rank", F.row_number().over(Window.partitionBy("image").orderBy(newest))
    )
    return ranked.where("rank <= new_count").drop("rank", "new_count")
