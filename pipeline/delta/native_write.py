"""Write a small Delta table on a file system of this machine: create, append, overwrite, delete, compact.

The rows are in memory. Each write is one commit, with the operation and the parameters by which Delta's
history shows what Spark writes. Tables with features that need more than this file does are left to Spark
(`is_supported`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipeline.delta.checkpoints import checkpoint_if_due
from pipeline.delta.native_commit import (
    Action,
    Operation,
    Reads,
    commit,
    now_milliseconds,
    remove_action,
    txn_actions,
)
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.rows import read_rows
from pipeline.delta.schema import DeltaType, TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TableCommit
from pipeline.errors import LakeError, report_error

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

# features of a table that ask nothing of a writer which only adds and removes whole files
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_LAST_LEGACY_VERSION = 6  # of a writer without a list of features
# properties that ask more, unless they have this value
_INACTIVE = {
    "delta.columnMapping.mode": "none",
    "delta.enableChangeDataFeed": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
}
_CONSTRAINT = "delta.constraints."
_FIELD_METADATA = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")


def is_supported(snapshot: Snapshot, *, removes: bool = False) -> bool:
    """Return whether a table has no feature that needs more than adding and, with `removes`, removing files."""
    protocol, configuration = snapshot.protocol, snapshot.configuration
    if int(protocol.get("minWriterVersion", 0)) > _LAST_LEGACY_VERSION and not _FEATURES.issuperset(
        protocol.get("writerFeatures") or ()
    ):
        return False
    if snapshot.partition_columns or any(name.startswith(_CONSTRAINT) for name in configuration):
        return False
    if any(configuration.get(name, value).lower() != value for name, value in _INACTIVE.items()):
        return False
    if removes and configuration.get("delta.appendOnly", "false").lower() == "true":
        return False
    fields = TableSchema.of_json(snapshot.schema_string).fields
    return not any(name in field.metadata for field in fields for name in _FIELD_METADATA)


def create(folder: Path, schema: TableSchema, properties: Mapping[str, str], user_metadata: str) -> None:
    """Create an empty table, unless another process does so at the same time."""
    actions = [protocol_action(schema), metadata_action(schema, properties)]
    operation = Operation(
        "WRITE", {"mode": "Ignore", "partitionBy": "[]"}, {}, user_metadata, is_blind_append=True
    )
    try:
        commit(folder, -1, actions, operation)
    except ConflictError:
        return  # version 0 is another writer's


def append(
    folder: Path, snapshot: Snapshot, rows: Any, commits: Sequence[TableCommit], *, mode: str = "Append"
) -> int:
    """Append rows to a table and return the version; `rows` are mappings or an Arrow table."""
    from pipeline.delta.data_files import write_data_file

    table = _table_of(rows, snapshot)
    files = [write_data_file(folder, table)] if table.num_rows else []
    operation = _write(mode, files, is_blind_append=True)
    try:
        return commit_actions(folder, snapshot, [file.action() for file in files], commits, operation)
    except (ConflictError, SameWriteError):
        _discard(folder, files)
        raise


def overwrite(
    folder: Path,
    snapshot: Snapshot,
    rows: Any,
    commits: Sequence[TableCommit],
    schema: TableSchema | None = None,
) -> int:
    """Replace all rows of a table, and its columns by those of a schema; return the version."""
    from pipeline.delta.data_files import write_data_file

    actions: list[Action] = []
    if schema is not None and schema.json != snapshot.schema_string:
        actions.append(metadata_action(schema, snapshot.configuration, snapshot))
    table = _table_of(rows, snapshot, schema)
    files = [write_data_file(folder, table)] if table.num_rows else []
    actions += [remove_action(add) for add in snapshot.files.values()]
    actions += [file.action() for file in files]
    try:
        return commit_actions(
            folder, snapshot, actions, commits, _write("Overwrite", files), Reads(whole_table=True)
        )
    except (ConflictError, SameWriteError):
        _discard(folder, files)
        raise


def delete(folder: Path, snapshot: Snapshot, where: pc.Expression, condition: str) -> int:
    """Delete the rows that satisfy a condition and return the version; `condition` is for the history."""
    rows = read_rows(str(folder), snapshot)
    kept = rows.filter(~where)
    if kept.num_rows == rows.num_rows:
        return snapshot.version
    metrics = {"numDeletedRows": str(rows.num_rows - kept.num_rows)}
    operation = Operation("DELETE", {"predicate": f'["{condition}"]'.replace("\n", " ")}, metrics)
    return _replace(folder, snapshot, kept, operation, data_change=True)


def compact(folder: Path, snapshot: Snapshot) -> int:
    """Compact all files of a table into one and return the version."""
    if len(snapshot.files) < 2:
        return snapshot.version
    rows = read_rows(str(folder), snapshot)
    metrics = {"numRemovedFiles": str(len(snapshot.files)), "numAddedFiles": "1"}
    operation = Operation("OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]"}, metrics)
    return _replace(folder, snapshot, rows, operation, data_change=False)


def _replace(
    folder: Path, snapshot: Snapshot, rows: pa.Table, operation: Operation, *, data_change: bool
) -> int:
    from pipeline.delta.data_files import write_data_file

    table = _table_of(rows, snapshot)
    files = [write_data_file(folder, table)] if table.num_rows else []
    actions = [remove_action(add, data_change=data_change) for add in snapshot.files.values()]
    actions += [file.action(data_change=data_change) for file in files]
    reads = Reads(whole_table=data_change)
    try:
        return commit_actions(folder, snapshot, actions, (), operation, reads)
    except (ConflictError, SameWriteError):
        _discard(folder, files)
        raise


def commit_actions(
    folder: Path,
    snapshot: Snapshot,
    actions: Sequence[Action],
    commits: Sequence[TableCommit],
    operation: Operation,
    reads: Reads | None = None,
) -> int:
    """Commit actions with offsets, write a checkpoint if one is due, and return the version.

    The commit has the metadata of the first of `commits`, unless the operation has its own.
    """
    recorded = txn_actions({str(each.txn): int(each.lsn) for each in commits})
    if operation.user_metadata is None and commits:
        operation = Operation(
            operation.name,
            operation.parameters,
            operation.metrics,
            commits[0].user_metadata,
            operation.is_blind_append,
        )
    version = commit(folder, snapshot.version, [*recorded, *actions], operation, reads)
    try:
        checkpoint_if_due(folder, version, snapshot.configuration)
    except Exception as error:  # the commit is made; the log is only longer
        report_error(error)
    return version


def protocol_action(schema: TableSchema) -> Action:
    """Return the protocol of a new table, with the features that its types need."""
    if any(_mentions(field.type, "timestamp_ntz") for field in schema.fields):
        features = ["timestampNtz", "invariants", "appendOnly"]
        return {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["timestampNtz"],
                "writerFeatures": features,
            }
        }
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def metadata_action(
    schema: TableSchema, configuration: Mapping[str, str], snapshot: Snapshot | None = None
) -> Action:
    """Return the metadata of a new table, or the changed metadata of the table of a snapshot."""
    metadata: dict[str, Any] = dict(snapshot.metadata) if snapshot is not None else {"createdTime": now_milliseconds()}
    return {
        "metaData": {
            **metadata,
            "id": snapshot.table_id if snapshot is not None else str(uuid4()),
            "format": metadata.get("format") or {"provider": "parquet", "options": {}},
            "schemaString": schema.json,
            "partitionColumns": list(snapshot.partition_columns) if snapshot is not None else [],
            "configuration": dict(configuration),
        }
    }


def _mentions(kind: DeltaType, name: str) -> bool:
    if isinstance(kind, str):
        return kind == name
    inner = [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    inner += [each["type"] for each in kind.get("fields", ())]
    return any(_mentions(each, name) for each in inner if each is not None)


def _write(mode: str, files: Iterable[Any], *, is_blind_append: bool = False) -> Operation:
    files = list(files)
    metrics = {
        "numFiles": str(len(files)),
        "numOutputRows": str(sum(file.row_count for file in files)),
        "numOutputBytes": str(sum(file.size for file in files)),
    }
    return Operation("WRITE", {"mode": mode, "partitionBy": "[]"}, metrics, is_blind_append=is_blind_append)


def _table_of(rows: Any, snapshot: Snapshot, schema: TableSchema | None = None) -> pa.Table:
    """Return rows with the columns of the table; those that the rows do not have are NULL."""
    import pyarrow as pa

    target = (schema or TableSchema.of_json(snapshot.schema_string)).arrow
    names = set(rows.column_names) if isinstance(rows, pa.Table) else {name for row in rows for name in row}
    if unknown := sorted(names.difference(target.names)):
        raise LakeError(
            f"The table in {snapshot.path} has no column {', '.join(unknown)}: another version of pgdelta "
            "created it. Add the column, or remove the table."
        )
    if not isinstance(rows, pa.Table):
        return pa.Table.from_pylist(list(rows), schema=target)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _discard(folder: Path, files: Iterable[Any]) -> None:
    """Remove files that no commit names."""
    for file in files:
        (folder / file.name).unlink(missing_ok=True)
