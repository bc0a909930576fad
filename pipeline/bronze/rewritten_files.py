"""Write files of `changes` again without some of their rows, and replace them in one commit.

The commit changes no offset, and readers that follow the table skip it (`dataChange` is false).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.delta.data_files import DataFile
from pipeline.delta.native_commit import Operation, remove_action
from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS


def read_changes(path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file of `changes` or `prepared`, a row group at a time.

    Columns that it does not have are NULL.
    """
    schema = pa.schema([CHANGES.field(name) for name in columns])
    with open_data_file(path) as file, named_if_damaged(path):
        present = set(file.schema_arrow.names)
        for group in range(file.num_row_groups):
            read = file.read_row_group(group, columns=[name for name in columns if name in present])
            count = file.metadata.row_group(group).num_rows
            arrays = [
                read.column(each.name).cast(each.type) if each.name in present else pa.nulls(count, each.type)
                for each in schema
            ]
            yield pa.Table.from_arrays(arrays, schema=schema)


def write_changes(folder: Path, groups: Iterable[pa.Table]) -> list[DataFile]:
    """Write rows, given by row groups, to a new file; return none if there are none."""
    writer = StagedFileWriter(folder)
    try:
        for rows in groups:
            if rows.num_rows:
                writer.write(rows)
        if writer.row_count:
            return [writer.close().data]
    except BaseException:
        writer.discard()
        raise
    writer.discard()
    return []


def replace_files(
    table: LakeTable,
    snapshot: Snapshot,
    replaced: Iterable[Mapping[str, Any]],
    files: Iterable[DataFile],
    removed_rows: int,
    metadata: Mapping[str, object],
) -> None:
    """Commit new files in place of those with these `add` actions; `metadata` are more of the commit's."""
    removes = [remove_action(add, data_change=False) for add in replaced]
    adds = [file.action(data_change=False) for file in files]
    metrics = {"numDeletedRows": str(removed_rows), "numRemovedFiles": str(len(removes))}
    text = json.dumps({OURS: 1, **metadata})
    table.commit(snapshot, [*removes, *adds], {}, Operation("DELETE", {"predicate": "[]"}, metrics, text))
