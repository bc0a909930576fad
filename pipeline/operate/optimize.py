"""Merge small files, and remove files that no version needs any more, in all tables of the lake.

Spark starts only for a table that only Spark maintains, and only if it has something to merge or remove.

Safe while jobs run: commits exclude each other, no row changes, and whoever commits second repeats the
commit. A failure of one table does not stop the others.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from pipeline.config.config import Config
from pipeline.config.jobs import Maintenance
from pipeline.delta.table import Lake
from pipeline.maintenance.job_tables import tables_of
from pipeline.maintenance.maintainer import Maintainer
from pipeline.terminal import print_lines, print_list, print_paragraph
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class OptimizedTable:
    """The result for a table: `removed` files became `added`, `vacuumed` files were deleted, or a failure."""

    table: str
    added: int = 0
    removed: int = 0
    vacuumed: int = 0
    failure: str | None = None

    @property
    def summary(self) -> str:
        """The result in a few words."""
        if self.failure is not None:
            return self.failure
        merged = "nothing to merge"
        if self.removed:
            merged = f"{format_count(self.removed, 'file')} became {self.added:,}"
        return merged + (f", {format_count(self.vacuumed, 'old file')} removed" if self.vacuumed else "")


@dataclass(frozen=True, slots=True)
class OptimizeSummary:
    """The results of all tables, in order."""

    pipeline: str
    tables: tuple[OptimizedTable, ...]

    @property
    def failure_count(self) -> int:
        """How many tables failed."""
        return sum(table.failure is not None for table in self.tables)

    def print(self, console: Console) -> None:
        """Print one line a table, failures first with their sentences; unchanged tables are only counted."""
        shown = [table for table in self.tables if table.failure or table.removed or table.vacuumed]
        count = len(self.tables)
        title = f"{format_count(count, 'table')}, {count - len(shown):,} unchanged"
        failed = f", {self.failure_count} failed" if self.failure_count else ""
        print_paragraph(console, f"optimize {self.pipeline}: {title}{failed}")
        print_lines(console, (f"  {table.table}: {table.summary}" for table in shown if table.failure))
        done = [(table.table, table.summary) for table in shown if not table.failure]
        if done:
            console.print()
            print_list(console, ("table", "files"), done)

    def as_json(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "tables": [asdict(table) for table in self.tables]}

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table failed."""
        return int(self.failure_count > 0)


def run_optimize(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    vacuums: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[OptimizedTable], None] | None = None,
) -> OptimizeSummary:
    """Merge the small files of all tables of the lake, or of the silver tables that globs name.

    With `vacuums` files that left a table longer ago than its retention are removed too. After `stop` no
    other table and no other merge is begun. Raise ConfigError if no table matches.
    """
    stop = stop or threading.Event()
    lake = Lake.for_writing(config.storage, application=f"pgdelta optimize {config.pipeline}")
    size = config.maintenance.small_file_size or Maintenance().small_file_size
    rules = replace(config.maintenance, small_file_size=size, vacuum=vacuums)
    maintainer = Maintainer(rules, stop.is_set, time.time, by_spark=True, merges_only=True)
    done = []
    for found in maintainer.maintain_all(tables_of(lake, config, globs)):
        table = OptimizedTable(
            found.table, found.merged_into, found.merged, found.removed_files, found.failure
        )
        done.append(table)
        if progress is not None:
            progress(table)
    return OptimizeSummary(config.pipeline, tuple(done))
