"""Write a small Delta table on a file system of this machine: create, append, overwrite, delete, compact.

The rows are in memory. Each write is one commit, with the operation and the parameters by which Delta's
history shows what Spark writes. Tables with features that need more than this file does are left to Spark
(`is_supported`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.delta.checkpoints import checkpoint_if_due
from pipeline.delta.data_files import DataFile, write_data_file
from pipeline.delta.definition import Definition
from pipeline.delta.features import Feature, needs_column_mapping
from pipeline.delta.fence import fence_of
from pipeline.delta.log_retention import LOG_COMMITS, SET_BY_US
from pipeline.delta.native_commit import (
    Action,
    Operation,
    Reads,
    commit_version,
    remove_action,
    txn_actions,
)
from pipeline.delta.partitions import may_be_partition_column
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.rows import read_rows
from pipeline.delta.schema import TableSchema, mentions
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TableCommit
from pipeline.errors import LakeError, report_error

if TYPE_CHECKING:
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
_LARGE_FILE = 8 << 20  # bytes; it is not rewritten when small files are compacted
_LAST_LEGACY_VERSION = 6  # of a writer without a list of features
# properties that ask more, unless they have this value
_INACTIVE = {
    "delta.enableChangeDataFeed": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
}
_APPEND_ONLY = {"delta.appendOnly": "false"}
# properties that a new table may have without a table feature
PLAIN_PROPERTIES = frozenset(
    {
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.logRetentionDuration",
        "delta.setTransactionRetentionDuration",
        LOG_COMMITS,
        SET_BY_US,
    }
)
_CONSTRAINT = "delta.constraints."
_FIELD_METADATA = (
    "delta.invariants",
    "delta.generationExpression",
    "delta.identity.start",
    "CURRENT_DEFAULT",
)


def is_supported(snapshot: Snapshot, *, removes: bool = False) -> bool:
    """Return whether a table needs no more of a writer than adding and, with `removes`, removing files.

    Those of a table with column mapping have the columns' physical names, and those of a partitioned table
    belong to partitions: the functions that write rows here know neither (`writes_rows`).
    """
    return find_unsupported(snapshot, removes=removes) is None


def find_unsupported(
    snapshot: Snapshot, *, removes: bool = False, known: Collection[str] = frozenset()
) -> str | None:
    """Return what a table has for which it is not supported (`is_supported`), None if nothing.

    `known` are table features that the caller honours.
    """
    protocol, configuration = snapshot.protocol, snapshot.configuration
    features = set(protocol.get("writerFeatures") or ()) - _FEATURES - set(known)
    if int(protocol.get("minWriterVersion", 0)) > _LAST_LEGACY_VERSION and features:
        return f"the table feature {', '.join(sorted(features))}"
    if constraints := sorted(name for name in configuration if name.startswith(_CONSTRAINT)):
        return f"the constraint {constraints[0].removeprefix(_CONSTRAINT)}"
    for name, value in (_INACTIVE | (_APPEND_ONLY if removes else {})).items():
        if configuration.get(name, value).lower() != value:
            return f"the property {name}"
    mapping = configuration.get(Feature.COLUMN_MAPPING.value[0], "none").lower()
    if mapping not in ("none", "name"):
        return f"column mapping by {mapping}"
    fields = TableSchema.of_json(snapshot.schema_string).fields
    for field in fields:
        if mapping == "name" and mentions(field.type, "struct"):
            return f"the struct {field.name}"  # its fields have names of their own in data files
        if field.name in snapshot.partition_columns and not may_be_partition_column(field.ddl):
            return f"partitions by {field.name}"
        if any(name in field.metadata for name in _FIELD_METADATA):
            return f"a rule for the values of {field.name}"
    return None


def writes_rows(snapshot: Snapshot, *, removes: bool = False) -> bool:
    """Return whether a table exists whose rows are written here: into files of all its columns, as named."""
    if not snapshot.exists or snapshot.partition_columns or Definition.of(snapshot).is_mapped:
        return False
    return is_supported(snapshot, removes=removes)


def create(
    folder: Path,
    schema: TableSchema,
    properties: Mapping[str, str],
    user_metadata: str,
    *,
    by_statement: bool = False,
    partition_by: Sequence[str] = (),
) -> None:
    """Create an empty table, unless another process does so at the same time.

    The history shows it as Spark's CREATE TABLE with `by_statement`, else as a write of no rows.
    """
    definition = Definition.of_new(schema, properties, partition_by)
    if needs_column_mapping(schema.names):
        definition = definition.mapped()
    actions = definition.actions()
    fence = fence_of(str(folder))
    if fence is not None:
        actions += txn_actions(fence.claims(str(folder), {}))
    columns = json.dumps(list(partition_by))
    name, parameters = "WRITE", {"mode": "Ignore", "partitionBy": columns}
    if by_statement:
        described = json.dumps(dict(properties))
        name = "CREATE TABLE"
        parameters = {
            "partitionBy": columns,
            "clusterBy": "[]",
            "isManaged": "false",
            "properties": described,
        }
    operation = Operation(name, parameters, {}, user_metadata, is_blind_append=True)
    try:
        commit_version(folder, -1, actions, operation)
    except ConflictError:
        if fence is not None:  # an earlier owner may have created it after this one found no table
            raise
        return  # version 0 is another writer's
    except SameWriteError as error:
        if fence is not None:
            fence.refuse_creation(str(folder), error)


def append(folder: Path, snapshot: Snapshot, rows: Any, commit: TableCommit | None) -> int:
    """Append rows to a table and return the version; `rows` are mappings or an Arrow table."""
    files = [rows_file(folder, snapshot, rows)] if len(rows) else []
    operation = _write("Append", files, commit, is_blind_append=True)
    return _commit_files(folder, snapshot, [], files, commit, operation, Reads())


def overwrite(folder: Path, snapshot: Snapshot, rows: Any, schema: TableSchema | None = None) -> int:
    """Replace all rows of a table, and its columns by those of a schema; return the version."""
    actions: list[Action] = []
    if schema is not None and schema.json != snapshot.schema_string:
        before = Definition.of(snapshot)
        actions += before.with_fields(schema.fields).actions(before)
    actions += [remove_action(add) for add in snapshot.files.values()]
    files = [rows_file(folder, snapshot, rows, schema)] if len(rows) else []
    operation = _write("Overwrite", files, None)
    return _commit_files(folder, snapshot, actions, files, None, operation, Reads(whole_table=True))


def delete(
    folder: Path, snapshot: Snapshot, where: pc.Expression, condition: str, columns: Sequence[str]
) -> int:
    """Delete the rows that satisfy a condition on columns, and return the version.

    `condition` is the same as SQL, for the history.
    """
    adds = snapshot.files
    parts = [snapshot.with_files({key: add}) for key, add in adds.items()]
    if any(add.get("deletionVector") for add in adds.values()):
        parts = [snapshot]
    actions: list[Action] = []
    files: list[DataFile] = []
    deleted_count = 0
    for part in parts:
        keys = read_rows(str(folder), part, columns)
        deleted = keys.filter(where).num_rows
        if deleted == 0:
            continue
        deleted_count += deleted
        actions += [remove_action(add) for add in part.files.values()]
        if deleted < keys.num_rows:
            files.append(rows_file(folder, snapshot, read_rows(str(folder), part).filter(~where)))
    if not actions:
        return snapshot.version
    metrics = {"numDeletedRows": str(deleted_count), "numRemovedFiles": str(len(actions))}
    operation = Operation("DELETE", {"predicate": json.dumps([condition])}, metrics)
    return _commit_files(folder, snapshot, actions, files, None, operation, Reads(whole_table=True))


def compact(folder: Path, snapshot: Snapshot) -> int:
    """Compact the small files of a table into one and return the version; all of them fit into memory."""
    small = {key: add for key, add in snapshot.files.items() if add["size"] < _LARGE_FILE}
    if len(small) < 2:
        return snapshot.version
    rows = read_rows(str(folder), snapshot.with_files(small))
    metrics = {"numRemovedFiles": str(len(small)), "numAddedFiles": "1"}
    operation = Operation("OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]"}, metrics)
    removes = [remove_action(add, data_change=False) for add in small.values()]
    files = [rows_file(folder, snapshot, rows)] if rows.num_rows else []
    return _commit_files(folder, snapshot, removes, files, None, operation, Reads(), data_change=False)


def _commit_files(
    folder: Path,
    snapshot: Snapshot,
    actions: Sequence[Action],
    files: Sequence[DataFile],
    commit: TableCommit | None,
    operation: Operation,
    reads: Reads,
    *,
    data_change: bool = True,
) -> int:
    """Commit files that this call owns; those of a commit that was refused are removed."""
    added = [file.action(data_change=data_change) for file in files]
    versions = {str(commit.txn): int(commit.lsn)} if commit else {}
    try:
        return commit_actions(folder, snapshot, [*actions, *added], versions, operation, reads)
    except (ConflictError, SameWriteError):
        for file in files:
            (folder / file.name).unlink(missing_ok=True)
        raise


def commit_actions(
    folder: Path,
    snapshot: Snapshot,
    actions: Sequence[Action],
    versions: Mapping[str, int],
    operation: Operation,
    reads: Reads | None = None,
) -> int:
    """Commit actions and versions by application id, write a checkpoint if one is due, return the version."""
    fence = fence_of(snapshot.path)
    if fence is not None:
        versions = {**versions, **fence.claims(snapshot.path, snapshot.offsets)}
        reads = fence.reads(reads)
    try:
        version = commit_version(
            folder, snapshot.version, [*txn_actions(versions), *actions], operation, reads
        )
    except SameWriteError as error:
        if fence is not None:
            fence.refuse(snapshot.path, error)
        raise
    try:
        checkpoint_if_due(folder, version, snapshot.configuration, {*snapshot.offsets, *versions})
    except Exception as error:  # the commit is made; the log is only longer
        report_error(error)
    return version


def set_properties(
    folder: Path, snapshot: Snapshot, properties: Mapping[str, str], user_metadata: str
) -> int:
    """Set plain properties of a table in a commit of their own, and return the version."""
    before = Definition.of(snapshot)
    actions = before.with_properties(properties).actions(before)
    parameters = {"properties": json.dumps(dict(properties))}
    operation = Operation("SET TBLPROPERTIES", parameters, {}, user_metadata)
    return commit_actions(folder, snapshot, actions, {}, operation)


def _write(
    mode: str, files: Sequence[DataFile], commit: TableCommit | None, *, is_blind_append: bool = False
) -> Operation:
    metrics = {
        "numFiles": str(len(files)),
        "numOutputRows": str(sum(file.row_count for file in files)),
        "numOutputBytes": str(sum(file.size for file in files)),
    }
    metadata = commit.user_metadata if commit else None
    return Operation("WRITE", {"mode": mode, "partitionBy": "[]"}, metrics, metadata, is_blind_append)


def rows_file(folder: Path, snapshot: Snapshot, rows: Any, schema: TableSchema | None = None) -> DataFile:
    """Write rows to a new file of a table, with its columns or those of a schema that replaces them.

    `rows` are mappings or an Arrow table; columns that they do not have are NULL.
    """
    return write_data_file(folder, _table_of(rows, snapshot, schema))


def _table_of(rows: Any, snapshot: Snapshot, schema: TableSchema | None = None) -> pa.Table:
    """Return rows with the columns of the table; those that the rows do not have are NULL."""
    target = (schema or TableSchema.of_json(snapshot.schema_string)).arrow
    if isinstance(rows, pa.Table):
        names = set(rows.column_names)
    else:  # a table that an earlier version created may lack columns that have no values
        names = {name for row in rows for name, value in row.items() if value is not None}
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
