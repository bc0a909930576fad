"""Read the tables of bronze for apply and status: offsets, surveys, and the changes between two offsets.

After every commit, Delta computes the files of the newest version with a job over the log. If the commits
since an offset only added files, only these files are read. Writes nothing; ingest commits through `writer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.bronze import surveys
from pipeline.bronze.bases import Bases
from pipeline.bronze.changes_scan import MAX_LSN, ROW_OPS, ChangesScan, advised, bounds_of, may_have_table
from pipeline.bronze.copies import Copies
from pipeline.bronze.files_by_table import FileIndex
from pipeline.bronze.new_files import NewFiles, new_files_between
from pipeline.bronze.relations import RelationLSNs
from pipeline.bronze.schema import CHANGES, RELATIONS, STATISTICS_PROPERTY, spark_ddl
from pipeline.bronze.source_relations import SourceRelation, source_relation
from pipeline.bronze.table_input import InputStart, SequenceKey, Survey, TableSurvey, TruncatedAt, survey_of
from pipeline.delta.log import json_object
from pipeline.delta.log_retention import short_log
from pipeline.delta.new_rows import NewRows, add_columns
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.sql import from_microseconds
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot, data_path, local_path
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.errors import ConfigError, DataFileError, LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A checkpoint lists all files, and bronze commits up to once a second.
_CHECKPOINTS = {"delta.checkpointInterval": "50"}
_INPUT_COLUMNS = ("op", "xid", "copy_id", "commit_lsn")  # by which a table's input is selected


@dataclass(frozen=True, slots=True)
class BronzeOffset:
    """A state of bronze: in this version `changes` is complete up to an LSN."""

    version: int
    lsn: LSN


NO_OFFSET = BronzeOffset(-1, INVALID)
"""The state of bronze before the first commit."""


class Bronze:
    """`{root}/bronze`: changes, relations, prepared transactions and copies; and their bases."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self.lake = lake
        self.pipeline = pipeline
        self.txn = TxnId(pipeline)
        self.changes = lake.table("bronze", "changes")
        self.relations = lake.table("bronze", "relations")
        self.prepared = lake.table("bronze", "prepared")
        self.copies = Copies(lake)
        self.bases = Bases(lake)
        self.index = FileIndex()  # of `changes`
        self._lsns = RelationLSNs(self.relations)
        self._relation_rows = NewRows(self.relations)
        self._sources: dict[int, SourceRelation] = {}
        self.new_files: NewFiles | None = None
        self._unread: dict[str, DataFileError] = {}  # files that a survey could not read
        self.visible = "true"  # SQL: which changes count as a table's input

    def in_session(self, spark: SparkSession | SparkProvider) -> Bronze:
        """Return the same tables in another session."""
        found = Bronze(self.lake.in_session(spark), self.pipeline)
        found._lsns, found.index = self._lsns, self.index
        return found

    def read_new_files(self, start: BronzeOffset | None, end: BronzeOffset) -> None:
        """Read the changes between two offsets from their files if possible; try all files again."""
        self._unread = {}
        self.new_files = new_files_between(self.changes, self.txn, start, end) if start else None

    def ensure(self) -> None:
        """Create the tables unless they exist."""
        self.relations.ensure(spark_ddl(RELATIONS), short_log())
        self.prepared.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY | short_log())
        self.changes.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY | _CHECKPOINTS | short_log())

    def ensure_protection(self) -> None:
        """Let `relations` of an earlier version record all that it is to record of protected columns."""
        self.require_protection()
        add_columns(self.relations, spark_ddl(RELATIONS))

    def require_protection(self) -> None:
        """Raise LakeError if `relations` exists and records nothing of protected columns."""
        if self.relations.exists() and "protected" not in self.relations.schema().names:
            raise LakeError(
                f"The lake {self.lake.root} was made by an earlier version, which protects no columns. Start "
                "over with a new storage.root, or remove `columns` from the configuration."
            )

    def captured_offset(self) -> BronzeOffset | None:
        """Return the LSN up to which bronze is complete, None if it does not exist or records no offset.

        Delta forgets offsets if delta.setTransactionRetentionDuration is set; the commits still have them.
        Raises ConfigError if another pipeline writes to bronze: each would apply the other's rows.
        """
        version, lsn = self.changes.version_and_offset(self.txn)
        if lsn is None and version >= 0:
            if to_lsn := self.metadata().get("to_lsn"):
                lsn = LSN.parse(to_lsn)
            elif (owner := self._owner()) not in (None, self.pipeline):
                raise ConfigError(
                    f"The lake {self.lake.root} belongs to the pipeline {owner}. Give {self.pipeline} a "
                    "storage.root of its own, or set `pipeline` to its former name."
                )
        return None if lsn is None else BronzeOffset(version, lsn)

    def require_tables(self) -> None:
        """Raise LakeError if one of the tables is gone that others show to have been there."""
        has_relations = self.relations.version() > 0  # read first: another process may be making them
        has_changes = self.changes.exists()
        needed = [self.changes if has_relations and not has_changes else self.relations]
        if any(txn.kind is TxnKind.CHUNKS for txn in TxnId.all_of(self.changes.offsets())):
            needed.append(self.copies.table)
        lost = [table for table in needed if not table.exists()]
        if lost and (has_relations or has_changes):
            raise LakeError(
                f"Bronze has lost {lost[0].path}. Restore the lake from a backup, or start over with a new"
                " storage.root."
            )

    def require_offset(self) -> BronzeOffset:
        """Return the LSN up to which bronze is complete; raise LakeError if it records none."""
        captured = self.captured_offset()
        if captured is None:
            self.require_tables()
            raise LakeError(f"The lake {self.lake.root} has no changes yet. Run pgdelta ingest first.")
        return captured

    def metadata(self) -> dict[str, Any]:
        """Return what the newest commit of the stream recorded, empty if there is none."""
        return self._newest_with(f'"{self.txn}"')

    def captured_at(self) -> datetime | None:
        """Return when this host's clock had the newest commit of the stream, None if the log has none."""
        word = f'"{self.txn}"'
        for information in self.changes.newest_commits():
            if word in (information.get("userMetadata") or ""):
                return from_microseconds(information["timestamp"] * 1000)
        return None

    def oldest_pending(self, offsets: Mapping[TableName, LSN], end_lsn: LSN) -> dict[TableName, datetime]:
        """Return when the oldest change of each table after its own LSN was committed at the source."""
        if not offsets:
            return {}
        sql = "SELECT schema_name, table_name, min(unix_micros(commit_time)) FROM {changes}"
        sql += f" WHERE {surveys.is_after(MAX_LSN, offsets)} GROUP BY schema_name, table_name"
        columns = ("schema_name", "table_name", "op", "end_lsn", "commit_time")
        rows = self.select(sql, columns, min(offsets.values()), end_lsn, offsets=offsets)
        return {
            TableName(schema, table): from_microseconds(micros)
            for schema, table, micros in rows
            if micros is not None
        }

    def _owner(self) -> str | None:
        """Return the pipeline that wrote to bronze last, None if none did."""
        found = TxnId.parse(str(self._newest_with('"app_id"').get("app_id")))
        return found.pipeline if found else None

    def _newest_with(self, word: str) -> dict[str, Any]:
        """Return the metadata of the newest commit whose metadata has a word in it, empty if none has."""
        for information in self.changes.newest_commits():
            text = information.get("userMetadata") or ""
            if word in text:
                return json_object(text)
        return {}

    def copy_txn(self, name: TableName) -> TxnId:
        """Return the transaction id that counts the chunks of all copies of a table."""
        return self.txn.of(TxnKind.CHUNKS, table=name)

    def chunk_count(self, name: TableName) -> int:
        """Return how many chunks bronze holds, of all copies of a table."""
        return int(self.changes.offset(self.copy_txn(name)) or 0)

    def counts_apart(self, copy_id: int) -> bool:
        """Return whether an earlier version of pgdelta counted the chunks of this copy alone."""
        return self.changes.offset(self.txn.of(TxnKind.COPY_CHUNKS, copy_id)) is not None

    def relation_version_ids(self, end_lsn: LSN) -> set[int]:
        """Return the ids of the relation versions that are recorded up to an LSN.

        A copy records the version of its snapshot. The stream records it once more if it has it earlier, so
        that no change of a table lies before the first LSN of its versions.
        """
        rows = self.relations.rows(["relation_version", "lsn"]).to_pylist()
        return {row["relation_version"] for row in rows if row["lsn"] <= end_lsn}

    def table_names(self) -> set[TableName]:
        """Return the names of all tables that have a relation version."""
        return set(self._lsns.read())

    def start_of(self, name: TableName, start: InputStart) -> LSN:
        """Return the LSN (exclusive) from which a table's input is read, without a copy's rows.

        A table that was never written has no changes before the first LSN of its relation versions.
        """
        if start.offset > INVALID or start.copy is not None:
            return start.offset
        return self._lsns.before(name)

    def copied_rows(self, name: TableName, copy_id: int, lsns: Sequence[LSN]) -> int:
        """Return how many rows of a table's copy bronze has, given the LSNs of the copy's snapshots.

        The files that have nothing else are counted by their statistics; only others are read.
        """
        condition = f"copy_id = {copy_id} AND {surveys.is_table(name)}"
        begin, end = LSN(max(0, min(lsns) - 1)), max(lsns)
        path = self.changes.local_path
        if path is None:
            bounds = f"op = 'R' AND end_lsn > {int(begin)} AND end_lsn <= {int(end)}"
            return self.changes.frame().where(f"{bounds} AND {condition}").count()
        snapshot = self.changes.snapshot()
        scan = ChangesScan(path, snapshot, ("R",), begin, end, name, index=self.index.of(snapshot))
        count, others = scan.counted_rows(lsns)
        if others:
            query = f"SELECT count(*) FROM changes WHERE {condition}"
            columns = ("schema_name", "table_name", "op", "end_lsn", "copy_id")
            count += replace(scan, paths=tuple(others)).query(query, columns)[0][0]
        return count

    def source_relations(self) -> dict[int, SourceRelation]:
        """Return all relation versions by id, each with the first LSN at which it was recorded.

        A copy records the version of its snapshot, which the stream may reach later. Tables have the oids and
        attribute numbers that they had before their source moved.
        """
        moves = self.copies.read().moves
        rows, is_more = self._relation_rows.read()
        found = dict(self._sources) if is_more else {}
        for relation in map(source_relation, rows):
            known = found.get(relation.version)
            if known is None or relation.lsn < known.lsn:
                found[relation.version] = relation
        self._sources = found
        return {version: moves.translate(found[version]) for version in found} if moves.tables else found

    def survey(
        self, end: BronzeOffset, default_offset: LSN, offsets: Mapping[TableName, LSN]
    ) -> dict[TableName, list[TableSurvey]]:
        """Return what each table has between its offset and the end, one entry per relation version.

        `offsets` are those of the tables that are not at the default one. A file that cannot be read is left
        out: `why_unread` says whether a table may have changes in it.
        """
        lowest = min([default_offset, *offsets.values()])
        sql = surveys.survey_sql(surveys.is_after(default_offset, offsets))
        found = surveys.surveys_of(self._select_readable(sql, lowest, end.lsn))
        return self._lsns.add_rests(found, end.lsn, offsets, default_offset)

    def survey_tables(
        self, offsets: Mapping[TableName, LSN], end_lsn: LSN
    ) -> dict[TableName, list[TableSurvey]]:
        """Return what some tables have between their own offsets and an LSN, one entry per relation version.

        Reads only the files that may have changes of these tables, by their statistics, and leaves out as
        `survey` does.
        """
        offsets = {name: self.start_of(name, InputStart(lsn)) for name, lsn in offsets.items()}
        sql = surveys.survey_sql(surveys.is_after(MAX_LSN, offsets))
        lowest = min(offsets.values())
        rows = self._select_readable(sql, lowest, end_lsn, offsets)
        return self._lsns.add_rests(surveys.surveys_of(rows), end_lsn, offsets)

    def why_unread(self, name: TableName, start_lsn: LSN) -> str | None:
        """Return why a file that may have changes of a table after an LSN was left out of a survey, if so."""
        path = self.changes.local_path
        if not self._unread or path is None:
            return None
        for add in self.changes.snapshot().files.values():
            low, high = bounds_of(add)
            if high.get("end_lsn", MAX_LSN) > start_lsn and may_have_table(low, high, name):
                error = self._unread.get(data_path(path, add["path"]))
                if error is not None:
                    return str(advised(error))
        return None

    def _select_readable(
        self, sql: str, start_lsn: LSN, end_lsn: LSN, offsets: Mapping[TableName, LSN] | None = None
    ) -> list[Any]:
        """Return the rows of a query for surveys, from the files that can be read."""
        while True:
            try:
                return self.select(
                    sql, surveys.SURVEY_COLUMNS, start_lsn, end_lsn, offsets=offsets, skipped=self._unread
                )
            except DataFileError as error:
                if error.path in self._unread:
                    raise
                self._unread[error.path] = error
                self.new_files = self.new_files and self.new_files.without(error.path)

    def survey_table(self, name: TableName, start: InputStart, end_lsn: LSN) -> list[Survey]:
        """Return the surveys of one table's input up to an LSN; that of a copy's rows is first."""
        copy = start.copy
        condition = self._input_condition(name, start, end_lsn)
        begin = self.start_of(name, start) if copy is None else LSN(max(0, copy.lsn - 1))
        columns = (*surveys.SURVEY_COLUMNS, *_INPUT_COLUMNS)
        rows = self.select(surveys.survey_sql(condition), columns, begin, end_lsn, name=name)
        rests_begin = begin if copy is None else LSN(copy.end_lsn + 1)
        found = self._lsns.add_rests(surveys.surveys_of(rows), end_lsn, {name: rests_begin})
        return [*([survey_of(copy)] if copy else ()), *(table.survey for table in found.get(name, ()))]

    def truncates_of(self, name: TableName, start: InputStart, end_lsn: LSN) -> list[TruncatedAt]:
        """Return every TRUNCATE in one table's input up to an LSN, in order."""
        condition = self._input_condition(name, start, end_lsn)
        sql = "SELECT commit_lsn, ordinal, unix_micros(commit_time) FROM {changes} "
        sql += f"WHERE op = 'T' AND {condition} ORDER BY commit_lsn, ordinal"
        columns = (*surveys.SURVEY_COLUMNS, *_INPUT_COLUMNS)
        copy = start.copy
        begin = self.start_of(name, start) if copy is None else LSN(max(0, copy.lsn - 1))
        return [TruncatedAt(*row) for row in self.select(sql, columns, begin, end_lsn, ops=("T",), name=name)]

    def count_of(self, name: TableName, end_lsn: LSN) -> int:
        """Return how many changes of a table bronze holds up to an LSN."""
        sql = f"SELECT count(*) FROM {{changes}} WHERE {self._input_condition(name, InputStart(), end_lsn)}"
        columns = ("schema_name", "table_name", "op", "end_lsn", *_INPUT_COLUMNS)
        begin = self.start_of(name, InputStart())
        return sum(row[0] for row in self.select(sql, columns, begin, end_lsn, name=name))

    def exact_runs(
        self, name: TableName, start: InputStart, end_lsn: LSN, signatures: Mapping[int, int]
    ) -> list[tuple[tuple[int, ...], SequenceKey, SequenceKey]]:
        """Return (versions, first, last) of each run of a table's input with one signature, in order.

        `signatures` are those of the relation versions, whose changes interleave.
        """
        sql = surveys.runs_sql(self._input_condition(name, start, end_lsn), signatures)
        columns = (*surveys.RUN_COLUMNS, *_INPUT_COLUMNS)
        copy = start.copy
        if copy is None:
            begin = self.start_of(name, start)
            return surveys.runs_of(self.select(sql, columns, begin, end_lsn, name=name))
        begin, ops = LSN(max(0, copy.lsn - 1)), (*ROW_OPS, "R")
        rows = self.select(sql, columns, begin, MAX_LSN, ops=ops, name=name, commit_lsn=copy.commit_lsn())
        return surveys.runs_of(rows)

    def select(
        self,
        sql: str,
        columns: Iterable[str],
        start_lsn: LSN,
        end_lsn: LSN,
        *,
        ops: tuple[str, ...] = ROW_OPS,
        name: TableName | None = None,
        offsets: Mapping[TableName, LSN] | None = None,
        commit_lsn: str = "commit_lsn",
        version: int | None = None,
        skipped: Collection[str] = (),
    ) -> list[Any]:
        """Return the rows of a query about the changes that end in (start_lsn, end_lsn], by DuckDB or Spark.

        In the SQL, `{changes}` are these changes and `{key}` is their sequence key, of `commit_lsn`. Changes
        of other tables than `name` may be left out, and so may those that `offsets` excludes: of other tables
        than it has, and up to its LSN for each. The version of bronze is the newest by default. No file that
        is `skipped` is read. Returns nothing, not even the row of an aggregate, if there is no file to read.
        """
        path = self.changes.local_path
        if path is not None:
            snapshot = self.changes.snapshot(version)
            scan = ChangesScan(
                path,
                snapshot,
                ops,
                start_lsn,
                end_lsn,
                name,
                offsets=offsets,
                skipped=skipped,
                index=self.index.of(snapshot) if name is not None and version is None else None,
            )
            if self.new_files and self.new_files.covers(start_lsn, end_lsn):
                scan = replace(scan, paths=tuple(local_path(each) for each in self.new_files.paths))
            if scan.is_empty():
                return []
            text = sql.replace("{changes}", "changes").replace("{key}", surveys.duckdb_key(commit_lsn))
            return scan.query(text, tuple(dict.fromkeys(columns)))
        text = sql.replace("{key}", surveys.spark_key(commit_lsn))
        rows = self._rows(start_lsn, end_lsn, ops, version)
        return self.lake.spark.sql(text, changes=rows).collect()

    def select_copied(self, sql: str, columns: Iterable[str], lsns: Collection[LSN]) -> list[Any]:
        """Return the rows of a query about copied rows: at least some of each snapshot with these LSNs.

        All rows of a snapshot have the same commit LSN and time, so one file of each is read if it has no
        others.
        """
        path = self.changes.local_path
        if path is None:
            numbers = ", ".join(str(int(lsn)) for lsn in lsns)
            rows = self.changes.frame().where(f"op = 'R' AND commit_lsn IN ({numbers})")
            return self.lake.spark.sql(sql, changes=rows).collect()
        scan = ChangesScan(path, self.changes.snapshot(), ("R",))
        scan = replace(scan, paths=tuple(scan.files_of_snapshots(lsns)))
        if scan.is_empty():
            return []
        return scan.query(sql.replace("{changes}", "changes"), tuple(dict.fromkeys(columns)))

    def _input_condition(self, name: TableName, start: InputStart, end_lsn: LSN) -> str:
        """Return SQL that is true for one table's input, and for a copy's rows if there is one."""
        condition = f"{surveys.is_table(name)} AND {self.visible}"
        if start.copy is None:
            return condition
        return f"{condition} AND (op = 'R' OR end_lsn <= {int(end_lsn)}) AND {start.copy.condition()}"

    def table_changes(self, name: TableName, start: InputStart, end_lsn: LSN) -> DataFrame:
        """Return one table's changes up to an LSN, after an offset; or a copy's rows and what follows.

        A copy's rows may lie past that LSN: in order they precede the commits that their snapshot did not
        see.
        """
        copy, condition = start.copy, self._input_condition(name, start, end_lsn)
        if copy is None:
            return self._rows(self.start_of(name, start), end_lsn).where(condition)
        from pyspark.sql import functions as F

        return self.changes.frame().where(condition).withColumn("commit_lsn", F.expr(copy.commit_lsn()))

    def _rows(
        self,
        start_lsn: LSN,
        end_lsn: LSN,
        ops: tuple[str, ...] = ROW_OPS,
        version: int | None = None,
    ) -> DataFrame:
        # Bronze only grows, by complete transactions: rows up to its captured offset do not change.
        names = ", ".join(f"'{op}'" for op in ops)
        bounds = f"op IN ({names}) AND end_lsn > {int(start_lsn)} AND end_lsn <= {int(end_lsn)}"
        if self.new_files and self.new_files.covers(start_lsn, end_lsn):
            return self.new_files.frame(self.lake.spark).where(bounds)
        return self.changes.frame(version).where(bounds)


def count_copied_rows(changes: LakeTable, snapshot: Snapshot) -> Counter[int]:
    """Return how many copied rows a version of `changes` has, by the id of the copy."""
    if changes.local_path is None:
        rows = changes.frame().where("op = 'R'").groupBy("copy_id").count().collect()
        return Counter({row["copy_id"]: row["count"] for row in rows})
    import pyarrow.compute as pc

    found: Counter[int] = Counter()
    for rows in changes.scan(["op", "copy_id"], snapshot):
        # a filter by an expression would import the modules of datasets, which takes longer than the count
        copied = rows.filter(pc.equal(rows.column("op"), "R"))
        counts = pc.value_counts(copied.column("copy_id")).to_pylist()
        found.update({each["values"]: each["counts"] for each in counts})
    return found


CHANGE_OPS = "('I', 'U', 'D', 'R')"
LOGGED_OPS = "('I', 'U', 'D', 'R', 'T')"


def selected_ops(*, is_log: bool, is_later: bool) -> str:
    """Return SQL for the operations of a table's input; a log has of a later copy no changes again."""
    if not is_log:
        return CHANGE_OPS
    return "('R')" if is_later else LOGGED_OPS


def log_op(*, is_log: bool) -> str:
    """Return SQL for the operation of a change; copied rows are inserts unless changes are read as a log."""
    return "op" if is_log else "CASE op WHEN 'R' THEN 'I' ELSE op END"


def between(
    changes: DataFrame, start: SequenceKey, end: SequenceKey, *, is_log: bool = False, is_later: bool = False
) -> DataFrame:
    """Return the row changes in (start, end] without truncations; copied rows are inserts there.

    With `is_log` they are not, and truncations remain; of a copy that `is_later`, only its rows.
    """
    from pyspark.sql import functions as F

    rows = changes.where(
        f"op IN {selected_ops(is_log=is_log, is_later=is_later)} "
        f"AND (commit_lsn > {start[0]} OR (commit_lsn = {start[0]} AND ordinal > {start[1]})) "
        f"AND (commit_lsn < {end[0]} OR (commit_lsn = {end[0]} AND ordinal <= {end[1]}))"
    )
    return rows.withColumn("op", F.expr(log_op(is_log=is_log)))
