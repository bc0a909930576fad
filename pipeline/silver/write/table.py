"""One silver table: apply changes up to an LSN, start from a table copy, or rebuild from bronze.

Changes are applied from the offset in the table's own log. Copied keys (a partial copy) are written at their
LSN among the changes. If all rows are replaced, by a copy or a rebuild, the new table is written under
`_pgdelta/rebuilds` and swapped in by one commit, so that readers see either the old or the new table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.bronze.copy_states import CompleteCopy, CopyHistory, CopyRequest
from pipeline.bronze.erasures import ErasureLog, Erasures
from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import Relations
from pipeline.bronze.table_input import InputStart, Survey, survey_of
from pipeline.config.tables import TableRule
from pipeline.delta.log import user_metadata_of
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.table import LakeTable
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.fold.later_copies import CopyOrder, order_copies
from pipeline.silver.fold.write import KeyRangesUnusable
from pipeline.silver.fold.write_plan import surveys_of_newest
from pipeline.silver.schema.column_mapping import align_versions, with_last_names
from pipeline.silver.schema.foreign_commits import has_lost_offset, refuse_foreign_commits, refuse_lost_offset
from pipeline.silver.schema.protection_changes import rule_notes
from pipeline.silver.schema.rule_names import rule_in_silver, silver_names
from pipeline.silver.schema.schema_evolution import rule_for_rebuild
from pipeline.silver.schema.schema_operations import NeedsRebuild
from pipeline.silver.schema.swap import BufferedRecords, swap_in
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.silver.write.native_session import NativeWriting
from pipeline.silver.write.range_plan import RangePlan, WriteResult
from pipeline.silver.write.step_writer import KeyNotSentError
from pipeline.table_name import TableName
from pipeline.units import format_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SilverTable:
    """Writes one silver table; used by one thread at a time, in a separate Spark session.

    `batch` plans a range of its changes, and carries out the plan. `history` are the table copies, as the
    plan of the batch read them. Tables of a source that `is_copied` have no rows before their first copy.
    """

    def __init__(
        self,
        spark: SparkSession | SparkProvider,
        bronze: Bronze,
        records: Records,
        name: TableName,
        path: str,
        rule: TableRule,
        history: CopyHistory,
        *,
        metadata_columns: bool,
        native: NativeWriting | None = None,
        is_copied: bool = True,
    ) -> None:
        self.name = name
        self.history = history
        self.table = LakeTable(path, spark)
        self.bronze = bronze.in_session(spark)
        self._records = records
        self._rule = rule
        self._metadata_columns = metadata_columns
        self._native = native
        self._is_copied = is_copied
        self._txn = bronze.txn
        self.batch = BatchWriter(
            self.table,
            self.bronze,
            records,
            name,
            rule,
            self._rebuild_instead,
            metadata_columns=metadata_columns,
            native=native,
        )

    @property
    def offset(self) -> LSN:
        """The offset in the table's own log, INVALID if it has none."""
        return self.table.offset(self._txn) or INVALID

    @property
    def last_start_lsn(self) -> LSN:
        """The LSN (exclusive) from which the newest write of changes continued, INVALID if none is known."""
        for information in self.table.newest_commits():
            after = user_metadata_of(information).get("after")
            if isinstance(after, str):
                return LSN.parse(after)
        return INVALID

    def refuse_foreign_commits(self, since_version: int) -> None:
        """Raise LakeError if a foreign commit changed the table's rows since a version."""
        refuse_foreign_commits(self.table, self.name, since_version)

    def apply(
        self,
        surveys: Sequence[Survey],
        relations: Relations,
        registered: RegisteredTable | None,
        start: InputStart,
        end_lsn: LSN,
    ) -> WriteResult:
        """Apply the changes from a start up to an LSN, or up to the change before which the table is held.

        Many changes are applied in parts, if Spark would write them and does not run.
        """
        if start.offset == INVALID and start.copy is None:
            refuse_lost_offset(self.table, self.name, self._txn)
        plan = self.batch.plan(surveys, relations, registered, start, end_lsn)
        ends = self.batch.part_ends(plan)
        if not ends:
            self._note_partial_inserts(plan)
            return self._or_held(lambda: self.batch.execute(plan))
        written = WriteResult(start.offset)
        self.batch.registered = registered
        for end in (*ends, end_lsn):
            written = written.then(self._apply_changes(start, relations, end))
            if written.held:
                break
            start = InputStart(end)
        return written

    def _note_partial_inserts(self, plan: RangePlan) -> None:
        """Record that rows came into the row filter without all of their values."""
        lsns = [LSN(survey.first[0]) for survey in plan.surveys if survey.partial_inserts]
        if not lsns:
            return
        sentence = (
            "Updates brought rows into the publication's row filter, and the server does not send unchanged "
            "TOAST values with them: they are NULL in silver, unless a later change sent them. Run "
            f"{self.name.command('reconcile')} --repair. With REPLICA IDENTITY FULL the server sends them."
        )
        self._records.events.record([Event(*self.name, lsn, "resync", sentence) for lsn in lsns])

    def _or_held(self, write: Callable[[], WriteResult]) -> WriteResult:
        """Return the result of a write; hold the table at its offset if a change was sent without its key."""
        try:
            return write()
        except KeyNotSentError as error:
            return WriteResult(self.offset, str(error))

    def apply_partial_copies(
        self,
        copies: Sequence[CompleteCopy],
        relations: Relations,
        registered: RegisteredTable | None,
        start: InputStart,
        end_lsn: LSN,
    ) -> WriteResult:
        """Apply the changes from a start up to an LSN, and write each partial copy at its LSN.

        If silver cannot find the keys of one, a copy of all rows is requested instead.
        """
        written = WriteResult(start.offset)
        self.batch.registered = registered
        copies = [copy for copy in copies if copy.end_lsn <= end_lsn]
        for copy in copies:
            offset = start.copy.lsn if start.copy else start.offset
            if offset < copy.lsn:
                written = written.then(self._apply_changes(start, relations, copy.lsn))
                if written.held:
                    return written
                start = InputStart(copy.lsn)
            replaced = self._replace_keys(copy, relations) if offset <= copy.lsn else None
            if replaced is None:
                self._request_whole_copy("Silver cannot find the keys of a partial copy.", copy)
                continue
            written = written.then(replaced)
            if written.held:
                return written
            start = InputStart(copy.lsn)
        written = written.then(self._apply_changes(start, relations, end_lsn))
        if written.missing_values and copies:
            # A row got its key from a key outside the copy, with unchanged TOAST, while the copy was read.
            self._request_whole_copy(
                f"{written.missing_values} values of copied keys are missing.", copies[-1]
            )
        return written

    def _apply_changes(self, start: InputStart, relations: Relations, end_lsn: LSN) -> WriteResult:
        surveys = self.bronze.survey_table(self.name, start, end_lsn)
        if not surveys:
            return WriteResult(end_lsn)
        return self.apply(surveys, relations, self.batch.registered, start, end_lsn)

    def _replace_keys(self, copy: CompleteCopy, relations: Relations) -> WriteResult | None:
        """Write a partial copy; return None if silver cannot find its keys, or shows another source table."""
        registered = self.batch.registered
        if registered is None or relations[copy.version].oid != registered.relation_id:
            return None
        try:
            return self.apply([survey_of(copy)], relations, registered, InputStart(copy=copy), copy.lsn)
        except KeyRangesUnusable:
            return None

    def _request_whole_copy(self, reason: str, copy: CompleteCopy) -> None:
        """Request a copy of all rows instead of a partial copy."""
        sentence = f"{reason} The whole table will be copied."
        self.bronze.copies.request([CopyRequest.of(self.name, sentence)])
        registered = self.batch.registered
        if registered and (registered.copy_id or 0) < copy.id:
            self.batch.registered = replace(registered, copy_id=copy.id)
            self._records.tables.register(self.batch.registered)
        self._records.events.record([Event(*self.name, copy.lsn, "resync", sentence)])

    def start_from_copy(
        self, copy: CompleteCopy, relations: Relations, registered: RegisteredTable | None, end_lsn: LSN
    ) -> WriteResult:
        """Replace the table's rows by those of a copy, and apply the changes that follow.

        An event says so, which is recorded with those of other tables, at the latest before the manifest.
        """
        if registered is not None and (incomplete := self._incomplete(copy)):
            return incomplete
        order = self._order_copies(copy, relations)
        if self._is_new and order == CopyOrder(copy):
            # No reader has seen this table, so it is written under its path.
            start = InputStart(copy=copy)
            partial = self.history.partial_copies(self.name, copy)
            written = self.apply_partial_copies(partial, relations, None, start, end_lsn)
        else:
            written = self._or_held(lambda: self._rebuild(relations, registered, end_lsn, copy=copy))
        if written.held or written.uncompared:
            return written
        sentence, kind = "The table starts from a copy of the source's rows.", "evolved"
        if order != CopyOrder(copy):
            sentence = "The table was rebuilt from bronze and compared with a copy of the source's rows."
        if written.missing_values and not copy.is_whole and not order.later:
            # Between two snapshots a row moved from pages not read yet to pages read before.
            sentence = (
                f"{written.missing_values} values are missing in a copy that was interrupted. The table "
                "will be copied again."
            )
            self.bronze.copies.request([CopyRequest.of(self.name, sentence)])
            kind = "resync"
        record = self._records.events.record if kind == "resync" else self._records.events.defer
        record([Event(*self.name, copy.end_lsn, kind, sentence)])
        return written

    @property
    def _is_new(self) -> bool:
        return self.table.offset(self._txn) is None and not has_lost_offset(self.table, self._txn)

    def plan_from_copy(self, copy: CompleteCopy, relations: Relations, end_lsn: LSN) -> RangePlan | None:
        """Return the range that `start_from_copy` writes under the table's path; change nothing.

        None if it writes the table elsewhere and swaps it in, or writes copied keys too.
        """
        start = InputStart(copy=copy)
        if not self._is_new or self.history.partial_copies(self.name, copy):
            return None
        if self._order_copies(copy, relations) != CopyOrder(copy):
            return None
        surveys = self.bronze.survey_table(self.name, start, end_lsn)
        return self.batch.plan(surveys, relations, None, start, end_lsn) if surveys else None

    def rebuild_lost(self, relations: Relations, registered: RegisteredTable, end_lsn: LSN) -> WriteResult:
        """Rebuild the table from bronze up to an LSN, because its folder lacks rows."""
        return self._rebuild(relations, registered, end_lsn)

    def rebuild(self, relations: Relations, registered: RegisteredTable, end_lsn: LSN) -> WriteResult:
        """Rebuild the table from bronze up to an LSN, with the current configuration."""
        written = self._rebuild(relations, registered, end_lsn)
        if not written.held:
            sentence = "The table was rebuilt from bronze on request."
            self._records.events.record([Event(*self.name, end_lsn, "evolved", sentence)])
        return written

    def _rebuild_instead(self, plan: RangePlan) -> WriteResult:
        return self._rebuild(plan.relations, plan.registered, plan.end_lsn, need=plan.rebuild)

    def _rebuild(
        self,
        relations: Relations,
        registered: RegisteredTable | None,
        end_lsn: LSN,
        need: tuple[LSN, NeedsRebuild] | None = None,
        copy: CompleteCopy | None = None,
    ) -> WriteResult:
        """Write the table elsewhere, from a copy (default: the newest), and swap it in by one commit."""
        copy = copy or self.history.newest(end_lsn).get(self.name)
        rebuilt = self.bronze.lake.table("_pgdelta", "rebuilds", *self.name)
        written, records = self.build(rebuilt, relations, end_lsn, copy)
        if written.held or records.tables.registered is None:
            return replace(written, applied=self.offset, misfits=0)
        known = registered.protected if registered is not None else ()
        notes = rule_notes(known, self.name, records.tables.registered.protected)
        self._records.events.record(
            [
                *records.events.resyncs_after(self.offset),
                *(Event(*self.name, end_lsn, note.kind, note.sentence) for note in notes),
            ]
        )
        if written.uncompared:
            self._request_next(written.uncompared, f"{written.why_uncompared} It will be copied again.")
        if need is not None:
            lsn, operation = need
            rebuilt_sentence = f"{operation.sentence} The table was rebuilt from bronze."
            resync_sentence = (
                f"{operation.sentence} Older rows have the values of their former texts. If a cast or ALTER "
                f"TABLE … USING computed other values, run {self.name.command('resync')} to copy them."
            )
            self._records.events.record(
                [
                    Event(*self.name, lsn, "evolved", rebuilt_sentence),
                    Event(*self.name, lsn, "resync", resync_sentence),
                ]
            )
        swap_in(
            self.table,
            rebuilt,
            self._records,
            records.tables.registered,
            registered,
            self._txn,
            end_lsn,
            by_spark=self._native is None or self._native.setting == "spark",
        )
        self.batch.registered = self._records.tables.read()[self.name]
        return replace(written, applied=end_lsn)

    def build(
        self, into: LakeTable, relations: Relations, end_lsn: LSN, copy: CompleteCopy | None
    ) -> tuple[WriteResult, BufferedRecords]:
        """Write the table as of an LSN to another one, which is replaced; return what would be recorded.

        Its rows are those of a copy, or without one none, and the changes that follow; in modes that keep
        rows which are gone, also those of the copies before.
        """
        records = BufferedRecords(self._records)
        order = self._order_copies(copy, relations)
        for each in (order.first, *order.later):
            if each and (incomplete := self._incomplete(each)):
                return incomplete, records
        if self._rule.mode != "mirror" and (unreadable := self._copied_keys_in_base(copy)):
            return unreadable, records
        start = InputStart(copy=order.first)
        surveys = self.bronze.survey_table(self.name, start, end_lsn)
        # A column that is renamed while the table is built would keep its former name in the files.
        read = [*surveys, *map(survey_of, order.later)]
        versions = surveys_of_newest(read, relations)
        recurring = {s.version for s in versions if any(s.first < each.first < s.last for each in versions)}
        relations = with_last_names([relations[s.version] for s in versions], relations, recurring)
        into.remove()
        writer = type(self)(
            self.table.sessions,
            self.bronze,
            records,
            self.name,
            into.path,
            self._rule_of_newest(read, relations),
            self.history,
            metadata_columns=self._metadata_columns,
            native=self._native,
            is_copied=self._is_copied,
        )
        if self._rule.mode == "mirror":
            partial = self.history.partial_copies(self.name, copy)
            written = writer.apply_partial_copies(partial, relations, None, start, end_lsn)
        else:
            written = writer.apply_later_copies(order.later, relations, start, end_lsn)
        if not written.held and self._was_compacted(start, end_lsn, surveys):
            return self.build(into, relations, end_lsn, copy)
        return written, records

    def apply_later_copies(
        self, copies: Sequence[CompleteCopy], relations: Relations, start: InputStart, end_lsn: LSN
    ) -> WriteResult:
        """Apply the changes from a start up to an LSN, and compare each later copy at its LSN.

        A copy that lacks values is not compared; the result names the last one if it does.
        """
        written = WriteResult(start.offset)
        for copy in copies:
            written = written.then(self._apply_changes(start, relations, copy.end_lsn))
            if written.held:
                return written
            start = InputStart(copy=copy, is_later=True)
            surveys = [survey_of(copy)]
            if self._rule.mode != "append":
                surveys = self.bronze.survey_table(self.name, start, copy.end_lsn)
            compared = self.apply(surveys, relations, self.batch.registered, start, copy.end_lsn)
            lacks = copy if compared.missing_values and copy is copies[-1] else None
            written = written.then(replace(compared, missing_values=0, uncompared=lacks))
            if written.held:
                return written
            start = InputStart(copy.end_lsn)
        return written.then(self._apply_changes(start, relations, end_lsn))

    def _request_next(self, copy: CompleteCopy, sentence: str) -> None:
        """Request the copy after one that lacks values."""
        self.bronze.copies.request([CopyRequest.of(self.name, sentence)])
        self._records.events.record([Event(*self.name, copy.end_lsn, "resync", sentence)])

    def _order_copies(self, last: CompleteCopy | None, relations: Relations) -> CopyOrder:
        """Return the copies from which the table is built, up to the last one."""
        base = self.bronze.bases.read().tables.get(self.name)
        versions = relations.values()
        return order_copies(
            self.name, self._rule, self.history, versions, last, is_copied=self._is_copied, base=base
        )

    def _was_compacted(self, start: InputStart, end_lsn: LSN, surveys: Sequence[Survey]) -> bool:
        """Return whether bronze.retention changed the input of a rebuild since it was surveyed.

        Then later steps did not find the deletes of rows that an earlier step had read.
        """
        if not self.bronze.bases.table.exists():
            return False
        return set(self.bronze.survey_table(self.name, start, end_lsn)) != set(surveys)

    def _incomplete(self, copy: CompleteCopy) -> WriteResult | None:
        """Return why the table is not built if bronze has lost rows of its copy, None if it has all."""
        count = self.bronze.copied_rows(self.name, copy.id, copy.lsns)
        if count >= copy.row_count:
            return None
        erased = ErasureLog(self.bronze.lake).add_to(Erasures()).copies[copy.id]
        if count + erased >= copy.row_count:  # pgdelta forget erased the others
            return None
        states = self.bronze.copies.read().states.get(self.name, ())
        if any(state.id == copy.id and count + erased >= state.row_count for state in states):
            return None  # bronze.retention removed the others meanwhile
        sentence = (
            f"Table {self.name} is not built: bronze has only {count:,} of the "
            f"{format_count(copy.row_count, 'row')} of the "
            f"copy. Run {self.name.command('resync')} to copy the table again."
        )
        return WriteResult(self.offset, sentence, kind="resync")

    def _copied_keys_in_base(self, copy: CompleteCopy | None) -> WriteResult | None:
        """Return why a mode that reads no copies of keys cannot build the table from its base, if so."""
        base_lsn = self.bronze.bases.read().lsn_of(self.name)
        if all(each.end_lsn >= base_lsn for each in self.history.partial_copies(self.name, copy)):
            return None
        sentence = (
            f"Table {self.name} is not built: since bronze.retention compacted its changes, bronze has some "
            f"rows only in copies of keys, which mode {self._rule.mode} does not read. Run "
            f"{self.name.command('resync')} to copy the table again."
        )
        return WriteResult(self.offset, sentence, kind="resync")

    def _rule_of_newest(self, surveys: Sequence[Survey], relations: Relations) -> TableRule:
        """Return the rule that reads every version into the newest types, under silver's names."""
        versions = [relations[s.version] for s in surveys_of_newest(surveys, relations)]
        aligned = align_versions(None, versions)
        rule = rule_in_silver(self._rule.without_layout(), silver_names(aligned), has_partitions=False)
        rule = rule_for_rebuild(aligned.relations, rule)
        pairs = zip(versions, aligned.relations, strict=True)
        columns = [both for old, new in pairs for both in zip(old.columns, new.columns, strict=True)]
        # What comes before a partial copy is written by itself, under the names that columns had then. A name
        # that several columns had gets no type before it is theirs.
        former = {old.name: rule.types[new.name] for old, new in columns}
        meanings = {(name, new.name) for old, new in columns for name in (old.name, new.name)}
        counts = Counter(name for name, _ in meanings)
        types = {**former, **rule.types}
        return replace(rule, types={n: t for n, t in types.items() if counts[n] < 2 or n in self._rule.types})
