"""Commit writes to a silver table without Spark: rewrite only the files that have matched rows.

Files are Parquet, written by pyarrow with the table's types, and replaced by one commit, which records the
same as Spark's. A row keeps its place in its file, so that files stay sorted as they are; rows to insert fill
up the smallest rewritten file of their partition, or make a new one, as does a row that moves to another
partition. Files are split where they would become large, and many small ones are compacted by a commit of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.delta.data_files import (
    DataFile,
    PartitionedFiles,
    write_data_file,
)
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.native_commit import Action, Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.partitions import (
    WHOLE_TABLE,
    Partition,
    divided,
    in_partition,
)
from pipeline.delta.table import LakeTable
from pipeline.errors import report_error
from pipeline.silver.data_layout import FILE_SIZE, file_size, small_size
from pipeline.silver.fold import Fold
from pipeline.silver.fold_sql import FoldSql
from pipeline.silver.modes import MARKINGS, truncate_marks
from pipeline.silver.native_files import NotNative, with_columns
from pipeline.silver.native_reads import NativeReads, as_numpy
from pipeline.silver.write import (
    FOLDED,
    Write,
    WriteKind,
    current_rows,
    key_range_condition,
    same_keys,
)

ADDED_FILE_IN_MEMORY = 256 << 20  # bytes of values of a file: a merge has them in memory
_MOST_SMALL_FILES = 50  # then they are compacted; as Delta's auto compaction
_MOST_SMALL_FILES_OF_PARTITION = 10


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What happens to the rows of one file: `updated` and `rows` are parallel, of rows of `folded`."""

    deleted: np.ndarray[Any, Any]
    updated: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of the source with the table's columns and types; what follows is parallel to them.

    `states` are, by column, the rows that keep silver's value.
    """

    values: pa.Table
    is_deleted: np.ndarray[Any, Any]
    states: Mapping[str, np.ndarray[Any, Any]]


@dataclass(slots=True)
class PlannedChanges:
    """The files that a commit adds and removes."""

    removed: list[Mapping[str, Any]] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)

    @property
    def actions(self) -> list[Action]:
        return [*map(remove_action, self.removed), *(file.action() for file in self.added)]


class NativeTarget(NativeReads):
    """One version of a silver table on this machine, as the target of one write."""

    def commit_rows(self, write: Write, fold: Fold) -> None:
        with self.adding_rows(write) as add:
            add(self.session.table(FoldSql(fold, self.session.engine).final_rows(FOLDED, write.metadata)))

    def _size_of_added(self, added: int) -> int:
        """Return how large the next file becomes if a write has added so many bytes."""
        return max(self._file_size, file_size(added))

    @contextmanager
    def adding_rows(self, write: Write) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds rows, or some that replace others; commit them after the block."""
        replaces = write.kind is WriteKind.OVERWRITE
        gone = self._in_key_ranges(write) if write.kind is WriteKind.REPLACE_KEYS else {}
        files = PartitionedFiles(
            self._table.folder,
            self._partition_by,
            self._file_columns,
            self._size_of_added,
            ADDED_FILE_IN_MEMORY,
        )
        try:
            yield lambda rows: files.write(self._as_stored(self._complete(rows)))
            changes = PlannedChanges(list(self._files) if replaces else [], files.close())
        except BaseException:
            files.discard()
            raise
        with self._removing(changes):
            none = self._arrow.empty_table()
            self._rewrite(gone, none, {}, none, changes)
            metrics = {
                "numFiles": len(changes.added),
                "numOutputRows": sum(file.row_count for file in changes.added),
                "numOutputBytes": sum(file.size for file in changes.added),
            }
            columns = json.dumps(self._snapshot.partition_columns)
            is_append = write.kind is WriteKind.APPEND
            parameters = {"mode": "Append" if is_append else "Overwrite", "partitionBy": columns}
            operation = Operation("WRITE", parameters, _texts(metrics), is_blind_append=is_append)
            self._commit(write, changes, operation, Reads(whole_table=not is_append))

    def _in_key_ranges(self, write: Write) -> dict[int, Rewrite]:
        """Return the rows with keys in the ranges of a step, as deleted ones."""
        session, step = self.session, write.step
        condition = key_range_condition(write.fold, step.key_types, step.key_ranges, session.engine)
        self.define_keys(write.fold, step.key_ranges)
        file, row = (f"t.{session.engine.quoted(name)}" for name in (self._file, self._row))
        matches = session.table(
            f"SELECT {file} AS file, {row} AS place, CAST(-1 AS BIGINT) AS source, true AS is_deleted "
            f"FROM silver AS t WHERE {condition} ORDER BY 1, 2"
        )
        return _rewrites(matches)

    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        self.define_silver(fold)
        session = self.session
        on = same_keys(fold, session.engine)
        file, row = (f"t.{session.engine.quoted(name)}" for name in (self._file, self._row))
        if fold.mode == "history":
            on = f"s.op = 'D' AND {current_rows(fold, session.engine)} AND {on}"
        source, is_deleted = FOLDED, "s.op = 'D'"
        if fold.mode in MARKINGS:
            is_deleted = "false"
        join, number, condition = "JOIN", "s.rowid", "true"
        if fold.truncates:
            # The last row of the source marks the rows that have no other.
            source = self._with_truncate(fold)
            truncate = session.row(f"SELECT rowid AS number FROM {source} WHERE is_truncate").number
            join, number = "LEFT JOIN", f"coalesce(s.rowid, {truncate})"
            condition = f"s.rowid IS NOT NULL OR {current_rows(fold, session.engine)}"
        matches = session.table(
            f"SELECT {file} AS file, {row} AS place, {number} AS source, {is_deleted} AS is_deleted "
            f"FROM silver AS t {join} {source} AS s ON {on} WHERE {condition} ORDER BY 1, 2"
        )
        if matches.num_rows and _has_duplicates(matches):
            raise NotNative("several changed keys are one in silver")
        self._merge(write, fold, matches, source)

    def _with_truncate(self, fold: Fold) -> str:
        """Compute the folded rows with one more, op D, that has what the first TRUNCATE sets."""
        marks = truncate_marks(fold.mode, fold.truncates[0], self.session.engine)
        columns = ", ".join(f"{sql} AS {name}" for name, sql in marks.items())
        self.session.compute(
            "truncated",
            f"SELECT *, false AS is_truncate FROM {FOLDED} "
            f"UNION ALL BY NAME SELECT 'D' AS op, {columns}, true AS is_truncate",
        )
        return "truncated"

    def commit_multiset(self, write: Write, fold: Fold) -> None:
        session = self.session
        sql = FoldSql(write.fold, session.engine)
        places = [
            f"t.{session.engine.quoted(name)} AS {alias}"
            for name, alias in ((self._file, "file"), (self._row, "place"))
        ]
        ranked = sql.ranked_rows("counted", "silver", write.metadata, places)
        matches = session.table(
            "SELECT file, place, CAST(-1 AS BIGINT) AS source, true AS is_deleted "
            f"FROM ({ranked}) AS r WHERE rank > new_count ORDER BY 1, 2"
        )
        session.compute("inserted_rows", f"SELECT * FROM {FOLDED}")
        self._merge(write, fold, matches, "inserted_rows")

    def _merge(self, write: Write, fold: Fold, matches: pa.Table, source: str = FOLDED) -> None:
        """Commit updates and deletes at the places of `matches`, and insert the rows without a match."""
        found = self._source_rows(write, fold, source)
        values, is_deleted = found.values, found.is_deleted
        rewrites = _rewrites(matches)
        matched = np.zeros(len(is_deleted), bool)
        for each in rewrites.values():
            matched[each.rows] = True
        inserts = np.flatnonzero(~matched & ~is_deleted)
        changes = PlannedChanges()

        with self._removing(changes):
            self._rewrite(rewrites, values, found.states, values.take(pa.array(inserts)), changes)
            updated = sum(len(each.rows) for each in rewrites.values())
            deleted = sum(len(each.deleted) for each in rewrites.values())
            output = sum(file.row_count for file in changes.added)
            metrics = {
                "numSourceRows": len(is_deleted),
                "numTargetRowsCopied": output - updated - len(inserts),
                "numTargetRowsInserted": len(inserts),
                "numTargetRowsUpdated": updated,
                "numTargetRowsMatchedUpdated": updated,
                "numTargetRowsDeleted": deleted,
                "numTargetRowsMatchedDeleted": deleted,
                "numTargetRowsNotMatchedBySourceUpdated": 0,
                "numTargetRowsNotMatchedBySourceDeleted": 0,
                "numOutputRows": output,
                "numTargetFilesAdded": len(changes.added),
                "numTargetFilesRemoved": len(changes.removed),
                "numTargetBytesAdded": sum(file.size for file in changes.added),
                "numTargetBytesRemoved": sum(int(file["size"]) for file in changes.removed),
            }
            operation = Operation("MERGE", _merge_parameters(write, fold), _texts(metrics))
            self._commit(write, changes, operation, Reads(whole_table=True))

    def _source_rows(self, write: Write, fold: Fold, source: str) -> SourceRows:
        """Read the rows of the source, in one query."""
        kept = {fold.columns[i].name: f"s{i} IS NULL" for i in fold.partial}
        if fold.mode in MARKINGS:
            marks = [name for name, column in write.metadata.pairs() if column in MARKINGS[fold.mode].columns]
            others = [name for name in write.columns if name not in marks]
            kept = {name: f"op = 'D' OR {kept.get(name, 'false')}" for name in others}
        quoted = self.session.engine.quoted
        columns = [f"c{i} AS {quoted(column.name)}" for i, column in enumerate(fold.columns)]
        columns += [f"{name} AS {quoted(silver)}" for silver, name in write.metadata.pairs()]
        flags = ", ".join(("op = 'D'", *kept.values()))
        columns.append(f"list_value({flags}) AS {quoted(self._flags)}")
        rows = self.session.table(f"SELECT {', '.join(columns)} FROM {source} ORDER BY rowid")
        found = as_numpy(pc.list_flatten(rows.column(len(columns) - 1))).astype(bool)
        is_deleted, *states = found.reshape(-1, 1 + len(kept)).T
        return SourceRows(self._complete(rows), is_deleted, dict(zip(kept, states, strict=True)))

    def _complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, in its order and with its types."""
        return with_columns(rows, self._arrow)

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table under the names that data files have for them."""
        return pa.Table.from_arrays(rows.columns, schema=self._stored)

    def _rewrite(
        self,
        rewrites: Mapping[int, Rewrite],
        values: pa.Table,
        states: Mapping[str, np.ndarray[Any, Any]],
        inserts: pa.Table,
        changes: PlannedChanges,
    ) -> None:
        """Write the new files of the rewritten ones, the rows to insert, and those that move."""
        divides = divided(self._as_stored(inserts), self._partition_by)
        waiting = {partition: [rows] for partition, rows in divides}
        sizes = {number: int(self._files[number]["size"]) for number in rewrites}
        filled = self._filled(sizes)
        for number, rewrite in rewrites.items():
            partition = self._partition_of(number)
            rows = self._as_stored(_rewritten(self._read(number, self._arrow), rewrite, values, states))
            if self._partition_by and len(rewrite.updated):
                stays = in_partition(rows, partition)
                for target, moved in divided(rows.filter(pc.invert(stays)), self._partition_by):
                    waiting.setdefault(target, []).append(moved)
                rows = rows.filter(stays)
            if filled.get(partition) == number:
                rows = pa.concat_tables([rows, *waiting.pop(partition, [])])
            changes.removed.append(self._files[number])
            self._write(rows, changes, partition, sizes[number])
        for partition, tables in waiting.items():
            self._write(pa.concat_tables(tables), changes, partition)

    def _filled(self, sizes: Mapping[int, int]) -> dict[Partition, int]:
        """Return the number of the file of each partition to which rows are added, of the rewritten ones."""
        found: dict[Partition, int] = {}
        for number in sorted(sizes, key=lambda number: sizes[number]):
            if sizes[number] <= self._file_size:
                found.setdefault(self._partition_of(number), number)
        return found

    def _write(
        self, rows: pa.Table, changes: PlannedChanges, partition: Partition = WHOLE_TABLE, size: int = 0
    ) -> None:
        """Write rows into one file, or several if `size`, its bytes, is too large; none without rows."""
        rows = rows.select(self._file_columns.names)
        for part in _split(rows, round(size / self._file_size)):
            changes.added.append(write_data_file(self._table.folder, part, partition))

    def _commit(self, write: Write, changes: PlannedChanges, operation: Operation, reads: Reads) -> None:
        operation = replace(operation, user_metadata=write.commit.user_metadata)
        versions = {str(write.commit.txn): int(write.commit.lsn)}
        self._table.commit(self._snapshot, changes.actions, versions, operation, reads)

    def _removing(self, changes: PlannedChanges) -> AbstractContextManager[None]:
        """Remove the files that a block writes if its commit fails."""
        return removing_uncommitted(self._table.folder, self._snapshot.version, changes.added)


def _rewrites(matches: pa.Table) -> dict[int, Rewrite]:
    """Return what happens in each file, given matches in the order of files."""
    if not matches.num_rows:
        return {}
    files, places, source, deleted = (as_numpy(matches.column(n)) for n in range(4))
    deleted = deleted.astype(bool)
    bounds = np.flatnonzero(np.diff(files)) + 1
    found = {}
    for part in np.split(np.arange(len(files)), bounds):
        gone = deleted[part]
        # A deleted row of the source is matched too, so that it is not inserted; it has no row to write.
        found[int(files[part[0]])] = Rewrite(places[part[gone]], places[part[~gone]], source[part[~gone]])
    return found


def _rewritten(
    rows: pa.Table, rewrite: Rewrite, values: pa.Table, states: Mapping[str, np.ndarray[Any, Any]]
) -> pa.Table:
    """Return the rows of a file after updates and deletes; rows stay in their order."""
    count = rows.num_rows
    order = np.arange(count)
    if len(rewrite.updated):
        updates = values.take(pa.array(rewrite.rows))
        before = pa.array(rewrite.updated)
        columns = []
        for name in updates.column_names:
            column = updates.column(name)
            if name in states and (keeps := states[name][rewrite.rows]).any():
                column = where(keeps, rows.column(name).take(before), column)
            columns.append(column)
        updates = pa.Table.from_arrays(columns, schema=rows.schema)
        rows = pa.concat_tables([rows, updates])
        order[rewrite.updated] = count + np.arange(len(rewrite.updated))
    if len(rewrite.deleted):
        order = np.delete(order, rewrite.deleted)
    return rows.take(pa.array(order))


def where(mask: np.ndarray[Any, Any], yes: Any, no: Any) -> Any:
    """Return the values of one column where a mask is true, and of another one elsewhere."""
    both = pa.chunked_array([*yes.chunks, *no.chunks], type=no.type)
    count = len(mask)
    return both.take(pa.array(np.where(mask, np.arange(count), count + np.arange(count))))


def _split(rows: pa.Table, parts: int = 1) -> list[pa.Table]:
    """Return rows in parts of equal length, at least this number."""
    if not rows.num_rows:
        return []
    # Parquet files are a few times smaller than rows in memory.
    parts = max(1, parts, -(-rows.nbytes // (4 * FILE_SIZE)))
    size = -(-rows.num_rows // parts)
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


def _has_duplicates(matches: pa.Table) -> bool:
    files, places = as_numpy(matches.column(0)), as_numpy(matches.column(1))
    return bool(((np.diff(files) == 0) & (np.diff(places) == 0)).any())


def _texts(metrics: Mapping[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in metrics.items()}


def _merge_parameters(write: Write, fold: Fold) -> dict[str, str]:
    """Return the parameters of a MERGE in Delta's history."""
    matched = [{"predicate": "(s.op = 'D')", "actionType": "delete"}, {"actionType": "update"}]
    if write.kind is WriteKind.MERGE_ROWS:
        matched = [{"actionType": "delete"}]
    on = same_keys(fold) if fold.key else "s.image"
    return {
        "predicate": json.dumps([f"({on})"]),
        "matchedPredicates": json.dumps(matched),
        "notMatchedPredicates": json.dumps([{"predicate": "(s.op <> 'D')", "actionType": "insert"}]),
        "notMatchedBySourcePredicates": "[]",
    }


def compact_small_files(table: LakeTable) -> None:
    """Compact the small files of a table if there are many, in commits that change no row."""
    snapshot = table.snapshot()
    table_bytes = sum(int(add["size"]) for add in snapshot.files.values())
    few = _MOST_SMALL_FILES_OF_PARTITION if snapshot.partition_columns else _MOST_SMALL_FILES
    limits = MergeLimits(few, small_size(table_bytes), file_size(table_bytes))
    try:
        merge_groups(table, snapshot, plan_table(snapshot, limits), plain_layout(snapshot))
    except Exception as error:  # the rows are committed: the next write tries again
        report_error(error)
