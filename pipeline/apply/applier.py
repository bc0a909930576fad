"""Silver brought up to what bronze holds, table by table, each from the position in its own log.

A table that failed, was held or came later catches up by itself. Tables are applied side by side; one that
fails does not stop the others.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pipeline.apply.detached_tables import archive_detached, detached_tables
from pipeline.apply.known_versions import ChangedError
from pipeline.apply.manifest_entries import ManifestEntries
from pipeline.apply.planner import BatchPlan, Planner
from pipeline.apply.resync_requests import request_copies, request_replaced
from pipeline.apply.table_paths import refuse_nested_folder
from pipeline.apply.table_renames import OtherNames, rename_events
from pipeline.bronze.copied_rows import InputStart
from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.bronze.new_files import BronzeOffset
from pipeline.bronze.relations import SourceRelation
from pipeline.config.config import Config
from pipeline.delta.retry import ATTEMPTS, conflict_sentence, is_conflict
from pipeline.delta.spark.session import new_session
from pipeline.delta.table import Lake
from pipeline.errors import report_error
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records
from pipeline.progress import ApplyProgress, ApplySummary, TableState
from pipeline.protocol.lsn import INVALID
from pipeline.silver.policies import find_excess
from pipeline.silver.table import SilverTable
from pipeline.table_name import TableName

TABLES_AT_ONCE = 3
RETRY_SECONDS = 10.0


class Applier:
    """Brings silver tables up to what bronze holds; one pass at a time."""

    def __init__(self, spark: SparkSession, config: Config, progress: ApplyProgress | None = None) -> None:
        self.lake = Lake.for_writing(spark, config.storage.root)
        self.bronze = Bronze(self.lake, config.pipeline)
        self.records = Records(self.lake)
        self.manifests = Manifests(self.lake)
        self.summary = ApplySummary(config.pipeline)
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._is_closed = False
        self._spark = spark
        self._config = config
        self._progress = progress
        self.manifest: Manifest | None = None
        self._since: BronzeOffset | None = None  # where this process wrote the manifest
        self._is_ready = False
        self._writers: dict[TableName, SilverTable] = {}
        self._planner = Planner(config, self.bronze, self.records, self.summary)
        self._other_names = OtherNames()
        self._batch_at = 0.0
        self._was_outrun = False  # in the last pass somebody else's commit came before ours
        self.confirmed: Callable[[TableName], bool] = lambda name: False  # whose guards are lifted
        self.guarded: dict[TableName, int] = {}  # held by their guards, with the changes of the last event

    def apply_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch as the sign that bronze has grown; after `close` the next run will see to it."""
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
        """Return the relation versions that bronze has, as the last look saw them."""
        return self._planner.relations

    @property
    def held(self) -> Mapping[TableName, str]:
        """Return why tables stay as they are, as the last look saw them."""
        return self._planner.held

    def close(self) -> None:
        """Wait for the batch under way and take no other: Spark would wait for it without end."""
        with self._lock:
            self._is_closed = True

    def retry_when_due(self) -> None:
        """Try tables that are behind again, or whose copy is complete, while bronze stands still."""
        if time.monotonic() - self._batch_at < RETRY_SECONDS:
            return  # no log need be asked
        is_behind = self.manifest is not None and bool(self.manifest.behind)
        has_copies = self.bronze.copies.version() != self._planner.copies_version
        if is_behind or has_copies or self._planner.is_poll_due:
            self.apply_pending()

    def apply_pending(self, end: BronzeOffset | None = None) -> ApplySummary:
        """Apply what bronze holds, or holds up to a point, and return the summary so far."""
        with self._lock:
            point = end or self.bronze.captured_offset()
            if point is not None:
                self._make_ready()
                for gap in self.bronze.copies.read().gaps:
                    # Whatever lies before a gap is applied before anything beyond it.
                    if (self.manifest or Manifest(INVALID)).lsn < gap.start < point.lsn:
                        self._apply_until(BronzeOffset(point.version, gap.start))
                self._apply_until(point)
        return self.summary

    def _apply_until(self, end: BronzeOffset) -> None:
        """Bring the tables to a point; those that somebody else changed meanwhile once more."""
        for _ in range(ATTEMPTS):
            self._was_outrun = False
            self._run_batch(end)
            if not self._was_outrun:
                return

    def _make_ready(self) -> None:
        if not self._is_ready:
            self.records.ensure()
            self.manifests.ensure()
            self.manifest = self.manifests.last()
            self._is_ready = True

    def _run_batch(self, end: BronzeOffset) -> None:
        self._batch_at = time.monotonic()
        manifest = self.manifest or Manifest(INVALID)
        pending = self._planner.plan(end, manifest, self._since)
        self._record_refused(manifest)
        if pending is None:
            self.summary.show(manifest)
            self._report()
            return
        self._other_names.update(pending.names_of, pending.registered)
        names = pending.names
        entries = ManifestEntries(self.lake, manifest, self.path, self.bronze.txn)

        def apply(name: TableName) -> tuple[TableState, ManifestEntry]:
            return self._apply_table(name, pending, entries)

        with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="apply") as pool:
            done = dict(zip(names, pool.map(apply, names), strict=True))
        for name, (state, _) in done.items():
            before = self.summary.tables.get(name, TableState())
            state.changes += before.changes
            state.misfits += before.misfits
            self.summary.tables[name] = state
        left = detached_tables(self._config, self.bronze.copies.read(), self.records.registered(), end)
        self._record(manifest, pending, entries, {name: entry for name, (_, entry) in done.items()}, left)
        request_copies(self._config, self.records, self.bronze.copies)
        request_replaced(pending, self.bronze.copies)
        for name in archive_detached(self._config, self.records, left, self.summary.tables, end, self.path):
            self._writers.pop(name, None)
        self.summary.count_batch(time.monotonic() - self._batch_at)
        self._report()

    def _report(self) -> None:
        if self._progress:
            self._progress(self.summary)

    def plan(self) -> BatchPlan | None:
        """Return what the next pass would apply, None where there is nothing; changes nothing."""
        point = self.bronze.captured_offset() if self.bronze.changes.exists() else None
        if point is None:
            return None
        with self._lock:
            manifest = self.manifests.last() or Manifest(INVALID)
            return self._planner.plan(point, manifest, self._since)

    def path(self, name: TableName) -> str:
        """Return where a table's silver table is."""
        return self._planner.path(name)

    def writer(self, name: TableName, history: CopyHistory) -> SilverTable:
        """Return what writes a table, in a session of its own; it knows of copies what a look saw."""
        if name not in self._writers:
            rule = self._config.rule_for(name)
            assert rule is not None
            self._writers[name] = SilverTable(
                new_session(self._spark),
                self.bronze,
                self.records,
                name,
                self.path(name),
                rule,
                history,
                metadata_columns=self._config.silver.metadata_columns,
            )
        self._writers[name].history = history
        return self._writers[name]

    def excess(self, name: TableName, pending: BatchPlan) -> str | None:
        """Return why a table's guards hold it; what begins, or begins anew, shows nothing that could go."""
        rule = self._config.rule_for(name)
        if rule is None or name in pending.copies or pending.offset(name) == INVALID or self.confirmed(name):
            return None
        return find_excess(name, pending.counts.get(name, {}), rule.guards)

    def _apply_table(
        self, name: TableName, pending: BatchPlan, entries: ManifestEntries
    ) -> tuple[TableState, ManifestEntry]:
        """Apply what is pending of a table; return how that went, and what the manifest says of it."""
        try:
            since = entries.known(name)
            if name in pending.copies or name in pending.again:  # it replaces foreign commits
                since = max(since, self.lake.table_at(self.path(name)).version())
            self._planner.known_versions.require(name)
            state = self._write_table(name, pending, since)
            entry = entries.shown(name, state.applied, since, is_behind=bool(state.held))
            self._planner.known_versions.record(name, entry)
            return state, entry
        except Exception as error:
            floor, failure = pending.offset(name), conflict_sentence(error) or report_error(error)
            self._planner.known_versions.forget(name)
            if is_conflict(error) or isinstance(error, ChangedError):
                self._was_outrun = True
            return TableState(applied=floor, failure=failure), entries.failed(name, floor)

    def _write_table(self, name: TableName, pending: BatchPlan, since: int) -> TableState:
        """Bring a table to the point, or hold it; nobody else may have written to it since a version."""
        registered, floor = pending.registered.get(name), pending.offset(name)
        found, copy = pending.surveys.get(name, []), pending.copies.get(name)
        changes = sum(sum(s.counts.values()) for s in found)
        surveys = [each.survey for each in found]
        excess = self.excess(name, pending)
        if excess:  # whatever else is the matter with it: `retry --rewrite` leaves it alone
            self.guarded.setdefault(name, 0)
        else:
            self.guarded.pop(name, None)
        refuse_nested_folder(self._config, name)
        writer = self.writer(name, pending.history)
        writer.bronze.new_files = self.bronze.new_files
        astray = self._other_names.find(registered, pending.end, pending.names_of, self.relations, writer)
        renames = rename_events(name, pending.registered, self.relations, surveys, astray)
        self.records.record_events([*renames])
        writer.refuse_foreign_commits(since)
        if excess:
            return self._hold(name, pending, excess)
        if (again := pending.again.get(name)) is not None:
            self.records.record_events([Event(*name, pending.manifest.lsn, "evolved", again)])
        if copy:
            written = writer.start_from_copy(copy, self.relations, registered, pending.end)
            changes = written.changes
        elif again is not None and registered is not None:
            written = writer.rebuild_lost(self.relations, registered, pending.end.lsn)
        else:
            start, patches = InputStart(floor), pending.partial_copies.get(name)
            if patches:
                written = writer.apply_partial_copies(patches, self.relations, registered, pending.end, start)
                changes = written.changes
            else:
                written = writer.apply(surveys, self.relations, registered, pending.end, start)
        if written.held:
            self.records.record_events([Event(*name, written.applied, written.kind, written.held)])
        return TableState(written.applied, changes if not written.held else 0, written.misfits, written.held)

    def _hold(self, name: TableName, pending: BatchPlan, sentence: str) -> TableState:
        """Leave a table as it is, and say so: once, and again where what waits for it has doubled."""
        floor, count = pending.offset(name), sum(pending.counts[name].values())
        if count >= 2 * self.guarded.get(name, 0):
            self.records.record_events([Event(*name, floor, "held", sentence)])
            self.guarded[name] = count
        return TableState(floor, held=sentence)

    def _record(
        self,
        manifest: Manifest,
        pending: BatchPlan,
        found: ManifestEntries,
        applied: Mapping[TableName, ManifestEntry],
        left: Collection[TableName],
    ) -> None:
        """Write the manifest of this pass: which version of each table shows which LSN."""
        point = pending.end
        entries = {**found.before, **applied}
        for name, floor in pending.offsets.items():
            # It got here in a run that ended before its manifest, or came back, and has no change since.
            if name not in pending.names and name in pending.registered and INVALID < floor <= point.lsn:
                try:
                    entries[name] = found.shown(name, floor, found.known(name))
                except Exception as error:
                    self.summary.tables[name] = TableState(applied=floor, failure=report_error(error))
                    entries[name] = found.failed(name, floor)
        halted = self._planner.unreadable | self._planner.held.keys() | pending.waiting
        for name in halted & entries.keys():
            entries[name] = replace(entries[name], is_behind=True)
        stale = [Event(*n, gap.start, "resync", gap.sentence_of_tables) for n, gap in pending.stale.items()]
        self.records.record_events(stale)
        kept = (entry for entry in entries.values() if entry.name not in left)
        carried = [e if e.is_behind else replace(e, applied_lsn=point.lsn) for e in kept]
        self.manifest = Manifest(point.lsn, pending.commit_time, tuple(carried))
        self.manifests.record(self.manifest)
        self._since = point
        self.summary.show(self.manifest)

    def _record_refused(self, manifest: Manifest) -> None:
        """Record a `held` event for each table whose folder has the rows of another."""
        entries = manifest.by_name
        events = [
            Event(*name, entries[name].applied_lsn if name in entries else INVALID, "held", sentence)
            for name, sentence in self._planner.refused.items()
        ]
        self.records.record_events(events)
