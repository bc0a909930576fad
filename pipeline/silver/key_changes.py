"""Resolve what the upsert of a key change did not send, from the row at its old key.

The life of a row at one key is a *segment*. It begins with an insert, with the upsert of a key change, after
a delete, or at the start of the input; it ends with a delete, with the delete of a key change, or with the
input. A segment that begins with a key change inherits from the segment that the same change ended at the old
key, and so on, up to a segment that sent the column or to a row of silver. Segments are joined to their
predecessors by pointer doubling: each round halves the remaining distance, so a chain of 100,000 key changes
takes 17 joins, all in Spark.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.silver.fold import FROM_SILVER, INHERITED, UNKNOWN, Fold, column_state, is_sent

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
        F.expr(f"max_by({column_state(fold, i)}, sequence_key) FILTER (WHERE {_has_state(fold, i)})").alias(
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


def _has_state(fold: Fold, i: int) -> str:
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
