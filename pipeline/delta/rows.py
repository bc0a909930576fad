"""Read the rows of a Delta table on a file system of this machine as Arrow, without Spark.

Data files are read by pyarrow: columns under their logical names whatever a table's column mapping is,
columns that older files lack as NULL, and narrower types as wide as the table has them now. Deletion vectors
are decoded by `deltalake`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.partitions import partition_of, partition_value, physical_partition_columns
from pipeline.delta.schema import PHYSICAL_NAME, arrow_field
from pipeline.delta.store.mirror import files_of
from pipeline.delta.table_log import Snapshot, data_file, data_path, local_path
from pipeline.errors import LakeError

if TYPE_CHECKING:
    import pyarrow.compute as pc

# what a reader of data files need not know more of than this module does
READABLE_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_SMALL = 256 << 10  # bytes of a file that is read by one thread: others would take longer to start


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows are read, by some columns: a mask of a table of these; the rest is read for them only."""

    columns: tuple[str, ...]
    mask: Callable[[pa.Table], Any]


def read_rows(
    path: str,
    snapshot: Snapshot,
    columns: Sequence[str] | None = None,
    where: pc.Expression | Where | None = None,
) -> pa.Table:
    """Return the rows of a version that satisfy `where`, over logical names.

    Columns have their logical names, in the order of `columns` (default: all of the schema); `where` may use
    others. Raises LakeError if pgdelta cannot read the table without Spark or a file is missing.
    """
    schema = arrow_schema(snapshot)
    if unknown := snapshot.feature_names() - READABLE_FEATURES:
        raise LakeError(
            f"The table in {path} has the table feature {', '.join(sorted(unknown))}, which pgdelta reads by "
            "Spark only."
        )
    chosen = list(schema.names if columns is None else columns)
    files = snapshot.files.values()
    if where is None:
        needed = chosen
    elif isinstance(where, Where):
        needed = list(dict.fromkeys([*chosen, *where.columns]))
    else:
        needed = schema.names
    has_vectors = any(action.get("deletionVector") for action in files)
    masks = _vector_masks(path, snapshot) if has_vectors else {}
    tables: list[pa.Table] = []
    for action in files:
        mask = masks[data_path("", action["path"])] if action.get("deletionVector") else None
        file = _DataFile(data_file(local_path(path), action["path"]), action, snapshot, mask)
        if isinstance(where, Where):
            tables += file.read_where(schema, chosen, where)
        else:
            tables.append(
                filter_rows(file.read([schema.field(name) for name in needed]), where).select(chosen)
            )
    empty = pa.schema([schema.field(name) for name in chosen]).empty_table()
    return pa.concat_tables(tables) if tables else empty


def file_rows(path: str, snapshot: Snapshot, key: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield all rows of a data file of a version, by row groups and in order, over logical names.

    `key` is that of the file in `snapshot.files`. Deletion vectors do not count.
    """
    schema, action = arrow_schema(snapshot), snapshot.files[key]
    file = _DataFile(data_file(local_path(path), action["path"]), action, snapshot)
    yield from file.read_groups([schema.field(name) for name in columns])


def filter_rows(table: pa.Table, where: pc.Expression | Where | None) -> pa.Table:
    """Return the rows of a table with all columns that satisfy a condition, if there is one."""
    if where is None:
        return table
    return table.filter(where.mask(table) if isinstance(where, Where) else where)


def arrow_schema(snapshot: Snapshot) -> pa.Schema:
    """Return the logical schema of a version; fields keep the metadata of the log.

    Raises LakeError for a type that pgdelta does not read without Spark.
    """
    try:
        return pa.schema([arrow_field(each) for each in json.loads(snapshot.schema_string)["fields"]])
    except ValueError as error:
        raise LakeError(f"pgdelta reads columns of some types by Spark only: {error}.") from None


def physical_name(field: pa.Field) -> str:
    """Return the name of a column in data files."""
    name: bytes | None = (field.metadata or {}).get(PHYSICAL_NAME.encode())
    return field.name if name is None else name.decode()


class _DataFile:
    """A data file of a version, whose rows are read under their logical names.

    `mask` has false for rows that a deletion vector deletes.
    """

    def __init__(
        self, path: str, action: Mapping[str, Any], snapshot: Snapshot, mask: pa.Array | None = None
    ) -> None:
        self._is_small = action.get("size", _SMALL) < _SMALL
        try:
            self._file = open_data_file(path, pre_buffer=not self._is_small)
        except FileNotFoundError:
            raise LakeError(
                f"The file {path} of version {snapshot.version} is missing: VACUUM removes what is older "
                "than delta.deletedFileRetentionDuration."
            ) from None
        self._path = path
        self._mask = mask
        if mask is not None:
            rest = pa.repeat(True, self._file.metadata.num_rows - len(mask))
            self._mask = pa.concat_arrays([mask, rest])
        self._names = set(self._file.schema_arrow.names)
        # the protocol lets a file have the columns too, and readers take the values of the log
        self._partition = dict(partition_of(physical_partition_columns(snapshot), action).values)
        self._names -= self._partition.keys()

    def read(self, fields: Sequence[pa.Field]) -> pa.Table:
        """Return the rows that are not deleted."""
        with self._file, named_if_damaged(self._path):
            found = self._file.read(columns=self._present(fields), use_threads=not self._is_small)
            rows = self._conformed(found, self._file.metadata.num_rows, fields)
            return rows if self._mask is None else rows.filter(self._mask)

    def read_groups(self, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """Yield all rows, deleted ones too, by row groups."""
        with self._file, named_if_damaged(self._path):
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                found = self._file.read_row_group(group, columns=self._present(fields))
                yield self._conformed(found, count, fields)

    def read_where(self, schema: pa.Schema, columns: Sequence[str], where: Where) -> Iterator[pa.Table]:
        """Yield the rows that satisfy a condition, by row groups: other columns are read for these only."""
        import pyarrow.compute as pc

        asked = [schema.field(name) for name in where.columns]
        fields = [schema.field(name) for name in columns]
        first = 0
        with self._file, named_if_damaged(self._path):
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                found = self._file.read_row_group(group, columns=self._present(asked))
                mask = where.mask(self._conformed(found, count, asked))
                if self._mask is not None:
                    mask = pc.and_(mask, self._mask.slice(first, count))
                first += count
                if any(chunk.true_count for chunk in getattr(mask, "chunks", [mask])):
                    found = self._file.read_row_group(group, columns=self._present(fields))
                    yield self._conformed(found, count, fields).filter(mask)

    def _present(self, fields: Sequence[pa.Field]) -> list[str]:
        return [name for name in map(physical_name, fields) if name in self._names]

    def _conformed(self, found: pa.Table, count: int, fields: Sequence[pa.Field]) -> pa.Table:
        columns = []
        for field in fields:
            name = physical_name(field)
            if name in self._partition:
                columns.append(pa.repeat(partition_value(self._partition[name], field.type), count))
            elif name in self._names:
                columns.append(_conform(found.column(name), field.type))
            else:
                columns.append(pa.nulls(count, field.type))
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _conform(column: Any, kind: pa.DataType) -> Any:
    """Return a column or an array as a type; nested fields that a file lacks are NULL."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_conform(chunk, kind) for chunk in column.chunks], type=kind)
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        children = {column.type.field(i).name: child for i, child in enumerate(column.flatten())}
        found = [children.get(physical_name(f)) for f in kind]
        arrays = [
            pa.nulls(len(column), f.type) if child is None else _conform(child, f.type)
            for child, f in zip(found, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        offsets = pa.array([each - begin for each in column.offsets.to_pylist()], pa.int32())
        keys = _conform(column.keys.slice(begin, end - begin), kind.key_type)
        items = _conform(column.items.slice(begin, end - begin), kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        values = _conform(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), values, type=kind, mask=mask)
    return column.cast(kind)


def _offsets(column: Any) -> Any:
    """Return the offsets of lists whose flattened values begin with those of the first list."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(pc.cast(lengths, pa.int32()))])


def _vector_masks(path: str, snapshot: Snapshot) -> dict[str, pa.Array]:
    """Return which rows of the files that have deletion vectors are not deleted, by the files' paths."""
    from deltalake import DeltaTable

    try:
        storage = files_of(snapshot.path)  # the library reads a store itself
        url, options = storage.url(snapshot.path), storage.client_options
        table = DeltaTable(url, version=snapshot.version, storage_options=options)
        found = pa.table(table.deletion_vectors().read_all())
        root = f"{unquote(table.table_uri).rstrip('/')}/"
    except Exception as error:  # Rust's, of many types
        raise LakeError(
            f"The table in {path} has deletion vectors, and version {snapshot.version} cannot be read "
            f"without Spark ({type(error).__name__})."
        ) from error
    files = (local_path(unquote(uri).removeprefix(root)) for uri in found.column("filepath").to_pylist())
    return {file: each.values for file, each in zip(files, found.column("selection_vector"), strict=True)}
