"""Merge files of a table on a file system of this machine, or sort them, in commits that change no row.

Each group of files is one commit: what was merged before a stop or a failure stays merged. No file is removed
from disk, so readers of older versions go on; VACUUM removes what was merged later. Memory holds a row group
where rows keep their order, else the rows of a part of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.delta.data_files import (
    ROW_GROUP,
    DataFile,
    DataFileWriter,
    RowWriter,
    TooLargeError,
    data_file_batches,
    read_data_file,
    write_whole,
)
from pipeline.delta.merge_plan import MergeLimits, SizedFile, plan_in_any_order
from pipeline.delta.native_commit import Operation, remove_action, removing_uncommitted
from pipeline.delta.partitions import Partition, file_columns, partition_of, physical_partition_columns
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.errors import LakeError

Add = Mapping[str, Any]
_PARAMETERS = {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": "false"}


class OtherTypeError(LakeError):
    """A file with a type that only Spark reads as that of its table's column."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How the files of a table are written: their columns, their writer, and the order of rows in them.

    Rows keep the order of their files, unless they need `arrange` and are not `in_order` already. Merged
    files become one, or as many as they are if the layout `keeps_count`. `tags_of` gives the tags of the new
    files from the `add` actions of those that they replace. Files of one group belong to one partition;
    `schema` has no column of `partition_by`. Rows out of order are sorted `max_bytes` at a time, which memory
    holds twice.
    """

    schema: pa.Schema
    open_writer: Callable[[Path, Partition], RowWriter]
    arrange: Callable[[pa.Table], pa.Table] | None = None
    in_order: Callable[[pa.Table], bool] = lambda rows: False
    keeps_count: bool = False
    tags_of: Callable[[Sequence[Add]], Mapping[str, str]] | None = None
    partition_by: tuple[str, ...] = ()
    max_bytes: int = 256 << 20

    def join(self, folder: Path, replaced: Sequence[Add], rows: Iterator[pa.Table]) -> list[DataFile] | None:
        """Write rows as they come to one file, none without rows; return None if they are out of order."""
        writer: RowWriter | None = None
        last, is_whole = self.schema.empty_table(), False
        try:
            for part in _gathered(rows):
                if self.arrange is not None and not self.in_order(pa.concat_tables([last, part])):
                    return None
                writer = writer or self.open_writer(folder, partition_of(self.partition_by, replaced[0]))
                writer.write(part)
                last = part.slice(part.num_rows - 1)
            files = [writer.close()] if writer is not None else []
            is_whole = True
            return files
        finally:
            if writer is not None and not is_whole:
                writer.discard()

    def write(self, folder: Path, replaced: Sequence[Add], rows: pa.Table) -> Iterator[DataFile]:
        """Write the rows of the files that are replaced, and yield each new file; none without rows."""
        assert self.arrange is not None
        count = len(replaced) if self.keeps_count else 1
        size = -(-rows.num_rows // count)
        tags = self.tags_of(replaced) if self.tags_of is not None else None
        partition = partition_of(self.partition_by, replaced[0])
        arranged = self.arrange(rows)
        for start in range(0, rows.num_rows, max(1, size)):
            file = write_whole(self.open_writer(folder, partition), arranged.slice(start, size))
            yield replace(file, tags=tags)


@dataclass(slots=True)
class MergeCount:
    """How many files were merged, into how many."""

    removed: int = 0
    added: int = 0


@dataclass(slots=True)
class _Part:
    """Neighbours whose rows are in memory."""

    adds: list[Add] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    size: int = 0


def plain_layout(snapshot: Snapshot) -> FileLayout:
    """Return how the files of a table without an order of rows are written."""
    columns = file_columns(snapshot)
    return FileLayout(
        columns,
        lambda folder, partition: DataFileWriter(folder, columns, partition),
        partition_by=physical_partition_columns(snapshot),
    )


def by_partition(snapshot: Snapshot) -> list[dict[str, Add]]:
    """Return the files of each partition by their keys in the snapshot."""
    columns, found = physical_partition_columns(snapshot), dict[Partition, dict[str, Add]]()
    for key, add in snapshot.files.items():
        found.setdefault(partition_of(columns, add), {})[key] = add
    return [*found.values()]


def plan_table(snapshot: Snapshot, limits: MergeLimits) -> list[list[Add]]:
    """Return the groups of files to merge of a table whose rows are in no order, oldest files first."""
    groups: list[list[Add]] = []
    for files in by_partition(snapshot):
        adds = sorted(files.items(), key=lambda item: (item[1].get("modificationTime") or 0, item[0]))
        sized = (SizedFile(key, int(add["size"]), not add.get("deletionVector")) for key, add in adds)
        groups += [[files[key] for key in group] for group in plan_in_any_order(sized, limits)]
    return groups


def merge_groups(
    table: LakeTable,
    snapshot: Snapshot,
    groups: Sequence[Sequence[Add]],
    layout: FileLayout,
    *,
    user_metadata: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    committing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> MergeCount:
    """Write the files of each group again, as the layout says; sorted ones apart if memory cannot hold them.

    After `should_stop` returns true no other group is begun. Each commit is made within `committing`, which
    may refuse it by an exception. Raises ConflictError if another commit removed one of the files meanwhile,
    LakeError if a file is missing or has other columns than the table.
    """
    count = MergeCount()
    for group in groups:
        if should_stop():
            break
        _merge(table, snapshot, group, layout, user_metadata, count, committing)
    return count


def _merge(
    table: LakeTable,
    snapshot: Snapshot,
    group: Sequence[Add],
    layout: FileLayout,
    user_metadata: str | None,
    count: MergeCount,
    committing: Callable[[], AbstractContextManager[None]],
) -> None:
    added: list[DataFile] = []
    removed: list[Add] = []
    with removing_uncommitted(table.folder, snapshot.version, added):
        rows = chain.from_iterable(_batches(table, add, layout.schema) for add in group)
        joined = None if layout.keeps_count else layout.join(table.folder, group, rows)
        if joined is not None:
            added += joined
            removed += group
        else:
            for part in _parts(table, group, layout):
                if len(part.adds) < 2:
                    continue
                for file in layout.write(table.folder, part.adds, pa.concat_tables(part.rows)):
                    added.append(file)
                removed += part.adds
                part.rows.clear()  # before the next ones are read
        if not removed:
            return
        metrics = {
            "numAddedFiles": len(added),
            "numRemovedFiles": len(removed),
            "numAddedBytes": sum(file.size for file in added),
            "numRemovedBytes": sum(int(add["size"]) for add in removed),
        }
        texts = {name: str(value) for name, value in metrics.items()}
        actions = [remove_action(add, data_change=False) for add in removed]
        actions += [file.action(data_change=False) for file in added]
        operation = Operation("OPTIMIZE", _PARAMETERS, texts, user_metadata)
        with committing():
            table.commit(snapshot, actions, {}, operation)
    count.removed += len(removed)
    count.added += len(added)


def _path(table: LakeTable, add: Add) -> str:
    assert table.local_path is not None
    return data_file(table.local_path, add["path"])


@contextmanager
def _named_if_missing(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise LakeError(
            f"The file {path}, which the table's log names, is missing: no other program may remove files of "
            "the lake. Restore the file."
        ) from None


def _batches(table: LakeTable, add: Add, schema: pa.Schema) -> Iterator[pa.Table]:
    path = _path(table, add)
    with _named_if_missing(path):
        for rows in data_file_batches(path, schema.names):
            yield conform(rows, schema, path)


def _gathered(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of some batches in tables for a row group each; none is empty."""
    waiting: list[pa.Table] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _parts(table: LakeTable, group: Sequence[Add], layout: FileLayout) -> Iterator[_Part]:
    """Yield the files of a group in parts whose rows fit into memory; a file that does not fit is left."""
    part, schema, max_bytes = _Part(), layout.schema, layout.max_bytes
    for add in group:
        path = _path(table, add)
        try:
            with _named_if_missing(path):
                rows = conform(read_data_file(path, schema.names, max_bytes), schema, path)
        except TooLargeError:
            yield part
            part = _Part()
            continue
        if part.adds and part.size + rows.nbytes > max_bytes:
            yield part
            part = _Part()
        part.adds.append(add)
        part.rows.append(rows)
        part.size += rows.nbytes
    yield part


def conform(rows: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    """Return rows of a file with the columns of its table; those that the file does not have are NULL.

    Raises LakeError if a column of the file has a type whose values the table's type does not hold.
    """
    names = set(rows.column_names)
    columns = []
    for each in schema:
        if each.name not in names:
            columns.append(pa.nulls(rows.num_rows, each.type))
            continue
        column = rows.column(each.name)
        if column.type != each.type:
            if pa.types.is_timestamp(column.type) != pa.types.is_timestamp(each.type) or (
                pa.types.is_timestamp(each.type) and (column.type.tz is None) != (each.type.tz is None)
            ):
                raise OtherTypeError(
                    f"The file {path} has {column.type} in a column where its table has {each.type}. Run "
                    "pgdelta optimize, which merges the table by Spark."
                )
            column = column.cast(each.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
