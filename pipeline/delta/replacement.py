"""Replace the columns, partitions and rows of a table by those of another one, without Spark.

Data files are not read: they get a second name in the folder of the table, by a hard link or on an object
store by a copy there, and one commit adds them and removes those that were there. So it takes a moment,
however large the table is. The properties and the comment of the table stay.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from pipeline.delta.features import WIDENED
from pipeline.delta.native_commit import Action, Operation, Reads, remove_action, remove_uncommitted
from pipeline.delta.native_write import commit_actions, is_supported, protocol_action
from pipeline.delta.schema import TableSchema
from pipeline.delta.store.mirror import mirror_of
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_path
from pipeline.delta.txn import TableCommit


def may_replace(old: Snapshot, new: Snapshot) -> bool:
    """Return whether the files of one table may become those of another one, which need not exist."""
    schema = TableSchema.of_json(new.schema_string)
    if not new.exists or not is_supported(new, removes=True):
        return False
    if any(add.get("deletionVector") or _is_elsewhere(add) for add in new.files.values()):
        return False
    if any(WIDENED in field.metadata for field in schema.fields):
        return False
    return not old.exists or (is_supported(old, removes=True) and _has_features(old, schema))


def replace_table(table: LakeTable, new: LakeTable, commit: TableCommit) -> bool:
    """Replace what a table has by what another one has, in one commit, unless the table records it.

    Returns False, with nothing done, if only Spark can do it. Raises ConflictError or SameWriteError if
    another commit changed the table meanwhile.
    """
    if table.local_path is None or new.local_path is None:
        return False
    before, built = table.snapshot(), new.snapshot()
    if not may_replace(before, built):
        return False
    if before.offsets.get(str(commit.txn), -1) >= commit.lsn:
        return True
    names = {key: _new_name(add) for key, add in built.files.items()}
    metrics = {
        "numFiles": str(len(names)),
        "numOutputRows": str(built.row_count or 0),
        "numOutputBytes": str(sum(int(add["size"]) for add in built.files.values())),
    }
    columns = json.dumps(built.partition_columns)
    parameters = {"mode": "Overwrite", "partitionBy": columns}
    operation = Operation("WRITE", parameters, metrics, commit.user_metadata)
    try:
        _copy_files(built, table.folder, names)
        actions = [
            *_metadata(before, built),
            *(remove_action(add) for add in before.files.values()),
            *(_add_action(add, names[key]) for key, add in built.files.items()),
        ]
        versions = {str(commit.txn): int(commit.lsn)}
        commit_actions(table.folder, before, actions, versions, operation, Reads(whole_table=True))
    except BaseException as error:
        remove_uncommitted(table.folder, before.version, names.values(), error)
        raise
    return True


def _is_elsewhere(add: Mapping[str, Any]) -> bool:
    """Return whether a file is not in its table's folder, as those of a shallow clone are."""
    return os.path.isabs(data_path("", add["path"])) or "://" in add["path"]


def _has_features(old: Snapshot, schema: TableSchema) -> bool:
    """Return whether the protocol of a table has the features that columns need."""
    needed = protocol_action(schema)["protocol"].get("readerFeatures", ())
    return set(needed) <= set(old.protocol.get("readerFeatures") or ())


def _metadata(before: Snapshot, built: Snapshot) -> list[Action]:
    """Return the actions that give a table the columns and partitions of another one."""
    columns = {"schemaString": built.schema_string, "partitionColumns": list(built.partition_columns)}
    if before.exists:
        return [{"metaData": {**before.metadata, **columns}}]
    return [{"protocol": dict(built.protocol)}, {"metaData": {**built.metadata, "id": str(uuid4())}}]


def _new_name(add: Mapping[str, Any]) -> str:
    """Return another path in a table's folder for a file, in the folder of its partition."""
    folder, _, _ = data_path("", add["path"]).rpartition("/")
    name = f"part-{uuid4()}.snappy.parquet"
    return f"{folder}/{name}" if folder else name


def _add_action(add: Mapping[str, Any], name: str) -> Action:
    return {"add": {**add, "path": quote(name, safe="/="), "dataChange": True}}


def _copy_files(built: Snapshot, folder: Path, names: Mapping[str, str]) -> None:
    """Give the files of a table their names in another folder."""
    paths = [(data_path(built.path, built.files[key]["path"]), folder / name) for key, name in names.items()]
    mirror = mirror_of(folder)
    if mirror is not None:
        store = mirror.store
        store.each(lambda each: store.copy(mirror.name(each[0]), mirror.name(each[1])), paths)
        return
    for source, target in paths:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # the file system may have no more links of a file
            shutil.copyfile(source, target)
