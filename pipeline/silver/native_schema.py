"""Add a column to a silver table without Spark, set its default in existing rows, and set properties.

All are commits as Spark's ALTER TABLE and UPDATE make them, so that Delta's history shows the
same. The default is one value: every file is read and written again by parts, with that value in the column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pipeline.delta.native_commit import Action, Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.native_write import is_supported
from pipeline.delta.schema import SchemaField, TableSchema
from pipeline.delta.sql import quoted
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.delta.txn import OURS, TableCommit
from pipeline.engine import DUCKDB
from pipeline.protocol.lsn import INVALID
from pipeline.silver.duckdb_sql import DuckSql
from pipeline.silver.schema_operations import COMMENT, LAYOUT, AddColumn, SetProperties
from pipeline.silver.writer_choice import unsupported_feature

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.delta.data_files import DataFile

_PART_SIZE = 16 << 20  # bytes in memory of the rows that are written at once
_MOST_ROWS = 16_384  # that get the default at once

# What follows from a snapshot


def adds_natively(snapshot: Snapshot, operation: AddColumn, *, is_repeated: bool) -> bool:
    """Return whether a column can be added without Spark; `is_repeated` if an earlier run added it."""
    if operation.features or not operation.type.is_native or not snapshot.exists:
        return False
    names = {name.lower() for name in TableSchema.of_json(snapshot.schema_string).names}
    return is_supported(snapshot) and (is_repeated or operation.name.lower() not in names)


def fills_natively(snapshot: Snapshot, most_bytes: int | None) -> bool:
    """Return whether a column can be set in all rows without Spark; None is no limit of their files' size."""
    if unsupported_feature(snapshot) is not None:
        return False
    return most_bytes is None or sum(int(file["size"]) for file in snapshot.files.values()) <= most_bytes


def default_is_lost(operation: AddColumn) -> bool:
    """Return whether the type of an added column cannot hold its default."""
    if operation.backfill is None or not operation.type.is_native:
        return False
    text = DUCKDB.literal(operation.backfill)
    condition = operation.type.misfit(text, f"({operation.type.value(text, DUCKDB)})", DUCKDB)
    if condition is None:
        return False
    with closing(DuckSql()) as session:
        return bool(session.row(f"SELECT coalesce({condition}, false) AS is_lost").is_lost)


def field_of(operation: AddColumn) -> SchemaField:
    """Return the column that an operation adds."""
    (field,) = TableSchema.of_ddl(f"{quoted(operation.name)} {operation.type.ddl}").fields
    return field


def metadata_with(snapshot: Snapshot, field: SchemaField) -> Action:
    """Return the metadata of a table with one more column, the last one; all else stays as it is."""
    schema = json.loads(snapshot.schema_string)
    schema["fields"].append(_json_of(field, field.type))
    return {"metaData": {**snapshot.metadata, "schemaString": _compact(schema)}}


def add_columns_operation(field: SchemaField) -> Operation:
    """Return what Spark's ALTER TABLE … ADD COLUMNS records of itself; of a nested type only the name."""
    kind = field.type if isinstance(field.type, str) else field.type["type"]
    columns = [{"column": _json_of(field, kind)}]
    return Operation(
        "ADD COLUMNS",
        {"columns": _compact(columns)},
        user_metadata=json.dumps({OURS: 1}),
        is_blind_append=True,
    )


def update_operation(
    removed: Sequence[Mapping[str, Any]], added: Sequence[DataFile], user_metadata: str
) -> Operation:
    """Return what Spark's UPDATE of all rows records of itself, without its times."""
    metrics = {
        "numUpdatedRows": sum(file.row_count for file in added),
        "numCopiedRows": 0,
        "numAddedFiles": len(added),
        "numRemovedFiles": len(removed),
        "numAddedBytes": sum(file.size for file in added),
        "numRemovedBytes": sum(int(file["size"]) for file in removed),
        "numAddedChangeFiles": 0,
        "numDeletionVectorsAdded": 0,
        "numDeletionVectorsRemoved": 0,
        "numDeletionVectorsUpdated": 0,
    }
    texts = {name: str(value) for name, value in metrics.items()}
    return Operation("UPDATE", {"predicate": "[]"}, texts, user_metadata)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _json_of(field: SchemaField, kind: Any) -> dict[str, Any]:
    return {"name": field.name, "type": kind, "nullable": True, "metadata": {}}


# Commits


def add_column(table: LakeTable, snapshot: Snapshot, operation: AddColumn) -> None:
    """Commit the table's metadata with one more column; `adds_natively` holds for the snapshot.

    Raises ConflictError if another commit changed columns or properties meanwhile.
    """
    field = field_of(operation)
    table.commit(snapshot, [metadata_with(snapshot, field)], {}, add_columns_operation(field))


def set_layout(table: LakeTable, snapshot: Snapshot, operation: SetProperties) -> None:
    """Commit the table's metadata with other properties and comments.

    Raises ConflictError if another commit changed columns or properties meanwhile.
    """
    properties = dict(operation.properties)
    comment = properties.pop(COMMENT, snapshot.metadata.get("description"))
    configuration = {**snapshot.configuration, **properties}
    metadata = {**snapshot.metadata, "configuration": configuration}
    if comment is not None:
        metadata["description"] = comment
    if operation.comments:
        comments = dict(operation.comments)
        schema = json.loads(snapshot.schema_string)
        for field in schema["fields"]:
            if field["name"] in comments:
                field["metadata"] = {**field["metadata"], COMMENT: comments[field["name"]]}
        metadata["schemaString"] = _compact(schema)
    name, parameters = "SET TBLPROPERTIES", {"properties": _compact(dict(operation.properties))}
    if not operation.properties:
        name, parameters = "CHANGE COLUMNS", {"columns": _compact(list(comments))}
    described = Operation(name, parameters, {}, json.dumps({OURS: 1, "operation": LAYOUT}))
    table.commit(snapshot, [{"metaData": metadata}], {}, described)


def set_default(
    table: LakeTable, operation: AddColumn, commit: TableCommit, most_bytes: int | None = None
) -> None:
    """Set the default of an added column in all rows, unless the table records the commit.

    Raises NotNative or TooLargeError, before anything is committed, if only Spark can, and ConflictError or
    SameWriteError if another commit changed the table meanwhile.
    """
    from pipeline.delta.data_files import DataFiles
    from pipeline.delta.partitions import file_columns, partition_of
    from pipeline.silver.data_layout import file_size
    from pipeline.silver.native_files import NotNative
    from pipeline.silver.native_target import ADDED_FILE_IN_MEMORY

    snapshot = table.snapshot()
    if snapshot.offsets.get(str(commit.txn), INVALID) >= commit.lsn:
        return
    schema = TableSchema.of_json(snapshot.schema_string)
    if operation.name not in schema.names or not fills_natively(snapshot, most_bytes):
        raise NotNative("the table has changed")
    arrow = file_columns(snapshot)
    default = _default_of(operation, arrow.field(operation.name).type)
    removed = list(snapshot.files.values())
    added: list[DataFile] = []
    most = file_size(sum(int(file["size"]) for file in removed)) * 3 // 2  # as rewritten files are split
    with removing_uncommitted(table.folder, snapshot.version, added):
        for file in removed:
            partition = partition_of(snapshot.partition_columns, file)
            files = DataFiles(table.folder, arrow, lambda _: most, ADDED_FILE_IN_MEMORY, partition)
            try:
                for rows in _parts(data_file(snapshot.path, file["path"]), arrow, operation.name, default):
                    files.write(rows)
                added += files.close()
            except BaseException:
                files.discard()
                raise
        actions = [*map(remove_action, removed), *(file.action() for file in added)]
        versions = {str(commit.txn): int(commit.lsn)}
        update = update_operation(removed, added, commit.user_metadata)
        table.commit(snapshot, actions, versions, update, Reads(whole_table=True))


def _default_of(operation: AddColumn, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the default as silver has it, the one value of a column: NULL if the type cannot hold it."""
    from pipeline.silver.native_files import cast_column

    assert operation.backfill is not None
    value = operation.type.value(DUCKDB.literal(operation.backfill), DUCKDB)
    with closing(DuckSql()) as session:
        found = session.table(f"SELECT {value} AS value").column(0)
    column: pa.ChunkedArray = cast_column(found, kind)
    return column


def _parts(path: str, schema: pa.Schema, name: str, default: pa.ChunkedArray) -> Iterator[pa.Table]:
    """Yield the rows of a file, with the table's columns and a default in one of them, in parts to write."""
    import pyarrow as pa

    from pipeline.delta.data_files import data_file_batches
    from pipeline.silver.native_files import missing_file, with_columns

    most_rows = max(1, min(_MOST_ROWS, _PART_SIZE // max(1, default.nbytes)))
    place, field = schema.get_field_index(name), schema.field(name)
    waiting: list[pa.Table] = []
    size = 0
    try:
        for batch in data_file_batches(path, [each for each in schema.names if each != name]):
            for start in range(0, batch.num_rows, most_rows):
                # A slice of a table without columns has as many rows as are asked for.
                rows = batch.slice(start, min(most_rows, batch.num_rows - start))
                rows = with_columns(rows, schema)
                rows = rows.set_column(place, field, pa.repeat(default[0], rows.num_rows))
                if waiting and size + rows.nbytes > _PART_SIZE:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
                waiting.append(rows)
                size += rows.nbytes
    except FileNotFoundError:
        raise missing_file(path) from None
    if waiting:
        yield pa.concat_tables(waiting)
