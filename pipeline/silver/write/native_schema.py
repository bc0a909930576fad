"""Change the columns and properties of a silver table without Spark, and set defaults in existing rows.

All are commits as Spark's ALTER TABLE and UPDATE make them, so that Delta's history shows the same. An
operation and the features that it needs are one commit. A default is one value: every file is read and
written again by parts, with that value in the column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipeline.delta.data_files import DataFile, DataFiles, data_file_batches
from pipeline.delta.definition import Definition, compact_json
from pipeline.delta.features import WIDENED
from pipeline.delta.native_commit import Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.native_write import is_supported
from pipeline.delta.partitions import file_columns, partition_of, physical_partition_columns
from pipeline.delta.schema import SchemaField, TableSchema
from pipeline.delta.sql import quoted
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_file
from pipeline.delta.txn import OURS, TableCommit
from pipeline.engine import DUCKDB
from pipeline.protocol.lsn import INVALID
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.schema.schema_operations import (
    COMMENT,
    LAYOUT,
    AddColumn,
    DropColumn,
    RenameColumn,
    SchemaOperation,
    SetProperties,
    WidenColumn,
)
from pipeline.silver.write.data_layout import ADDED_FILE_IN_MEMORY, file_size
from pipeline.silver.write.native_files import NotNative, cast_column, missing_file, with_columns
from pipeline.silver.write.writer_choice import unsupported_feature

_PART_SIZE = 16 << 20  # bytes in memory of the rows that are written at once
_MAX_ROWS = 16_384  # that get the default at once

# What follows from a snapshot


def alters_natively(snapshot: Snapshot, operation: SchemaOperation, *, is_repeated: bool = False) -> bool:
    """Return whether an operation on a table that exists is a commit of its metadata, and no more.

    `is_repeated` if an earlier run did it, as far as columns are concerned.
    """
    if not snapshot.exists or not is_supported(snapshot):
        return False
    names = {name.lower() for name in TableSchema.of_json(snapshot.schema_string).names}
    match operation:
        case AddColumn():
            return operation.type.is_native and (is_repeated or operation.name.lower() not in names)
        case RenameColumn():
            before, after = operation.name.lower(), operation.to.lower()
            return before in names and after not in names - {before}
        case DropColumn():
            return operation.name.lower() in names and len(names) > 1
        case WidenColumn():
            return operation.type.is_native and not operation.type.ddl.startswith(("ARRAY", "MAP"))
        case SetProperties():
            return operation.is_native
    return False


def fills_natively(snapshot: Snapshot, max_bytes: int | None) -> bool:
    """Return whether a column can be set in all rows without Spark; None is no limit of their files' size."""
    if unsupported_feature(snapshot) is not None:
        return False
    return max_bytes is None or sum(int(file["size"]) for file in snapshot.files.values()) <= max_bytes


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


def add_columns_operation(field: SchemaField) -> Operation:
    """Return what Spark's ALTER TABLE … ADD COLUMNS records of itself; of a nested type only the name."""
    kind = field.type if isinstance(field.type, str) else field.type["type"]
    columns = [{"column": _json_of(field, kind, {})}]
    return _metadata_operation("ADD COLUMNS", {"columns": compact_json(columns)})


def _metadata_operation(name: str, parameters: Mapping[str, str]) -> Operation:
    return Operation(name, parameters, {}, json.dumps({OURS: 1}), is_blind_append=True)


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


def _json_of(field: SchemaField, kind: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field.name, "type": kind, "nullable": True, "metadata": dict(metadata)}


# Commits


def alter(table: LakeTable, snapshot: Snapshot, operation: SchemaOperation) -> None:
    """Commit the table's metadata as an operation changes it; `alters_natively` holds for the snapshot.

    Raises ConflictError if another commit changed columns or properties meanwhile.
    """
    before = Definition.of(snapshot)
    after, described = _altered(before.enabled(*operation.features), operation)
    table.commit(snapshot, after.actions(before), {}, described)


def _altered(definition: Definition, operation: SchemaOperation) -> tuple[Definition, Operation]:
    """Return a table's definition after an operation, and what Spark's ALTER TABLE records of itself."""
    match operation:
        case AddColumn():
            field = field_of(operation)
            return definition.with_column(field), add_columns_operation(field)
        case RenameColumn(name=name, to=to):
            paths = {"oldColumnPath": name, "newColumnPath": to}
            return definition.renamed(name, to), _metadata_operation("RENAME COLUMN", paths)
        case DropColumn(name=name):
            columns = {"columns": compact_json([name])}
            return definition.without(name), _metadata_operation("DROP COLUMNS", columns)
        case WidenColumn(name=name):
            (wider,) = TableSchema.of_ddl(f"{quoted(name)} {operation.type.ddl}").fields
            before = next(each for each in definition.fields if each.name == name)
            kept = {key: value for key, value in before.metadata.items() if key != WIDENED}
            column = {"column": compact_json(_json_of(before, wider.type, kept))}
            return definition.widened(name, wider.type), _metadata_operation("CHANGE COLUMN", column)
        case SetProperties():
            return _with_layout(definition, operation), _layout_operation(operation)
    raise AssertionError(operation)


def _with_layout(definition: Definition, operation: SetProperties) -> Definition:
    """Return a table's definition with other properties and comments."""
    properties, comments = dict(operation.properties), dict(operation.comments)
    comment = properties.pop(COMMENT, None)
    found = definition.with_properties(properties) if properties else definition
    if comment is not None:
        found = found.with_metadata(description=comment)
    return found.with_fields(
        replace(each, metadata={**each.metadata, COMMENT: comments[each.name]})
        if each.name in comments
        else each
        for each in found.fields
    )


def _layout_operation(operation: SetProperties) -> Operation:
    name, parameters = "SET TBLPROPERTIES", {"properties": compact_json(dict(operation.properties))}
    if not operation.properties:
        columns = [column for column, _ in operation.comments]
        name, parameters = "CHANGE COLUMNS", {"columns": compact_json(columns)}
    return Operation(name, parameters, {}, json.dumps({OURS: 1, "operation": LAYOUT}))


def set_default(
    table: LakeTable, operation: AddColumn, commit: TableCommit, max_bytes: int | None = None
) -> None:
    """Set the default of an added column in all rows, unless the table records the commit.

    Raises NotNative or TooLargeError, before anything is committed, if only Spark can, and ConflictError or
    SameWriteError if another commit changed the table meanwhile.
    """

    snapshot = table.snapshot()
    if snapshot.offsets.get(str(commit.txn), INVALID) >= commit.lsn:
        return
    schema = TableSchema.of_json(snapshot.schema_string)
    if operation.name not in schema.names or not fills_natively(snapshot, max_bytes):
        raise NotNative("the table has changed")
    arrow = file_columns(snapshot)
    name = schema.physical_names[operation.name]
    default = default_of(operation, arrow.field(name).type)
    divides = physical_partition_columns(snapshot)
    removed = list(snapshot.files.values())
    added: list[DataFile] = []
    most = file_size(sum(int(file["size"]) for file in removed)) * 3 // 2  # as rewritten files are split
    with removing_uncommitted(table.folder, snapshot.version, added):
        for file in removed:
            partition = partition_of(divides, file)
            files = DataFiles(table.folder, arrow, lambda _: most, ADDED_FILE_IN_MEMORY, partition)
            try:
                for rows in _parts(data_file(snapshot.path, file["path"]), arrow, name, default):
                    files.write(rows)
                added += files.close()
            except BaseException:
                files.discard()
                raise
        actions = [*map(remove_action, removed), *(file.action() for file in added)]
        versions = {str(commit.txn): int(commit.lsn)}
        update = update_operation(removed, added, commit.user_metadata)
        table.commit(snapshot, actions, versions, update, Reads(whole_table=True))


def default_of(operation: AddColumn, kind: pa.DataType) -> pa.ChunkedArray:
    """Return the default as silver has it, the one value of a column: NULL if the type cannot hold it."""
    assert operation.backfill is not None
    value = operation.type.value(DUCKDB.literal(operation.backfill), DUCKDB)
    with closing(DuckSql()) as session:
        found = session.table(f"SELECT {value} AS value").column(0)
    column: pa.ChunkedArray = cast_column(found, kind)
    return column


def _parts(path: str, schema: pa.Schema, name: str, default: pa.ChunkedArray) -> Iterator[pa.Table]:
    """Yield the rows of a file, with the table's columns and a default in one of them, in parts to write."""
    max_rows = max(1, min(_MAX_ROWS, _PART_SIZE // max(1, default.nbytes)))
    place, field = schema.get_field_index(name), schema.field(name)
    waiting: list[pa.Table] = []
    size = 0
    try:
        for batch in data_file_batches(path, [each for each in schema.names if each != name]):
            for start in range(0, batch.num_rows, max_rows):
                # A slice of a table without columns has as many rows as are asked for.
                rows = batch.slice(start, min(max_rows, batch.num_rows - start))
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
