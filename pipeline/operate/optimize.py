"""Merge small files, and remove files that no version needs any more, in all tables of the lake.

Safe while jobs run: commits exclude each other, no row changes, and whoever commits second repeats the
commit. A failure of one table does not stop the others.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from pipeline.config.config import Config
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import report_error
from pipeline.maintenance.job_tables import tables_of
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.write.shared_tables import refresh_shared, vacuum
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
    other table is begun. Raise ConfigError if no table matches.
    """
    stop = stop or threading.Event()
    lake = Lake.for_writing(config.storage, application=f"pgdelta optimize {config.pipeline}")
    _ = lake.spark  # a session that cannot start is the command's failure, not each table's
    done = []
    tables = list(tables_of(lake, globs))
    if globs and not tables:
        raise no_match(lake, config, globs)
    for name, table in tables:
        if stop.is_set():
            break
        found = _optimize(name, table, vacuums)
        if found is not None:
            done.append(found)
            if progress is not None:
                progress(found)
    return OptimizeSummary(config.pipeline, tuple(done))


def _optimize(name: str, table: LakeTable, vacuums: bool) -> OptimizedTable | None:
    """Merge a table's small files; return None if there is no table."""
    try:
        if not table.exists():
            return None
        added, removed = retry_conflicts(table.compact)
        vacuums = refresh_shared(table) and vacuums
        return OptimizedTable(name, added, removed, vacuum(table) if vacuums else 0)
    except Exception as error:
        return OptimizedTable(name, failure=report_error(error))
