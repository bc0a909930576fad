"""Read data files of a silver table on this machine as rows with the table's columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pipeline.delta.data_files import data_file_batches, read_data_file
from pipeline.delta.partitions import Partition, partition_value
from pipeline.errors import DataFileError, LakeError

MAX_BYTES_IN_MEMORY = 512 << 20  # of the values of a file, or of all that are compared


class NotNative(Exception):
    """The native writer does not write this; nothing is committed yet, and Spark can."""


def read_file(path: str, schema: pa.Schema, partition: Partition) -> pa.Table:
    """Return columns of a Parquet file and of its partition; those that neither has are NULL."""
    with _named(path):
        found = read_data_file(path, _names_in_file(schema, partition), MAX_BYTES_IN_MEMORY)
    return _with_partition(found, schema, partition)


def file_batches(path: str, schema: pa.Schema, partition: Partition) -> Iterator[pa.Table]:
    """Yield the rows of `read_file`, some at a time."""
    with _named(path):
        for found in data_file_batches(path, _names_in_file(schema, partition)):
            yield _with_partition(found, schema, partition)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Raise LakeError, with what to do, for a file of silver that is missing or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise missing_file(path) from None
    except DataFileError as error:
        raise LakeError(damaged_sentence(f"The file {path} of a silver table")) from error


def damaged_sentence(what: str) -> str:
    """Return the sentence for what of silver is not as it was written."""
    return f"{what} is damaged. Check the disk, and run pgdelta resync for the table, which copies it again."


def _names_in_file(schema: pa.Schema, partition: Partition) -> list[str]:
    values = dict(partition.values)
    return [name for name in schema.names if name not in values]


def _with_partition(rows: pa.Table, schema: pa.Schema, partition: Partition) -> pa.Table:
    values, count = dict(partition.values), rows.num_rows
    for name in values.keys() & set(schema.names):
        value = partition_value(values[name], schema.field(name).type)
        rows = rows.append_column(name, pa.repeat(value, count))
    return with_columns(rows, schema, count)


def missing_file(path: str) -> LakeError:
    """Return the error for a file that a table's log names and its folder does not have."""
    return LakeError(
        f"The file {path} of a silver table is missing. Remove the table's folder to rebuild it from bronze."
    )


def with_columns(rows: pa.Table, schema: pa.Schema, count: int | None = None) -> pa.Table:
    """Return rows with the columns of a schema and their types; those that they do not have are NULL.

    `count` is their number, for rows that have lost it because they have no column.
    """
    names, count = set(rows.column_names), rows.num_rows if count is None else count
    columns = [
        cast_column(rows.column(field.name), field.type)
        if field.name in names
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def cast_column(column: Any, kind: pa.DataType) -> Any:
    """Return a column in a type that holds all its values."""
    times = pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type)
    if times and (kind.tz is None) != (column.type.tz is None):
        raise NotNative(f"a file has {column.type} where the table has {kind}")
    return column if column.type == kind else column.cast(kind)
