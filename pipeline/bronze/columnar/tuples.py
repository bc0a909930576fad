"""Build Arrow arrays of tuples: lists of text, raw bytes of tuples that are not UTF-8, unchanged TOAST.

A cell is a kind, a start and a length in a buffer. Its bytes are copied once, into the memory of an Arrow
array; values in binary format have been converted to text before. The rows of a table copy arrive as one
block of text, with control characters after the values that occur in no value
(`postgres/snapshot/read_table.py`); the cells of all rows are found at once. If values may contain these
characters, the block is a list of rows instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.bronze.schema import POSITIONS, RAW_CELLS, storable
from pipeline.errors import ProtocolError
from pipeline.postgres.snapshot.read_table import NULL_MARK, VALUE_END, Block

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]

NULL, UNCHANGED, TEXT, BINARY = ord("n"), ord("u"), ord("t"), ord("b")
_TEXT_LIMIT = 2**31 - 1  # bytes: what one array of Arrow's strings holds


class Malformed(Exception):
    """Some row is malformed; the scalar decoder finds which one and why."""


@dataclass(slots=True)
class Tuples:
    """Cells of one tuple per row, flattened row-major; `present` marks the rows that have the tuple at all.

    `offsets` are those of the rows' first cells; `starts` and `lengths` locate a cell's value in a buffer.
    """

    present: Bools
    offsets: Ints
    kinds: Octets
    starts: Ints
    lengths: Ints


def too_long() -> ProtocolError:
    """Return the error for values whose text would fill the memory, as no sent text does."""
    return ProtocolError(
        "The text of a batch of binary values has more than 2 GiB. Set source.protocol.binary to false."
    )


def cell_lists(octets: Octets, tuples: Tuples) -> tuple[pa.Array, pa.Array]:
    """Return the tuples as lists of text, and those that are not UTF-8 also as lists of raw bytes."""
    total = int(tuples.lengths.sum())
    if total > _TEXT_LIMIT:
        raise too_long()
    taken = _take(octets, tuples) if len(tuples.kinds) and len(octets) <= _TEXT_LIMIT else None
    if taken is not None:
        _, offsets, data = taken.buffers()
        return text_lists(data or b"", offsets, tuples)
    ends = np.zeros(len(tuples.kinds) + 1, np.int32)
    np.cumsum(tuples.lengths, out=ends[1:])
    view = memoryview(octets.data)
    stops = tuples.starts + tuples.lengths
    data = b"".join([view[a:b] for a, b in zip(tuples.starts.tolist(), stops.tolist(), strict=True)])
    return text_lists(data, ends, tuples)


def _take(octets: Octets, tuples: Tuples) -> pa.Array | None:
    """Return the cells' values one after the other; None if they overlap.

    The bytes are an array of Arrow already, if a value and what follows it are two elements: every other one
    is a value.
    """
    bounds = np.empty(2 * len(tuples.starts), np.int32)  # of each value: its start and its end
    bounds[0::2] = tuples.starts
    np.add(tuples.starts, tuples.lengths, out=bounds[1::2], casting="same_kind")
    order = None
    if (bounds[2::2] < bounds[1:-1:2]).any():  # values in binary format were converted, column by column
        order = np.lexsort((bounds[1::2], bounds[0::2]))
        bounds = bounds.reshape(-1, 2)[order].reshape(-1)
        if (bounds[2::2] < bounds[1:-1:2]).any():
            return None
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(octets)]
    elements = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    values = np.arange(0, len(bounds), 2, dtype=np.int32)
    if order is not None:
        unordered = np.empty_like(values)
        unordered[order] = values
        values = unordered
    return elements.take(pa.array(values))


def text_lists(
    data: bytes | Octets | pa.Buffer, offsets: npt.NDArray[np.int32] | pa.Buffer, tuples: Tuples
) -> tuple[pa.Array, pa.Array]:
    """Return tuples like `cell_lists`, given their values one after the other in `data`."""
    validity = np.packbits(tuples.kinds == TEXT, bitorder="little")
    buffers = [pa.py_buffer(buffer) for buffer in (validity, offsets, data)]
    text = pa.Array.from_buffers(pa.string(), len(tuples.kinds), buffers)
    raw = pa.nulls(len(tuples.present), RAW_CELLS)
    if not _are_utf8(np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int32)):
        binary = pa.Array.from_buffers(pa.binary(), len(tuples.kinds), buffers)
        text, raw = _salvage(binary, tuples)
    return _lists(tuples, text, ~tuples.present), raw


def _are_utf8(octets: Octets, offsets: npt.NDArray[np.int32]) -> bool:
    """Return whether all values are UTF-8: together they are, and none of them begins within a character."""
    bounds = np.array([0, len(octets)], np.int32)
    together = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(octets)])
    try:
        together.validate(full=True)
    except pa.ArrowInvalid:
        return False
    starts = offsets[:-1][offsets[:-1] < len(octets)]
    return not ((octets[starts] & 0xC0) == 0x80).any()


def _salvage(binary: pa.Array, tuples: Tuples) -> tuple[pa.Array, pa.Array]:
    r"""Write bytes that are not UTF-8 as `\xE9`, and keep the raw bytes of every tuple that has such a value.

    Values that differ stay different: one of them may be a key.
    """
    values = binary.to_pylist()
    text = [None if value is None else storable(value.decode("utf-8", "surrogateescape")) for value in values]
    broken = np.fromiter(
        (
            value is not None and value != str(shown).encode()
            for value, shown in zip(values, text, strict=True)
        ),
        np.bool_,
        len(values),
    )
    broken_before = np.concatenate(([0], np.cumsum(broken)))
    row_is_broken = broken_before[tuples.offsets[1:]] > broken_before[tuples.offsets[:-1]]
    return pa.array(text, pa.string()), _lists(tuples, binary, ~row_is_broken)


def _lists(tuples: Tuples, values: pa.Array, absent: Bools) -> pa.Array:
    offsets = pa.array(tuples.offsets, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array(absent))
    return lists.cast(pa.list_(pa.field("element", values.type)))


def unchanged_toast_positions(tuples: Tuples) -> pa.Array:
    """Return the 0-based positions of cells with unchanged TOAST, NULL for rows that have none."""
    cells = np.flatnonzero(tuples.kinds == UNCHANGED)
    row_count = len(tuples.present)
    if len(cells) == 0:
        return pa.nulls(row_count, POSITIONS)
    rows = np.searchsorted(tuples.offsets, cells, side="right") - 1
    per_row = np.bincount(rows, minlength=row_count)
    offsets = np.zeros(row_count + 1, np.int32)
    np.cumsum(per_row, out=offsets[1:])
    positions = pa.array((cells - tuples.offsets[rows]).astype(np.int32))
    lists = pa.ListArray.from_arrays(pa.array(offsets), positions, mask=pa.array(per_row == 0))
    return lists.cast(POSITIONS)


def letters(octets: Octets, present: Bools | None = None) -> pa.Array:
    """Return one-letter strings, NULL for rows that are not present."""
    offsets = pa.py_buffer(np.arange(len(octets) + 1, dtype=np.int32))
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(octets))
    return pa.Array.from_buffers(pa.string(), len(octets), [validity, offsets, data])


_NULL_MARK, _VALUE_END = ord(NULL_MARK), ord(VALUE_END)  # the mark of a row's end has the code between them


def read_block(block: Block, width: int) -> tuple[Octets, Tuples]:
    """Return the values of a block one after the other, and its rows, whose cells are in their order."""
    return _decode_text(block, width) if block.rows is None else _decode_rows(block.rows, width)


def contiguous_lists(octets: Octets, tuples: Tuples) -> tuple[pa.Array, pa.Array]:
    """Return tuples like `cell_lists`, given their values one after the other."""
    ends = np.concatenate(([0], np.cumsum(tuples.lengths)))
    return text_lists(octets, ends.astype(np.int32), tuples)


def _decode_text(block: Block, width: int) -> tuple[Octets, Tuples]:
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
    return octets[~is_mark], tuples


def _decode_rows(rows: Sequence[Sequence[bytes | None]], width: int) -> tuple[Octets, Tuples]:
    values = [value for row in rows for value in row]
    lengths = np.fromiter((0 if v is None else len(v) for v in values), np.int64, len(values))
    kinds = np.fromiter((NULL if v is None else TEXT for v in values), np.uint8, len(values))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise too_long()
    data = b"".join(value for value in values if value is not None)
    return np.frombuffer(data, np.uint8), _tuples(len(rows), width, kinds, lengths)


def _tuples(count: int, width: int, kinds: Octets, lengths: Ints) -> Tuples:
    offsets = np.arange(count + 1, dtype=np.int64) * width
    starts = np.cumsum(lengths) - lengths
    return Tuples(np.ones(count, np.bool_), offsets, kinds, starts, lengths)
