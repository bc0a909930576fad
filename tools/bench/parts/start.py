"""Start: an ingest and an apply with nothing to do, after the first load of 60 small tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tools.bench.limits import Measured
from tools.bench.parts.small_tables import create, names_of
from tools.bench.rig import Rig

TABLES = 60
ROWS = 20
ROUNDS = 3


def measure_start(rig: Rig) -> Iterator[Measured]:
    """Measure both jobs some times, each with a start of its own."""
    with rig.source("start") as source:
        for table in names_of(rig.size(TABLES)):
            source.execute(*create(table, ROWS))
        config = rig.configure(source)
        rig.ingest(config)
        rig.apply(config)
        rig.say("nothing to do")
        rounds = rig.size(ROUNDS)
        ingests = [rig.ingest(config) for _ in range(rounds)]
        yield Measured("ingest_empty", median(run.seconds for run in ingests))
        yield Measured("ingest_empty_memory", max(run.peak_mib for run in ingests))
        applies = [rig.apply(config) for _ in range(rounds)]
        yield Measured("apply_empty", median(run.seconds for run in applies))
        starts = [rig.spark_start() for _ in range(rounds)]
        yield Measured("spark_start", median(run.seconds for run in starts))
