"""Carry out batch plans: apply to silver what bronze holds, table by table, and record a manifest.

Each table continues from the offset in its own log, so one that failed, was held or joined later catches up
by itself. Tables are written in parallel; one that fails stops no other. In a continuous run a slow one
delays no other either: the batch ends without it and marks it as behind, and the first batch after its write
takes the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pipeline.apply.comment_upkeep import CommentUpkeep
from pipeline.apply.detached_tables import Archive
from pipeline.apply.expected_versions import ManifestEntries
from pipeline.apply.manifest_writer import ManifestWriter
from pipeline.apply.planner import BatchPlan, Planner, TablePlan
from pipeline.apply.resync_requests import request_after_events, request_replaced
from pipeline.apply.sharing import Outcome, Sharing
from pipeline.apply.stopped_tables import gap_events, stopped_tables
from pipeline.apply.table_applier import TableApplier
from pipeline.apply.table_pool import Job, TablePool
from pipeline.apply.tables_at_once import configured_tables_at_once
from pipeline.bronze.log import NO_OFFSET, Bronze, BronzeOffset
from pipeline.config.config import Config
from pipeline.delta.retry import ATTEMPTS
from pipeline.delta.store.looks import one_look
from pipeline.delta.table import Lake
from pipeline.delta.table_log import look_at
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records, RegisteredTable, TableRegistry
from pipeline.progress import ApplyProgress, ApplySummary
from pipeline.protocol.lsn import INVALID
from pipeline.silver.decision import Step
from pipeline.silver.lake_facts import detached_tables
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RETRY_SECONDS = 10.0


class Applier:
    """Runs one batch at a time.

    Most of its fields are collaborators; the others are what one batch, or thread, leaves for the next.
    """

    def __init__(
        self, spark: SparkSession | None, config: Config, progress: ApplyProgress | None = None
    ) -> None:
        """Write with a session, or one that starts where it is needed."""
        self.lake = Lake.for_writing(config.storage, spark, application=f"pgdelta apply {config.pipeline}")
        self.bronze = Bronze(self.lake, config.pipeline)
        self.records = Records(self.lake)
        self.planner = Planner(config, self.bronze, self.records)
        self.tables = TableApplier(self.planner)
        self.summary = ApplySummary(config.pipeline)
        self.error: BaseException | None = None
        self.has_work = threading.Event()  # a plan had something to do
        self.pool: TablePool[Outcome] = TablePool()
        self._progress = progress
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_ready = False
        sharing = Sharing(self.planner.shared, self.records.events, self.summary, self.planner.path)
        self.shown = ManifestWriter(Manifests(self.lake), self.records, sharing, self.summary)
        self._comments = CommentUpkeep(self.planner, self.tables)
        self._archive = Archive(config, self.records, self.planner.path)
        self._batch_at = 0.0

    def apply_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Apply what bronze holds; the micro-batch is only the trigger. After `close` do nothing."""
        with self._lock:
            if self._is_closed:
                return
            try:
                self.apply_pending()
            except BaseException as error:
                self.error = error
                raise

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest, with what busy tables show meanwhile."""
        return self.shown.newest

    def confirm(self, matches: Callable[[TableName], bool]) -> None:
        """Lift the guards of the tables that match, for the life of this object."""
        self.planner.is_confirmed = matches

    def run_continuously(self) -> None:
        """Let batches follow one another, for the life of this object.

        A batch does not wait for slow tables, and writes no table again before its `min_interval` has passed.
        """
        self.planner.keeps_intervals = True

    def close(self) -> None:
        """Wait for the batch that runs and for busy tables, and run no other batch.

        Spark would wait for it without end. A manifest records what the tables show now.
        """
        with self._lock:
            self._is_closed = True
            self.pool.close()
            if self.error is None and self._take_ended():
                self.shown.record_newest()

    def retry_when_due(self) -> None:
        """Run a batch for tables that are behind, or whose copy is complete, while bronze does not grow.

        A table whose write has ended well is due at once.
        """
        if any(outcome.state.failure is None for outcome in self.pool.ended):
            self.apply_pending()
            return
        if time.monotonic() - self._batch_at < RETRY_SECONDS:
            return  # without reading a log
        if self._may_have_work():
            self.apply_pending()

    def apply_rest(self) -> None:
        """Run a last batch, unless silver shows what bronze holds and nothing else may be due."""
        end, manifest = self.bronze.captured_offset(), self.manifest
        if end is None or manifest is None or manifest.lsn < end.lsn or self._may_have_work():
            self.apply_pending(end)

    def _may_have_work(self) -> bool:
        """Return whether a batch may have something to do although bronze has not grown."""
        is_behind = self.manifest is not None and bool(self.manifest.behind)
        has_copies = self.bronze.copies.version() != self.planner.copies_version
        return is_behind or has_copies or self._comments.is_due or self.planner.is_poll_due

    def apply_pending(self, end: BronzeOffset | None = None) -> ApplySummary:
        """Apply what bronze holds, or holds up to an offset, and return the summary so far."""
        with self._lock:
            end = end or self.bronze.captured_offset()
            if end is not None:
                self._prepare()
                for gap in self.bronze.copies.read().gaps:
                    # Whatever lies before a gap is applied to all tables before anything beyond it.
                    if (self.manifest or Manifest(INVALID)).lsn <= gap.start < end.lsn:
                        self._apply_until(BronzeOffset(end.version, gap.start), is_whole=True)
                self._apply_until(end, is_whole=not self.planner.keeps_intervals)
        return self.summary

    def plan(self) -> BatchPlan | None:
        """Return the plan of the next batch, None if there is nothing to do; writes nothing."""
        end = self.bronze.captured_offset()
        if end is None:
            return None
        with self._lock:
            manifest = self.shown.manifests.last() or Manifest(INVALID)
            return self.planner.plan(end, manifest, self.shown.written_at)

    def _prepare(self) -> None:
        if not self._is_ready:
            self.records.ensure()
            with suppress(Exception):  # the end of the run names what cannot be read
                self.records.reconciliations.compared()
            self.shown.manifests.ensure()
            self.shown.read()
            tables = self.records.tables.read()
            paths = {n: t.path for n, t in tables.items()}
            self.planner.shared.show_all(paths, self._detached(self.bronze.captured_offset() or NO_OFFSET))
            self._is_ready = True

    def _apply_until(self, end: BronzeOffset, *, is_whole: bool) -> None:
        """Run a batch up to an offset; again for tables that foreign commits changed meanwhile.

        A batch that `is_whole` waits for all tables.
        """
        for _ in range(ATTEMPTS):
            with one_look() as self.tables.looked:
                has_conflicts = self._run_batch(end, is_whole=is_whole)
            if not has_conflicts:
                return

    def _run_batch(self, end: BronzeOffset, *, is_whole: bool) -> bool:
        """Run a batch; return whether foreign commits preceded ours to a table."""
        self._batch_at = time.monotonic()
        if is_whole:
            self.pool.wait()
        has_news = self._take_ended()
        manifest = self.manifest or Manifest(INVALID)
        self.tables.rows.begin_batch(manifest.lsn, manifest.behind.values())
        self.records.comments.refresh()
        plan = self.planner.plan(
            end, manifest, self.shown.written_at, busy=self.pool.busy, is_whole=is_whole, has_news=has_news
        )
        self._show_stopped(manifest)
        if plan is None:
            self.summary.show(manifest)
            self._comments.set_comments(self.summary, self.pool.busy)
            self._report()
            return False
        self.has_work.set()
        path = self.planner.path
        self.tables.other_names.update(plan.names_by_oid, plan.registered)
        entries = ManifestEntries(self.lake, manifest, path, self.bronze.txn, self.records.tables)
        applied, has_conflicts = self._write_tables(plan, entries, is_whole=is_whole)
        detached = self._detached(end)
        self.shown.record(plan, entries, applied, detached)
        self.planner.shared.withdraw({name: path(name) for name in plan.registered}, detached)
        self.records.events.record(gap_events(plan.tables.values(), plan.history))
        request_after_events(self.planner.config, self.records, self.bronze.copies)
        request_replaced(plan, self.bronze.copies)
        unfinished = self.pool.busy | {n for n in detached if n in applied and applied[n].is_behind}
        unfinished |= {
            name
            for name, table in plan.stopped.items()
            if table.step in (Step.POSTPONE, Step.BACK_OFF, Step.PAUSE) or table.is_guarded
        }
        for name in self._archive.move(detached, self.summary.tables, end, unfinished):
            self.tables.forget(name)
        self._comments.set_comments(self.summary, self.pool.busy)
        self.summary.count_batch(time.monotonic() - self._batch_at)
        self._report()
        return has_conflicts

    def _write_tables(
        self, plan: BatchPlan, entries: ManifestEntries, *, is_whole: bool
    ) -> tuple[dict[TableName, ManifestEntry], bool]:
        """Carry out the plans of the tables.

        Returns their entries in the manifest, and whether a conflict prevented the write of one.
        """
        jobs = [
            Job(name, table.oldest_lsn, table.is_large, partial(self.tables.apply, table, plan, entries))
            for name, table in plan.tables.items()
            if table.step.writes or (table.is_guarded and table.facts.last_stop is None)
        ]

        def is_registered(name: TableName) -> bool:
            # The plans of other tables need to know which source table and which folder it has.
            return name in self.records.tables.read()

        def entries_with(done: Mapping[TableName, Outcome]) -> dict[TableName, ManifestEntry]:
            return {
                job.name: done[job.name].entry
                if job.name in done
                else entries.behind(job.name, plan.tables[job.name].facts.offset)
                for job in jobs
            }

        def show(done: Mapping[TableName, Outcome]) -> None:
            """Record a manifest without the tables that a whole batch still waits for."""
            self.shown.record(plan, entries, entries_with(done), self._detached(plan.end))

        self._count_held(plan)
        look_at(self.planner.path(job.name) for job in jobs)
        if jobs:
            self.pool.threads = configured_tables_at_once(self.planner.config, self.lake)
            create_new_tables(plan, self.records.tables, partial(self.tables.create, plan), self.pool.threads)
        before = self.pool.busy
        done = self.pool.run(jobs, is_whole=is_whole, may_stay_busy=is_registered, show=show)
        done = self.shown.sharing.settle(done)
        self.shown.stay_busy(self.pool.busy - before, plan.end.lsn)
        for name, outcome in done.items():
            self.shown.show(name, outcome.state)
        return entries_with(done), any(outcome.is_conflict for outcome in done.values())

    def _detached(self, end: BronzeOffset) -> Mapping[TableName, str]:
        history, tables = self.bronze.copies.read(), self.records.tables.read()
        return detached_tables(self.planner.config, history, tables, end)

    def _count_held(self, plan: BatchPlan) -> None:
        """Show what waits for the tables that their guards still hold, and whose next attempt is not due."""
        for name, table in plan.tables.items():
            shown = self.summary.tables.get(name)
            if table.is_guarded and table.facts.last_stop is not None and shown and shown.held:
                self.shown.show(name, self.tables.hold(table, table.facts.counts or {}))

    def _take_ended(self) -> bool:
        """Take the results of busy tables that are not being written any more; return whether there are some.

        The newest manifest has to be recorded then.
        """
        ended = self.shown.sharing.settle(self.pool.take_ended())
        self.shown.take(ended)
        return bool(ended)

    def _report(self) -> None:
        if self._progress:
            self._progress(self.summary)

    def _show_stopped(self, manifest: Manifest) -> None:
        """Put tables that cannot be read or written into the summary, and record why they are held."""
        states, events = stopped_tables(manifest, self.planner.decisions, self.summary.tables)
        self.summary.tables |= states
        self.records.events.record(events)


def create_new_tables(
    plan: BatchPlan,
    registry: TableRegistry,
    create: Callable[[TablePlan], RegisteredTable | None],
    threads: int,
) -> None:
    """Create the small tables of a plan that are new, before their rows, and register them in one commit.

    A run that ends after that finds tables that are registered and have no rows yet, and writes them as if
    they had just been created. `create` returns how a table is to be registered, or None if its own job
    creates it, which reports why; threads call it.
    """
    new = [
        table
        for name, table in plan.tables.items()
        if table.step in (Step.START_FROM_COPY, Step.APPLY) and name not in plan.registered
    ]
    new = [table for table in new if not table.is_large]
    if len(new) < 2:
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="create") as executor:
        created = [found for found in executor.map(create, new) if found is not None]
    if created:
        registry.register(*created)
