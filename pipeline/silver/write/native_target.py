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

from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.merge import GONE, Merge, Truncated, merge_by_image, merge_by_key
from pipeline.silver.fold.row_changes import Committer, FileChanges, RowChanges, RowCommit
from pipeline.silver.fold.write import FOLDED, Write, WriteKind, key_range_condition
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
            f"SELECT {self._places}, CAST(-1 AS BIGINT) AS source, true AS is_removed "
            f"FROM silver AS t WHERE {condition} ORDER BY 1, 2"
        )
        return _changes_by_file(matches)

    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        self.define_silver(fold)
        session = self.session
        merge = merge_by_key(fold, write.metadata, session.engine)
        source, join, number, condition = FOLDED, "JOIN", "s.rowid", "true"
        if merge.truncated:
            source = self._with_truncated(merge, merge.truncated)
            last = session.row(f"SELECT rowid AS number FROM {source} WHERE is_truncated").number
            join, number = "LEFT JOIN", f"coalesce(s.rowid, {last})"
            condition = f"s.rowid IS NOT NULL OR {merge.truncated.condition}"
        is_removed = GONE if merge.marks is None else "false"
        matches = session.table(
            f"SELECT {self._places}, {number} AS source, {is_removed} AS is_removed "
            f"FROM silver AS t {join} {source} AS s ON {merge.on} WHERE {condition} ORDER BY 1, 2"
        )
        if matches.num_rows and _has_duplicates(matches):
            raise NotNative("several changed keys are one in silver")
        self._commit(write, merge, matches, source)

    def _with_truncated(self, merge: Merge, truncated: Truncated) -> str:
        """Compute the folded rows with a last one, which is gone and has what rows without another get."""
        columns = ", ".join(f"{sql} AS {merge.values[name]}" for name, sql in truncated.values.items())
        self.session.compute(
            "truncated",
            f"SELECT *, false AS is_truncated FROM {FOLDED} "
            f"UNION ALL BY NAME SELECT 'D' AS op, {columns}, true AS is_truncated",
        )
        return "truncated"

    def commit_multiset(self, write: Write, fold: Fold) -> None:
        session = self.session
        sql = FoldSql(write.fold, session.engine)
        ranked = sql.ranked_rows("counted", "silver", write.metadata, [self._places])
        matches = session.table(
            "SELECT file, place, CAST(-1 AS BIGINT) AS source, true AS is_removed "
            f"FROM ({ranked}) AS r WHERE rank > new_count ORDER BY 1, 2"
        )
        session.compute("inserted_rows", f"SELECT * FROM {FOLDED}")
        merge = merge_by_image("t.image", fold.columns, write.metadata)
        self._commit(write, merge, matches, "inserted_rows")

    @property
    def _places(self) -> str:
        """SQL for the place of a row `t` of silver, as `file` and `place`."""
        file, row = (f"t.{self.session.engine.quoted(name)}" for name in (self._file, self._row))
        return f"{file} AS file, {row} AS place"

    def _commit(self, write: Write, merge: Merge, matches: pa.Table, source: str) -> None:
        """Commit a merge whose matches are at these places; rows of the source without one are inserted."""
        rows, is_gone, kept = self._source_rows(merge, source)
        files = _changes_by_file(matches)
        is_new = ~is_gone
        for each in files.values():
            is_new[each.rows] = False
        changes = RowChanges(rows, files, kept, np.flatnonzero(is_new))
        if self.session.has_many:
            self.session.clear()  # what is folded is in `changes`
        commit = RowCommit(write.commit, "MERGE", _merge_parameters(merge), source_rows=len(is_gone))
        with self._committer.committing(changes, commit):
            pass

    def _source_rows(
        self, merge: Merge, source: str
    ) -> tuple[pa.Table, np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """Read the rows of the source, in one query.

        Returns them complete, which of them are gone, and by column which of them keep silver's value.
        """
        import pyarrow.compute as pc

        kept = dict(merge.kept)
        if merge.marks is not None:
            others = [name for name in merge.values if name not in merge.marks]
            kept = {name: f"{GONE} OR {kept.get(name, 'false')}" for name in others}
        quoted = self.session.engine.quoted
        columns = [f"s.{column} AS {quoted(name)}" for name, column in merge.values.items()]
        flags = ", ".join((GONE, *kept.values()))
        columns.append(f"list_value({flags}) AS {quoted(self._flags)}")
        rows = self.session.table(f"SELECT {', '.join(columns)} FROM {source} AS s")  # in the order of rowid
        found = as_numpy(pc.list_flatten(rows.column(len(columns) - 1))).astype(bool)
        is_gone, *keeps = found.reshape(-1, 1 + len(kept)).T
        return self._version.complete(rows), is_gone, dict(zip(kept, keeps, strict=True))


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


def _merge_parameters(merge: Merge) -> dict[str, str]:
    """Return the parameters of a MERGE in Delta's history."""
    gone = {"actionType": "delete" if merge.marks is None else "update"}
    matched = [{"predicate": f"({GONE})", **gone}, {"actionType": "update"}] if merge.has_updates else [gone]
    others = merge.truncated
    unmatched = [{"predicate": f"({others.condition})", "actionType": "update"}] if others else []
    return {
        "predicate": json.dumps([f"({merge.on})"]),
        "matchedPredicates": json.dumps(matched),
        "notMatchedPredicates": json.dumps([{"predicate": "(s.op <> 'D')", "actionType": "insert"}]),
        "notMatchedBySourcePredicates": json.dumps(unmatched),
    }
