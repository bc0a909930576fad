"""Tables under REPLICA IDENTITY FULL: a multiset of rows, in which each change adds or removes equal rows.

An update removes one row equal to the old image and adds one equal to the new; unchanged TOAST in the new
tuple has its value in the old one. Changes of one image commute, except for the removal of a row that silver
never had: that does nothing, so the lowest running count (`lowest`) is kept besides the net count. Images are
compared as canonical text, in which NULL equals NULL and -0 differs from 0.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.delta.sql import literal, quoted
from pipeline.silver.fold import FoldColumn
from pipeline.silver.merge import MetadataNames, image_of_row, image_of_texts

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
        # Silver is read only for images of which rows are removed; the others grow by `net`.
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
