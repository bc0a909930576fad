"""Tables without a key under REPLICA IDENTITY FULL: rows as a bag, each change moves one copy.

An update takes one copy of the old image away and adds one of the new; what its new tuple did not send
(unchanged TOAST) stands in the old one. Changes of one image commute but for a copy that silver never had: a
delete below zero is a no-op, so `low`, the lowest running count, is kept beside the net count. Images compare
by their canonical text, NULL equal to NULL and -0 different from 0.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.delta.sql import literal, quoted
from pipeline.silver.fold import FoldColumn
from pipeline.silver.merge import MetadataNames, image_of_row, image_of_texts

# How many copies were taken away that silver does not have.
ABSENT = "greatest(0, -(held + low))"


def signed_rows(changes: DataFrame, columns: Sequence[FoldColumn], version: int) -> DataFrame:
    """Return one row per copy taken (sign -1) or added (+1): place, x0…, commit_lsn, commit_time, image."""
    old = _texts("old", columns, version)
    new = _texts("new", columns, version)
    both = f"CASE op WHEN 'I' THEN array({new}) WHEN 'D' THEN array({old}) ELSE array({old}, {new}) END"
    exploded = changes.withColumn("copy", F.explode(F.expr(both)))
    rows = exploded.select(
        F.expr("struct(commit_lsn, ordinal, copy.sign)").alias("place"),
        F.col("copy.sign").alias("sign"),
        "commit_lsn",
        "commit_time",
        *(F.col(f"copy.x{i}").alias(f"x{i}") for i in range(len(columns))),
    )
    return rows.withColumn("image", F.expr(image_of_texts(columns)))


def _texts(side: str, columns: Sequence[FoldColumn], version: int) -> str:
    fields = [f"'sign', {1 if side == 'new' else -1}"]
    for i, column in enumerate(columns):
        position, missing = column.indexes.get(version), column.missing_value
        text = "CAST(NULL AS STRING)" if missing is None else literal(missing)
        text = text if position is None else f"get({side}, {position})"
        if side == "new" and position is not None:
            text = f"CASE WHEN array_contains(unsent, {position}) THEN get(old, {position}) ELSE {text} END"
        fields.append(f"'x{i}', {text}")
    return f"named_struct({', '.join(fields)})"


def net_counts(copies: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return one row per image: net, low, and the texts and commit of its last added copy."""
    running = F.sum("sign").over(Window.partitionBy("image").orderBy("place"))
    texts = ", ".join(f"x{i}" for i in range(len(columns)))
    return (
        copies.withColumn("running", running)
        .groupBy("image")
        .agg(
            F.sum("sign").alias("net"),
            F.min("running").alias("low"),
            F.expr(f"max_by(struct(commit_lsn, commit_time, {texts}), place)").alias("last"),
        )
        .select("image", "net", "low", "last.*")
    )


def surviving_rows(copies: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return the copies (x0…, commit_lsn, commit_time) that were added and not taken away again, by texts."""
    texts = [f"x{i}" for i in range(len(columns))]
    last = F.expr("max_by(struct(commit_lsn, commit_time), place)").alias("last")
    net = copies.groupBy(*texts).agg(F.sum("sign").alias("net"), last).where("net > 0")
    return net.withColumn("copy", F.expr("explode(sequence(1, net))")).select("last.*", *texts)


def with_silver_counts(net: DataFrame, silver: DataFrame | None, columns: Sequence[FoldColumn]) -> DataFrame:
    """Add `held`, the copies that silver has, and `wanted`, the copies it shall have."""
    if silver is None:
        held = net.withColumn("held", F.lit(0))
    else:
        # Only images that lost a copy need the look into silver; the others just grow by `net`.
        reduced = net.where("low < 0").select("image")
        images = silver.alias("t").select(F.expr(image_of_row(columns, "t")).alias("image"))
        counts = images.join(reduced, "image").groupBy("image").agg(F.count("*").alias("held"))
        held = net.join(counts, "image", "left").withColumn("held", F.expr("coalesce(held, 0)"))
    return held.withColumn("wanted", F.expr(f"held + net + {ABSENT}"))


def added_rows(counted: DataFrame, columns: Sequence[FoldColumn]) -> DataFrame:
    """Return one row (op I, texts) per copy to add."""
    added = counted.where("wanted > held").withColumn("copy", F.expr("explode(sequence(1, wanted - held))"))
    return added.select("image", "commit_lsn", "commit_time", *(f"x{i}" for i in range(len(columns))))


def kept_rows(
    counted: DataFrame, silver: DataFrame, columns: Sequence[FoldColumn], metadata: MetadataNames
) -> DataFrame:
    """Return the silver rows of reduced images that stay: the MERGE deletes all copies, then adds these."""
    reduced = counted.where("wanted < held AND wanted > 0").select("image", "wanted")
    newest = F.col("commit_lsn").desc() if metadata.commit_lsn else F.lit(0)
    rows = silver.alias("t").select(
        F.expr(image_of_row(columns, "t")).alias("image"),
        *(F.col("t." + quoted(column.name)).alias(f"c{i}") for i, column in enumerate(columns)),
        *(F.col("t." + quoted(name)).alias(source) for name, source in metadata.pairs()),
    )
    ranked = rows.join(reduced, "image").withColumn(
        "rank", F.row_number().over(Window.partitionBy("image").orderBy(newest))
    )
    return ranked.where("rank <= wanted").drop("rank", "wanted")
