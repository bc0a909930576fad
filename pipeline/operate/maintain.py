"""Keep the tables of a lake in order: merge small files, remove what no version needs, shorten logs.

On a file system of this machine this needs no Spark, and jobs may run meanwhile: no row changes, and a
commit that conflicts is made again from the table's new state. A failure of one table does not stop the
others.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pipeline.bronze.merge import changes_layout, plan_changes
from pipeline.config.config import Config, Maintenance
from pipeline.delta import native_write
from pipeline.delta.checkpoints import (
    LOG_RETENTION,
    cleans_up,
    expired_files,
    log_retention,
    superseded_checksums,
)
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS
from pipeline.delta.vacuum import RETENTION, find_unneeded, remove_files
from pipeline.errors import ConfigError, report_error
from pipeline.operate.lake_tables import own_tables, silver_tables
from pipeline.silver.data_layout import file_size
from pipeline.silver.writer_choice import unsupported_feature
from pipeline.terminal import print_lines, print_list, print_paragraph

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES = "bronze/changes"
_SET_BY_US = "pgdelta.logRetentionDuration"  # the property's value if pgdelta has set it
_CHECKSUMS_STAY = 3600.0  # seconds
_MERGED_FILE = 4  # times the size below which a file is small
_METADATA = json.dumps({OURS: 1, "operation": "maintain"})


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """The result for a table: `merged` files became `merged_into`, and how many files were removed.

    `needs_spark` is why only Spark can maintain it, which was not done; `failure` a sentence.
    """

    table: str
    merged: int = 0
    merged_into: int = 0
    removed_files: int = 0
    removed_log_files: int = 0
    needs_spark: str | None = None
    failure: str | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing was done, and nothing is to be said."""
        counts = self.merged, self.removed_files, self.removed_log_files
        return not any(counts) and self.needs_spark is None and self.failure is None


@dataclass(frozen=True, slots=True)
class MaintenanceSummary:
    """The results of all tables, in order; with `dry_run` what would be done."""

    pipeline: str
    tables: tuple[MaintainedTable, ...]
    dry_run: bool = False

    @property
    def failure_count(self) -> int:
        """How many tables failed."""
        return sum(table.failure is not None for table in self.tables)

    def print(self, console: Console) -> None:
        """Print failures and what needs Spark first, then one line a table; unchanged ones are counted."""
        tables = self.tables
        shown = [each for each in tables if not each.is_unchanged]
        title = f"{len(tables)} table{'s' * (len(tables) != 1)}, {len(tables) - len(shown)} unchanged"
        failed = f", {self.failure_count} failed" if self.failure_count else ""
        dry = " (dry run)" if self.dry_run else ""
        print_paragraph(console, f"maintain {self.pipeline}{dry}: {title}{failed}")
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
            heads = ("merged", "into", "removed", "log")
            console.print()
            print_list(
                console, ("table", *heads), [(each.table, *_counts(each)) for each in done], right=heads
            )

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            "pipeline": self.pipeline,
            "dry_run": self.dry_run,
            "tables": [asdict(table) for table in self.tables],
        }

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a table failed."""
        del strict
        return int(self.failure_count > 0)


def _counts(table: MaintainedTable) -> tuple[str, ...]:
    counts = table.merged, table.merged_into, table.removed_files, table.removed_log_files
    return tuple(f"{count:,}" for count in counts)


def run_maintenance(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    dry_run: bool = False,
    by_spark: bool = False,
    spark: SparkSession | None = None,
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
    lake = Lake.for_writing(config.storage.root, spark, application=f"pgdelta maintain {config.pipeline}")
    if lake.local_root is None and (dry_run or not by_spark):
        raise ConfigError(
            f"The lake {lake.root} is not on a file system of this machine, so only Spark can maintain it. "
            "Run pgdelta maintain --spark, without --dry-run."
        )
    maintainer = _Maintainer(config.maintenance, dry_run, by_spark, stop, clock)
    tables = [(name, table, True) for name, table in own_tables(lake)] if not globs else []
    tables += [(name, table, False) for name, table in silver_tables(lake, globs)]
    if globs and not tables:
        raise lake.no_match()
    done: list[MaintainedTable] = []
    for name, table, is_own in tables:
        if stop.is_set():
            break
        found = maintainer.maintain(name, table, is_own=is_own)
        if found is not None:
            done.append(found)
            if progress is not None:
                progress(found)
    return MaintenanceSummary(config.pipeline, tuple(done), dry_run)


@dataclass(frozen=True, slots=True)
class _Maintainer:
    rules: Maintenance
    dry_run: bool
    by_spark: bool
    stop: threading.Event
    clock: Callable[[], float]

    def maintain(self, name: str, table: LakeTable, *, is_own: bool) -> MaintainedTable | None:
        """Maintain a table; return None if there is none."""
        try:
            snapshot = table.snapshot()
            if not snapshot.exists:
                return None
            reason = _why_spark(table, snapshot)
            if reason is not None:
                return self._by_spark(name, table, reason)
            return self._natively(name, table, is_own=is_own)
        except Exception as error:
            return MaintainedTable(name, failure=report_error(error))

    def _by_spark(self, name: str, table: LakeTable, reason: str) -> MaintainedTable:
        if self.dry_run or not self.by_spark:
            return MaintainedTable(name, needs_spark=reason)
        added, removed = retry_conflicts(table.compact)
        return MaintainedTable(name, removed, added, table.vacuum() if self.rules.vacuum else 0)

    def _natively(self, name: str, table: LakeTable, *, is_own: bool) -> MaintainedTable:
        if is_own and not self.dry_run:
            retry_conflicts(lambda: self._set_retention(table))
        done = MaintainedTable(name)

        def merge() -> None:
            nonlocal done
            done = self._merge(done, table, is_own=is_own, is_changes=is_own and name == _CHANGES)

        retry_conflicts(merge)
        done = replace(done, removed_log_files=self._clean_log(table))
        if self.rules.vacuum and not self.stop.is_set():
            done = replace(done, removed_files=self._vacuum(table))
        return done

    def _merge(
        self, done: MaintainedTable, table: LakeTable, *, is_own: bool, is_changes: bool
    ) -> MaintainedTable:
        snapshot = table.snapshot()
        limits = self._limits(None if is_own else sum(int(add["size"]) for add in snapshot.files.values()))
        if is_changes:
            assert table.local_path is not None
            groups, layout = plan_changes(table.local_path, snapshot, limits), changes_layout()
        else:
            groups, layout = plan_table(snapshot, limits), plain_layout(snapshot)
        if self.dry_run:
            return replace(done, merged=sum(map(len, groups)), merged_into=len(groups))
        count = merge_groups(
            table,
            snapshot,
            groups,
            layout,
            user_metadata=_METADATA if is_changes else None,
            should_stop=self.stop.is_set,
        )
        return replace(done, merged=done.merged + count.removed, merged_into=done.merged_into + count.added)

    def _limits(self, silver_bytes: int | None) -> MergeLimits:
        """Return when files are merged; those of silver become no larger than apply leaves them."""
        few, small = self.rules.small_files, self.rules.small_file_size
        if silver_bytes is None:
            return MergeLimits(few, small, _MERGED_FILE * small)
        size = file_size(silver_bytes)
        return MergeLimits(few, min(small, size // _MERGED_FILE), min(_MERGED_FILE * small, size))

    def _set_retention(self, table: LakeTable) -> None:
        """Set how long an own table keeps old versions, unless its owner has set that."""
        snapshot = table.snapshot()
        recorded = snapshot.configuration
        text = f"interval {self.rules.log_retention} seconds"
        ours = recorded.get(_SET_BY_US)
        if not self.rules.log_retention or ours == text:
            return
        if any(recorded.get(name, ours) != ours for name in (LOG_RETENTION, RETENTION)):
            return
        properties = {LOG_RETENTION: text, RETENTION: text, _SET_BY_US: text}
        native_write.set_properties(table.folder, snapshot, properties, _METADATA)

    def _clean_log(self, table: LakeTable) -> int:
        snapshot, now = table.snapshot(), self.clock()
        if not cleans_up(snapshot.configuration):
            return 0
        oldest = now - log_retention(snapshot.configuration)
        found = set(expired_files(table.folder, snapshot.version, oldest, snapshot.offsets))
        found.update(superseded_checksums(table.folder, now - _CHECKSUMS_STAY))
        if not self.dry_run:
            for path in found:
                path.unlink(missing_ok=True)
        return len(found)

    def _vacuum(self, table: LakeTable) -> int:
        found = find_unneeded(table.folder, table.snapshot(), self.clock())
        return len(found) if self.dry_run else remove_files(found)


def _why_spark(table: LakeTable, snapshot: Snapshot) -> str | None:
    """Return what a table has that only Spark maintains, None if nothing."""
    if table.local_path is None:
        return "other storage than a file system of this machine"
    if (feature := unsupported_feature(snapshot)) is not None:
        return feature
    try:
        plain_layout(snapshot)
    except ValueError:
        return "a column type that only Spark writes"
    return None
