"""Tables: the first load of many small ones, and a few changes in each of many, by both writers."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.parts.small_tables import change, create, names_of
from tools.bench.rig import Rig, Writer

FIRST_TABLES, FIRST_ROWS = 60, 20
TABLES, ROWS, CHANGES = 200, 2000, 20
WRITERS: tuple[tuple[Writer, str], ...] = (("auto", "native_table"), ("spark", "spark_table"))


def measure_tables(rig: Rig) -> Iterator[Measured]:
    """Load the first tables, then change others while apply runs, warm."""
    yield from _first_load(rig)
    yield from _changes(rig)


def _first_load(rig: Rig) -> Iterator[Measured]:
    tables = names_of(rig.size(FIRST_TABLES))
    with rig.source("first") as source:
        for table in tables:
            source.execute(*create(table, FIRST_ROWS))
        config = rig.configure(source)
        rig.say(f"first load of {len(tables)} tables")
        ingest, apply = rig.ingest(config), rig.apply(config)
        start = rig.spark_start()
        with rig.follow("first", tables) as logs:
            logs.check_rows(dict.fromkeys(tables, FIRST_ROWS))
    yield Measured("first_load", ingest.seconds + apply.seconds - start.seconds)
    yield Measured("first_load_ingest", ingest.seconds)


def _changes(rig: Rig) -> Iterator[Measured]:
    tables = names_of(rig.size(TABLES))
    with rig.source("many") as source, rig.follow("many", tables) as logs:
        for table in tables:
            source.execute(*create(table, ROWS))
        config = rig.configure(source)
        rig.say(f"load of {len(tables)} tables of {ROWS} rows")
        rig.ingest(config)
        rig.apply(config)
        logs.check_rows(dict.fromkeys(tables, ROWS))
        for writer, key in WRITERS:
            rig.say(f"{CHANGES} changes in each of {len(tables)} tables, silver.writer: {writer}")
            config = rig.configure(source, writer=writer)
            with rig.job("apply", config) as apply:
                # the first are for the JVM
                for changed in (tables[: max(1, len(tables) // 10)], tables):
                    lsn = source.lsn()
                    source.transaction(*(change(table, CHANGES) for table in changed))
                    rig.ingest(config)
                    seconds = rig.wait_for_batch(apply, lsn)
                logs.wait(lsn, apply.check)
                apply.stop()
            yield Measured(key, seconds / len(tables))
