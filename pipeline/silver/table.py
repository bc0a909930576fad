"""One silver table: its input applied from the position in its own log onwards, or all of it anew.

It is written anew, beside itself, where its types cannot follow the source's or where a copy of the source's
rows takes the place of those that it has; patches are put at their place among its changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from pipeline.bronze.copied_rows import CompleteCopy, InputStart
from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.bronze.new_files import BronzeOffset
from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.survey import Survey, survey_of
from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, Registered
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.batch_writer import BatchWriter, Written
from pipeline.silver.column_mapping import align_versions
from pipeline.silver.foreign_commits import is_forgotten, refuse_foreign_commits, refuse_forgotten
from pipeline.silver.key_ranges import KeysUnknown
from pipeline.silver.schema_evolution import Operation, rule_of_last
from pipeline.silver.schema_writer import RebuildNeeded
from pipeline.silver.swap import BufferedRecords, swap_in
from pipeline.silver.write_plan import followed
from pipeline.table_name import TableName


class SilverTable:
    """Applies the input of one source table; used by one thread at a time, in a Spark session of its own.

    `history` is what the look at its input saw of copies.
    """

    def __init__(
        self,
        spark: SparkSession,
        bronze: Bronze,
        records: Records,
        name: TableName,
        path: str,
        rule: TableRule,
        history: CopyHistory,
        *,
        metadata_columns: bool,
    ) -> None:
        self.name = name
        self.history = history
        self.table = LakeTable(spark, path)
        self.bronze = bronze.in_session(spark)
        self._records = records
        self._rule = rule
        self._metadata_columns = metadata_columns
        self._txn = bronze.txn
        self._stretch = BatchWriter(
            self.table, self.bronze, records, name, rule, self._rewrite, metadata_columns=metadata_columns
        )

    @property
    def offset(self) -> LSN:
        """Return up to where the table's own log says that it is complete."""
        return self.table.offset(self._txn) or INVALID

    def refuse_foreign_commits(self, since_version: int) -> None:
        """Raise LakeError where somebody else changed the table's rows."""
        refuse_foreign_commits(self.table, self.name, since_version)

    def apply(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: BronzeOffset,
        start: InputStart,
    ) -> Written:
        """Bring the table from its start up to the point, or up to where it has to be held."""
        if start.offset == INVALID and start.copy is None:
            refuse_forgotten(self.table, self.name, self._txn)
        return self._stretch.apply(surveys, relations, registered, point, start)

    def apply_partial_copies(
        self,
        patches: Sequence[CompleteCopy],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: BronzeOffset,
        start: InputStart,
    ) -> Written:
        """Bring the table from its start up to the point, with each patch put at its place among the changes.

        Where a patch cannot be put, a copy of the whole table is asked for in its stead.
        """
        written = Written(start.offset)
        self._stretch.registered = registered
        patches = [patch for patch in patches if patch.end_lsn <= point.lsn]
        for patch in patches:
            place = BronzeOffset(point.version, patch.lsn)
            position = start.copy.lsn if start.copy else start.offset
            if position < place.lsn:
                written = written.then(self._apply_from(start, relations, place))
                if written.held:
                    return written
                start = InputStart(place.lsn)
            patched = self._patch(patch, relations, place) if position <= place.lsn else None
            if patched is None:
                self._ask_for_all("keys that were copied anew cannot be told in silver", patch)
                continue
            written = written.then(patched)
            if written.held:
                return written
            start = InputStart(place.lsn)
        written = written.then(self._apply_from(start, relations, point))
        if written.lost and patches:
            # A row that came from other keys, with values that were not sent, while its own were copied.
            self._ask_for_all(f"{written.lost} values are missing where keys were copied anew", patches[-1])
        return written

    def _apply_from(
        self, start: InputStart, relations: Mapping[int, SourceRelation], point: BronzeOffset
    ) -> Written:
        surveys = self.bronze.survey_table(self.name, start, point.lsn)
        if not surveys:
            return Written(point.lsn)
        return self.apply(surveys, relations, self._stretch.registered, point, start)

    def _patch(
        self, patch: CompleteCopy, relations: Mapping[int, SourceRelation], place: BronzeOffset
    ) -> Written | None:
        """Put a patch; return None where silver cannot tell its keys, or has rows of another table."""
        registered = self._stretch.registered
        if registered is None or relations[patch.version].oid != registered.relation_id:
            return None
        try:
            return self.apply([survey_of(patch)], relations, registered, place, InputStart(copy=patch))
        except KeysUnknown:
            return None

    def _ask_for_all(self, reason: str, patch: CompleteCopy) -> None:
        """Ask for a copy of the whole table, in the place of a patch."""
        sentence = f"{reason}: the whole table is copied anew"
        self.bronze.copies.request([CopyRequest.of(self.name, sentence)])
        registered = self._stretch.registered
        if registered and (registered.copy_id or 0) < patch.id:
            self._stretch.registered = replace(registered, copy_id=patch.id)
            self._records.register(self._stretch.registered)
        self._records.record_events([Event(*self.name, patch.lsn, "resync", sentence)])

    def plan(
        self,
        surveys: Sequence[Survey],
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        start: InputStart,
        through: LSN,
    ) -> list[tuple[LSN, Operation]]:
        """Return what would change the table's shape or hold it, each with an LSN; nothing is done."""
        return self._stretch.plan(surveys, relations, registered, start, through)

    def start_from_copy(
        self,
        copy: CompleteCopy,
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        point: BronzeOffset,
    ) -> Written:
        """Put a copy of the source's rows, and what followed them, in the place of the table's rows."""
        if registered is not None and (lacking := self._lacking(copy)):
            return lacking
        is_new = self.table.offset(self._txn) is None
        if is_new and not is_forgotten(self.table, self._txn):
            # Nobody was told of this table yet: no need to write it beside itself.
            start = InputStart(copy=copy)
            patches = self.history.partial_copies(self.name, copy)
            written = self.apply_partial_copies(patches, relations, None, point, start)
        else:
            written = self._rewrite(relations, registered, point.lsn, copy=copy)
        if written.held:
            return written
        sentence, kind = "the table shows a copy of the source's rows, and what followed", "evolved"
        if written.lost and not copy.is_whole:
            # A row that moved, between two snapshots, from pages that were not read yet to some that were.
            kind = "resync"
            sentence = (
                f"{written.lost} values are missing in a copy that was cut off: the table is copied once more"
            )
            self.bronze.copies.request([CopyRequest.of(self.name, sentence)])
        self._records.record_events([Event(*self.name, copy.end_lsn, kind, sentence)])
        return written

    def rebuild_lost(
        self, relations: Mapping[int, SourceRelation], registered: Registered, through: LSN
    ) -> Written:
        """Build the table from all that bronze has of it up to an LSN, whatever rows it has now."""
        return self._rewrite(relations, registered, through)

    def rebuild(
        self, relations: Mapping[int, SourceRelation], registered: Registered, through: LSN
    ) -> Written:
        """Write the table anew from all that bronze has of it up to an LSN, as the configuration says now."""
        written = self._rewrite(relations, registered, through)
        if not written.held:
            sentence = "the table was written anew from bronze, as somebody asked"
            self._records.record_events([Event(*self.name, through, "evolved", sentence)])
        return written

    def _rewrite(
        self,
        relations: Mapping[int, SourceRelation],
        registered: Registered | None,
        through: LSN,
        need: RebuildNeeded | None = None,
        copy: CompleteCopy | None = None,
    ) -> Written:
        """Write the table beside itself, from a copy or the newest; put that in its place by one commit."""
        copy = copy or self.history.newest(through).get(self.name)
        if copy and (lacking := self._lacking(copy)):
            return lacking
        start = InputStart(copy=copy)
        surveys = self.bronze.survey_table(self.name, start, through)
        patches = self.history.partial_copies(self.name, copy)
        place = self.bronze.lake.table("_pgdelta", "rewrites", *self.name)
        place.remove()
        records = BufferedRecords(self._records)
        beside = SilverTable(
            self.table.spark,
            self.bronze,
            records,
            self.name,
            place.path,
            self._rule_of_newest(surveys, relations),
            self.history,
            metadata_columns=self._metadata_columns,
        )
        written = beside.apply_partial_copies(patches, relations, None, BronzeOffset(-1, through), start)
        if written.held or records.registered_last is None:
            return replace(written, applied=self.offset, misfits=0)
        self._records.record_events(records.news(self.offset))
        if need is not None:
            sentences = {
                "evolved": f"{need}: the table was written anew from bronze",
                "resync": f"{need}: rows from before have the values of their texts as they came then; what "
                "a cast or ALTER TABLE … USING computed is not in the stream, and only a resync brings it",
            }
            self._records.record_events([Event(*self.name, need.lsn, k, s) for k, s in sentences.items()])
        swap_in(self.table, place, self._records, records.registered_last, registered, self._txn, through)
        self._stretch.registered = self._records.registered()[self.name]
        return replace(written, applied=through)

    def _lacking(self, copy: CompleteCopy) -> Written | None:
        """Say that bronze has lost rows of a copy, so that the table is not built; None where it has all."""
        count = self.bronze.copied_rows(copy.id)
        if count >= copy.row_count:
            return None
        sentence = (
            f"{self.name} is not built again: bronze has {count} of the {copy.row_count} rows of "
            "the copy that it begins with, so some were removed; "
            f"{self.name.command('resync')} copies them"
        )
        return Written(self.offset, sentence, kind="resync")

    def _rule_of_newest(
        self, surveys: Sequence[Survey], relations: Mapping[int, SourceRelation]
    ) -> TableRule:
        """Return the rule that reads every version into the newest types, by the names in silver."""
        versions = [relations[s.version] for s in followed(surveys, relations)]
        return rule_of_last(align_versions(None, versions).relations, self._rule)
