"""Copied rows in, rows of `bronze/changes` out: op R, at the position of their snapshot.

What comes is one text of many rows with control characters behind the values (`postgres/copy` says which);
the characters are found for all rows at once, and what is left are the values one behind the other. Memory is
that of one row group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.tuples import NULL, TEXT, Ints, Octets, Tuples, text_lists, too_long
from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import Part, create_file
from pipeline.postgres.snapshot.read_table import NULL_MARK, VALUE_END, Block
from pipeline.protocol.lsn import LSN

GROUP_BYTES = 32 << 20
_GROUP_ROWS = 262_144
_LEAST_MARK, _MOST_MARK, _VALUE_END = ord(NULL_MARK), ord(VALUE_END), ord(VALUE_END)


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """Where copied rows stand in bronze: their copy, relation version, and the position of their snapshot."""

    copy_id: int
    version: RelationVersion
    lsn: LSN
    taken_at: datetime


class CopySpool:
    """Stages the rows of one range of pages in a file; `first_ordinal` is that of the next row group."""

    def __init__(self, directory: Path, place: CopyHeader) -> None:
        self._place = place
        self._file = create_file(directory)
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    def add(self, block: Block, first_ordinal: int) -> None:
        """Take a block of rows, whose ordinals count from the one given."""
        table = block_table(block, self._place, first_ordinal)
        self._tables.append(table)
        self._rows += block.row_count
        self._bytes += block.byte_count
        if self._bytes >= GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> Part | None:
        """Return the file; None where no row came."""
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


def block_table(block: Block, place: CopyHeader, first_ordinal: int) -> pa.Table:
    """Return the rows of a block as `bronze/changes` has them."""
    width = len(place.version.relation.columns)
    new, raw = _text_cells(block, width) if block.rows is None else _row_cells(block.rows, width)
    count, relation = block.row_count, place.version.relation
    columns: dict[str, pa.Array] = {
        "ordinal": pa.array(np.arange(first_ordinal, first_ordinal + count)),
        "new": new,
        "raw_new": raw,
    }
    same = {
        "commit_lsn": place.lsn,
        "end_lsn": place.lsn,
        "commit_time": place.taken_at,
        "op": "R",
        "relation_id": relation.oid,
        "relation_version": place.version.id,
        "schema_name": place.version.schema_name,
        "table_name": place.version.table_name,
        "copy_id": place.copy_id,
    }
    for field in CHANGES:
        if field.name in same:
            columns[field.name] = pa.repeat(pa.scalar(same[field.name], field.type), count)
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in CHANGES]
    return pa.Table.from_arrays(arrays, schema=CHANGES)


def _text_cells(block: Block, width: int) -> tuple[pa.Array, pa.Array]:
    octets = np.frombuffer(block.text, np.uint8)
    is_mark = (octets >= _LEAST_MARK) & (octets <= _MOST_MARK)
    marks = np.flatnonzero(is_mark)
    kinds_of_marks = octets[marks]
    ends = kinds_of_marks == _VALUE_END
    # Up to the end of a value there were so many marks that are no part of any.
    offsets = np.zeros(block.row_count * width + 1, np.int64)
    offsets[1:] = (marks - np.arange(len(marks)))[ends]
    if offsets[-1] > np.iinfo(np.int32).max:
        raise too_long()
    kinds = np.full(block.row_count * width, TEXT, np.uint8)
    is_null = kinds_of_marks == _LEAST_MARK
    kinds[np.cumsum(ends)[is_null]] = NULL
    tuples = _tuples(block.row_count, width, kinds, np.diff(offsets))
    return text_lists(octets[~is_mark], offsets.astype(np.int32), tuples)


def _row_cells(rows: Sequence[Sequence[bytes | None]], width: int) -> tuple[pa.Array, pa.Array]:
    values = [value for row in rows for value in row]
    lengths = np.fromiter((0 if v is None else len(v) for v in values), np.int64, len(values))
    kinds = np.fromiter((NULL if v is None else TEXT for v in values), np.uint8, len(values))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise too_long()
    data = b"".join(value for value in values if value is not None)
    return text_lists(data, offsets.astype(np.int32), _tuples(len(rows), width, kinds, lengths))


def _tuples(count: int, width: int, kinds: Octets, lengths: Ints) -> Tuples:
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return Tuples(np.ones(count, np.bool_), offsets, kinds, np.zeros(0, np.int64), lengths)
