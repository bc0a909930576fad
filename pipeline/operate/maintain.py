"""Keep the tables of a lake in order: merge small files, remove what no version needs, shorten logs.

Changes older than `bronze.retention` are compacted first (`retention`).

On a file system of this machine this needs no Spark, and jobs may run meanwhile: no row changes, and a
commit that conflicts is made again from the table's new state. A failure of one table does not stop the
others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.sql import from_seconds
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, report_error
from pipeline.maintenance.job_tables import tables_of
from pipeline.maintenance.maintainer import MaintainedTable, Maintainer
from pipeline.maintenance.sort_orders import SortOrders
from pipeline.operate.retention import Compaction, compact_bronze
from pipeline.operate.retention_plan import Retentions
from pipeline.table_name import TableName
from pipeline.terminal import print_lines, print_list, print_paragraph
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class MaintenanceSummary:
    """The results of all tables, in order; with `dry_run` what would be done."""

    pipeline: str
    tables: tuple[MaintainedTable, ...]
    dry_run: bool = False
    compaction: Compaction = field(default_factory=Compaction)
    compaction_failure: str | None = None

    @property
    def failure_count(self) -> int:
        """How many tables failed; bronze counts once more if its older changes could not be compacted."""
        failed = sum(table.failure is not None for table in self.tables)
        return failed + (self.compaction_failure is not None)

    def print(self, console: Console) -> None:
        """Print failures and what needs Spark first, then one line a table; unchanged ones are counted."""
        tables = self.tables
        shown = [each for each in tables if not each.is_unchanged]
        title = f"{format_count(len(tables), 'table')}, {len(tables) - len(shown):,} unchanged"
        failed = f", {self.failure_count} failed" if self.failure_count else ""
        dry = " (dry run)" if self.dry_run else ""
        print_paragraph(console, f"maintain {self.pipeline}{dry}: {title}{failed}")
        if self.compaction_failure:
            print_lines(console, [f"  bronze.retention: {self.compaction_failure}"])
        print_lines(console, (f"  {each.table}: {each.failure}" for each in shown if each.failure))
        print_lines(
            console,
            (
                f"  {each.table}: has {each.needs_spark}. Run again with --spark."
                for each in shown
                if each.needs_spark
            ),
        )
        done = [each for each in shown if not each.failure and not each.needs_spark]
        if done:
            heads = ("merged", "into", "sorted", "removed", "log")
            console.print()
            print_list(
                console, ("table", *heads), [(each.table, *_counts(each)) for each in done], right=heads
            )

        if lines := list(self.compaction.lines()):
            console.print()
            print_lines(console, lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "dry_run": self.dry_run,
            "retention": {**self.compaction.as_json(), "failure": self.compaction_failure},
            "tables": [asdict(table) for table in self.tables],
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table failed."""
        return int(self.failure_count > 0)


def _counts(table: MaintainedTable) -> tuple[str, ...]:
    counts = (
        table.merged,
        table.merged_into,
        table.sorted,
        table.removed_files,
        table.removed_log_files,
    )
    return tuple(f"{count:,}" for count in counts)


def run_maintenance(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    by_spark: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[MaintainedTable], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> MaintenanceSummary:
    """Maintain all tables of the lake, or the silver tables that globs name, by `config.maintenance`.

    With `by_spark` Spark does what only it can do, else such tables are only named. With `dry_run` nothing is
    written. After `stop` no other table and no other merge is begun. `clock` gives seconds since 1970. Raise
    ConfigError if no table matches, or if the lake is on storage that only Spark can write.
    """
    stop = stop or threading.Event()
    lake = Lake.for_writing(config.storage, application=f"pgdelta maintain {config.pipeline}")
    if lake.working_root is None and (dry_run or not by_spark):
        raise ConfigError(
            f"The lake {lake.root} is not on a file system of this machine, so only Spark can maintain it. "
            "Run pgdelta maintain --spark, without --dry-run."
        )
    compaction, failure = Compaction(), None
    if not globs and config.shortest_retention is not None and not stop.is_set():
        retentions = Retentions(config.retention_of, config.bronze.retention, config.shortest_retention)
        try:
            compaction = _compact(config, lake, retentions, clock(), dry_run=dry_run)
        except Exception as error:
            failure = report_error(error)
    orders = SortOrders(lake, config)
    maintainer = Maintainer(
        config.maintenance,
        should_stop=stop.is_set,
        clock=clock,
        dry_run=dry_run,
        by_spark=by_spark,
        order_of=orders.of,
    )
    done: list[MaintainedTable] = []
    for found in maintainer.maintain_all(tables_of(lake, config, globs)):
        done.append(found)
        if progress is not None:
            progress(found)
    return MaintenanceSummary(config.pipeline, tuple(done), dry_run, compaction, failure)


def _compact(config: Config, lake: Lake, retentions: Retentions, now: float, *, dry_run: bool) -> Compaction:
    bronze = Bronze(lake, config.pipeline)
    if bronze.captured_offset() is None:
        return Compaction()

    def keeps_past(name: TableName) -> bool:
        rule = config.rule_for(name)
        return rule is not None and rule.keeps_past

    return compact_bronze(bronze, retentions, from_seconds(now), dry_run=dry_run, keeps_past=keeps_past)
