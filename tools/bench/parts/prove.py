"""Prove: millions of rows in ten tables, beside a COPY of all of them to nowhere, and beside reconcile.

The first proof reads each file of silver once; the figure is that of the second, which reads none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.rig import Rig

TABLES = 10
ROWS = 500_000  # of a table
CREATE = (
    "CREATE TABLE {table} (id bigint PRIMARY KEY, customer int, amount numeric(12,2), note text, "
    "at timestamptz DEFAULT now())",
    "INSERT INTO {table} (id, customer, amount, note) SELECT g, g % 1000, g / 7.0, 'row ' || g "
    "FROM generate_series(1, {rows}) g",
    "ANALYZE {table}",
)


def measure_proof(rig: Rig) -> Iterator[Measured]:
    """Copy the tables, prove them twice, and compare them once."""
    tables = [f"t{number}" for number in range(TABLES)]
    with rig.source("prove") as source:
        for table in tables:
            source.execute(*(each.format(table=table, rows=rig.size(ROWS, 100)) for each in CREATE))
        config = rig.configure(source)
        rig.say("first load, first proof")
        rig.ingest(config)
        rig.apply(config)
        first = rig.prove(config)
        rig.say("COPY TO STDOUT, second proof, reconcile")
        copied = sum(source.copy_out(table) for table in tables)
        second = rig.prove(config)
        files = json.loads(second.output)["files"]
        assert files["read"] == 0, files
        yield Measured("copy_out", copied)
        yield Measured("proof_first", first.seconds)
        yield Measured("proof", second.seconds)
        yield Measured("proof_ratio", second.seconds / copied)
        yield Measured("proof_memory", second.peak_mib)
        yield Measured("reconcile", rig.reconcile(config).seconds)
