"""Start: scheduled runs of 60 small tables, of which none or two have changes; medians of some runs.

Without Spark, and under spark-submit beside one that starts a session and an empty query on a Delta table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from tools.bench.limits import Measured
from tools.bench.parts.small_tables import change, create, names_of
from tools.bench.processes import Run
from tools.bench.rig import Rig

TABLES = 60
ROWS = 20
ROUNDS = 3


def measure_start(rig: Rig) -> Iterator[Measured]:
    """Measure the jobs some times, each with a start of its own."""
    tables = names_of(rig.size(TABLES, 2))
    with rig.source("start") as source:
        for table in tables:
            source.execute(*create(table, ROWS))
        config = rig.configure(source)
        rig.ingest(config)
        yield Measured("first_apply", rig.ask(config, "apply").seconds)

        def change_two() -> None:
            source.transaction(*(change(table, count) for table, count in zip(tables, (3, 2), strict=False)))

        def change_and_capture() -> None:
            change_two()
            rig.ingest(config)

        def move_lsn() -> None:
            source.execute("CREATE TEMP TABLE moved AS SELECT 1", "DROP TABLE moved")
            rig.ingest(config)

        def measure(run: Callable[[], Run], prepare: Callable[[], None] = lambda: None) -> list[Run]:
            runs = []
            for _ in range(rig.size(ROUNDS)):
                prepare()
                runs.append(run())
            return runs

        rig.say("nothing to do")
        yield from _figures("ingest_empty", measure(lambda: rig.ingest(config)))
        yield _seconds("apply_lsn", measure(lambda: rig.ask(config, "apply"), move_lsn))
        rig.say("5 changes in two tables")
        yield from _figures("run", measure(lambda: rig.ask(config, "run"), change_two))
        yield _seconds("apply_few", measure(lambda: rig.ask(config, "apply"), change_and_capture))
        rig.say("spark-submit")
        yield _seconds("apply_empty", measure(lambda: rig.apply(config)))
        few = measure(lambda: rig.apply(config), change_and_capture)
        query = measure(lambda: rig.spark_query("start"))
        yield _seconds("submit_few", few)
        yield _seconds("submit_query", query)
        yield Measured("submit_extra", median(a.seconds - b.seconds for a, b in zip(few, query, strict=True)))
        yield _seconds("spark_start", measure(rig.spark_start))


def _seconds(key: str, runs: list[Run]) -> Measured:
    return Measured(key, median(run.seconds for run in runs))


def _figures(key: str, runs: list[Run]) -> Iterator[Measured]:
    yield _seconds(key, runs)
    yield Measured(f"{key}_memory", max(run.peak_mib for run in runs))
