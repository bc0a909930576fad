"""Copied rows in, rows of `bronze/changes` out: op R, at the LSN of their snapshot.

Blocks of rows come from `CopyReader`. Memory is that of one row group.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar import decode_copied
from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFile, StagedFileWriter
from pipeline.crash_steps import CrashStep, crash_step
from pipeline.postgres.snapshot.read_table import Block
from pipeline.protocol.lsn import LSN

GROUP_BYTES = 32 << 20
_GROUP_ROWS = 262_144


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """What all rows of a copy share in bronze: the copy, the relation version and the snapshot's LSN."""

    copy_id: int
    version: RelationVersion
    lsn: LSN
    taken_at: datetime


class CopySpool:
    """Stages the rows of one chunk in a file."""

    def __init__(self, folder: Path, header: CopyHeader) -> None:
        self._header = header
        self._file = StagedFileWriter(folder)
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, block: Block, first_ordinal: int) -> None:
        """Add a block of rows, whose ordinals count from the one given."""
        table = block_table(block, self._header, first_ordinal)
        self._tables.append(table)
        self._rows += block.row_count
        self._bytes += block.byte_count
        if self._bytes >= GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> StagedFile | None:
        """Return the file; None if there are no rows."""
        with crash_step(CrashStep.STAGE_COPIED_ROWS):
            self._flush()
            if self._file.row_count == 0:
                self._file.discard()
                return None
            return self._file.close()

    def discard(self) -> None:
        """Remove the file."""
        self._file.discard()

    def _flush(self) -> None:
        if self._tables:
            self._file.write(pa.concat_tables(self._tables).combine_chunks())
        self._tables, self._rows, self._bytes = [], 0, 0


def block_table(block: Block, header: CopyHeader, first_ordinal: int) -> pa.Table:
    """Return the rows of a block as `bronze/changes` has them."""
    width = len(header.version.relation.columns)
    new, raw = decode_copied(block, width)
    count, relation = block.row_count, header.version.relation
    columns: dict[str, pa.Array] = {
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + count)),
        "new": new,
        "raw_new": raw,
    }
    same = {
        "commit_lsn": header.lsn,
        "end_lsn": header.lsn,
        "commit_time": header.taken_at,
        "op": "R",
        "relation_id": relation.oid,
        "relation_version": header.version.id,
        "schema_name": header.version.schema_name,
        "table_name": header.version.table_name,
        "copy_id": header.copy_id,
    }
    for field in CHANGES:
        if field.name in same:
            columns[field.name] = pa.repeat(pa.scalar(same[field.name], field.type), count)
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in CHANGES]
    return pa.Table.from_arrays(arrays, schema=CHANGES)
