"""Record what silver shows after each batch: its manifest, and the summary of the run.

A batch of a continuous run ends without slow tables. Once such a table is written, the newest manifest gets
its entry, and so does the manifest of the batch that began the write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pipeline.apply.expected_versions import ManifestEntries
from pipeline.apply.planner import BatchPlan
from pipeline.apply.sharing import Outcome, Sharing
from pipeline.bronze.log import BronzeOffset
from pipeline.errors import report_error
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records
from pipeline.progress import ApplySummary, TableState
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import Step
from pipeline.table_name import TableName


class ManifestWriter:
    """Writes the manifests of one process; `newest` is the last one, None before the first of a lake."""

    def __init__(
        self, manifests: Manifests, records: Records, sharing: Sharing, summary: ApplySummary
    ) -> None:
        self.manifests = manifests
        self._records = records
        self.sharing = sharing
        self.newest: Manifest | None = None
        self.written_at: BronzeOffset | None = None  # bronze, when this process wrote the newest one
        self._summary = summary
        self._ends: dict[TableName, LSN] = {}  # of the batches that busy tables belong to
        self._past: dict[LSN, Manifest] = {}  # the manifests of these batches

    def read(self) -> None:
        """Read the newest manifest of the lake."""
        self.newest = self.manifests.last()

    def record_newest(self) -> None:
        """Record the newest manifest with what its tables show now."""
        if self.newest is not None:
            self._write(self.newest)
            self._summary.show(self.newest)

    def stay_busy(self, names: Iterable[TableName], end: LSN) -> None:
        """Remember that a batch ends while these tables are being written."""
        self._ends |= dict.fromkeys(names, end)

    def take(self, ended: Mapping[TableName, Outcome]) -> None:
        """Take the results of busy tables that are not being written any more.

        The newest manifest then has their new entries, and has to be recorded.
        """
        for name, outcome in ended.items():
            del self._ends[name]
            self.show(name, outcome.state)
            end_lsn, entry = outcome.end_lsn, outcome.entry
            manifest, past = self.newest, self._past.get(end_lsn)
            if manifest is None or outcome.state.failure is not None:
                continue  # it is behind as before
            is_older = end_lsn < manifest.lsn
            self.newest = manifest.with_entry(replace(entry, is_behind=entry.is_behind or is_older))
            if past is not None and is_older and not entry.is_behind:
                self._past[end_lsn] = past.with_entry(entry)
                self._write(self._past[end_lsn])

    def show(self, name: TableName, state: TableState) -> None:
        """Put into the summary how a table is, with all changes and misfits of the run."""
        before = self._summary.tables.get(name, TableState())
        state.changes += before.changes
        state.misfits += before.misfits
        self._summary.tables[name] = state

    def record(
        self,
        plan: BatchPlan,
        found: ManifestEntries,
        applied: Mapping[TableName, ManifestEntry],
        detached: Collection[TableName],
    ) -> None:
        """Write the manifest of a batch: which version of each table shows which LSN."""
        end = plan.end
        entries = {**found.before, **applied, **self._skipped(plan, found)}
        for name in plan.stopped.keys() & entries.keys():
            entries[name] = replace(entries[name], is_behind=True)
        kept = (entry for entry in entries.values() if entry.name not in detached)
        carried = [e if e.is_behind else replace(e, applied_lsn=end.lsn) for e in kept]
        self.newest = Manifest(end.lsn, plan.commit_time, tuple(carried))
        self._write(self.newest)
        self._past[end.lsn] = self.newest
        self._past = {lsn: past for lsn, past in self._past.items() if lsn in self._ends.values()}
        self.written_at = end
        self._summary.show(self.newest)

    def _write(self, manifest: Manifest) -> None:
        """Record a manifest with what is known of comparisons, which are looked for once a minute.

        The events that wait come first.
        """
        self._records.events.flush()
        self.manifests.record(manifest.verified(self._records.equal(looks=False)))

    def _skipped(self, plan: BatchPlan, found: ManifestEntries) -> dict[TableName, ManifestEntry]:
        """Return the entries of tables without changes that the last manifest did not show at its LSN.

        A run that ended before its manifest has applied them, or they returned.
        """
        entries = {}
        for name, table in plan.tables.items():
            offset = table.facts.offset
            is_elsewhere = offset != plan.manifest.lsn or table.facts.is_behind
            if table.step is not Step.SKIP or not is_elsewhere or name not in plan.registered:
                continue
            if not INVALID < offset <= plan.end.lsn:
                continue
            try:
                state = self.sharing.share(name, TableState(offset))
                shown = self._summary.tables.get(name)
                if state.held or (shown is not None and shown.held):  # a hold that ended, not a failure
                    self.show(name, state)
                entry = found.current(name, offset, found.recorded_version(name))
                entries[name] = replace(entry, is_behind=state.is_behind)
            except Exception as error:
                self._summary.tables[name] = TableState(applied=offset, failure=report_error(error))
                entries[name] = found.behind(name, offset)
        return entries
