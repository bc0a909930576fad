"""Apply: 100 000 net changes into a silver table of a million rows, next to one ideal MERGE of the same rows.

The ideal MERGE is handed the net changes ready-made and typed: it neither reads bronze nor folds. Both write
to tables of equal content and layout, in turn, and the medians are compared.
"""

import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from pipeline.apply.applier import Applier
from pipeline.ingest.job import run_ingest
from pipeline.postgres.embedded import EmbeddedServer
from tools.bench.capture import pipeline_config


@dataclass(frozen=True, slots=True)
class Applied:
    """Seconds of both, each run of them, over the same net changes."""

    changes: int
    rows: int
    apply_seconds: tuple[float, ...]
    ideal_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Return how much longer apply takes than the ideal MERGE."""
        return statistics.median(self.apply_seconds) / statistics.median(self.ideal_seconds)


def measure_apply(
    spark: SparkSession, server: EmbeddedServer, folder: Path, *, rows: int, changes: int, rounds: int
) -> Applied:
    """Fill the table, then change it `rounds` times and apply each change set both ways."""
    config = pipeline_config(folder, server.conninfo, "apply")
    applier = Applier(spark, config)
    ideal = str(folder / "ideal")
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE big (id int PRIMARY KEY, v text, n numeric(12, 2), at timestamptz)")
        run_ingest(config, spark=spark)
        connection.execute(
            "INSERT INTO big SELECT g, 'value ' || g, g / 7.0, now() FROM generate_series(1, %s) g", (rows,)
        )
        run_ingest(config, spark=spark)
        applier.apply_pending()
        silver = f"{applier.lake.root}/silver/public/big"
        spark.read.format("delta").load(silver).write.format("delta").save(ideal)
        ours, theirs = [], []
        for number in range(rounds):
            before = _ids(spark, silver)
            change_rows(connection, rows, changes, number)
            run_ingest(config, spark=spark)
            started = time.monotonic()
            applier.apply_pending()
            ours.append(time.monotonic() - started)
            _net_changes(spark, silver, before, ideal, folder / f"net_{number}")
            started = time.monotonic()
            _merge(spark, ideal, folder / f"net_{number}")
            theirs.append(time.monotonic() - started)
    if any(state.failure for state in applier.summary.tables.values()):
        raise RuntimeError(str(applier.summary.lines()))
    return Applied(changes, rows, tuple(ours), tuple(theirs))


def _ids(spark: SparkSession, path: str) -> int:
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").select("version").head()
    assert row is not None
    return int(row.version)


def change_rows(connection: psycopg.Connection, rows: int, changes: int, number: int) -> None:
    """Change `changes` random rows: eight in ten updated, one deleted, one inserted."""
    seed = random.Random(number).random()
    connection.execute("SELECT setseed(%s)", (seed,))
    connection.execute(
        "CREATE TEMP TABLE picked AS SELECT id FROM big ORDER BY random() LIMIT %s", (changes * 9 // 10,)
    )
    connection.execute(
        "UPDATE big SET v = 'changed ' || %s, at = now() WHERE id IN (SELECT id FROM picked)", (number,)
    )
    connection.execute(
        "DELETE FROM big WHERE id IN (SELECT id FROM picked ORDER BY id LIMIT %s)", (changes // 10,)
    )
    connection.execute(
        "INSERT INTO big SELECT g, 'new', 1, now() FROM generate_series(%s::int, %s::int) g",
        (rows * (number + 2), rows * (number + 2) + changes // 10 - 1),
    )
    connection.execute("DROP TABLE picked")


def _net_changes(spark: SparkSession, silver: str, before: int, ideal: str, target: Path) -> None:
    """Write what differs between silver and the ideal table as typed rows with an op."""
    new = spark.read.format("delta").load(silver)
    old = spark.read.format("delta").option("versionAsOf", before).load(silver)
    upserts = new.exceptAll(old).selectExpr("*", "'U' AS op")
    deletes = old.join(new, "id", "left_anti").selectExpr("*", "'D' AS op")
    upserts.unionByName(deletes).write.parquet(str(target))


def _merge(spark: SparkSession, ideal: str, net: Path) -> None:
    spark.read.parquet(str(net)).createOrReplaceTempView("net")
    spark.sql(
        f"MERGE INTO delta.`{ideal}` t USING net s ON t.id = s.id WHEN MATCHED AND s.op = 'D' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.v = s.v, t.n = s.n, t.at = s.at, t._commit_lsn = s._commit_lsn, "
        "t._commit_time = s._commit_time WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT "
        "(id, v, n, at, _commit_lsn, _commit_time) "
        "VALUES (s.id, s.v, s.n, s.at, s._commit_lsn, s._commit_time)"
    )
