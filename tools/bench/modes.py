"""Modes: what each mode of a silver table costs next to `mirror`, for the same changes of the same bronze.

Every mode applies a copy of one bronze into a lake of its own. Its first batch loads the table and is not
measured; each of the others changes a part of the rows.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from pipeline.apply.applier import Applier
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.config.config import Config, Storage
from pipeline.config.tables import RowMode, TableRule
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.postgres.embedded import EmbeddedServer
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.writer_choice import WriterSetting
from tools.bench.apply import change_rows
from tools.bench.capture import pipeline_config

MODES: tuple[RowMode, ...] = ("mirror", "soft_delete", "history", "append")
WRITERS: tuple[WriterSetting, ...] = ("native", "spark")


@dataclass(frozen=True, slots=True)
class ModeCost:
    """Seconds of each measured batch of a mode, by one writer."""

    mode: RowMode
    writer: WriterSetting
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median of the batches."""
        return statistics.median(self.seconds)


def measure_modes(
    spark: SparkSession, server: EmbeddedServer, folder: Path, *, rows: int, changes: int, rounds: int
) -> Iterator[ModeCost]:
    """Capture a load and `rounds` of changes, and apply them in every mode by either writer, mirror first."""
    config = pipeline_config(folder, server.conninfo, "modes")
    ends = []
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE big (id int PRIMARY KEY, v text, n numeric(12, 2), at timestamptz)")
        run_ingest(config, spark=spark)
        connection.execute(
            "INSERT INTO big SELECT g, 'value ' || g, g / 7.0, now() FROM generate_series(1, %s) g", (rows,)
        )
        ends.append(_captured(config, spark))
        for number in range(rounds):
            change_rows(connection, rows, changes, number)
            ends.append(_captured(config, spark))
    for writer in WRITERS:
        for mode in MODES:
            yield _measure(config, mode, writer, spark, ends)


def _captured(config: Config, spark: SparkSession) -> LSN:
    """Capture what waits; return the LSN up to which bronze is complete."""
    run_ingest(config, spark=spark)
    offset = Bronze(Lake(config.storage), config.pipeline).captured_offset()
    assert offset is not None
    return offset.lsn


def _measure(
    config: Config, mode: RowMode, writer: WriterSetting, spark: SparkSession, ends: list[LSN]
) -> ModeCost:
    root = Path(f"{config.storage.root}_{mode}_{writer}")
    shutil.copytree(Path(config.storage.root) / "bronze", root / "bronze")
    silver = replace(config.silver, writer=writer)
    rules = (TableRule("public.big", mode=mode),)
    applier = Applier(spark, replace(config, storage=Storage(str(root)), silver=silver, tables=rules))
    newest = applier.bronze.captured_offset()
    assert newest is not None
    seconds = []
    for end in ends:
        started = time.monotonic()
        summary = applier.apply_pending(BronzeOffset(newest.version, end))
        seconds.append(time.monotonic() - started)
        if summary.exit_code(strict=True):
            raise RuntimeError(str(summary.lines()))
    shutil.rmtree(root)
    return ModeCost(mode, writer, tuple(seconds[1:]))
