"""Sustained: 10,000 changes per second of the mixed load for ten minutes, into ten tables.

Both jobs run, continuously and warm. Beside the load, a connection changes one row of one table after the
other and notes each COMMIT; the delays of these changes are those of a table's other changes too. A lag that
does not grow shows in the last third of the time as in the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.bench.latency import Sample, percentile
from tools.bench.limits import Measured
from tools.bench.parts.mixed import close, create, scripts
from tools.bench.rig import Rig, Source

ROWS = 20_000
PER_SECOND = 10_000
SECONDS = 600
WARM_SECONDS = 20
PROBES = 20  # per second


def measure_sustained(rig: Rig) -> Iterator[Measured]:
    """Run the load, and probe each table twice per second."""
    rows = rig.size(ROWS, 100)
    with rig.source("sustained") as source:
        tables = create(source, rows)
        load = [script.replace("{rows}", str(rows)) for script in scripts()]
        changes = sum(script.count(";\n") - 2 for script in load) / len(load)  # without BEGIN and COMMIT
        config = rig.configure(source)
        with rig.following(config, "sustained", tables) as jobs:
            seconds = rig.size(SECONDS, 5)
            rig.say(f"{PER_SECOND:,} changes per second for {WARM_SECONDS} s and {seconds} s")
            with source.pgbench_at(load, PER_SECOND / changes, WARM_SECONDS + seconds) as pgbench:
                rig.sleep(WARM_SECONDS)
                before = jobs.ingest.processor_seconds(), jobs.apply.processor_seconds()
                samples = probe(rig, source, tables, seconds)
                after = jobs.ingest.processor_seconds(), jobs.apply.processor_seconds()
                rate = rate_of(pgbench.end()) * changes
            jobs.wait(close(source, tables))
            bronze, silver = jobs.delays(samples)
        third = max(1, len(samples) // 3)
        yield Measured("sustained_rate", rate)
        yield Measured("sustained_bronze_p99", percentile(bronze, 0.99))
        yield Measured("sustained_p50", percentile(silver, 0.5))
        yield Measured("sustained_p99", percentile(silver, 0.99))
        yield Measured("sustained_growth", percentile(silver[-third:], 0.5) / percentile(silver[:third], 0.5))
        million = PER_SECOND * seconds / 1e6
        yield Measured("sustained_ingest_cpu", (after[0] - before[0]) / million)
        yield Measured("sustained_apply_cpu", (after[1] - before[1]) / million)
        yield Measured("sustained_memory", jobs.ingest.peak_mib + jobs.apply.peak_mib)
        rig.say("comparison of silver and source")
        rig.reconcile(config)


def rate_of(output: str) -> float:
    """Return the transactions per second that pgbench reports."""
    found = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


def probe(rig: Rig, source: Source, tables: list[str], seconds: int) -> list[Sample]:
    """Change a row of one table after the other at a steady rate; return a sample for each."""
    samples = []
    for number in rig.at_rate(PROBES, seconds * PROBES):
        table = tables[number % len(tables)]
        lsn = source.lsn()
        source.execute(f"INSERT INTO {table} (customer) VALUES ({number})")
        samples.append(Sample(table, lsn, rig.clock()))
    return samples
