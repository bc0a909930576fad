"""Commands: what only reads or asks, with 58 tables and with 1,000."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.parts.small_tables import change, create, names_of
from tools.bench.rig import Rig

TABLES = (58, 1000)
ROWS, CHANGES = 20, 5
COMMANDS = (
    ("check",),
    ("status",),
    ("plan",),
    ("as-of",),
    ("audit",),
    ("tail", "--no-follow"),
    ("resync", "--table", "public.t0"),
)


def measure_commands(rig: Rig) -> Iterator[Measured]:
    """Measure the slowest command for each number of tables; half of the tables have changes that wait."""
    for count in TABLES:
        tables = names_of(rig.size(count))
        with rig.source(f"asked{count}") as source:
            for table in tables:
                source.execute(*create(table, ROWS))
            config = rig.configure(source)
            rig.say(f"load of {len(tables)} tables")
            rig.ingest(config)
            rig.apply(config)
            source.transaction(*(change(table, CHANGES) for table in tables[::2]))
            rig.ingest(config)
            for command in COMMANDS:
                rig.ask(config, *command)  # compiles modules
            seconds = {command[0]: rig.ask(config, *command).seconds for command in COMMANDS}
        rig.say(", ".join(f"{name} {found:.2f} s" for name, found in seconds.items()))
        yield Measured(f"commands_{count}", max(seconds.values()))
