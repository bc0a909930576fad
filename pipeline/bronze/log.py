"""Read the tables of bronze for apply and status: offsets, surveys, and the changes between two offsets.

After every commit, Delta computes the files of the newest version with a job over the log. If the commits
since an offset only added files, only these files are read. Writes nothing; ingest commits through `writer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pipeline.bronze.copies import Copies
from pipeline.bronze.relations import SourceRelation, source_relation
from pipeline.bronze.schema import CHANGES, RELATIONS, STATISTICS_PROPERTY, spark_ddl
from pipeline.bronze.table_input import InputStart, SequenceKey, Survey, survey_of
from pipeline.delta.log import json_object
from pipeline.delta.sql import from_microseconds, literal
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TxnId, TxnKind
from pipeline.errors import ConfigError, LakeError
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_FILES = 32  # more are listed by a job of their own
MOST_COMMITS = 100


@dataclass(frozen=True, slots=True)
class BronzeOffset:
    """A state of bronze: in this version `changes` is complete up to an LSN."""

    version: int
    lsn: LSN


@dataclass(frozen=True, slots=True)
class NewFiles:
    """All files that hold rows whose end LSN lies in (start_lsn, end_lsn]."""

    start_lsn: LSN
    end_lsn: LSN
    paths: tuple[str, ...]

    def covers(self, start_lsn: LSN, end_lsn: LSN) -> bool:
        """Return whether these files hold all rows of (start_lsn, end_lsn]."""
        return bool(self.paths) and self.start_lsn <= start_lsn and end_lsn <= self.end_lsn

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the files' rows."""
        # The name of a lake may hold what Spark would expand as a glob, which may match other lakes.
        reader = spark.read.option("__globPaths__", "false")
        return reader.schema(spark_ddl(CHANGES)).parquet(*self.paths)


def new_files_between(
    changes: LakeTable, txn: TxnId, start: BronzeOffset, end: BronzeOffset
) -> NewFiles | None:
    """Return the files between two offsets, None if the commits did more than add a few files.

    The commit at `start` must be the one that records its LSN: rows of earlier commits are of transactions
    that ended before that LSN.
    """
    if not 0 < end.version - start.version <= MOST_COMMITS:
        return None
    paths: list[str] = []
    is_recorded = False
    try:
        for version, actions in changes.actions_after(start.version - 1):
            if version > end.version:
                break
            for action in actions:
                if version == start.version:
                    txn_action = action.get("txn")
                    if txn_action is not None and txn_action["appId"] == str(txn):
                        is_recorded = LSN(txn_action["version"]) == start.lsn
                elif "remove" in action:
                    return None
                elif (added := action.get("add")) is not None:
                    if not added["dataChange"]:
                        return None
                    paths.append(f"{changes.path}/{unquote(added['path'])}")
    except LakeError:  # the log is incomplete: reading the table raises a better error
        return None
    if not is_recorded or len(paths) > MOST_FILES:
        return None
    return NewFiles(start.lsn, end.lsn, tuple(paths))


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """One relation version of one table in the input, with counts for people."""

    survey: Survey
    counts: Mapping[str, int]
    commit_time: datetime  # the latest


class Bronze:
    """`{root}/bronze`: changes, relations, prepared transactions and copies."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self.lake = lake
        self.pipeline = pipeline
        self.txn = TxnId(pipeline)
        self.changes = lake.table("bronze", "changes")
        self.relations = lake.table("bronze", "relations")
        self.prepared = lake.table("bronze", "prepared")
        self.copies = Copies(lake)
        self._names: set[TableName] = set()
        self._names_version = -1
        self._copied: Counter[int] = Counter()
        self._copied_version = -1
        self.new_files: NewFiles | None = None

    def in_session(self, spark: SparkSession) -> Bronze:
        """Return the same tables in another session."""
        return Bronze(self.lake.in_session(spark), self.pipeline)

    def read_new_files(self, start: BronzeOffset | None, end: BronzeOffset) -> None:
        """Read the changes between two offsets from their files if possible."""
        self.new_files = new_files_between(self.changes, self.txn, start, end) if start else None

    def ensure(self) -> None:
        """Create the tables unless they exist."""
        self.relations.ensure(spark_ddl(RELATIONS))
        self.prepared.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY)
        self.changes.ensure(spark_ddl(CHANGES), STATISTICS_PROPERTY)

    def captured_offset(self) -> BronzeOffset | None:
        """Return the LSN up to which bronze is complete, None if it records no offset.

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

    def metadata(self) -> dict[str, Any]:
        """Return what the newest commit of the stream recorded, empty if there is none."""
        return self._newest_with(f'"{self.txn}"')

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

    def copy_txn(self, copy_id: int) -> TxnId:
        """Return the transaction id that counts the chunks of a copy."""
        return self.txn.of(TxnKind.CHUNKS, copy_id)

    def relation_version_ids(self) -> set[int]:
        """Return the ids of all recorded relation versions."""
        return set(self.relations.rows(["relation_version"])["relation_version"].to_pylist())

    def table_names(self) -> set[TableName]:
        """Return the names of all tables that have a relation version."""
        snapshot = self.relations.snapshot()
        if snapshot.version != self._names_version:
            rows = self.relations.rows(["schema_name", "table_name"], snapshot=snapshot).to_pylist()
            self._names = {TableName(row["schema_name"], row["table_name"]) for row in rows}
            self._names_version = snapshot.version
        return self._names

    def copied_rows(self, copy_id: int) -> int:
        """Return how many rows of a copy bronze has."""
        snapshot = self.changes.snapshot()
        if snapshot.version != self._copied_version:
            self._copied = count_copied_rows(self.changes, snapshot)
            self._copied_version = snapshot.version
        return self._copied[copy_id]

    def source_relations(self) -> dict[int, SourceRelation]:
        """Return all relation versions by id, each with the first LSN at which it was recorded.

        A copy records the version of its snapshot, which the stream may reach later.
        """
        rows = self.relations.rows().to_pylist()
        rows.sort(key=lambda row: row["lsn"], reverse=True)
        return {row["relation_version"]: source_relation(row) for row in rows}

    def survey(
        self, end: BronzeOffset, default_offset: LSN, offsets: Mapping[TableName, LSN]
    ) -> dict[TableName, list[TableSurvey]]:
        """Return what each table has between its offset and the end, one entry per relation version.

        `offsets` are those of the tables that are not at the default one.
        """
        special = " ".join(
            f"WHEN {_is_table(name)} THEN end_lsn > {int(offset)}" for name, offset in sorted(offsets.items())
        )
        is_after = f"CASE {special} ELSE end_lsn > {int(default_offset)} END" if special else "true"
        lowest = min([default_offset, *offsets.values()])
        return _surveys(self._rows(lowest, end.lsn).where(is_after))

    def survey_table(self, name: TableName, start: InputStart, end_lsn: LSN) -> list[Survey]:
        """Return the surveys of one table's input up to an LSN; that of a copy's rows is first."""
        found = _surveys(self.table_changes(name, start, end_lsn).where("op <> 'R'"))
        surveys = [table.survey for table in found.get(name, [])]
        return [survey_of(start.copy), *surveys] if start.copy else surveys

    def count_of(self, name: TableName, end_lsn: LSN) -> int:
        """Return how many changes of a table bronze holds up to an LSN."""
        return self.table_changes(name, InputStart(), end_lsn).count()

    def table_changes(self, name: TableName, start: InputStart, end_lsn: LSN) -> DataFrame:
        """Return one table's changes up to an LSN, after an offset; or a copy's rows and what follows.

        A copy's rows may lie past that LSN: in order they precede the commits that their snapshot did not
        see.
        """
        copy = start.copy
        if copy is None:
            return self._rows(start.offset, end_lsn).where(_is_table(name))
        from pyspark.sql import functions as F

        rows = self.changes.frame().where(f"(op = 'R' OR end_lsn <= {int(end_lsn)}) AND {copy.condition()}")
        return rows.where(_is_table(name)).withColumn("commit_lsn", F.expr(copy.commit_lsn()))

    def _rows(self, start_lsn: LSN, end_lsn: LSN) -> DataFrame:
        # Bronze only grows, by complete transactions: rows up to its captured offset do not change.
        bounds = f"op NOT IN ('M', 'R') AND end_lsn > {int(start_lsn)} AND end_lsn <= {int(end_lsn)}"
        if self.new_files and self.new_files.covers(start_lsn, end_lsn):
            return self.new_files.frame(self.lake.spark).where(bounds)
        return self.changes.frame().where(bounds)


def count_copied_rows(changes: LakeTable, snapshot: Snapshot) -> Counter[int]:
    """Return how many copied rows a version of `changes` has, by the id of the copy."""
    if changes.local_path is None:
        rows = changes.frame().where("op = 'R'").groupBy("copy_id").count().collect()
        return Counter({row["copy_id"]: row["count"] for row in rows})
    import pyarrow.compute as pc

    found: Counter[int] = Counter()
    for rows in changes.scan(["op", "copy_id"], snapshot):
        counts = pc.value_counts(rows.filter(pc.field("op") == "R").column("copy_id")).to_pylist()
        found.update({each["values"]: each["counts"] for each in counts})
    return found


def between(changes: DataFrame, start: SequenceKey, end: SequenceKey) -> DataFrame:
    """Return the row changes in (start, end] without truncations; copied rows are inserts there."""
    from pyspark.sql import functions as F

    rows = changes.where(
        "op IN ('I', 'U', 'D', 'R') "
        f"AND (commit_lsn > {start[0]} OR (commit_lsn = {start[0]} AND ordinal > {start[1]})) "
        f"AND (commit_lsn < {end[0]} OR (commit_lsn = {end[0]} AND ordinal <= {end[1]}))"
    )
    return rows.withColumn("op", F.expr("CASE op WHEN 'R' THEN 'I' ELSE op END"))


def _is_table(name: TableName) -> str:
    return f"(schema_name = {literal(name[0])} AND table_name = {literal(name[1])})"


def _surveys(frame: DataFrame) -> dict[TableName, list[TableSurvey]]:
    from pyspark.sql import functions as F

    grouped = frame.groupBy("schema_name", "table_name", "relation_version").agg(
        F.expr("min(struct(commit_lsn, ordinal))").alias("first"),
        F.expr("max(struct(commit_lsn, ordinal))").alias("last"),
        F.expr("max(struct(commit_lsn, ordinal)) FILTER (WHERE op = 'T')").alias("last_truncate"),
        *(F.count_if(F.col("op") == op).alias(op) for op in "IUDT"),
        # a partition with REPLICA IDENTITY FULL sends the key in the complete old row
        F.expr("count_if(op = 'U' AND old_kind IS NOT NULL)").alias("key_tuples"),
        F.expr("count_if(op = 'U' AND NOT old_kind <=> 'O')").alias("without_old_row"),
        F.expr("array_distinct(flatten(collect_set(unsent)))").alias("unsent"),
        F.expr("max(unix_micros(commit_time))").alias("commit_micros"),
    )
    tables: dict[TableName, list[TableSurvey]] = {}
    for row in grouped.collect():
        survey = Survey(
            version=row.relation_version,
            first=tuple(row["first"]),
            last=tuple(row["last"]),
            last_truncate=tuple(row.last_truncate) if row.last_truncate else None,
            inserts=row.I,
            updates=row.U,
            deletes=row.D,
            key_tuples=row.key_tuples,
            without_old_row=row.without_old_row,
            unchanged_toast=frozenset(row.unsent),
        )
        counts = {op: row[op] for op in "IUDT"}
        found = TableSurvey(survey, counts, from_microseconds(row.commit_micros))
        tables.setdefault(TableName(row.schema_name, row.table_name), []).append(found)
    return tables


def exact_runs(
    changes: DataFrame, signatures: Mapping[int, int]
) -> Iterable[tuple[tuple[int, ...], SequenceKey, SequenceKey]]:
    """Return (versions, first, last) of each run of changes with one signature, if versions interleave."""
    from pyspark.sql import functions as F

    number = "CASE relation_version " + " ".join(f"WHEN {v} THEN {n}" for v, n in signatures.items()) + " END"
    rows = (
        changes.selectExpr(
            "struct(commit_lsn, ordinal) AS sequence_key", "relation_version", f"{number} AS signature"
        )
        .selectExpr("*", "coalesce(signature <> lag(signature) OVER (ORDER BY sequence_key), true) AS begins")
        .selectExpr("*", "sum(CAST(begins AS INT)) OVER (ORDER BY sequence_key) AS run")
        .groupBy("run")
        .agg(
            F.sort_array(F.collect_set("relation_version")).alias("versions"),
            F.min("sequence_key").alias("first"),
            F.max("sequence_key").alias("last"),
        )
        .orderBy("run")
        .collect()
    )
    return [(tuple(row.versions), tuple(row["first"]), tuple(row["last"])) for row in rows]
