"""The rows of one version of a silver table on this machine, with an overlay, and their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pipeline.delta.data_files import arrow_columns
from pipeline.delta.foreign_rules import not_null_error
from pipeline.delta.partitions import Partition, file_columns, partition_of, physical_partition_columns
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.silver.fold.row_changes import Numbers
from pipeline.silver.write.native_files import file_batches, read_file, with_columns
from pipeline.silver.write.overlay import Overlay


class TableVersion:
    """The rows of a version, by the number of their file and their number in it.

    `files` are the `add` actions of the version. Rows that the overlay adds are one more file, the last one.
    It has no statistics, so any change may concern them.
    """

    def __init__(self, table: LakeTable, snapshot: Snapshot, overlay: Overlay | None = None) -> None:
        assert table.local_path is not None
        self.table = table
        self.snapshot = snapshot if overlay is None else snapshot.with_files(overlay.files)
        files = dict(self.snapshot.files.items())
        self.files = list(files.values())
        self.size = sum(int(file["size"]) for file in self.files)
        schema = TableSchema.of_json(snapshot.schema_string)
        self.columns = arrow_columns(schema)
        self.physical = schema.physical_names
        self.stored = schema.stored
        self._required = [each.name for each in schema.fields if not each.nullable]
        self.file_columns = file_columns(snapshot)
        self.partition_by = physical_partition_columns(snapshot)
        self._path = table.local_path
        self._overlay = overlay
        self._keys = [*files]
        if overlay is not None:
            self.files.append({"path": "", "size": 0})

    def schema_of(self, names: Iterable[str]) -> pa.Schema:
        """Return the schema of some columns."""
        return pa.schema([self.columns.field(name) for name in names])

    def read(self, number: int, schema: pa.Schema) -> pa.Table:
        """Return columns of all rows of a file; those that it does not have are NULL."""
        if self._overlay is not None and number == len(self._keys):
            return with_columns(self._overlay.rows.select(schema.names), schema)
        rows = read_file(*self._stored(number, schema), self.partition_of(number))
        return pa.Table.from_arrays(rows.columns, schema=schema)

    def batches(self, number: int) -> Iterator[pa.Table]:
        """Yield the rows of a file that is no overlay's, with all columns, some at a time."""
        for rows in file_batches(*self._stored(number, self.columns), self.partition_of(number)):
            yield pa.Table.from_arrays(rows.columns, schema=self.columns)

    def _stored(self, number: int, schema: pa.Schema) -> tuple[str, pa.Schema]:
        """Return the path of a file, and columns as it has them."""
        path = data_file(self._path, self.files[number]["path"])
        return path, pa.schema([self.stored.field(self.physical[name]) for name in schema.names])

    def read_present(self, number: int, schema: pa.Schema) -> tuple[pa.Table, Numbers]:
        """Return columns of the rows of a file that the overlay leaves, and their numbers."""
        rows = self.read(number, schema)
        numbers = np.arange(rows.num_rows)
        gone = {} if self._overlay is None else self._overlay.gone
        if number == len(self._keys) or self._keys[number] not in gone:
            return rows, numbers
        numbers = np.delete(numbers, gone[self._keys[number]])
        return rows.take(pa.array(numbers)), numbers

    def read_rows(self, number: int, rows: Numbers, names: Iterable[str]) -> pa.Table:
        """Return columns of some rows of a file."""
        return self.read(number, self.schema_of(names)).take(pa.array(rows))

    def partition_of(self, number: int) -> Partition:
        """Return the partition of a file."""
        return partition_of(self.partition_by, self.files[number])

    def complete(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, in its order and with its types."""
        return with_columns(rows, self.columns)

    def as_stored(self, rows: pa.Table) -> pa.Table:
        """Return complete rows under the names that data files have for the columns.

        Raises LakeError for NULL in a column that another writer made NOT NULL.
        """
        if empty := [name for name in self._required if rows.column(name).null_count]:
            raise not_null_error(empty)
        return pa.Table.from_arrays(rows.columns, schema=self.stored)
