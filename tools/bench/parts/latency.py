"""Latency: 1,000 changes per second in ten tables, from each COMMIT to bronze and to silver.

Both jobs run, continuously and warm. A change is visible when the log of its table has a commit whose offset
is beyond it; logs are read a hundred times per second.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.latency import Sample, percentile
from tools.bench.limits import Measured
from tools.bench.rig import Rig, Source

TABLES = 10
ROWS = 2000
CHANGES = 10  # of a transaction
PER_SECOND = 1000
SECONDS = 60
WARM_SECONDS = 10
CREATE = (
    "CREATE TABLE {} (id int PRIMARY KEY, customer int, note text, amount numeric(12,2), at timestamptz)",
    "INSERT INTO {} SELECT g, g % 100, 'row ' || g, g / 7.0, now() FROM generate_series(1, {}) g",
)


def measure_latency(rig: Rig) -> Iterator[Measured]:
    """Change the tables at a steady rate, first without and then with a look at the delays."""
    tables = [f"t{number}" for number in range(TABLES)]
    with rig.source("latency") as source:
        for table in tables:
            source.execute(*(statement.format(table, ROWS) for statement in CREATE))
        config = rig.configure(source)
        with rig.following(config, "latency", tables) as jobs:
            rig.say("warm-up")
            load(rig, source, tables, rig.size(WARM_SECONDS, 3))
            jobs.wait(close(source, tables))
            seconds = rig.size(SECONDS, 5)
            rig.say(f"{PER_SECOND} changes per second for {seconds} s")
            samples = load(rig, source, tables, seconds)
            jobs.wait(close(source, tables))
            bronze, silver = jobs.delays(samples)
    yield Measured("bronze_p50", percentile(bronze, 0.5))
    yield Measured("bronze_p99", percentile(bronze, 0.99))
    yield Measured("silver_p50", percentile(silver, 0.5))
    yield Measured("silver_p99", percentile(silver, 0.99))
    yield Measured("ingest_memory", jobs.ingest.peak_mib)
    yield Measured("apply_memory", jobs.apply.peak_mib)


def load(rig: Rig, source: Source, tables: list[str], seconds: int) -> list[Sample]:
    """Change rows of one table after the other at a steady rate; return a sample for each transaction."""
    samples = []
    for number in rig.at_rate(PER_SECOND / CHANGES, seconds * PER_SECOND // CHANGES):
        table = tables[number % len(tables)]
        low = number * CHANGES // len(tables) % (ROWS - CHANGES)
        lsn = source.lsn()
        source.execute(
            f"UPDATE {table} SET amount = amount + 1, at = now() WHERE id > {low} AND id <= {low + CHANGES}"
        )
        samples.append(Sample(table, lsn, rig.clock()))
    return samples


def close(source: Source, tables: list[str]) -> int:
    """Change every table once more; return an LSN before."""
    lsn = source.lsn()
    source.transaction(*(f"UPDATE {table} SET customer = 0 WHERE id = {ROWS}" for table in tables))
    return lsn
