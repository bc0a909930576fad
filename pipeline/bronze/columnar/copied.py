"""Rows that a table copy has read, to Arrow.

A block is one text of many rows, with control characters after the values that no value has
(`postgres/snapshot/read_table.py`). They are found for all rows at once, and what remains are the values one
after the other. Blocks whose values may have these characters are rows of values.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.tuples import NULL, TEXT, Ints, Octets, Tuples, text_lists, too_long
from pipeline.postgres.snapshot.read_table import NULL_MARK, VALUE_END, Block

_NULL_MARK, _VALUE_END = ord(NULL_MARK), ord(VALUE_END)  # the mark of a row's end has the code between them


def decode_copied(block: Block, width: int) -> tuple[pa.Array, pa.Array]:
    """Return the rows of a block as lists of text, those that are not UTF-8 also as lists of raw bytes."""
    return _decode_text(block, width) if block.rows is None else _decode_rows(block.rows, width)


def _decode_text(block: Block, width: int) -> tuple[pa.Array, pa.Array]:
    octets = np.frombuffer(block.text, np.uint8)
    is_mark = (octets >= _NULL_MARK) & (octets <= _VALUE_END)
    marks = np.flatnonzero(is_mark)
    kinds_of_marks = octets[marks]
    ends = kinds_of_marks == _VALUE_END
    # The marks up to the end of a value are no part of any value.
    offsets = np.zeros(block.row_count * width + 1, np.int64)
    offsets[1:] = (marks - np.arange(len(marks)))[ends]
    if offsets[-1] > np.iinfo(np.int32).max:
        raise too_long()
    kinds = np.full(block.row_count * width, TEXT, np.uint8)
    is_null = kinds_of_marks == _NULL_MARK
    kinds[np.cumsum(ends)[is_null]] = NULL
    tuples = _tuples(block.row_count, width, kinds, np.diff(offsets))
    return text_lists(octets[~is_mark], offsets.astype(np.int32), tuples)


def _decode_rows(rows: Sequence[Sequence[bytes | None]], width: int) -> tuple[pa.Array, pa.Array]:
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
