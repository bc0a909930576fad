"""Write one range of a silver table's input: plan all of it, then carry the plan out.

`plan` decides where the range ends, how the columns change, and which writes follow; it reads bronze and the
table's log, and changes nothing. `execute` carries out a plan in named steps whose order survives a crash:
change the columns, register them, write the rows, register the source's names. Each write records the LSN up
to which the table is complete, under a separate id if the table is not complete after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze, between
from pipeline.bronze.source_relations import Relations
from pipeline.bronze.table_input import InputStart, SequenceKey, Survey, TruncatedAt
from pipeline.config.tables import TableRule
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.spark.settings import SMALL_WRITE_SETTINGS
from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId, TxnKind, is_partial
from pipeline.engine import DUCKDB, SPARK, Engine
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.fold import policies
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.later_copies import plan_later_copy
from pipeline.silver.fold.modes import MARKINGS, kept_as, mode_changed
from pipeline.silver.fold.unchanged_plan import plan_filling
from pipeline.silver.fold.write import Write, plan_write
from pipeline.silver.fold.write_plan import (
    Run,
    TableInput,
    WriteStep,
    fold_signature,
    plain_runs,
    plan_fold,
    plan_write_steps,
)
from pipeline.silver.schema.schema_operations import Hold, NeedsRebuild
from pipeline.silver.schema.swap import copy_metadata
from pipeline.silver.schema.table_partitions import columns_to_fold, rule_with_names
from pipeline.silver.write import range_parts
from pipeline.silver.write.native_files import NotNative
from pipeline.silver.write.native_session import (
    NativeWriting,
    define_chunks,
    session_of_rows,
    why_left_to_spark,
)
from pipeline.silver.write.range_plan import Evolution, RangePlan, RangeStop, WriteResult
from pipeline.silver.write.registrations import registrations
from pipeline.silver.write.schema_writer import SchemaWriter
from pipeline.silver.write.step_writer import StepWriter, Target
from pipeline.silver.write.table_version import TableVersion
from pipeline.silver.write.writer_choice import (
    MAX_BYTES,
    MAX_BYTES_AT_ONCE,
    MAX_CHANGE_BYTES,
    MAX_ROWS_AT_ONCE,
    Choice,
    WriteFacts,
    Writer,
    choose,
    compared_bytes,
    is_small_write,
    other_types,
    unsupported_feature,
)
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.silver.fold.spark_sql import SparkSql
    from pipeline.silver.write.native_target import NativeTarget

Rebuild = Callable[[RangePlan], WriteResult]


class BatchWriter:
    """Plans and writes ranges of one table's input; calls `rebuild` for a change that needs a rebuild."""

    def __init__(
        self,
        table: LakeTable,
        bronze: Bronze,
        records: Records,
        name: TableName,
        rule: TableRule,
        rebuild: Rebuild,
        *,
        metadata_columns: bool,
        native: NativeWriting | None = None,
    ) -> None:
        self.registered: RegisteredTable | None = None  # as the last write left it
        self._table = table
        self._bronze = bronze
        self._records = records
        self._name = name
        self._configured = self._rule = rule
        self._rebuild = rebuild
        self._txn = bronze.txn
        self._schema = SchemaWriter(
            table,
            records,
            name,
            rule,
            bronze.txn,
            metadata_columns=metadata_columns,
            writer=native.setting if native is not None and table.local_path is not None else "spark",
        )
        self._native = native
        self._is_log = rule.mode == "append"  # a row of silver is a change
        self._created: RegisteredTable | None = None  # how `create` would have it registered
        self._missing_values = 0  # that neither the stream nor the table has

    def plan(
        self,
        surveys: Sequence[Survey],
        relations: Relations,
        registered: RegisteredTable | None,
        start: InputStart,
        end_lsn: LSN,
    ) -> RangePlan:
        """Plan the range from a start up to an LSN, or up to the change before which the table is held."""
        registered = self._current(registered or self._registered_as_created())
        self._rule = rule_with_names(self._configured, self._table.snapshot(), registered, relations.values())
        if registered is not None and registered.mode != kept_as(self._rule):
            sentence = mode_changed(self._name, registered.mode, kept_as(self._rule))
            return RangePlan(start, start.offset, registered, RangeStop(sentence))
        truncates = self._truncates(surveys, start, end_lsn)
        surveys = self._without_cuts(surveys, is_later=start.is_later)
        stop: RangeStop | None = None
        if refusal := self._find_refusal(surveys, relations, start, end_lsn):
            end_lsn, stop = refusal.commit_lsn, RangeStop(refusal.sentence, refusal.kind, refusal.copy_lsn)
            surveys = self._survey_before(start, end_lsn)
        evolution = self._schema.plan(surveys, relations, registered) if surveys else None
        held: RangeStop | None = None
        while evolution and evolution.stop and isinstance(evolution.stop[1], Hold):
            # The commit record of the change that cannot be followed ends the transactions before it. Earlier
            # versions may need the names that it gives to columns: the range ends there, for its reason.
            end_lsn = evolution.stop[0]
            stop = held = held or RangeStop.of(evolution.stop[1], end_lsn)
            surveys = self._survey_before(start, end_lsn)
            evolution = self._schema.plan(surveys, relations, registered) if surveys else None
        plan = RangePlan(start, end_lsn, registered, stop, tuple(surveys), relations, evolution)
        if evolution is None:
            return plan
        if evolution.stop and isinstance(evolution.stop[1], NeedsRebuild):
            return replace(plan, rebuild=(evolution.stop[0], evolution.stop[1]))
        return replace(plan, writes=self._plan_writes(plan, evolution, truncates))

    def _truncates(self, surveys: Sequence[Survey], start: InputStart, end_lsn: LSN) -> list[TruncatedAt]:
        """Return the truncates that mark rows, in a mode that keeps those."""
        is_marked = self._rule.mode in MARKINGS and not start.is_later
        if not is_marked or not any(survey.last_truncate for survey in surveys):
            return []
        return self._bronze.truncates_of(self._name, start, end_lsn)

    def _without_cuts(self, surveys: Sequence[Survey], *, is_later: bool = False) -> Sequence[Survey]:
        """Return surveys without the truncates, if these do not make what is before them irrelevant."""
        if self._rule.is_cut_by_truncates or is_later:
            return surveys
        return [replace(survey, last_truncate=None) for survey in surveys]

    def _plan_writes(
        self, plan: RangePlan, evolution: Evolution, truncates: Sequence[TruncatedAt]
    ) -> tuple[Write, ...]:
        start, end_lsn, relations = plan.start, plan.end_lsn, evolution.relations
        if start.is_later and start.copy is not None:
            return (self._plan_later_copy(plan, evolution, start.copy),)
        changed = tuple(survey for survey in plan.surveys if not survey.at_rest)
        if not changed:
            return ()
        runs = self._runs(changed, relations, start, end_lsn)
        table = TableInput(plan.surveys, relations, end_lsn, runs, start.copy)
        columns, rule = columns_to_fold(evolution.columns, evolution.rule), evolution.rule
        is_empty = self._table.is_empty() if self._table.exists() else True
        writes = []
        gaps = self._bronze.copies.read().gaps if self._is_log else ()
        shown_oid = plan.registered.relation_id if plan.registered else None
        for step in plan_write_steps(table, shown_oid, truncates):
            fold = plan_fold(table, step, columns, rule, evolution.recorded.numbers)
            metadata = {"table": list(self._name), "after": str(start.offset), **copy_metadata(step.copy_id)}
            commit = TableCommit(self._txn_of(step, end_lsn), step.end_lsn, metadata)
            surveys = [s for s in plan.surveys if s.version in step.versions]
            has_only_inserts = not any(s.updates or s.deletes for s in surveys)
            place = commit, evolution.metadata, self._table.identifier
            write = plan_write(step, fold, *place, is_empty=is_empty, has_only_inserts=has_only_inserts)
            writes.append(replace(write, filling=plan_filling(step, fold, plan.relations, gaps)))
            is_empty = False
        return tuple(writes)

    def _plan_later_copy(self, plan: RangePlan, evolution: Evolution, copy: CompleteCopy) -> Write:
        table = TableInput(plan.surveys, evolution.relations, plan.end_lsn, (), copy)
        columns, rule = columns_to_fold(evolution.columns, evolution.rule), evolution.rule
        metadata = {"table": list(self._name), **copy_metadata(copy.id)}
        commit = TableCommit(self._txn.of(TxnKind.COPIED, copy.id), copy.end_lsn, metadata)
        numbers, place = evolution.recorded.numbers, self._table.identifier
        return plan_later_copy(table, columns, numbers, rule, commit, evolution.metadata, place)

    def create(self, plan: RangePlan) -> RegisteredTable | None:
        """Begin to carry out the plan of a new table: create it, and return how it is to be registered.

        Once it is, the next plan continues. None, and nothing is done, if the plan does something else before
        it writes rows, or needs Spark to create the table.
        """
        evolution = plan.evolution
        is_whole = plan.registered is None and plan.stop is None and plan.rebuild is None
        if evolution is None or not is_whole or self._table.exists():
            return None
        if not self._schema.only_creates(evolution):
            return None
        self._created, _ = self._evolve(plan, evolution)
        return self._created

    def _registered_as_created(self) -> RegisteredTable | None:
        if self._created is None or self._records.tables.read().get(self._name) != self._created:
            return None
        return self._created

    def execute(self, plan: RangePlan) -> WriteResult:
        """Carry out a plan."""
        stop, evolution = plan.stop or RangeStop(""), plan.evolution
        held = plan.stop.sentence if plan.stop else None
        if plan.rebuild:
            written = self._rebuild(plan)
            return written if written.held else replace(written, held=held, kind=stop.kind)
        if evolution is None:
            offset = plan.start.offset if plan.stop else plan.end_lsn
            return WriteResult(offset, held, kind=stop.kind, copy_lsn=stop.copy_lsn)
        lost_before, misfits = self._missing_values, 0
        before, after = self._evolve(plan, evolution)
        if before != plan.registered:
            self._records.tables.register(before)
        for write in plan.writes:
            with crash_step(CrashStep.WRITE_TABLE):
                misfits += self._write(write, plan)
        if after != before:
            self._records.tables.register(after)
        self.registered = after
        missing_values = self._missing_values - lost_before
        count = plan.changes
        return WriteResult(plan.end_lsn, held, misfits, stop.kind, count, missing_values, stop.copy_lsn)

    def _evolve(self, plan: RangePlan, evolution: Evolution) -> tuple[RegisteredTable, RegisteredTable]:
        """Change the columns; return how the table is registered before its rows are written, and after."""
        with crash_step(CrashStep.EVOLVE_COLUMNS):
            columns, metadata_columns, registered = self._schema.apply(evolution, plan.registered)
        oid, rules = evolution.recorded.relation_id, evolution.recorded.protected
        after = RegisteredTable(
            *self._name,
            self._table.path,
            oid,
            columns,
            metadata_columns=metadata_columns,
            mode=kept_as(self._rule),
            protected=rules,
        )
        return registrations(replace(plan, registered=registered), after)

    def set_comments(self, registered: RegisteredTable) -> None:
        """Give the table the comments of the source, unless it has them or its rows are another table's."""
        current = self._current(registered)
        if current is not None:
            self._schema.set_comments(current)

    def _write(self, write: Write, plan: RangePlan) -> int:
        """Carry out a write, unless an earlier run did; return the number of misfits."""
        if (self._table.offset(write.commit.txn) or INVALID) >= write.commit.lsn:
            return 0
        choice = self.choose_writer(write, plan)
        why: str | None = choice.reason
        if choice.is_native:
            try:
                return self._write_natively(write, plan)
            except Exception as error:  # nothing is committed yet, and Spark can write it
                if (why := why_left_to_spark(error)) is None:
                    raise
        self._table.sessions.announce(f"{self._name}: {why}")
        return self._write_by_spark(write, plan)

    def choose_writer(self, write: Write, plan: RangePlan, *, in_parts: bool = False) -> Choice:
        """Return who carries out a write of a plan, or small parts of it, and why."""
        native = self._native
        if native is None or native.setting == "spark":
            return Choice(Writer.SPARK, "silver.writer is spark")
        is_local = self._table.local_path is not None
        facts = WriteFacts(write.kind, native.setting, is_local, other_types=other_types(write.fold))
        if not choose(facts).is_native:
            return choose(facts)
        assert plan.evolution is not None
        snapshot = self._table.snapshot()
        changes, place = plan.changes_of(write), (self._name, plan.start, plan.end_lsn)
        return choose(
            replace(
                facts,
                unsupported=plan.evolution.new_feature or unsupported_feature(snapshot),
                only_adds=write.only_adds,
                is_read_once=write.is_read_once,
                changes=0 if in_parts else changes,
                change_bytes=0 if in_parts else native.rows.size(*place, changes),
                compared_bytes=compared_bytes(write.kind, write.fold, snapshot),
            )
        )

    def part_ends(self, plan: RangePlan) -> list[LSN]:
        """Return the LSNs that divide a plan whose merge needs too much memory at once, ascending.

        Empty where Spark runs, or writes anyway, and after a run that committed a part of a transaction.
        """
        native, start, writes = self._native, plan.start, plan.writes
        if native is None or start.copy is not None or all(write.is_read_once for write in writes):
            return []
        if native.setting != "native" and (is_launched_by_spark() or self._table.sessions.started):
            return []
        most, began = range_parts.MAX_VALUES, writes[0].step.start[0]  # before a TRUNCATE nothing is written
        values = native.rows.values_by_lsn(self._name, start, plan.end_lsn, plan.changes, most)
        values = [each for each in values if each[0] > began]
        files = self._table.snapshot().files.values()
        count = range_parts.count_parts(sum(size for _, size in values), plan.changes, files)
        if count == 1 or is_partial(TxnId.all_of(self._table.offsets())):
            return []
        if any(not self.choose_writer(write, plan, in_parts=True).is_native for write in writes):
            return []
        return range_parts.part_ends(values, count)

    def _write_natively(self, write: Write, plan: RangePlan) -> int:
        from pipeline.silver.write.file_committer import FileCommitter, compact_small_files
        from pipeline.silver.write.native_target import NativeTarget

        assert self._native is not None
        max_bytes = None if self._native.setting == "native" else MAX_BYTES
        snapshot = self._table.snapshot()
        if unsupported_feature(snapshot) is not None:
            raise NotNative("the table has changed")
        if snapshot.offsets.get(str(write.commit.txn), INVALID) >= write.commit.lsn:
            return 0  # another apply wrote it meanwhile
        version, is_chunked = TableVersion(self._table, snapshot), self._is_chunked(write, plan)
        places = (plan.start, plan.end_lsn, write.step.start, write.step.end)
        with closing(DuckSql()) if is_chunked else self._native_session(*places) as session:
            target = NativeTarget(session, version, FileCommitter(version), max_bytes)
            if is_chunked:
                misfits = self._write_chunks(target, write, plan)
            elif write.only_adds or (write.is_read_once and session.has_many):
                writer = StepWriter(target, self._records, self._name)
                misfits = writer.write_chunks(write, [None], target.adding_rows(write))
            else:
                misfits = self._write_to(target, write)
        compact_small_files(self._table)
        return misfits

    def _is_chunked(self, write: Write, plan: RangePlan) -> bool:
        """Return whether the rows of a native write are too many for memory, and read in chunks."""
        assert self._native is not None
        if not write.only_adds:
            return False
        count, rows, place = plan.changes_of(write), self._native.rows, (self._name, plan.start, plan.end_lsn)
        size = rows.size(*place, count) or 0
        return size > MAX_BYTES_AT_ONCE or count > MAX_ROWS_AT_ONCE or not rows.fits(*place)

    def _write_chunks(self, target: NativeTarget, write: Write, plan: RangePlan) -> int:
        assert self._native is not None
        rows, name, step = self._native.rows, self._name, write.step
        with closing(
            define_chunks(target.session, rows, name, plan.start, plan.end_lsn, step, is_log=self._is_log)
        ) as chunks:
            writer = StepWriter(target, self._records, self._name)
            return writer.write_chunks(write, chunks, target.adding_rows(write))

    def _write_by_spark(self, write: Write, plan: RangePlan) -> int:
        from pipeline.delta.spark.session import settings
        from pipeline.silver.write.spark_target import SparkTarget

        with self._spark_session(plan.start, plan.end_lsn, write.step.start, write.step.end) as session:
            is_local = self._table.local_path is not None
            changes = plan.changes_of(write)
            is_small = is_local and is_small_write(changes, self._table.snapshot())
            with settings(session.spark, SMALL_WRITE_SETTINGS if is_small else {}):
                return self._write_to(SparkTarget(session.spark, session, self._table, changes), write)

    def _write_to(self, target: Target, write: Write) -> int:
        writer = StepWriter(target, self._records, self._name)
        misfits = writer.write(write)
        self._missing_values += writer.missing_values
        return misfits

    def _native_session(
        self, start: InputStart, end_lsn: LSN, first: SequenceKey, last: SequenceKey
    ) -> AbstractContextManager[DuckSql]:
        """Give a session of DuckDB with the row changes in (first, last] as `changes`."""
        assert self._native is not None
        rows, name = self._native.rows, self._name
        return session_of_rows(rows, name, start, end_lsn, first, last, is_log=self._is_log)

    @contextmanager
    def _spark_session(
        self, start: InputStart, end_lsn: LSN, first: SequenceKey, last: SequenceKey
    ) -> Iterator[SparkSql]:
        """Give a session of Spark with the row changes in (first, last] as `changes`."""
        from pipeline.silver.fold.spark_sql import SparkSql

        changes = self._bronze.table_changes(self._name, start, end_lsn)
        session = SparkSql(self._table.spark)
        try:
            rows = between(changes, first, last, is_log=self._is_log, is_later=start.is_later)
            session.add("changes", rows)
            yield session
        finally:
            session.clear()

    def _survey_before(self, start: InputStart, end_lsn: LSN) -> Sequence[Survey]:
        """Survey the changes before the one that holds the table; copied rows are applied all or none."""
        if start.copy and end_lsn <= start.copy.end_lsn:
            return []
        return self._without_cuts(self._bronze.survey_table(self._name, start, end_lsn))

    def _find_refusal(
        self, surveys: Sequence[Survey], relations: Relations, start: InputStart, end_lsn: LSN
    ) -> policies.Refusal | None:
        """Return the first change that a policy refuses, or that does not identify its row."""
        if self._reads_natively(surveys, relations, start, end_lsn):
            try:
                return self._find_refusal_by(DUCKDB, surveys, relations, start, end_lsn)
            except Exception as error:
                if why_left_to_spark(error) is None:
                    raise
        return self._find_refusal_by(SPARK, surveys, relations, start, end_lsn)

    def _find_refusal_by(
        self, engine: Engine, surveys: Sequence[Survey], relations: Relations, start: InputStart, end_lsn: LSN
    ) -> policies.Refusal | None:
        column = policies.refused_value(surveys, relations, self._rule, engine)
        no_row = policies.change_without_row(surveys, relations)
        if column is None and no_row is None:
            return None
        truncates = [s.last_truncate for s in surveys if s.last_truncate]
        first, last = max(truncates, default=(0, -1)), max(s.last for s in surveys)
        refused = f"SELECT commit_lsn, ordinal, {column or engine.null('STRING')} AS refused, "
        refused += f"{no_row or engine.null('BIGINT')} AS without_row FROM changes"
        query = f"SELECT * FROM ({refused}) AS r WHERE refused IS NOT NULL OR without_row IS NOT NULL"
        opened = self._native_session if engine is DUCKDB else self._spark_session
        with opened(start, end_lsn, first, last) as session:
            if session.is_empty(query):
                return None
            found = session.row(f"{query} ORDER BY commit_lsn, ordinal LIMIT 1")
        return policies.refusal_of(self._name, found.commit_lsn, found.refused, found.without_row, relations)

    def _reads_natively(
        self, surveys: Sequence[Survey], relations: Relations, start: InputStart, end_lsn: LSN
    ) -> bool:
        """Return whether changes are read without Spark to see whether a policy refuses one."""
        if self._native is None or self._native.setting == "spark":
            return False
        if not policies.refuses_natively(surveys, relations, self._rule):
            return False
        size = self._native.rows.size(self._name, start, end_lsn, sum(survey.changes for survey in surveys))
        return size is not None and size <= MAX_CHANGE_BYTES

    def _current(self, registered: RegisteredTable | None) -> RegisteredTable | None:
        """Return how the table's rows are registered, also if a run ended before it registered them."""
        if registered is None or not self._table.exists():
            return None
        successor = registered.successor
        if successor is None or (self._table.offset(successor.app_id) or INVALID) < successor.lsn:
            return registered
        has_physical_names = all(column.physical_name for column in successor.columns)
        return replace(
            registered,
            path=self._table.path,
            relation_id=successor.relation_id,
            columns=successor.columns,
            successor=None,
            mode=successor.mode,
            protected=successor.protected,
            # A rebuild that ended early could not register the physical names.
            metadata_columns=registered.metadata_columns if has_physical_names else (),
        )

    def _runs(
        self, surveys: Sequence[Survey], relations: Relations, start: InputStart, end_lsn: LSN
    ) -> tuple[Run, ...]:
        if (runs := plain_runs(surveys, relations)) is not None:
            return runs
        signatures: dict[tuple[object, ...], int] = {}
        numbers = {
            s.version: signatures.setdefault(fold_signature(relations[s.version]), len(signatures))
            for s in surveys
        }
        return tuple(Run(*run) for run in self._bronze.exact_runs(self._name, start, end_lsn, numbers))

    def _txn_of(self, step: WriteStep, end_lsn: LSN) -> TxnId:
        if step.key_ranges:
            return self._txn.of(TxnKind.KEY_RANGES)
        if step.copy_id is not None and step.end_lsn < end_lsn:
            return self._txn.of(TxnKind.COPIED, step.copy_id)
        return self._txn.of(TxnKind.PART, step.part) if step.part else self._txn
