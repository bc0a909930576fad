"""Rewrite of a silver table with other columns, in one commit, so that its readers need no table feature.

What column mapping and type widening would say in the metadata alone is so in the data files afterwards: they
have each column under its name and with its type. `plan_rewrite` composes the operations, without I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.config.tables import TableRule
from pipeline.delta.data_files import PartitionedFiles
from pipeline.delta.definition import Definition
from pipeline.delta.features import features_of
from pipeline.delta.native_commit import Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import literal, quoted
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TableCommit
from pipeline.silver.schema.schema_operations import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SchemaOperation,
    WidenColumn,
)
from pipeline.silver.write.data_layout import ADDED_FILE_IN_MEMORY, file_size
from pipeline.silver.write.native_files import cast_column
from pipeline.silver.write.native_schema import default_of, field_of, fills_natively
from pipeline.silver.write.native_session import why_left_to_spark
from pipeline.silver.write.table_version import TableVersion
from pipeline.silver.write.writer_choice import MAX_BYTES, WriterSetting

REWRITE = "rewrite"
"""The operation in the user metadata of a commit that writes a table again with other columns."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A table's definition after the commit, and where its columns have their values from.

    `sources` are columns of the table as it is, by those that they become. `added` are columns with a default
    by name; others have no value.
    """

    definition: Definition
    sources: Mapping[str, str]
    added: Mapping[str, AddColumn]

    def new_names(self, physical: Mapping[str, str]) -> dict[str, str]:
        """Return the names of columns by those in data files as they are, given these by name."""
        return {physical[source]: name for name, source in self.sources.items()}


def plan_rewrite(before: Definition, operations: Sequence[SchemaOperation]) -> Rewrite:
    """Return what operations, in order, make of a table; a column that exists is not added again."""
    after = before.plain()
    sources = {each.name: each.name for each in after.fields}
    added: dict[str, AddColumn] = {}
    for operation in operations:
        match operation:
            case AddColumn(name=name) if all(each.name != name for each in after.fields):
                after = after.with_column(field_of(operation))
                if operation.backfill is not None:
                    added[name] = operation
            case RenameColumn(name=name, to=to):
                after = after.renamed(name, to)
                sources |= {to: sources.pop(name)} if name in sources else {}
                added |= {to: added.pop(name)} if name in added else {}
            case WidenColumn(name=name):
                (wider,) = TableSchema.of_ddl(f"{quoted(name)} {operation.type.ddl}").fields
                after = after.widened(name, wider.type)
            case DropColumn(name=name):
                after = after.without(name)
                sources.pop(name, None)
                added.pop(name, None)
    return Rewrite(after.plain(), sources, added)


def leaves_features(snapshot: Snapshot, rule: TableRule, writer: WriterSetting) -> bool:
    """Return whether a table has features that its rule excludes, and can be written again without them.

    Spark never takes a feature back.
    """
    if rule.readers != "widest" or writer == "spark" or not snapshot.exists:
        return False
    before = Definition.of(snapshot)
    return before.plain().asks_readers != before.asks_readers and fills_natively(snapshot, MAX_BYTES)


def rewrite_table(
    table: LakeTable,
    rewrite: Rewrite,
    commit: TableCommit,
    versions: Mapping[str, int],
    writer: WriterSetting,
) -> None:
    """Write all rows of a table with other columns, and commit that with versions by application id.

    Raises ConflictError or SameWriteError if another commit changed the table meanwhile.
    """
    snapshot = table.snapshot() if writer != "spark" else None
    if snapshot is not None and fills_natively(snapshot, None if writer == "native" else MAX_BYTES):
        try:
            _rewrite_natively(table, snapshot, rewrite, commit, versions)
            return
        except Exception as error:  # nothing is committed yet
            if why_left_to_spark(error) is None:
                raise
    _rewrite_by_spark(table, rewrite, commit)


def _rewrite_natively(
    table: LakeTable, snapshot: Snapshot, rewrite: Rewrite, commit: TableCommit, versions: Mapping[str, int]
) -> None:

    version = TableVersion(table, snapshot)
    definition, stored = rewrite.definition, TableSchema(rewrite.definition.fields).stored
    partition_by: list[str] = definition.metadata["partitionColumns"]
    in_files = pa.schema([each for each in stored if each.name not in partition_by])
    defaults = {name: default_of(each, stored.field(name).type) for name, each in rewrite.added.items()}
    most = file_size(version.size) * 3 // 2  # as rewritten files are split
    files = PartitionedFiles(table.folder, partition_by, in_files, lambda _: most, ADDED_FILE_IN_MEMORY)
    read = version.schema_of(dict.fromkeys(rewrite.sources.values()))
    try:
        for number in range(len(version.files)):
            files.write(_rewritten(version.read(number, read), stored, rewrite, defaults))
        added = files.close()
    except BaseException:
        files.discard()
        raise
    metrics = {
        "numFiles": str(len(added)),
        "numOutputRows": str(sum(file.row_count for file in added)),
        "numOutputBytes": str(sum(file.size for file in added)),
    }
    parameters = {"mode": "Overwrite", "partitionBy": json.dumps(partition_by)}
    operation = Operation("WRITE", parameters, metrics, commit.user_metadata)
    with removing_uncommitted(table.folder, snapshot.version, added):
        actions = [
            *definition.actions(Definition.of(snapshot)),
            *map(remove_action, version.files),
            *(file.action() for file in added),
        ]
        offsets = {str(commit.txn): int(commit.lsn), **versions}
        table.commit(snapshot, actions, offsets, operation, Reads(whole_table=True))


def _rewritten(
    rows: pa.Table, schema: pa.Schema, rewrite: Rewrite, defaults: Mapping[str, pa.ChunkedArray]
) -> pa.Table:
    """Return rows as they were read with the columns of a schema."""

    def column(field: pa.Field) -> Any:
        if (source := rewrite.sources.get(field.name)) is not None:
            return cast_column(rows.column(source), field.type)
        if field.name in defaults:
            return pa.repeat(defaults[field.name][0], rows.num_rows)
        return pa.nulls(rows.num_rows, field.type)

    return pa.Table.from_arrays([column(field) for field in schema], schema=schema)


def _rewrite_by_spark(table: LakeTable, rewrite: Rewrite, commit: TableCommit) -> None:
    from pyspark.sql import functions as F

    columns = []
    for field in rewrite.definition.fields:
        value = F.lit(None)
        if (source := rewrite.sources.get(field.name)) is not None:
            value = F.col(quoted(source))
        elif (added := rewrite.added.get(field.name)) is not None:
            assert added.backfill is not None
            value = F.expr(added.type.value(literal(added.backfill)))
        columns.append(value.cast(field.ddl).alias(field.name, metadata=dict(field.metadata)))
    table.enable(feature for field in rewrite.definition.fields for feature in features_of(field.ddl))
    partition_by = rewrite.definition.metadata["partitionColumns"]
    table.replace_rows(table.frame().select(*columns), commit, partition_by)
