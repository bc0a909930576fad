"""Copy: 20 million rows of ten tables to silver, beside Spark that writes the copied rows as Delta."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.rig import Rig

TABLES = 10
ROWS = 2_000_000  # of each table
CREATE = (
    "CREATE TABLE t{} (id int8 PRIMARY KEY, customer int, note text, amount numeric(12,2), at timestamptz)",
    "INSERT INTO t{} SELECT i, i % 1000, 'some words about row ' || i, i / 100.0, "
    "timestamptz '2020-01-01' + i * interval '1 second' FROM generate_series(1, {}) i",
)


def measure_copy(rig: Rig) -> Iterator[Measured]:
    """Copy the tables by ingest, apply them, then let Spark write what bronze has."""
    rows = rig.size(ROWS, 100)
    tables = [f"t{number}" for number in range(TABLES)]
    with rig.source("copied") as source:
        rig.say(f"{TABLES} tables of {rows:,} rows")
        for number in range(TABLES):
            source.execute(*(statement.format(number, rows) for statement in CREATE))
        source.execute("VACUUM ANALYZE", "CHECKPOINT")
        config = rig.configure(source)
        rig.say("copy to bronze")
        ingest = rig.ingest(config)
        rig.say("apply")
        apply = rig.apply(config)
        start = rig.spark_start()
        with rig.follow("copied", tables) as logs:
            logs.check_rows(dict.fromkeys(tables, rows))
        rig.say("Spark alone")
        root = rig.root("copied")
        found, seconds = rig.ideal.write_copied_rows(root / "bronze" / "changes", root / "ideal")
        if found != rows * TABLES:
            raise RuntimeError(f"bronze has {found} copied rows, not {rows * TABLES}")
    ours = ingest.seconds + apply.seconds - start.seconds
    yield Measured("copy_reference", seconds)
    yield Measured("copy_ingest", ingest.seconds)
    yield Measured("copy_silver", ours)
    yield Measured("copy_ratio", seconds / ours)
