"""How a silver table is laid out, measured: the same MERGEs with and without each of Delta's means.

Variants take turns, round by round, so that what else the machine does falls on all alike. Each round merges
as many changes of random keys, or of the newest ones, into a table of its variant; reading is one key and one
sum over all rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

VARIANTS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "deletion vectors": ("'delta.enableDeletionVectors' = 'true'",),
    "key statistics": ("'delta.dataSkippingStatsColumns' = 'id'",),
    "clustered": (),
    "clustered, vectors": ("'delta.enableDeletionVectors' = 'true'",),
}
COLUMNS = "id BIGINT, customer INT, note STRING, amount DECIMAL(12,2), at TIMESTAMP, more STRING"
ROW = (
    "{key} AS id, CAST({key} % 1000 AS INT) AS customer, concat('some words about row ', {key}) AS note, "
    "CAST({key} / 100 AS DECIMAL(12,2)) AS amount, timestamp_seconds(1600000000 + {key}) AS at, "
    "md5(CAST({key} AS STRING)) AS more"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Medians in seconds, by what was done."""

    name: str
    seconds: Mapping[str, float]
    files: int


def measure_layouts(
    spark: SparkSession, folder: Path, *, rows: int, changes: int, rounds: int
) -> list[Layout]:
    """Merge and read, variant by variant."""
    random = Random(3)
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in VARIANTS}
    for number, (name, properties) in enumerate(VARIANTS.items()):
        _create(spark, folder / str(number), properties, rows, is_clustered=name.startswith("clustered"))
    for turn in range(rounds):
        for kind in ("random keys", "newest keys"):
            low = rows - changes * 2
            keys = [random.randrange(rows) if kind == "random keys" else low + random.randrange(changes * 2)
                    for _ in range(changes)]  # fmt: skip
            source = spark.createDataFrame(
                [(key,) for key in sorted(set(keys))], "key BIGINT"
            ).localCheckpoint()
            source.createOrReplaceTempView("keys")
            spark.sql(f"SELECT {ROW.format(key='key')} FROM keys").createOrReplaceTempView("changes")
            for number, name in enumerate(VARIANTS):
                seconds = _time(spark, _merge(folder / str(number), turn))
                taken[name].setdefault(kind, []).append(seconds)
        for number, name in enumerate(VARIANTS):
            table = f"delta.`{folder / str(number)}`"
            key = random.randrange(rows)
            for what, query in (
                ("one key", f"SELECT * FROM {table} WHERE id = {key}"),
                ("all rows", f"SELECT customer, sum(amount) FROM {table} GROUP BY customer"),
            ):
                taken[name].setdefault(what, []).append(_time(spark, query))
    return [
        Layout(
            name,
            {what: statistics.median(seconds) for what, seconds in taken[name].items()},
            len(spark.read.format("delta").load(str(folder / str(number))).inputFiles()),
        )
        for number, name in enumerate(VARIANTS)
    ]


def _create(
    spark: SparkSession, path: Path, properties: tuple[str, ...], rows: int, *, is_clustered: bool
) -> None:
    cluster = "CLUSTER BY (id)" if is_clustered else ""
    given = f"TBLPROPERTIES ({', '.join(properties)})" if properties else ""
    spark.sql(f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING DELTA {cluster} {given}")
    spark.range(0, rows, 1, 8).createOrReplaceTempView("numbers")
    frame = spark.sql(f"SELECT {ROW.format(key='id')} FROM numbers")
    frame.orderBy("more").write.format("delta").mode("append").save(str(path))
    if is_clustered:
        spark.sql(f"OPTIMIZE delta.`{path}`")


def _merge(path: Path, turn: int) -> str:
    columns = [column.split()[0] for column in COLUMNS.split(", ")]
    sets = ", ".join(f"t.{c} = s.{c}" for c in columns if c != "amount")
    return (
        f"MERGE INTO delta.`{path}` t USING changes s ON t.id = s.id "
        f"WHEN MATCHED AND s.id % 97 = {turn} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets}, t.amount = s.amount + {turn} WHEN NOT MATCHED THEN INSERT *"
    )


def _time(spark: SparkSession, statement: str) -> float:
    began = time.monotonic()
    spark.sql(statement).collect()
    return time.monotonic() - began
