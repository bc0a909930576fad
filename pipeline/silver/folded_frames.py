"""Changes as Spark frames: split into steps, folded to one row per key, then typed.

The columns of these frames are named by number (k0…, x0…, c0…, s0…), so that no name of a source table can
collide with them. Nothing is written here.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.delta.sql import quoted
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
from pipeline.silver.key_changes import base_key_names
from pipeline.silver.merge import MetadataNames


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
