"""One table: many rows of 5 columns, and rows of 100 and of 400 columns of which updates change three.

Each load is inserted by one transaction and updated by others. It is read by pg_recvlogical, captured by one
ingest and applied by one `pgdelta apply`, to a new table of silver. Spark, warm, then does the ideal with the
same net rows: it writes the narrow ones, and merges the wide ones into an empty table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.bench.limits import Measured
from tools.bench.rig import Rig, Source

UPDATED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """A table of `columns` besides its key, and how many rows are inserted and then updated."""

    name: str
    columns: int
    inserts: int
    updates: int

    def create(self) -> str:
        """Return the statement that creates the table: texts, numbers and times in turn."""
        types = ("text", "int", "numeric(12,2)", "timestamptz")
        columns = (f"c{number} {types[number % len(types)]}" for number in range(self.columns))
        return f"CREATE TABLE {self.name} (id int PRIMARY KEY, {', '.join(columns)})"

    def insert(self, rows: int) -> str:
        """Return the statement that inserts rows."""
        values = ("'value ' || g + {}", "g + {}", "g / 7.0 + {}", "now() + {} * interval '1 s'")
        columns = (values[number % len(values)].format(number) for number in range(self.columns))
        return f"INSERT INTO {self.name} SELECT g, {', '.join(columns)} FROM generate_series(1, {rows}) g"

    def update(self, low: int, high: int) -> str:
        """Return the statement that changes three columns of the rows above `low` up to `high`."""
        changes = "c0 = c0 || '!', c1 = c1 + 1, c2 = c2 + 1"
        return f"UPDATE {self.name} SET {changes} WHERE id > {low} AND id <= {high}"


LOADS = (
    Load("narrow", 4, 1_000_000, 200_000),
    Load("wide", 99, 100_000, 100_000),
    Load("very_wide", 399, 100_000, 100_000),
)


def measure_one_table(rig: Rig) -> Iterator[Measured]:
    """Measure each load with a database and a lake of its own."""
    for load in LOADS:
        rig.say(f"{load.inserts:,} rows of {load.columns + 1} columns")
        with rig.source(load.name) as source:
            yield from _measure(rig, source, load)


def _measure(rig: Rig, source: Source, load: Load) -> Iterator[Measured]:
    source.execute(load.create())
    config = rig.configure(source, copy="never")
    rig.ingest(config)
    rig.ask(config, "apply")  # compiles Python's modules
    idle = rig.ask(config, "apply").seconds
    source.create_slot(f"{load.name}_reference")
    source.execute(load.insert(rig.size(load.inserts, 100)))
    updates = rig.size(load.updates, 100)
    for low in range(0, updates, UPDATED_AT_ONCE):
        source.execute(load.update(low, min(low + UPDATED_AT_ONCE, updates)))
    reference = source.recvlogical(f"{load.name}_reference", load.name)
    ingest = rig.ingest(config)
    apply = rig.ask(config, "apply")
    silver, root = rig.silver(load.name, load.name), rig.root(load.name) / "ideal"
    if load.name == "narrow":
        ideal = rig.ideal.write(silver, root)
    else:
        ideal = rig.ideal.merge_into_empty(silver, root, "id")
    yield Measured(f"{load.name}_reference", reference)
    yield Measured(f"{load.name}_capture", ingest.seconds)
    yield Measured(f"{load.name}_capture_ratio", reference / ingest.seconds)
    yield Measured(f"{load.name}_ideal", ideal)
    yield Measured(f"{load.name}_apply", apply.seconds - idle)
    yield Measured(f"{load.name}_apply_ratio", ideal / (apply.seconds - idle))
    yield Measured(f"{load.name}_memory", max(ingest.peak_mib, apply.peak_mib))
