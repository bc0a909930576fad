"""Live reads while transactions commit, ingest captures and apply writes: each is the source at its LSN.

Rows are inserted, updated, deleted and truncated by several sessions at once, with keys that change, values
that stay in TOAST, savepoints, transactions that are streamed before their commit, and prepared ones.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config, Protocol
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.reading.live import open_live
from pipeline.reading.live_tables import Live
from pipeline.table_name import TableName
from tests.support.recorded_load import COLUMNS, TABLES, RecordedLoad, Tables
from tests.support.seeds import seed_of_run
from tests.support.servers import Database
from tests.support.threads import in_threads, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXED_SEED = 20_281
NAMES = {table: TableName("public", table) for table in TABLES}
PROTOCOL = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))


@pytest.mark.promise("live reads")
def test_reads_under_load_are_the_source_at_their_lsn(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, FIXED_SEED, reads=12)


@pytest.mark.promise("live reads")
@pytest.mark.slow
def test_a_thousand_reads_under_load_are_the_source_at_their_lsn(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, seed_of_run(), reads=1000)


@pytest.mark.promise("live reads")
@pytest.mark.slow
@pytest.mark.parametrize("writer", ["auto", "spark"])
def test_reads_with_spark_under_load_are_the_source_at_their_lsn(
    database: Database, tmp_path: Path, spark: SparkSession, writer: str
) -> None:
    prove(database, tmp_path, seed_of_run(), reads=60, spark=spark, writer=writer)


def prove(
    database: Database,
    folder: Path,
    seed: int,
    *,
    reads: int,
    spark: SparkSession | None = None,
    writer: Any = "auto",
) -> None:
    print(f"PGDELTA_SEED={seed}")
    config = database.config(root=str(folder / "lake"), create_publication="all", protocol=PROTOCOL)
    config = replace(config, silver=replace(config.silver, writer=writer))
    run_ingest(config)
    source = RecordedLoad(database, config.source.publication)
    applier = Applier(spark, config)

    def ingest(stop: threading.Event) -> None:
        run_ingest(config, trigger="continuous", stop=stop)

    def apply(stop: threading.Event) -> None:
        rng = Random(seed)
        while not stop.wait(rng.random()):
            assert applier.apply_pending().exit_code(strict=True) == 0
            compact(config)

    seconds, lsns = list[float](), Counter[int]()
    with in_threads(ingest, apply), source.running(seed):
        wait_until(lambda: open_live(config, spark).read().keys() == set(NAMES.values()))
        reader = open_live(config, spark)
        deadline = time.monotonic() + 300
        while len(seconds) < reads or (len(lsns) < 4 and time.monotonic() < deadline):
            begun = time.monotonic()
            live = reader.read() if len(seconds) % 5 else open_live(config, spark).read()
            shown = rows_of(live)
            seconds.append(time.monotonic() - begun)
            lsns[live.lsn] += 1
            wanted = source.rows_at(live.lsn)
            assert not live.refused
            for table in TABLES:
                assert shown[table] == wanted[table], (
                    live.lsn,
                    table,
                    differing(shown[table], wanted[table]),
                )
    assert len(lsns) >= 4, "bronze went on meanwhile"
    cuts = quantiles(seconds, n=100)
    size = sum(rows.total() for rows in wanted.values())
    print(
        f"{len(seconds)} reads at {len(lsns)} LSNs, of {size} rows at last:"
        f" p50 {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s; transactions {dict(source.kinds)}"
    )
    if reads >= 1000:
        assert all(source.kinds[kind] > 10 for kind in ("committed", "prepared", "truncated", "large"))
        query = f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{config.source.slot}'"
        assert database.run(query)[0][0] > 10


def rows_of(live: Live) -> Tables:
    """Return the rows that a live read shows."""
    found = {}
    for table in NAMES.keys() & {name.table for name in live}:
        rows = live[NAMES[table]]
        if hasattr(rows, "collect"):
            found[table] = Counter(tuple(row) for row in rows.select(*COLUMNS).collect())
        else:
            columns = rows.to_table(columns=list(COLUMNS)).columns
            found[table] = Counter(zip(*(column.to_pylist() for column in columns), strict=True))
    return found


def differing(found: Counter[Any], wanted: Counter[Any]) -> object:
    """Return some rows that are too much and some that are missing, without their bodies."""
    return [sorted(row[:2] for row in rows)[:5] for rows in (found - wanted, wanted - found)]


def compact(config: Config) -> None:
    """Merge the files of a silver table and of bronze, as maintenance does."""
    lake = Lake(config.storage.root)
    tables = (lake.table("silver", *NAMES["orders"]), lake.table("bronze", "changes"))
    for table in tables:
        if not table.exists():
            continue
        snapshot = table.snapshot()
        plan = plan_table(snapshot, MergeLimits(3, 1 << 20, 1 << 20))
        merge_groups(table, snapshot, plan, plain_layout(snapshot))
