"""A batch of 20 changes into a table of 1 to 100 million rows: it costs the same for keys that grow.

The newest rows change, or random ones, of growing keys and of UUIDs. Random keys have no law: 12 random rows
are in up to 12 files, and no statistics show which files have a UUID, so the key column of all is read until
`pgdelta maintain` has sorted them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pipeline.apply.applier import Applier
from pipeline.operate.maintain import run_maintenance
from pipeline.silver.write.writer_choice import WriterSetting
from tools.growth.lake import GrowingLake, config_of
from tools.growth.measure import Cost, Growth, Row, measured, median

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = (1_000_000, 10_000_000, 100_000_000)
_WARM_UP = 2  # rounds that do not count
_KEYS = (("newest", False, True), ("random", False, False), ("random", True, False))


def measure_table(growth: Growth) -> Iterator[Row]:
    """Yield the costs of both writers for each size and choice of keys."""
    from pipeline.delta.spark.session import start_session

    spark = start_session("growth") if "spark" in growth.writers else None
    for has_uuids in (False, True):
        for size in growth.sizes(*SIZES):
            root = growth.folder / f"lake-{size}-{has_uuids}"
            growth.say(f"{size:,} rows{' with UUIDs' if has_uuids else ''}")
            lake = GrowingLake(root, size, has_uuids=has_uuids)
            for keys, of_uuids, is_law in _KEYS:
                if of_uuids == has_uuids:
                    for writer in growth.writers:
                        session = spark if writer == "spark" else None
                        yield _measure(growth, lake, size, keys, writer, session, is_law=is_law)
            if has_uuids:
                growth.say("sort by key")
                with measured() as cost:
                    summary = run_maintenance(lake.config, ["*.*"])
                growth.say(f"{summary.tables[0].sorted} files sorted in {cost.cpu:.0f} s of a processor")
                for writer in growth.writers:
                    session = spark if writer == "spark" else None
                    yield _measure(growth, lake, size, "sorted", writer, session, is_law=False)
            shutil.rmtree(root)
    if spark is not None:
        spark.stop()


def _measure(
    growth: Growth,
    lake: GrowingLake,
    size: int,
    keys: str,
    writer: WriterSetting,
    spark: SparkSession | None,
    *,
    is_law: bool,
) -> Row:
    jvm = None if spark is None else int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    costs: list[Cost] = []
    replaced = 0
    with closing(Applier(spark, config_of(lake, writer))) as applier:
        for number in range(growth.rounds + _WARM_UP):
            lake.land_batch(keys)
            before = set(lake.table.snapshot().files)
            with measured(jvm) as cost:
                summary = applier.apply_pending()
            if summary.exit_code(strict=True):
                raise RuntimeError("\n".join(summary.lines()))
            if number >= _WARM_UP:
                costs.append(cost)
                replaced += len(before - set(lake.table.snapshot().files))
    name = f"{writer}, {keys} {'UUIDs' if lake.has_uuids else 'rows'}"
    files = lake.table.snapshot().file_count
    return Row(name, size, files, replaced / growth.rounds, median(costs), is_law)
