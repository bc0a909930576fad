"""Carry out the plan of one table in a batch: write it, or hold it by its guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pipeline.apply.expected_versions import ChangedError, ManifestEntries
from pipeline.apply.planner import BatchPlan, Planner, TablePlan
from pipeline.apply.resync_requests import request_after_type_change
from pipeline.apply.sharing import Outcome
from pipeline.apply.table_renames import OtherNames, refuse_nested_folder, rename_events
from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.copy_states import CopyHistory
from pipeline.bronze.table_input import InputStart
from pipeline.delta.fence import raise_if_fenced
from pipeline.delta.retry import describe_conflict, is_conflict
from pipeline.delta.store.looks import one_look
from pipeline.errors import report_error
from pipeline.maintenance.write_gate import WriteGate
from pipeline.metadata.events import Event
from pipeline.metadata.registry import RegisteredTable
from pipeline.progress import TableState
from pipeline.silver.decision import Step
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.table import SilverTable
from pipeline.table_name import TableName


class TableApplier:
    """Writes the tables of batches; threads may share it, each with a table of its own."""

    def __init__(self, planner: Planner) -> None:
        self.held_by_guards: dict[TableName, int] = {}  # with the changes of the last event
        self.rows = ChangeRows(planner.bronze)
        self.other_names = OtherNames()
        self.gate = WriteGate()
        self.looked: set[str] = set()  # tables that the last batch has looked at, on an object store
        self._config = planner.config
        self._bronze = planner.bronze
        self._records = planner.records
        self._planner = planner
        self._writers: dict[TableName, SilverTable] = {}

    def writer(self, name: TableName, history: CopyHistory) -> SilverTable:
        """Return the writer of a table, in its own session; it uses the copies in `history`."""
        if name not in self._writers:
            config, rule = self._config, self._config.rule_for(name)
            assert rule is not None
            self._writers[name] = SilverTable(
                self._bronze.lake.sessions.new(),
                self._bronze,
                self._records,
                name,
                self._planner.path(name),
                rule,
                history,
                metadata_columns=config.silver.metadata_columns,
                native=NativeWriting(config.silver.writer, self.rows),
                is_copied=config.source.copy != "never",
            )
        self._writers[name].history = history
        return self._writers[name]

    def forget(self, name: TableName) -> None:
        """Let a table that was moved away have a new writer, should it return."""
        self._writers.pop(name, None)

    def create(self, plan: BatchPlan, table: TablePlan) -> RegisteredTable | None:
        """Create a new table; return how it is to be registered before `apply` writes its rows.

        None if that is left to `apply`, which also finds what is wrong with the table.
        """
        facts, name, relations = table.facts, table.facts.name, self._planner.relations
        if self._config.silver.writer == "spark":
            return None
        with self._writing(name), suppress(Exception):
            self._planner.expected_versions.require(name)
            self._planner.shared.claim(self._planner.path(name))
            writer = self._writer_in(plan, name)
            if facts.copy is not None:
                planned = writer.plan_from_copy(facts.copy, relations, plan.end.lsn)
            else:
                surveys, start = [each.survey for each in table.surveys], InputStart(facts.offset)
                planned = writer.batch.plan(surveys, relations, None, start, plan.end.lsn)
            created = writer.batch.create(planned) if planned is not None else None
            if created is not None:
                self._planner.expected_versions.check(name, None)
            return created
        return None

    @contextmanager
    def _writing(self, name: TableName) -> Iterator[None]:
        """Let a block write a table, without another look at the tables that the batch has looked at."""
        with self.gate.writing(str(name)), one_look(self.looked):
            yield

    def _writer_in(self, plan: BatchPlan, name: TableName) -> SilverTable:
        """Return the writer of a table in a plan; raise LakeError if its folder would lie in another's."""
        refuse_nested_folder(self._config, name, plan.tables, self._planner.path)
        writer = self.writer(name, plan.history)
        writer.bronze.new_files = self._bronze.new_files
        return writer

    def apply(self, table: TablePlan, plan: BatchPlan, entries: ManifestEntries) -> Outcome:
        """Carry out the plan of a table; return how that went, and its entry in the manifest."""
        name, offset, planner = table.facts.name, table.facts.offset, self._planner
        path = planner.path(name)
        with self._writing(name):
            try:
                since = entries.recorded_version(name)
                if table.step in (Step.START_FROM_COPY, Step.REBUILD):  # they replace foreign commits
                    since = max(since, self._bronze.lake.table_at(path).version())
                planner.expected_versions.require(name)
                planner.shared.claim(path)
                state = self._write(table, plan, since)
                is_unshown = planner.shared.show(name, path) is not None
                is_behind = state.is_behind or is_unshown
                entry = entries.current(name, state.applied, since, is_behind=is_behind)
                planner.expected_versions.record(name, entry)
                if state.held:
                    planner.back_off.record_stop(table.facts, state.held)
                elif table.step.writes:
                    planner.record_write(name)
                return Outcome(state, entry, plan.end.lsn, is_unshown=is_unshown)
            except Exception as error:
                raise_if_fenced(error, path)
                failure = describe_conflict(error) or report_error(error)
                planner.expected_versions.forget(name)
                is_repeated = is_conflict(error) or isinstance(error, ChangedError)
                if not is_repeated:
                    planner.back_off.record_stop(table.facts, failure)
                state = TableState(applied=offset, failure=failure)
                return Outcome(state, entries.behind(name, offset), plan.end.lsn, is_repeated)
            finally:
                self.rows.release(name)

    def _write(self, table: TablePlan, plan: BatchPlan, since: int) -> TableState:
        """Write a table, or hold it by its guards; only we may have written to it since a version."""
        facts, name, events = table.facts, table.facts.name, self._records.events
        registered = plan.registered.get(name)
        if table.is_guarded:  # also if something else is wrong with it: `pgdelta rebuild` skips it
            self.held_by_guards.setdefault(name, 0)
        else:
            self.held_by_guards.pop(name, None)
        writer, relations = self._writer_in(plan, name), self._planner.relations
        surveys = [each.survey for each in table.surveys]
        other = self.other_names.find(
            registered, plan.end, plan.names_by_oid, relations, writer, surveys, is_behind=facts.is_behind
        )
        events.record([*rename_events(name, plan.registered, relations, surveys, other)])
        writer.refuse_foreign_commits(since)
        if table.decision.sentence is not None and table.is_guarded:
            return self.hold(table, facts.counts or {})
        if facts.lost:
            events.record([Event(*name, plan.manifest.lsn, "evolved", facts.lost)])
        changes, start, end_lsn = sum((facts.counts or {}).values()), InputStart(facts.offset), plan.end.lsn
        match table.step:
            case Step.START_FROM_COPY:
                assert facts.copy is not None
                written = writer.start_from_copy(facts.copy, relations, registered, end_lsn)
                changes = written.changes
            case Step.REBUILD:
                assert registered is not None
                written = writer.rebuild_lost(relations, registered, end_lsn)
            case Step.PARTIAL_RESYNC:
                copies = facts.partial_copies
                written = writer.apply_partial_copies(copies, relations, registered, start, end_lsn)
                changes = written.changes
            case _:
                written = writer.apply(surveys, relations, registered, start, end_lsn)
        if written.held:
            events.record([Event(*name, written.applied, written.kind, written.held)])
        if written.copy_lsn is not None:
            request_after_type_change(name, written.copy_lsn, self._bronze.copies)
            return TableState(written.applied, misfits=written.misfits, waits=written.held)
        return TableState(written.applied, changes if not written.held else 0, written.misfits, written.held)

    def hold(self, table: TablePlan, counts: Mapping[str, int]) -> TableState:
        """Return the state of a table that its guards hold.

        It is recorded why: once, and again when the pending changes have doubled.
        """
        name, count = table.facts.name, sum(counts.values())
        state = TableState(table.facts.offset, held=table.decision.sentence)
        if count >= 2 * self.held_by_guards.get(name, 0):
            self._records.events.record([Event(*name, state.applied, "held", state.held or "")])
            self.held_by_guards[name] = count
        return state
