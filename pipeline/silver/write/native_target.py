"""Resolve what folded rows do to the rows of one version of a silver table, without Spark.

Folded rows are joined to silver's rows in a session of DuckDB; what comes of it are row changes, which a
committer writes, or an overlay shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.modes import MARKINGS, truncate_marks
from pipeline.silver.fold.row_changes import Committer, FileChanges, RowChanges, RowCommit
from pipeline.silver.fold.write import (
    FOLDED,
    Write,
    WriteKind,
    current_rows,
    key_range_condition,
    same_keys,
)
from pipeline.silver.write.native_files import NotNative
from pipeline.silver.write.native_reads import NativeReads, as_numpy
from pipeline.silver.write.table_version import TableVersion


class NativeTarget(NativeReads):
    """One version of a silver table on this machine, as the target of one write."""

    def __init__(
        self, session: DuckSql, version: TableVersion, committer: Committer, max_bytes: int | None = None
    ) -> None:
        super().__init__(session, version, max_bytes)
        self._committer = committer

    def commit_rows(self, write: Write, fold: Fold) -> None:
        with self.adding_rows(write) as add:
            add(self.session.table(FoldSql(fold, self.session.engine).final_rows(FOLDED, write.metadata)))

    @contextmanager
    def adding_rows(self, write: Write) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds rows, or some that replace others; commit them after the block."""
        version = self._version
        changes = RowChanges(
            version.columns.empty_table(),
            self._in_key_ranges(write) if write.kind is WriteKind.REPLACE_KEYS else {},
            replaces_all=write.kind is WriteKind.OVERWRITE,
        )
        is_append = write.kind is WriteKind.APPEND
        parameters = {
            "mode": "Append" if is_append else "Overwrite",
            "partitionBy": json.dumps(version.snapshot.partition_columns),
        }
        commit = RowCommit(write.commit, "WRITE", parameters, is_append=is_append)
        with self._committer.committing(changes, commit) as add:
            yield lambda rows: add(version.complete(rows))

    def _in_key_ranges(self, write: Write) -> dict[int, FileChanges]:
        """Return the rows with keys in the ranges of a step, as removed ones."""
        session, step = self.session, write.step
        condition = key_range_condition(write.fold, step.key_types, step.key_ranges, session.engine)
        self.define_keys(write.fold, step.key_ranges)
        matches = session.table(
            f"SELECT {self._places}, CAST(-1 AS BIGINT) AS source, true AS is_deleted "
            f"FROM silver AS t WHERE {condition} ORDER BY 1, 2"
        )
        return _changes_by_file(matches)

    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        self.define_silver(fold)
        session = self.session
        on = same_keys(fold, session.engine)
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
            f"SELECT {self._places}, {number} AS source, {is_deleted} AS is_deleted "
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
        ranked = sql.ranked_rows("counted", "silver", write.metadata, [self._places])
        matches = session.table(
            "SELECT file, place, CAST(-1 AS BIGINT) AS source, true AS is_deleted "
            f"FROM ({ranked}) AS r WHERE rank > new_count ORDER BY 1, 2"
        )
        session.compute("inserted_rows", f"SELECT * FROM {FOLDED}")
        self._merge(write, fold, matches, "inserted_rows")

    @property
    def _places(self) -> str:
        """SQL for the place of a row `t` of silver, as `file` and `place`."""
        file, row = (f"t.{self.session.engine.quoted(name)}" for name in (self._file, self._row))
        return f"{file} AS file, {row} AS place"

    def _merge(self, write: Write, fold: Fold, matches: pa.Table, source: str = FOLDED) -> None:
        """Commit updates and deletes at the places of `matches`, and insert the rows without a match."""
        rows, is_deleted, kept = self._source_rows(write, fold, source)
        files = _changes_by_file(matches)
        is_new = ~is_deleted
        for each in files.values():
            is_new[each.rows] = False
        changes = RowChanges(rows, files, kept, np.flatnonzero(is_new))
        parameters = _merge_parameters(write, fold)
        commit = RowCommit(write.commit, "MERGE", parameters, source_rows=len(is_deleted))
        with self._committer.committing(changes, commit):
            pass

    def _source_rows(
        self, write: Write, fold: Fold, source: str
    ) -> tuple[pa.Table, np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """Read the rows of the source, in one query.

        Returns them complete, which of them delete, and by column which of them keep silver's value.
        """
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
        is_deleted, *keeps = found.reshape(-1, 1 + len(kept)).T
        return self._version.complete(rows), is_deleted, dict(zip(kept, keeps, strict=True))


def _changes_by_file(matches: pa.Table) -> dict[int, FileChanges]:
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
        found[int(files[part[0]])] = FileChanges(places[part[gone]], places[part[~gone]], source[part[~gone]])
    return found


def _has_duplicates(matches: pa.Table) -> bool:
    files, places = as_numpy(matches.column(0)), as_numpy(matches.column(1))
    return bool(((np.diff(files) == 0) & (np.diff(places) == 0)).any())


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
