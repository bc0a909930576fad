"""Commit row changes to a silver table without Spark: rewrite only the files that have changed rows.

Files are Parquet, written by pyarrow with the table's types, and replaced by one commit, which records the
same as Spark's. A row keeps its place in its file, so that files stay sorted as they are; rows to insert fill
up the smallest rewritten file of their partition while it is small, so that rows which are often updated do
not share a file with ever more others. Else they make a new one, as does a row that moves to another
partition. Files are split where they would become large, and many small ones are compacted by a commit of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import ceil, inf
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline.delta.data_files import DataFile, DataFiles, PartitionedFiles
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.native_commit import Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.partitions import WHOLE_TABLE, Partition, divided, in_partition
from pipeline.delta.table import LakeTable
from pipeline.errors import report_error
from pipeline.silver.fold.row_changes import FileChanges, RowChanges, RowCommit
from pipeline.silver.write.data_layout import ADDED_FILE_IN_MEMORY, FILE_SIZE, file_size, small_size
from pipeline.silver.write.table_version import TableVersion

_MAX_SMALL_FILES = 50  # then they are compacted; as Delta's auto compaction
_MAX_SMALL_FILES_OF_PARTITION = 10


_RowsByPartition: TypeAlias = dict[Partition, list[pa.Table]]


@dataclass(slots=True)
class _PlannedFiles:
    """The files that a commit removes and adds."""

    removed: list[Mapping[str, Any]] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)


class FileCommitter:
    """Commits row changes of one version of a table; knows no mode."""

    def __init__(self, version: TableVersion) -> None:
        self._version = version
        self._folder = version.table.folder
        self._file_size = file_size(version.size)

    @contextmanager
    def committing(self, changes: RowChanges, commit: RowCommit) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds more rows; one commit has them and the changes after the block."""
        version = self._version
        files = PartitionedFiles(
            self._folder,
            version.partition_by,
            version.file_columns,
            lambda added: max(self._file_size, file_size(added)),
            ADDED_FILE_IN_MEMORY,
        )
        try:
            yield lambda rows: files.write(version.as_stored(rows))
            planned = _PlannedFiles([*version.files] if changes.replaces_all else [], files.close())
        except BaseException:
            files.discard()
            raise
        with removing_uncommitted(self._folder, version.snapshot.version, planned.added):
            self._rewrite(changes, planned)
            metrics = _merge_metrics if commit.operation == "MERGE" else _write_metrics
            operation = Operation(
                commit.operation,
                commit.parameters,
                {name: str(value) for name, value in metrics(changes, commit, planned).items()},
                commit.commit.user_metadata,
                is_blind_append=commit.is_append,
            )
            actions = [*map(remove_action, planned.removed), *(file.action() for file in planned.added)]
            offsets = {str(commit.commit.txn): int(commit.commit.lsn)}
            reads = Reads(whole_table=not commit.is_append)
            version.table.commit(version.snapshot, actions, offsets, operation, reads)

    def _rewrite(self, changes: RowChanges, planned: _PlannedFiles) -> None:
        """Write the new files of those with changed rows, the rows to insert, and those that move."""
        version = self._version
        inserts = (version.as_stored(rows) for rows in changes.inserts())
        waiting: _RowsByPartition = {}
        if version.partition_by:
            for rows in inserts:
                self._add_divided(rows, waiting)
        filled = self._filled({number: int(version.files[number]["size"]) for number in changes.files})
        for number, each in changes.files.items():
            partition = version.partition_of(number)
            with self._writing(planned, partition, self._max_rows(number, each)) as write:
                for rows in self._rows_after(changes, number, waiting):
                    write(rows)
                if filled.get(partition) == number:
                    for rows in chain(waiting.pop(partition, []), inserts):
                        write(rows)
            planned.removed.append(version.files[number])
        others: dict[Partition, Iterable[pa.Table]] = {WHOLE_TABLE: inserts, **waiting}
        for partition, tables in others.items():
            with self._writing(planned, partition) as write:
                for rows in tables:
                    write(rows)

    def _rows_after(self, changes: RowChanges, number: int, moved: _RowsByPartition) -> Iterator[pa.Table]:
        """Yield a file's rows after the changes, some at a time; `moved` gets those of other partitions."""
        import pyarrow.compute as pc

        version, first = self._version, 0
        for before in version.batches(number):
            part = changes.files[number].within(first, first + before.num_rows)
            first += before.num_rows
            rows = version.as_stored(changes.applied(part, before))
            if version.partition_by and len(part.replaced):
                stays = in_partition(rows, version.partition_of(number))
                self._add_divided(rows.filter(pc.invert(stays)), moved)
                rows = rows.filter(stays)
            yield rows

    def _add_divided(self, rows: pa.Table, found: _RowsByPartition) -> None:
        for partition, part in divided(rows, self._version.partition_by):
            found.setdefault(partition, []).append(part)

    def _filled(self, sizes: Mapping[int, int]) -> dict[Partition, int]:
        """Return the number of the file of each partition to which rows are added, of the rewritten ones."""
        found: dict[Partition, int] = {}
        limit = small_size(self._version.size)
        for number in sorted(sizes, key=lambda number: sizes[number]):
            if sizes[number] < limit:
                found.setdefault(self._version.partition_of(number), number)
        return found

    def _max_rows(self, number: int, changes: FileChanges) -> float:
        """Return how many rows each of the files has that replace one: equal parts of what is too large."""
        file = self._version.files[number]
        parts = round(int(file["size"]) / self._file_size)
        count = json.loads(file.get("stats") or "{}").get("numRecords")
        if parts < 2 or count is None:
            return inf
        return max(1, ceil((int(count) - len(changes.removed)) / parts))

    @contextmanager
    def _writing(
        self, planned: _PlannedFiles, partition: Partition, max_rows: float = inf
    ) -> Iterator[Callable[[pa.Table], None]]:
        """Give a function that adds rows of a partition to new files, which the commit adds after the block.

        Without rows there is none; a file has `max_rows` at most.
        """
        schema = self._version.file_columns
        # Parquet files are a few times smaller than rows in memory.
        files = DataFiles(self._folder, schema, lambda added: inf, 4 * FILE_SIZE, partition, max_rows)
        try:
            yield lambda rows: files.write(rows.select(schema.names))
            planned.added += files.close()
        except BaseException:
            files.discard()
            raise


def _write_metrics(changes: RowChanges, commit: RowCommit, planned: _PlannedFiles) -> dict[str, int]:
    return {
        "numFiles": len(planned.added),
        "numOutputRows": sum(file.row_count for file in planned.added),
        "numOutputBytes": sum(file.size for file in planned.added),
    }


def _merge_metrics(changes: RowChanges, commit: RowCommit, planned: _PlannedFiles) -> dict[str, int]:
    updated = sum(len(each.replaced) for each in changes.files.values())
    deleted = sum(len(each.removed) for each in changes.files.values())
    inserted = len(changes.inserted)
    output = sum(file.row_count for file in planned.added)
    return {
        "numSourceRows": commit.source_rows,
        "numTargetRowsCopied": output - updated - inserted,
        "numTargetRowsInserted": inserted,
        "numTargetRowsUpdated": updated,
        "numTargetRowsMatchedUpdated": updated,
        "numTargetRowsDeleted": deleted,
        "numTargetRowsMatchedDeleted": deleted,
        "numTargetRowsNotMatchedBySourceUpdated": 0,
        "numTargetRowsNotMatchedBySourceDeleted": 0,
        "numOutputRows": output,
        "numTargetFilesAdded": len(planned.added),
        "numTargetFilesRemoved": len(planned.removed),
        "numTargetBytesAdded": sum(file.size for file in planned.added),
        "numTargetBytesRemoved": sum(int(file["size"]) for file in planned.removed),
    }


def compact_small_files(table: LakeTable) -> None:
    """Compact the small files of a table if there are many, in commits that change no row."""
    snapshot = table.snapshot()
    table_bytes = sum(int(add["size"]) for add in snapshot.files.values())
    few = _MAX_SMALL_FILES_OF_PARTITION if snapshot.partition_columns else _MAX_SMALL_FILES
    limits = MergeLimits(few, small_size(table_bytes), file_size(table_bytes))
    try:
        merge_groups(table, snapshot, plan_table(snapshot, limits), plain_layout(snapshot))
    except Exception as error:  # the rows are committed: the next write tries again
        report_error(error)
