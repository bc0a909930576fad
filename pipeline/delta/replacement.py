"""Replace the columns, partitions and rows of a table by those of another one, without Spark.

Data files are not read: they get a second name in the folder of the table, by a hard link or on an object
store by a copy there, and one commit adds them and removes those that were there. So it takes a moment,
however large the table is. The properties and the comment of the table stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.delta.data_files import DataFile
from pipeline.delta.definition import Definition
from pipeline.delta.features import WIDENED, Feature
from pipeline.delta.native_commit import Operation, Reads, remove_action, removing_uncommitted
from pipeline.delta.native_write import commit_actions, is_supported
from pipeline.delta.partitions import partition_of, physical_partition_columns
from pipeline.delta.schema import mentions
from pipeline.delta.store.mirror import files_of
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot, data_path


def may_replace(old: Snapshot, new: Snapshot) -> bool:
    """Return whether the files of one table may become those of another one, which need not exist."""
    if not new.exists or not is_supported(new, removes=True):
        return False
    if any(add.get("deletionVector") or _is_elsewhere(add) for add in new.files.values()):
        return False
    return not old.exists or is_supported(old, removes=True)


def replace_table(
    table: LakeTable,
    new: LakeTable,
    versions: Mapping[str, int],
    user_metadata: str,
    properties: Mapping[str, str] | None = None,
) -> bool:
    """Replace what a table has by what another one has, in one commit, unless the table records it.

    The commit records `versions` by application id, and sets properties. Returns False, with nothing done, if
    only Spark can do it. Raises ConflictError or SameWriteError if another commit changed the table
    meanwhile.
    """
    if table.local_path is None or new.local_path is None:
        return False
    if files_of(table.folder) is not files_of(new.folder):
        return False
    before, built = table.snapshot(), new.snapshot()
    if not may_replace(before, built):
        return False
    if any(before.offsets.get(app_id, -1) >= version for app_id, version in versions.items()):
        return True
    sources = [data_path(built.path, add["path"]) for add in built.files.values()]
    divides = physical_partition_columns(built)
    files = [_file_of(add, divides) for add in built.files.values()]
    metrics = {
        "numFiles": str(len(files)),
        "numOutputRows": str(sum(file.row_count for file in files)),
        "numOutputBytes": str(sum(file.size for file in files)),
    }
    columns = json.dumps(built.partition_columns)
    parameters = {"mode": "Overwrite", "partitionBy": columns}
    operation = Operation("WRITE", parameters, metrics, user_metadata)
    definition = _definition(before, built).with_properties(properties or {})
    with removing_uncommitted(table.folder, before.version, files):
        _copy_files(table.folder, sources, files)
        actions = [
            *definition.actions(Definition.of(before) if before.exists else None),
            *map(remove_action, before.files.values()),
            *(file.action() for file in files),
        ]
        commit_actions(table.folder, before, actions, versions, operation, Reads(whole_table=True))
    return True


def _is_elsewhere(add: Mapping[str, Any]) -> bool:
    """Return whether a file is not in its table's folder, as those of a shallow clone are."""
    return os.path.isabs(data_path("", add["path"])) or "://" in add["path"]


def _definition(before: Snapshot, built: Snapshot) -> Definition:
    """Return that of a table with the columns and partitions of another one; its own properties stay."""
    new = Definition.of(built)
    if not before.exists:
        return new.with_metadata(id=str(uuid4()))
    found = Definition.of(before).with_fields(new.fields)
    found = found.with_metadata(partitionColumns=list(built.partition_columns))
    if any(mentions(field.type, "timestamp_ntz") for field in new.fields):
        found = found.enabled(Feature.TIMESTAMP_NTZ)
    if any(WIDENED in field.metadata for field in new.fields):
        found = found.enabled(Feature.TYPE_WIDENING)
    return found.mapped(keeps_names=True) if found.is_mapped or new.is_mapped else found


def _file_of(add: Mapping[str, Any], partition_by: Sequence[str]) -> DataFile:
    """Return a file under another name, in the folder of its partition."""
    folder, _, _ = data_path("", add["path"]).rpartition("/")
    stats = add.get("stats") or "{}"
    return DataFile(
        f"{folder}/part-{uuid4()}.snappy.parquet".lstrip("/"),
        int(add["size"]),
        int(json.loads(stats).get("numRecords", 0)),
        stats,
        add.get("tags"),
        partition_of(partition_by, add),
    )


def _copy_files(folder: Path, sources: Sequence[str], files: Sequence[DataFile]) -> None:
    """Give files, by their paths, the names of others in a folder."""
    pairs = [(source, folder / file.name) for source, file in zip(sources, files, strict=True)]
    files_of(folder).copy_all(pairs)
