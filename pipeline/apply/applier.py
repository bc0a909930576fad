"""Carry out batch plans: apply to silver what bronze holds, table by table, and record a manifest.

Each table continues from the offset in its own log, so one that failed, was held or joined later catches up
by itself. Tables are written in parallel; one that fails stops no other. In a continuous run a slow one
delays no other either: the batch ends without it and marks it as behind, and the first batch after its write
takes the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pipeline.apply.comment_upkeep import CommentUpkeep
from pipeline.apply.detached_tables import Archive, detached_tables
from pipeline.apply.expected_versions import ChangedError, ManifestEntries
from pipeline.apply.planner import BatchPlan, Planner, TablePlan
from pipeline.apply.resync_requests import request_after_events, request_after_type_change, request_replaced
from pipeline.apply.sharing import Outcome, Sharing
from pipeline.apply.stopped_tables import gap_events, stopped_tables
from pipeline.apply.table_pool import Job, TablePool
from pipeline.apply.table_renames import OtherNames, refuse_nested_folder, rename_events
from pipeline.apply.tables_at_once import configured_tables_at_once
from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.copy_states import CopyHistory
from pipeline.bronze.log import NO_OFFSET, Bronze, BronzeOffset
from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.table_input import InputStart
from pipeline.config.config import Config
from pipeline.delta.fence import raise_if_fenced
from pipeline.delta.retry import ATTEMPTS, describe_conflict, is_conflict
from pipeline.delta.store.looks import one_look
from pipeline.delta.table import Lake
from pipeline.delta.table_log import look_at
from pipeline.errors import report_error
from pipeline.maintenance.write_gate import WriteGate
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records
from pipeline.progress import ApplyProgress, ApplySummary, TableState
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import Decision, Step
from pipeline.silver.read.versions import resolve_path
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.table import SilverTable
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RETRY_SECONDS = 10.0


class Applier:
    """Runs one batch at a time."""

    def __init__(
        self, spark: SparkSession | None, config: Config, progress: ApplyProgress | None = None
    ) -> None:
        """Write with a session, or one that starts where it is needed."""
        self.lake = Lake.for_writing(config.storage, spark, application=f"pgdelta apply {config.pipeline}")
        self.bronze = Bronze(self.lake, config.pipeline)
        self.records = Records(self.lake)
        self.manifests = Manifests(self.lake)
        self.manifest: Manifest | None = None
        self.summary = ApplySummary(config.pipeline)
        self.error: BaseException | None = None
        self.held_by_guards: dict[TableName, int] = {}  # with the changes of the last event
        self.has_work = threading.Event()  # a plan had something to do
        self.gate = WriteGate()
        self._rows = ChangeRows(self.bronze)
        self._config = config
        self._progress = progress
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_ready = False
        self._planner = Planner(config, self.bronze, self.records)
        self.shared = self._planner.shared
        self._sharing = Sharing(self.shared, self.records.events, self.summary, self.path)
        self._written_at: BronzeOffset | None = None  # bronze, when this process wrote the manifest
        self._writers: dict[TableName, SilverTable] = {}
        self._other_names = OtherNames()
        self._comments = CommentUpkeep(config, self.records, self._planner, self.gate, self.writer)
        self._archive = Archive(config, self.records, self.path)
        self._batch_at = 0.0
        self._looked: set[str] = set()  # tables that the last batch has looked at, on an object store
        self._has_conflicts = False  # in the last batch
        self._is_continuous = False
        self._pool: TablePool[Outcome] = TablePool()
        self._ends: dict[TableName, LSN] = {}  # of the batches that busy tables belong to
        self._past: dict[LSN, Manifest] = {}  # the manifests of these batches

    def apply_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Apply what bronze holds; the micro-batch is only the trigger. After `close` do nothing."""
        del batch, batch_id
        with self._lock:
            if self._is_closed:
                return
            try:
                self.apply_pending()
            except BaseException as error:
                self.error = error
                raise

    @property
    def relations(self) -> dict[int, SourceRelation]:
        """The relation versions that bronze has, as the last plan read them."""
        return self._planner.relations

    @property
    def tables(self) -> Mapping[TableName, TablePlan]:
        """What the last plan does to each table, also if there was nothing to do."""
        return self._planner.tables

    @property
    def decisions(self) -> Mapping[TableName, Decision]:
        """The decision of each table, as in the last plan."""
        return self._planner.decisions

    def confirm(self, matches: Callable[[TableName], bool]) -> None:
        """Lift the guards of the tables that match, for the life of this object."""
        self._planner.is_confirmed = matches

    def run_continuously(self) -> None:
        """Let batches follow one another, for the life of this object.

        A batch does not wait for slow tables, and writes no table again before its `min_interval` has passed.
        """
        self._is_continuous = self._planner.keeps_intervals = True

    def close(self) -> None:
        """Wait for the batch that runs and for busy tables, and run no other batch.

        Spark would wait for it without end. A manifest records what the tables show now.
        """
        with self._lock:
            self._is_closed = True
            self._pool.wait()
            if self.error is None and self._take_ended() and self.manifest is not None:
                self.manifests.record(self.manifest)
                self.summary.show(self.manifest)

    def retry_when_due(self) -> None:
        """Run a batch for tables that are behind, or whose copy is complete, while bronze does not grow.

        A table whose write has ended well is due at once.
        """
        if any(outcome.state.failure is None for outcome in self._pool.ended):
            self.apply_pending()
            return
        if time.monotonic() - self._batch_at < RETRY_SECONDS:
            return  # without reading a log
        is_behind = self.manifest is not None and bool(self.manifest.behind)
        has_copies = self.bronze.copies.version() != self._planner.copies_version
        if is_behind or has_copies or self._comments.is_due or self._planner.is_poll_due:
            self.apply_pending()

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
                self._apply_until(end, is_whole=not self._is_continuous)
        return self.summary

    def plan(self) -> BatchPlan | None:
        """Return the plan of the next batch, None if there is nothing to do; writes nothing."""
        end = self.bronze.captured_offset()
        if end is None:
            return None
        with self._lock:
            manifest = self.manifests.last() or Manifest(INVALID)
            return self._planner.plan(end, manifest, self._written_at)

    def _prepare(self) -> None:
        if not self._is_ready:
            self.records.ensure()
            self.manifests.ensure()
            self.manifest = self.manifests.last()
            tables = self.records.tables.read()
            paths = {n: resolve_path(t.path, n, self.lake.root) for n, t in tables.items()}
            self.shared.show_all(paths, self._detached(self.bronze.captured_offset() or NO_OFFSET))
            self._is_ready = True

    def _apply_until(self, end: BronzeOffset, *, is_whole: bool) -> None:
        """Run a batch up to an offset; again for tables that foreign commits changed meanwhile.

        A batch that `is_whole` waits for all tables.
        """
        for _ in range(ATTEMPTS):
            self._has_conflicts = False
            with one_look() as self._looked:
                self._run_batch(end, is_whole=is_whole)
            if not self._has_conflicts:
                return

    def _run_batch(self, end: BronzeOffset, *, is_whole: bool) -> None:
        self._batch_at = time.monotonic()
        if is_whole:
            self._pool.wait()
        has_news = self._take_ended()
        manifest = self.manifest or Manifest(INVALID)
        self._rows.begin_batch(manifest.lsn)
        self.records.comments.refresh()
        plan = self._planner.plan(
            end, manifest, self._written_at, busy=self._pool.busy, is_whole=is_whole, has_news=has_news
        )
        self._show_stopped(manifest)
        if plan is None:
            self.summary.show(manifest)
            self._comments.set_comments(self.summary, self._pool.busy)
            self._report()
            return
        self.has_work.set()
        self._other_names.update(plan.names_by_oid, plan.registered)
        entries = ManifestEntries(self.lake, manifest, self.path, self.bronze.txn, self.records.tables)
        applied = self._write_tables(plan, entries, is_whole=is_whole)
        detached = self._detached(end)
        self._record(plan, entries, applied, detached)
        self.shared.withdraw({name: self.path(name) for name in plan.registered}, detached)
        self.records.events.record(gap_events(plan.tables.values(), plan.history))
        request_after_events(self._config, self.records, self.bronze.copies)
        request_replaced(plan, self.bronze.copies)
        unfinished = self._pool.busy | {n for n in detached if n in applied and applied[n].is_behind}
        unfinished |= {
            name
            for name, table in plan.stopped.items()
            if table.step in (Step.POSTPONE, Step.BACK_OFF, Step.PAUSE) or table.is_guarded
        }
        for name in self._archive.move(detached, self.summary.tables, end, unfinished):
            self._writers.pop(name, None)
        self._comments.set_comments(self.summary, self._pool.busy)
        self.summary.count_batch(time.monotonic() - self._batch_at)
        self._report()

    def _write_tables(
        self, plan: BatchPlan, entries: ManifestEntries, *, is_whole: bool
    ) -> dict[TableName, ManifestEntry]:
        """Carry out the plans of the tables; return their entries in the manifest."""
        jobs = [
            Job(name, table.oldest_lsn, table.is_large, partial(self._apply_table, table, plan, entries))
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
            self._record(plan, entries, entries_with(done), self._detached(plan.end))

        self._count_held(plan)
        look_at(self.path(job.name) for job in jobs)
        if jobs:
            self._pool.threads = configured_tables_at_once(self._config, self.lake)
        before = self._pool.busy
        done = self._pool.run(jobs, is_whole=is_whole, may_stay_busy=is_registered, show=show)
        done = self._sharing.settle(done)
        self._ends |= dict.fromkeys(self._pool.busy - before, plan.end.lsn)
        for name, outcome in done.items():
            self._show(name, outcome.state)
        self._has_conflicts = any(outcome.is_conflict for outcome in done.values())
        return entries_with(done)

    def _detached(self, end: BronzeOffset) -> Mapping[TableName, str]:
        return detached_tables(self._config, self.bronze.copies.read(), self.records.tables.read(), end)

    def _count_held(self, plan: BatchPlan) -> None:
        """Show what waits for the tables that their guards still hold, and whose next attempt is not due."""
        for name, table in plan.tables.items():
            shown, sentence = self.summary.tables.get(name), table.decision.sentence
            if table.is_guarded and table.facts.last_stop is not None and shown and shown.held:
                state = TableState(table.facts.offset, held=sentence)
                self._show(name, self._hold(table.facts.counts or {}, state, name))

    def _take_ended(self) -> bool:
        """Take the results of busy tables that are not being written any more; return whether there are some.

        The newest manifest then has their new entries, and has to be recorded. The manifest of the batch that
        began a write is completed: it shows the table, too.
        """
        ended = self._sharing.settle(self._pool.take_ended())
        for name, outcome in ended.items():
            del self._ends[name]
            self._show(name, outcome.state)
            end_lsn, entry = outcome.end_lsn, outcome.entry
            manifest, past = self.manifest, self._past.get(end_lsn)
            if manifest is None or outcome.state.failure is not None:
                continue  # it is behind as before
            is_older = end_lsn < manifest.lsn
            self.manifest = manifest.with_entry(replace(entry, is_behind=entry.is_behind or is_older))
            if past is not None and is_older and not entry.is_behind:
                self._past[end_lsn] = past.with_entry(entry)
                self.manifests.record(self._past[end_lsn])
        return bool(ended)

    def _show(self, name: TableName, state: TableState) -> None:
        """Put into the summary how a table is, with all changes and misfits of the run."""
        before = self.summary.tables.get(name, TableState())
        state.changes += before.changes
        state.misfits += before.misfits
        self.summary.tables[name] = state

    def _report(self) -> None:
        if self._progress:
            self._progress(self.summary)

    def path(self, name: TableName) -> str:
        """Return the path of a table's silver table."""
        return self._planner.path(name)

    def writer(self, name: TableName, history: CopyHistory) -> SilverTable:
        """Return the writer of a table, in its own session; it uses the copies in `history`."""
        if name not in self._writers:
            config, rule = self._config, self._config.rule_for(name)
            assert rule is not None
            self._writers[name] = SilverTable(
                self.lake.sessions.new(),
                self.bronze,
                self.records,
                name,
                self.path(name),
                rule,
                history,
                metadata_columns=config.silver.metadata_columns,
                native=NativeWriting(config.silver.writer, self._rows),
                is_copied=config.source.copy != "never",
            )
        self._writers[name].history = history
        return self._writers[name]

    def _apply_table(self, table: TablePlan, plan: BatchPlan, entries: ManifestEntries) -> Outcome:
        """Carry out the plan of a table; return how that went, and its entry in the manifest."""
        with self.gate.writing(str(table.facts.name)), one_look(self._looked):
            return self._apply_alone(table, plan, entries)

    def _apply_alone(self, table: TablePlan, plan: BatchPlan, entries: ManifestEntries) -> Outcome:
        name, offset = table.facts.name, table.facts.offset
        try:
            since = entries.recorded_version(name)
            if table.step in (Step.START_FROM_COPY, Step.REBUILD):  # they replace foreign commits
                since = max(since, self.lake.table_at(self.path(name)).version())
            self._planner.expected_versions.require(name)
            self.shared.claim(self.path(name))
            state = self._write_table(table, plan, since)
            is_unshown = self.shared.show(name, self.path(name)) is not None
            is_behind = state.is_behind or is_unshown
            entry = entries.current(name, state.applied, since, is_behind=is_behind)
            self._planner.expected_versions.record(name, entry)
            if state.held:
                self._planner.back_off.record_stop(table.facts, state.held)
            elif table.step.writes:
                self._planner.record_write(name)
            return Outcome(state, entry, plan.end.lsn, is_unshown=is_unshown)
        except Exception as error:
            raise_if_fenced(error, self.path(name))
            failure = describe_conflict(error) or report_error(error)
            self._planner.expected_versions.forget(name)
            is_repeated = is_conflict(error) or isinstance(error, ChangedError)
            if not is_repeated:
                self._planner.back_off.record_stop(table.facts, failure)
            state = TableState(applied=offset, failure=failure)
            return Outcome(state, entries.behind(name, offset), plan.end.lsn, is_repeated)

    def _write_table(self, table: TablePlan, plan: BatchPlan, since: int) -> TableState:
        """Write a table, or hold it by its guards; only we may have written to it since a version."""
        facts, name = table.facts, table.facts.name
        registered = plan.registered.get(name)
        surveys = [each.survey for each in table.surveys]
        if table.is_guarded:  # also if something else is wrong with it: `pgdelta rebuild` skips it
            self.held_by_guards.setdefault(name, 0)
        else:
            self.held_by_guards.pop(name, None)
        refuse_nested_folder(self._config, name, {each: self.path(each) for each in plan.tables})
        writer = self.writer(name, plan.history)
        writer.bronze.new_files = self.bronze.new_files
        other = self._other_names.find(
            registered,
            plan.end,
            plan.names_by_oid,
            self.relations,
            writer,
            is_behind=facts.is_behind,
        )
        renames = rename_events(name, plan.registered, self.relations, surveys, other)
        self.records.events.record([*renames])
        writer.refuse_foreign_commits(since)
        if table.decision.sentence is not None and table.is_guarded:
            return self._hold(
                facts.counts or {}, TableState(facts.offset, held=table.decision.sentence), name
            )
        if facts.lost:
            self.records.events.record([Event(*name, plan.manifest.lsn, "evolved", facts.lost)])
        changes, start = sum((facts.counts or {}).values()), InputStart(facts.offset)
        match table.step:
            case Step.START_FROM_COPY:
                assert facts.copy is not None
                written = writer.start_from_copy(facts.copy, self.relations, registered, plan.end.lsn)
                changes = written.changes
            case Step.REBUILD:
                assert registered is not None
                written = writer.rebuild_lost(self.relations, registered, plan.end.lsn)
            case Step.PARTIAL_RESYNC:
                copies = facts.partial_copies
                written = writer.apply_partial_copies(copies, self.relations, registered, start, plan.end.lsn)
                changes = written.changes
            case _:
                written = writer.apply(surveys, self.relations, registered, start, plan.end.lsn)
        if written.held:
            self.records.events.record([Event(*name, written.applied, written.kind, written.held)])
        if written.copy_lsn is not None:
            request_after_type_change(name, written.copy_lsn, self.bronze.copies)
            return TableState(written.applied, misfits=written.misfits, waits=written.held)
        return TableState(written.applied, changes if not written.held else 0, written.misfits, written.held)

    def _hold(self, counts: Mapping[str, int], state: TableState, name: TableName) -> TableState:
        """Record why the guards hold a table: once, and again when the pending changes have doubled."""
        count = sum(counts.values())
        if count >= 2 * self.held_by_guards.get(name, 0):
            self.records.events.record([Event(*name, state.applied, "held", state.held or "")])
            self.held_by_guards[name] = count
        return state

    def _record(
        self,
        plan: BatchPlan,
        found: ManifestEntries,
        applied: Mapping[TableName, ManifestEntry],
        detached: Collection[TableName],
    ) -> None:
        """Write the manifest of this batch: which version of each table shows which LSN."""
        end = plan.end
        entries = {**found.before, **applied}
        for name, table in plan.tables.items():
            # A run that ended before its manifest has applied it, or it returned and has no change since.
            offset = table.facts.offset
            is_elsewhere = offset != plan.manifest.lsn or table.facts.is_behind
            if table.step is Step.SKIP and is_elsewhere and name in plan.registered:
                if not INVALID < offset <= end.lsn:
                    continue
                try:
                    state = self._sharing.share(name, TableState(offset))
                    shown = self.summary.tables.get(name)
                    if state.held or (shown is not None and shown.held):  # a hold that ended, not a failure
                        self._show(name, state)
                    entry = found.current(name, offset, found.recorded_version(name))
                    entries[name] = replace(entry, is_behind=state.is_behind)
                except Exception as error:
                    self.summary.tables[name] = TableState(applied=offset, failure=report_error(error))
                    entries[name] = found.behind(name, offset)
        for name in plan.stopped.keys() & entries.keys():
            entries[name] = replace(entries[name], is_behind=True)
        kept = (entry for entry in entries.values() if entry.name not in detached)
        carried = [e if e.is_behind else replace(e, applied_lsn=end.lsn) for e in kept]
        self.manifest = Manifest(end.lsn, plan.commit_time, tuple(carried))
        self.manifests.record(self.manifest)
        self._past[end.lsn] = self.manifest
        self._past = {lsn: past for lsn, past in self._past.items() if lsn in self._ends.values()}
        self._written_at = end
        self.summary.show(self.manifest)

    def _show_stopped(self, manifest: Manifest) -> None:
        """Put tables that cannot be read or written into the summary, and record why they are held."""
        states, events = stopped_tables(manifest, self._planner.decisions, self.summary.tables)
        self.summary.tables |= states
        self.records.events.record(events)
