"""Live reads: 1,000 changes per second in ten tables, from each COMMIT to the end of a read that shows it.

Both jobs run, continuously and warm. Another process reads all rows of all tables, a tenth of a second after
the end of the last read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.bench.latency import Seen, delays, percentile
from tools.bench.limits import Measured
from tools.bench.parts.latency import CREATE, ROWS, SECONDS, TABLES, WARM_SECONDS, close, load
from tools.bench.processes import Job
from tools.bench.rig import Rig

PATIENCE = 120.0  # seconds


def measure_live(rig: Rig) -> Iterator[Measured]:
    """Change the tables at a steady rate, and read them live meanwhile."""
    tables = [f"t{number}" for number in range(TABLES)]
    with rig.source("live") as source:
        for table in tables:
            source.execute(*(statement.format(table, ROWS) for statement in CREATE))
        config = rig.configure(source)
        with rig.following(config, "live", tables) as jobs, rig.live_reader(config) as reader:
            rig.say("warm-up")
            load(rig, source, tables, rig.size(WARM_SECONDS, 3))
            _wait(rig, reader, close(source, tables))
            seconds = rig.size(SECONDS, 5)
            rig.say(f"reads under load for {seconds} s")
            samples = load(rig, source, tables, seconds)
            _wait(rig, reader, close(source, tables))
            began = samples[0].at
            reads = [read for read in reads_of(reader) if read["at"] >= began]
            jobs.check()
            reader.stop()
    if any(read["rows"] != TABLES * ROWS for read in reads):
        raise RuntimeError("a live read lacks rows")
    seen = {"live": [Seen(read["lsn"], read["at"]) for read in reads]}
    found = delays([sample._replace(table="live") for sample in samples], seen)
    yield Measured("live_p50", percentile(found, 0.5))
    yield Measured("live_p99", percentile(found, 0.99))
    yield Measured("live_read", percentile([read["seconds"] for read in reads], 0.5))
    yield Measured("live_memory", reader.peak_mib)


def reads_of(reader: Job) -> list[dict[str, Any]]:
    """Return what a reader has printed: a complete line for each read."""
    lines = reader.output.split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _wait(rig: Rig, reader: Job, lsn: int) -> None:
    """Wait until a read shows what follows an LSN."""
    deadline = rig.clock() + PATIENCE
    while not any(read["lsn"] > lsn for read in reads_of(reader)[-1:]):
        reader.check()
        if rig.clock() > deadline:
            raise RuntimeError("no live read got there")
        rig.sleep(0.1)
