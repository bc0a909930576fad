"""Small files merged, and files that no version needs any more removed, in all tables of the lake.

Safe while jobs run: commits exclude each other, no row changes, and a run whose commit came second makes
it once more. What fails for one table does not keep the others from being done.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from pipeline.config.config import Config
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import report_error
from pipeline.metadata.records import Records
from pipeline.silver.versions import resolve_path
from pipeline.table_name import match_tables

_OWN = (
    ("bronze", "changes"),
    ("bronze", "relations"),
    ("bronze", "copies"),
    ("_pgdelta", "tables"),
    ("_pgdelta", "manifests"),
    ("_pgdelta", "events"),
    ("_pgdelta", "misfits"),
    ("_pgdelta", "requests"),
    ("_pgdelta", "differences"),
    ("_pgdelta", "reconciliations"),
)


@dataclass(frozen=True, slots=True)
class Optimized:
    """What became of one table: files merged (`removed` became `added`), files vacuumed, or why neither."""

    table: str
    added: int = 0
    removed: int = 0
    vacuumed: int = 0
    failure: str | None = None

    def line(self) -> str:
        """Return one line for people."""
        if self.failure is not None:
            return f"  {self.table}: {self.failure}"
        merged = f"{self.removed} files became {self.added}" if self.removed else "nothing to merge"
        return f"  {self.table}: {merged}" + (f", {self.vacuumed} old ones removed" if self.vacuumed else "")


@dataclass(frozen=True, slots=True)
class OptimizeSummary:
    """What became of each table, in order."""

    pipeline: str
    tables: tuple[Optimized, ...]

    @property
    def failures(self) -> int:
        return sum(table.failure is not None for table in self.tables)

    def lines(self) -> list[str]:
        """Return the closing lines for people: tables of which nothing is to be said are counted only."""
        shown = [table for table in self.tables if table.failure or table.removed or table.vacuumed]
        unchanged = len(self.tables) - len(shown)
        head = f"optimize {self.pipeline}: {len(self.tables)} tables, {unchanged} as they were"
        return [head + (f", {self.failures} failed" if self.failures else ""), *(t.line() for t in shown)]

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {"pipeline": self.pipeline, "tables": [asdict(table) for table in self.tables]}

    def exit_code(self, strict: bool) -> int:
        """Return 1 where a table failed."""
        del strict
        return 1 if self.failures else 0


def run_optimize(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    vacuums: bool = False,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[Optimized], None] = lambda table: None,
) -> OptimizeSummary:
    """Merge the small files of all tables of the lake, or of the silver tables that globs name.

    With `vacuums` files that left a table longer ago than its retention are removed too. After `stop` no
    other table is begun. Raises ConfigError where no table matches.
    """
    stop = stop or threading.Event()
    spark = spark or start_session(f"pgdelta optimize {config.pipeline}")
    lake = Lake.for_writing(spark, config.storage.root)
    done = []
    tables = list(_tables(lake, globs))
    if globs and not tables:
        raise lake.no_match()
    for name, table in tables:
        if stop.is_set():
            break
        found = _optimize(name, table, vacuums)
        if found is not None:
            done.append(found)
            progress(found)
    return OptimizeSummary(config.pipeline, tuple(done))


def _tables(lake: Lake, globs: Sequence[str] | None) -> Iterator[tuple[str, LakeTable]]:
    """Give the tables by name: the lake's own ones, unless globs pick some, then silver's."""
    if not globs:
        for segments in _OWN:
            yield "/".join(segments), lake.table(*segments)
    matches = match_tables(globs)
    for name, registered in sorted(Records(lake).tables.read().items()):
        if matches(name):
            yield str(name), lake.table_at(resolve_path(registered.path, name, lake.root))


def _optimize(name: str, table: LakeTable, vacuums: bool) -> Optimized | None:
    """Merge a table's small files; return None where there is no table."""
    try:
        if not table.exists():
            return None
        added, removed = retry_conflicts(table.compact)
        return Optimized(name, added, removed, table.vacuum() if vacuums else 0)
    except Exception as error:
        return Optimized(name, failure=report_error(error))
