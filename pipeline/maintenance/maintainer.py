"""Keep one table in order: merge small files, sort them, remove what no version needs, shorten its log.

On a file system of this machine this needs no Spark, and jobs may run meanwhile: no row changes. A failure
is part of the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from pipeline.bronze.merge import changes_layout, plan_changes
from pipeline.config.jobs import Maintenance
from pipeline.delta import native_write
from pipeline.delta.checkpoints import cleans_up, expired_files
from pipeline.delta.log_retention import (
    FILE_RETENTION,
    LOG_COMMITS,
    LOG_RETENTION,
    SET_BY_US,
    LogRetention,
    short_log,
)
from pipeline.delta.merge import OtherTypeError, by_partition, merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.store.mirror import remove_files
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS
from pipeline.errors import report_error
from pipeline.maintenance.write_gate import BusyError
from pipeline.silver.write.clustering import (
    SortOrder,
    clustered_layout,
    may_be_clustered,
    plan_clustering,
    unsorted_columns,
)
from pipeline.silver.write.data_layout import file_size, small_size
from pipeline.silver.write.shared_tables import refresh_shared, unneeded_files, vacuum
from pipeline.silver.write.writer_choice import unsupported_feature

_CHANGES = "bronze/changes"
_MERGED_FILE = 4  # times the size below which a file is small
_SPARK_FILE = 1 << 30  # bytes up to which OPTIMIZE merges files
_METADATA = json.dumps({OURS: 1, "operation": "maintain"})


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """The result for a table: `merged` files became `merged_into`, and how many files were removed.

    `sorted` files were sorted together. The table had `files_before` data files, and has `files_after`
    in `bytes` and `version` now. `needs_spark` is why only Spark can maintain it, which was not done;
    `failure` a sentence.
    """

    table: str
    merged: int = 0
    merged_into: int = 0
    sorted: int = 0
    removed_files: int = 0
    removed_log_files: int = 0
    needs_spark: str | None = None
    failure: str | None = None
    files_before: int = 0
    files_after: int = 0
    bytes: int = 0
    version: int = -1

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing was done, and there is nothing to report."""
        counts = self.merged, self.sorted, self.removed_files, self.removed_log_files
        return not any(counts) and self.needs_spark is None and self.failure is None


@dataclass(frozen=True, slots=True)
class Maintainer:
    """Maintains tables by the rules of a configuration.

    With `merges_only` small files are merged, whatever their number, and old ones removed by the rules; files
    are not sorted, and logs and properties stay. `order_of` returns the columns by which files of a silver
    table are sorted. `committing` is held while files are exchanged for merged ones; it raises BusyError if
    that has to wait.
    """

    rules: Maintenance
    should_stop: Callable[[], bool]
    clock: Callable[[], float]
    dry_run: bool = False
    by_spark: bool = False
    merges_only: bool = False
    order_of: Callable[[str], SortOrder] = lambda _: SortOrder()
    committing: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()

    def maintain_all(self, tables: Iterable[tuple[str, LakeTable, bool]]) -> Iterator[MaintainedTable]:
        """Maintain tables that exist, each with its name and whether it is the lake's own, until a stop."""
        for name, table, is_own in tables:
            if self.should_stop():
                break
            if (found := self.maintain(name, table, is_own=is_own)) is not None:
                yield found

    def maintain(self, name: str, table: LakeTable, *, is_own: bool) -> MaintainedTable | None:
        """Maintain a table; return None if there is none. Raises BusyError if a job writes it."""
        try:
            snapshot = table.snapshot()
            if not snapshot.exists:
                return None
            reason = _why_spark(table, snapshot)
            if reason is not None:
                return self._by_spark(name, table, reason)
            try:
                return self._natively(name, table, is_own=is_own)
            except OtherTypeError as error:
                if not self.by_spark:
                    raise
                return self._by_spark(name, table, str(error))
        except BusyError:
            raise
        except Exception as error:
            return MaintainedTable(name, failure=report_error(error))

    def _by_spark(self, name: str, table: LakeTable, reason: str) -> MaintainedTable:
        if self.dry_run or not self.by_spark:
            return MaintainedTable(name, needs_spark=reason)
        added, removed = retry_conflicts(table.compact) if _may_compact(table.snapshot()) else (0, 0)
        vacuums = refresh_shared(table) and self.rules.vacuum
        return MaintainedTable(name, removed, added, removed_files=vacuum(table) if vacuums else 0)

    def _natively(self, name: str, table: LakeTable, *, is_own: bool) -> MaintainedTable:
        if is_own and not self.dry_run and not self.merges_only:
            retry_conflicts(lambda: self._set_retention(table))
        done = MaintainedTable(name, files_before=table.snapshot().file_count)

        def merge() -> None:
            nonlocal done
            done = self._merge(done, table, is_own=is_own, is_changes=is_own and name == _CHANGES)

        def sort() -> None:
            nonlocal done
            done = self._sort(done, table)

        retry_conflicts(merge)
        if not self.merges_only:
            if not is_own:
                retry_conflicts(sort)
            done = replace(done, removed_log_files=self._clean_log(table, is_own=is_own))
        may_remove = self.dry_run or refresh_shared(table)
        if may_remove and self.rules.vacuum and not self.should_stop():
            done = replace(done, removed_files=self._vacuum(table))
        snapshot = table.snapshot()
        size = sum(int(add["size"]) for add in snapshot.files.values())
        return replace(done, files_after=len(snapshot.files), bytes=size, version=snapshot.version)

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
            should_stop=self.should_stop,
            committing=partial(self.committing, done.table),
        )
        return replace(done, merged=done.merged + count.removed, merged_into=done.merged_into + count.added)

    def _sort(self, done: MaintainedTable, table: LakeTable) -> MaintainedTable:
        """Sort files of a silver table together until few of them may have the same values."""
        order = self.order_of(done.table)
        if names := unsorted_columns(table.snapshot(), order):
            return replace(done, failure=_unsortable(done.table, names))
        while may_be_clustered(snapshot := table.snapshot(), order) and not self.should_stop():
            groups = plan_clustering(snapshot, order)
            if not groups or self.dry_run:
                return replace(done, sorted=done.sorted + sum(map(len, groups)))
            count = merge_groups(
                table,
                snapshot,
                groups,
                clustered_layout(snapshot, order),
                should_stop=self.should_stop,
                committing=partial(self.committing, done.table),
            )
            done = replace(done, sorted=done.sorted + count.removed)
            if not count.removed:
                break  # no two files fit into memory
        return done

    def _limits(self, silver_bytes: int | None) -> MergeLimits:
        """Return when files are merged; those of silver become no larger than apply leaves them."""
        small = self.rules.small_file_size
        merged = _MERGED_FILE * small
        if silver_bytes is not None:
            small, merged = min(small, small_size(silver_bytes)), min(merged, file_size(silver_bytes))
        few = 2 if self.merges_only else self.rules.small_files
        return MergeLimits(few, small, merged, waits=not self.merges_only)

    def _set_retention(self, table: LakeTable) -> None:
        """Set how long an own table keeps old versions, unless its owner has set that."""
        snapshot, rules = table.snapshot(), self.rules
        recorded = snapshot.configuration
        wanted = {LOG_COMMITS: "0"} | short_log(rules.log_retention, rules.log_commits)
        if not rules.log_retention or all(recorded.get(name) == text for name, text in wanted.items()):
            return
        ours = recorded.get(SET_BY_US)
        if any(recorded.get(name, ours) != ours for name in (LOG_RETENTION, FILE_RETENTION)):
            return
        native_write.set_properties(table.folder, snapshot, wanted, _METADATA)

    def _clean_log(self, table: LakeTable, *, is_own: bool) -> int:
        snapshot, now = table.snapshot(), self.clock()
        if not cleans_up(snapshot.configuration):
            return 0
        retention = LogRetention.of(snapshot.configuration)
        if not is_own and not retention.commits:
            retention = replace(retention, commits=self.rules.silver_log_commits)
        found = expired_files(table.folder, snapshot.version, retention, now, snapshot.offsets, thins=True)
        if not self.dry_run:
            remove_files(sorted(found))
        return len(found)

    def _vacuum(self, table: LakeTable) -> int:
        found = unneeded_files(table, self.clock())
        return len(found) if self.dry_run else remove_files(found)


def _unsortable(table: str, names: Sequence[str]) -> str:
    what = "column" if len(names) == 1 else "columns"
    return (
        f"Files of {table} are not sorted: cluster_by names {what} {', '.join(names)}, and silver lacks that "
        "column, or its files lack exact statistics of it. Correct cluster_by in the rule of the table."
    )


def _may_compact(snapshot: Snapshot) -> bool:
    """Return whether OPTIMIZE may find files to merge: two of a partition, or one with a deletion vector."""
    if any(add.get("deletionVector") for add in snapshot.files.values()):
        return True
    sizes = (sorted(int(add["size"]) for add in files.values())[:2] for files in by_partition(snapshot))
    return any(len(two) == 2 and sum(two) <= _SPARK_FILE for two in sizes)


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
