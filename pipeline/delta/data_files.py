"""Data files of a Delta table on a file system of this machine: Parquet that is read and written in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa

from pipeline.delta.log import now_milliseconds
from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.partitions import WHOLE_TABLE, Partition, divided
from pipeline.delta.schema import TableSchema, arrow_type
from pipeline.delta.statistics import Statistics
from pipeline.errors import naming

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ROW_GROUP = 16 << 20
"""Bytes of a row group in memory: a reader needs no more than one at a time."""
_BATCH_ROWS = 16_384  # that are read at a time, if row groups have as many
_LEAST_ROWS = 256
_MAX_ROWS = 1 << 20  # in a row group
_SAMPLED_ROWS = 500
_REPETITIVE = 0.8  # fewer of the values in the sample are distinct
_MAX_WAITING = 64 << 20  # bytes in memory of the rows of all partitions that are written together
_MAX_OPEN = 64  # files of as many partitions


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the table's folder that no version contains yet; `stats` are JSON for the log.

    `name` is its path in the folder.
    """

    name: str
    size: int  # bytes
    row_count: int
    stats: str
    tags: Mapping[str, str] | None = None
    partition: Partition = WHOLE_TABLE

    def action(self, *, data_change: bool = True) -> dict[str, Any]:
        """Return the `add` action."""
        add = {
            "path": quote(self.name, safe="/="),
            "partitionValues": dict(self.partition.values),
            "size": self.size,
            "modificationTime": now_milliseconds(),
            "dataChange": data_change,
            "stats": self.stats,
        }
        return {"add": add | ({"tags": dict(self.tags)} if self.tags else {})}


class TooLargeError(Exception):
    """The rows of a file need more memory than they may use."""


def read_data_file(
    path: str, columns: Sequence[str], max_bytes: int, groups: Sequence[int] | None = None
) -> pa.Table:
    """Return those of the columns that a Parquet file has; raise TooLargeError if they need more memory.

    A small file may have many equal values, of any length. With `groups` the rows are those of these row
    groups. Raises as `data_file_batches` does.
    """
    size, batches = 0, []
    for batch in data_file_batches(path, columns, groups):
        size += batch.nbytes
        if size > max_bytes:
            raise TooLargeError(f"{path} has more than {max_bytes} bytes of values")
        batches.append(batch)
    # Tables without columns lose their number of rows.
    return batches[0] if len(batches) == 1 else pa.concat_tables(batches)


def data_file_batches(
    path: str, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Yield those of the columns that a Parquet file has, some rows at a time, of some row groups or all.

    Yields one table if the file has none of the columns, or no rows. Raises FileNotFoundError, or
    DataFileError for a file that is damaged.
    """
    with open_data_file(path, coerce_int96_timestamp_unit="us") as file, named_if_damaged(path):
        whole = file.schema_arrow  # computed each time that it is asked for
        names = set(whole.names)
        schema = pa.schema([whole.field(name) for name in columns if name in names])
        numbers = range(file.num_row_groups) if groups is None else groups
        counts = [file.metadata.row_group(number).num_rows for number in numbers]
        count = sum(counts)
        if not count:
            yield schema.empty_table()
        elif not schema.names:
            yield pa.table({"": pa.nulls(count)}).select([])
        else:
            for batch in file.iter_batches(
                min(_BATCH_ROWS, max(_LEAST_ROWS, *counts)),
                row_groups=numbers,
                columns=schema.names,
                use_threads=count > _BATCH_ROWS,  # to wait for Arrow's takes longer than to read a few rows
            ):
                yield pa.Table.from_batches([batch])


def arrow_columns(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table as Arrow; none of them is required."""
    return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema.fields])


def write_data_file(folder: Path, rows: pa.Table, partition: Partition = WHOLE_TABLE) -> DataFile:
    """Write rows of one partition, with the columns of the table's files, to a new file in its folder."""
    return write_whole(DataFileWriter(folder, rows.schema, partition), rows)


class RowWriter(Protocol):
    """A new file in a table's folder."""

    def write(self, rows: pa.Table) -> None:
        """Append rows."""

    def close(self) -> DataFile:
        """Finish the file."""

    def discard(self) -> None:
        """Remove the file."""


def write_whole(writer: RowWriter, rows: pa.Table) -> DataFile:
    """Write rows to a new file, and finish it."""
    try:
        writer.write(rows)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


class DataFileWriter:
    """A new file in a table's folder, written in parts; memory holds one part."""

    def __init__(self, folder: Path, schema: pa.Schema, partition: Partition = WHOLE_TABLE) -> None:
        self._partition = partition
        self._name = f"{partition.folder}part-{uuid4()}.snappy.parquet"
        self._path = folder / self._name
        if partition.values:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._sink = pa.OSFile(str(self._path), "wb")
        self._statistics = Statistics(schema.names)
        self._parquet: pq.ParquetWriter | None = None  # opened with the first rows
        self.nbytes = 0  # of the rows in memory

    @property
    def size(self) -> int:
        """The bytes that are written."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        row_group = min(_MAX_ROWS, max(1, rows.num_rows * ROW_GROUP // max(1, rows.nbytes)))
        with naming(self._path):
            self._opened(rows).write_table(rows, row_group)
        self._statistics.add(rows)
        self.nbytes += rows.nbytes

    def close(self) -> DataFile:
        """Finish the file."""
        with naming(self._path):
            self._opened(self._schema.empty_table()).close()
        size = self.size
        self._sink.close()
        statistics = self._statistics
        return DataFile(self._name, size, statistics.row_count, statistics.json(), partition=self._partition)

    def discard(self) -> None:
        """Remove the file."""
        with suppress(Exception):  # the disk may be full
            if self._parquet is not None:
                self._parquet.close()
        with suppress(Exception):
            self._sink.close()
        self._path.unlink(missing_ok=True)

    def _opened(self, first_rows: pa.Table) -> pq.ParquetWriter:
        if self._parquet is None:
            import pyarrow.parquet as pq

            self._parquet = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="snappy",
                use_dictionary=_repetitive_columns(first_rows),
                write_page_checksum=True,
                store_schema=False,
                coerce_timestamps="us",
                store_decimal_as_integer=True,  # as Spark does
                write_statistics=_columns_with_statistics(self._schema),
            )
        return self._parquet


class DataFiles:
    """New files in a table's folder, for rows that are added in parts; a file that is large enough ends.

    `size_of_next` returns the bytes at which a file ends, given those of all files before it; a file has
    `max_rows` at most. Memory holds the rows of one row group.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        size_of_next: Callable[[int], float],
        max_bytes_in_memory: int,
        partition: Partition = WHOLE_TABLE,
        max_rows: float = inf,
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._partition = partition
        self._size_of_next = size_of_next
        self._size = 0  # of the files that are finished
        self._max_bytes_in_memory = max_bytes_in_memory
        self._max_rows = max_rows
        self._room = max_rows  # rows, in the file that is written
        self._writer: DataFileWriter | None = None
        self._files: list[DataFile] = []
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= min(ROW_GROUP, self._max_bytes_in_memory):
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait for a whole row group."""
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        part = max(1, rows.num_rows * ROW_GROUP // max(1, rows.nbytes))
        start = 0
        while start < rows.num_rows:
            if self._writer is None:
                self._writer = DataFileWriter(self._folder, self._schema, self._partition)
            count = int(min(part, self._room, rows.num_rows - start))
            self._writer.write(rows.slice(start, count))
            start += count
            self._room -= count
            is_large = self._writer.size >= self._size_of_next(self._size)
            if is_large or self._room < 1 or self._writer.nbytes >= self._max_bytes_in_memory:
                self._end_written()

    def close(self) -> list[DataFile]:
        """Finish the files."""
        self.end_file()
        return self._files

    def discard(self) -> None:
        """Remove the files."""
        if self._writer is not None:
            self._writer.discard()
        for file in self._files:
            (self._folder / file.name).unlink(missing_ok=True)

    def end_file(self) -> None:
        """Finish the file that is written, if there is one: the next row is written to another."""
        self.flush()
        self._end_written()

    def _end_written(self) -> None:
        if self._writer is not None:
            self._files.append(self._writer.close())
            self._size += self._files[-1].size
            self._writer, self._room = None, self._max_rows


class PartitionedFiles:
    """New files of a table, for rows of all partitions that are added in parts, with all columns.

    The rows of each partition are written as `DataFiles` writes them. Memory holds few rows of each.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[str],
        schema: pa.Schema,
        size_of_next: Callable[[int], int],
        max_bytes_in_memory: int,
    ) -> None:
        """Write files with a schema, which has no partition columns; `columns` are these."""
        self._folder = folder
        self._columns = columns
        self._schema = schema
        self._size_of_next = size_of_next
        self._max_bytes_in_memory = max_bytes_in_memory
        self._files: dict[Partition, DataFiles] = {}
        self._waiting: dict[Partition, list[pa.Table]] = {}
        self._waiting_bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Append rows."""
        if not self._columns:
            self._files_of(WHOLE_TABLE).write(rows)
            return
        for partition, part in divided(rows, self._columns):
            self._waiting.setdefault(partition, []).append(part.select(self._schema.names))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _MAX_WAITING:
            self._write_waiting()

    def close(self) -> list[DataFile]:
        """Finish the files."""
        self._write_waiting()
        return [file for files in self._files.values() for file in files.close()]

    def discard(self) -> None:
        """Remove the files."""
        for files in self._files.values():
            files.discard()

    def _write_waiting(self) -> None:
        many = len(self._files.keys() | self._waiting.keys()) > _MAX_OPEN
        while self._waiting:
            partition, parts = self._waiting.popitem()
            files = self._files_of(partition)
            files.write(pa.concat_tables(parts))
            files.flush()  # those of all partitions would need much memory
            if many:
                files.end_file()
        self._waiting_bytes = 0
        if many:
            for files in self._files.values():
                files.end_file()

    def _files_of(self, partition: Partition) -> DataFiles:
        if partition not in self._files:
            self._files[partition] = DataFiles(
                self._folder, self._schema, self._size_of_next, self._max_bytes_in_memory, partition
            )
        return self._files[partition]


def _repetitive_columns(rows: pa.Table) -> list[str]:
    """Return the paths of the columns with few values, by a sample of the rows.

    Of any other column, Arrow writes a dictionary with almost every value: that takes longer than without,
    and makes the file larger.
    """
    if rows.num_rows < _SAMPLED_ROWS:
        return []
    import pyarrow.compute as pc

    found = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        chunk = max(column.chunks, key=len)
        sample = chunk.take(pa.array(np.arange(0, len(chunk), max(1, len(chunk) // _SAMPLED_ROWS))))
        for path, values in _leaves(name, sample):
            count = len(values) - values.null_count
            if pc.count_distinct(values).as_py() < _REPETITIVE * count:
                found.append(path)
    return found


def _leaves(path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the Parquet columns of an Arrow array: their paths and their values."""
    if pa.types.is_list(values.type):
        yield from _leaves(f"{path}.list.element", values.flatten())
    elif pa.types.is_map(values.type):
        yield from _leaves(f"{path}.key_value.key", values.keys)
        yield from _leaves(f"{path}.key_value.value", values.items)
    elif pa.types.is_struct(values.type):
        for field, part in zip(values.type, values.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", part)
    else:
        yield path, values


def _columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns for which each row group has statistics.

    In those of FLOAT and DOUBLE, Arrow leaves out NaN, which is the greatest value for Spark and DuckDB.
    """
    fields = (field for field in schema if not pa.types.is_nested(field.type))
    return [field.name for field in fields if not pa.types.is_floating(field.type)]
