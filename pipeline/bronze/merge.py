"""Merge the small files of `bronze/changes`, in the order of their rows.

Rows of the stream and rows of table copies stay in files of their own: neighbours in the order of LSNs are
merged for the stream, files of one table for copies. Each merged file is sorted by the sequence key and has
statistics as ingest writes them, so readers still leave out files of other LSNs and of other tables. Ingest
may append meanwhile; only another merge, or OPTIMIZE, conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.changes_scan import bounds_of, has_only_copied_rows, missing_file, only_table
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.delta.data_files import ROW_GROUP, DataFile
from pipeline.delta.merge import FileLayout
from pipeline.delta.merge_plan import MergeLimits, SizedFile, plan_in_any_order, plan_in_order
from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.table_name import TableName

_MAX_BYTES = 96 << 20  # of rows that are sorted at once: ingest merges at the end of a run
_STREAM = ""  # what a file of the stream holds; others hold a table copy's rows, or both
_Add = Mapping[str, Any]


def plan_changes(path: str, snapshot: Snapshot, limits: MergeLimits) -> list[list[_Add]]:
    """Return the groups of files to merge of a version of `changes` in a local folder.

    Files are read, one column of each, only if enough of them are small, and if their statistics do not
    prove that they have copied rows.
    """
    adds = {key: _Bounded(add) for key, add in snapshot.files.items()}
    ordered = sorted(adds, key=lambda key: (*adds[key].bounds, key))
    small = [key for key in ordered if adds[key].is_small(limits)]
    if len(small) < max(2, limits.few_files):
        return []
    kinds = {key: _kind(data_file(path, adds[key].add["path"]), adds[key]) for key in small}
    stream = [key for key in ordered if kinds.get(key, _STREAM) == _STREAM]
    # a file that is not small may hold rows of either kind: no file of the stream is merged across it
    groups = plan_in_order((adds[key].sized(key, key in kinds) for key in stream), limits)
    copied: dict[TableName, list[str]] = {}
    for key in small:
        if isinstance(kind := kinds[key], TableName):
            copied.setdefault(kind, []).append(key)
    for keys in copied.values():
        groups += plan_in_any_order((adds[key].sized(key, True) for key in keys), limits)
    return [[snapshot.files[key] for key in group] for group in groups]


def changes_layout() -> FileLayout:
    """Return how files of `changes` are written: as ingest does, sorted by the sequence key."""
    return FileLayout(
        CHANGES, lambda folder, _: _ChangesWriter(folder), sort_changes, in_order, max_bytes=_MAX_BYTES
    )


def sort_changes(rows: pa.Table) -> pa.Table:
    """Return rows of `changes` in the order of (commit_lsn, ordinal); equal keys stay in their order."""
    return rows if in_order(rows) else rows.take(pa.array(np.lexsort(_sequence(rows)[::-1])))


def in_order(rows: pa.Table) -> bool:
    """Return whether rows of `changes` are in the order of (commit_lsn, ordinal)."""
    lsns, ordinals = map(np.diff, _sequence(rows))
    return bool(((lsns > 0) | ((lsns == 0) & (ordinals >= 0))).all())


def _sequence(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    lsns, ordinals = (
        pc.fill_null(rows.column(name), -1).to_numpy().astype(np.int64) for name in ("commit_lsn", "ordinal")
    )
    return lsns, ordinals


class _Bounded:
    """A file with the least and the greatest of its commit LSNs, as its statistics have them."""

    def __init__(self, add: _Add) -> None:
        self.add = add
        self.least, self.greatest = bounds_of(add)

    @property
    def bounds(self) -> tuple[int, int]:
        return int(self.least.get("commit_lsn", -1)), int(self.greatest.get("commit_lsn", -1))

    def is_small(self, limits: MergeLimits) -> bool:
        is_known = "commit_lsn" in self.least and "commit_lsn" in self.greatest
        return is_known and not self.add.get("deletionVector") and int(self.add["size"]) < limits.small_file

    def sized(self, key: str, movable: bool) -> SizedFile:
        return SizedFile(key, int(self.add["size"]), movable)


def _kind(path: str, file: _Bounded) -> TableName | str | None:
    """Return `_STREAM` or the table of copied rows; None for a file that is not merged."""
    table = only_table(file.least, file.greatest)
    if table is not None and has_only_copied_rows(file.least, file.greatest):
        return table
    try:
        with open_data_file(path) as parquet, named_if_damaged(path):
            ops = pc.unique(parquet.read(["op"]).column("op")).to_pylist()
    except FileNotFoundError:
        raise missing_file(path) from None
    if "R" not in ops:
        return _STREAM
    return table if ops == ["R"] else None


class _ChangesWriter:
    """A new file of `changes`, in row groups of a limited size."""

    def __init__(self, folder: Path) -> None:
        self._writer = StagedFileWriter(folder)

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        size = max(1, rows.num_rows * ROW_GROUP // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, size):
            self._writer.write(rows.slice(start, size))

    def close(self) -> DataFile:
        """Finish the file."""
        return self._writer.close().data

    def discard(self) -> None:
        """Remove the file."""
        self._writer.discard()
