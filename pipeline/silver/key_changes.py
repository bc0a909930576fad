"""What an arrival did not send, taken from the row at its old key, through chains of any length.

The life of a row at one key is a *segment*: from an insert, an arrival, the step after a delete or the start
of the input to a delete, a departure or the end. An arrival's segment inherits from the segment that ended
with the departure of the same change, and so on back to a segment that sent the column or to a row of silver.
Segments are joined to their predecessors by pointer doubling: each pass halves the distance, so that a chain
of 100 000 key changes takes 17 joins, all in Spark.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.silver.fold import FROM_SILVER, INHERITED, UNKNOWN, Fold, column_state, is_sent

_HAS_STATE = "step = 'A' OR step = 'I' OR ({sent} AND step <> 'D')"


def base_key_names(fold: Fold) -> list[str]:
    """Return the names of the texts of the key under which silver has a moved row."""
    return [f"b{i}" for i in range(len(fold.key))]


def follow_key_changes(steps: DataFrame, fold: Fold) -> DataFrame:
    """Return one row per living arrival: k0…, b0…, s<i>, x<i> with no column left INHERITED.

    A column in state FROM_SILVER has its value in the silver row whose key is b0….
    """
    nodes = _segments(steps, fold).localCheckpoint()
    while _is_unresolved(nodes, fold):
        nodes = _hop(nodes, fold).localCheckpoint()
    living = nodes.where("departure IS NULL")
    columns = [c for i in fold.partial for c in (f"s{i}", f"x{i}")]
    return living.select(*fold.key_names, *base_key_names(fold), *columns)


def _segments(steps: DataFrame, fold: Fold) -> DataFrame:
    """Return the segments that begin or end with a changed key; `prev` is the departure they arrived by."""
    at_key = Window.partitionBy(*fold.key_names)
    in_order = at_key.orderBy("place")
    begins = F.col("step").isin("I", "A") | F.coalesce(F.lag("step").over(in_order) == "D", F.lit(False))
    change = "named_struct('lsn', place.commit_lsn, 'ordinal', place.ordinal)"
    states = [
        F.expr(
            f"max_by({column_state(fold, i)}, place) FILTER (WHERE {_HAS_STATE.format(sent=is_sent(fold, i))})"
        ).alias(f"p{i}")
        for i in fold.partial
    ]
    segments = (
        steps.withColumn("begins", begins)
        .withColumn("segment", F.sum(F.expr("CAST(begins AS INT)")).over(in_order))
        .withColumn("last_segment", F.max("segment").over(at_key))
        .groupBy(*fold.key_names, "segment")
        .agg(
            F.expr(f"max(CASE WHEN step = 'A' THEN {change} END)").alias("prev"),
            F.expr(f"max(CASE WHEN step = 'D' AND link THEN {change} END)").alias("departure"),
            # A row may go without a delete of its own: an insert or arrival at its key replaces it.
            F.expr("bool_or(step = 'D' OR segment < last_segment)").alias("ended"),
            F.expr("bool_or(step = 'A')").alias("arrived"),
            *states,
        )
        .where("departure IS NOT NULL OR (arrived AND NOT ended)")
    )
    # Only the first life at a key can be that of silver's row.
    from_silver = "segment = 0"
    before = f"CASE WHEN {from_silver} THEN {FROM_SILVER} ELSE {UNKNOWN} END"
    return segments.select(
        *fold.key_names,
        "prev",
        "departure",
        *(
            F.expr(f"CASE WHEN {from_silver} THEN {k} END").alias(b)
            for k, b in zip(fold.key_names, base_key_names(fold), strict=True)
        ),
        *(F.expr(f"coalesce(p{i}.state, {before})").alias(f"s{i}") for i in fold.partial),
        *(F.expr(f"p{i}.text").alias(f"x{i}") for i in fold.partial),
    )


def _is_unresolved(nodes: DataFrame, fold: Fold) -> bool:
    inherits = reduce(Column.__or__, (F.col(f"s{i}") == INHERITED for i in fold.partial))
    return not nodes.where(inherits & F.col("prev").isNotNull()).isEmpty()


def _hop(nodes: DataFrame, fold: Fold) -> DataFrame:
    """Take over what the predecessor knows, and point to the predecessor's predecessor."""
    before = nodes.where("departure IS NOT NULL").select(
        F.col("departure").alias("at"),
        F.col("prev").alias("before"),
        *(F.col(b).alias(f"o{b}") for b in base_key_names(fold)),
        *(F.col(f"s{i}").alias(f"os{i}") for i in fold.partial),
        *(F.col(f"x{i}").alias(f"ox{i}") for i in fold.partial),
    )
    inherited = [
        column
        for i in fold.partial
        for column in (
            # A departure that is not in the input cannot be followed: unknown, never NULL by accident.
            _taken_over(f"s{i}", f"coalesce(os{i}, {UNKNOWN})", i),
            _taken_over(f"x{i}", f"ox{i}", i),
        )
    ]
    return nodes.join(before, F.col("prev") == F.col("at"), "left").select(
        *fold.key_names,
        F.col("before").alias("prev"),
        "departure",
        *(F.expr(f"coalesce({b}, o{b})").alias(b) for b in base_key_names(fold)),
        *inherited,
    )


def _taken_over(name: str, before: str, i: int) -> Column:
    inherits = f"s{i} = {INHERITED} AND prev IS NOT NULL"
    return F.expr(f"CASE WHEN {inherits} THEN {before} ELSE {name} END").alias(name)
