"""Row messages in, Arrow columns out: the hot half of decoding.

Insert, Update and Delete messages of any relations are decoded side by side: column after column, each step
over all rows at once, so that no Python object is made per row or cell. Layouts follow PostgreSQL's "Logical
Replication Message Formats" (Insert, Update, Delete, TupleData). What this finds malformed is given to the
scalar decoder, which names the message, field and offset; the two agree on every message (a test says so).
Values in binary format are refused: they were not asked for, and bronze holds PostgreSQL's text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.bronze.schema import POSITIONS, RAW_CELLS
from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import Binary, Delete, Insert, Message, Update

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
_KEY, _OLD, _NEW = ord("K"), ord("O"), ord("N")
_NULL, _UNSENT, _TEXT = ord("n"), ord("u"), ord("t")
_FIRST_TAG = 5  # after the type byte and the relation's oid
_XID_SIZE = 4  # before the oid, in messages of a streamed transaction
# Above this mean length of a value slicing beats gathering, which needs an index of 8 bytes for each byte.
_GATHER_BELOW = 160
_GATHERED_AT_ONCE = 1 << 20  # bytes: their index is small enough for the processor's caches


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Equal-length columns of one batch of row messages."""

    op: pa.Array
    subxid: Ints | None  # of messages inside a stream
    relation_id: Ints
    old_kind: pa.Array
    old: pa.Array
    new: pa.Array
    unsent: pa.Array
    raw_old: pa.Array
    raw_new: pa.Array


@dataclass(slots=True)
class _Tuples:
    """Cells of one tuple per row, flattened row-major; `present` says which rows have the tuple at all."""

    present: Bools
    offsets: Ints
    kinds: npt.NDArray[np.uint8]
    starts: Ints
    lengths: Ints


class _Malformed(Exception):
    """Some row is malformed; which one and why, the scalar decoder says."""


def decode_rows(
    messages: Sequence[bytes],
    widths: Ints | None = None,
    name_of: Callable[[int], str] | None = None,
    *,
    in_stream: bool = False,
) -> RowColumns:
    """Decode Insert, Update and Delete messages; raise ProtocolError for the first malformed one.

    `widths` are the columns that each row's relation has: every tuple, a key too, has as many. `name_of` says
    what to call a row in the error. Messages of a streamed transaction carry the xid that wrote them.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # Padding lets every fixed-width read stay inside the buffer; bounds are checked against `ends`.
    buffer = b"".join((*messages, b"\0" * 8))
    octets = np.frombuffer(buffer, np.uint8)
    try:
        return _decode(buffer, octets, starts, ends, widths, _XID_SIZE if in_stream else 0)
    except _Malformed:
        raise _first_fault(messages, widths, name_of, in_stream) from None


def _first_fault(
    messages: Sequence[bytes],
    widths: Ints | None,
    name_of: Callable[[int], str] | None,
    in_stream: bool,
) -> ProtocolError:
    for row, message in enumerate(messages):
        place = f" {name_of(row)}" if name_of else ""
        try:
            decoded = decode(message, in_stream=in_stream)
            fault = _fault(decoded, None if widths is None else int(widths[row]), place)
        except ProtocolError as error:
            fault = f"{error} (the message is{place})" if place else str(error)
        if fault:
            return ProtocolError(fault)
    raise AssertionError("a row was refused that the scalar decoder accepts")


def _fault(decoded: Message, width: int | None, place: str) -> str | None:
    name = type(decoded).__name__
    if not isinstance(decoded, Insert | Update | Delete):
        return f"{name}{place} is not a row message"
    old, new = getattr(decoded, "old", None), getattr(decoded, "new", None)
    for side, cells in (("old", old), ("new", new)):
        if cells is None:
            continue
        if width is not None and len(cells) != width:
            return f"{name}{place}: {len(cells)} columns in the {side} tuple, its relation has {width}"
        for column, cell in enumerate(cells, 1):
            if isinstance(cell, Binary):
                return (
                    f"{name}{place}: column {column} of the {side} tuple is in binary format, "
                    "which was not asked for"
                )
    return None


def _decode(
    buffer: bytes,
    octets: npt.NDArray[np.uint8],
    starts: Ints,
    ends: Ints,
    widths: Ints | None,
    xid_size: int,
) -> RowColumns:
    first_tag = _FIRST_TAG + xid_size
    _require(starts + first_tag < ends)
    op = octets[starts]
    tag = octets[starts + first_tag]
    has_old = (tag == _KEY) | (tag == _OLD)
    _require(
        ((op == INSERT) & (tag == _NEW))
        | ((op == UPDATE) & (has_old | (tag == _NEW)))
        | ((op == DELETE) & has_old)
    )
    position = starts + first_tag + 1
    old, position = _read_tuples(octets, position, ends, has_old, widths)
    # An Update that carries an old tuple has the new one's tag behind it.
    follows = has_old & (op == UPDATE)
    _require(~follows | ((position < ends) & (octets[np.minimum(position, len(octets) - 1)] == _NEW)))
    position = position + follows
    new, position = _read_tuples(octets, position, ends, op != DELETE, widths)
    _require(position == ends)
    old_cells, raw_old = _cells(buffer, octets, old)
    new_cells, raw_new = _cells(buffer, octets, new)
    return RowColumns(
        op=_letters(op),
        subxid=_u32(octets, starts + 1) if xid_size else None,
        relation_id=_u32(octets, starts + 1 + xid_size),
        old_kind=_letters(tag, has_old),
        old=old_cells,
        new=new_cells,
        unsent=_unsent(new),
        raw_old=raw_old,
        raw_new=raw_new,
    )


def _require(good: Bools) -> None:
    if not good.all():
        raise _Malformed


def _u32(octets: npt.NDArray[np.uint8], at: Ints) -> Ints:
    value: Ints = octets[at].astype(np.int64) << 24
    value |= octets[at + 1].astype(np.int64) << 16
    value |= octets[at + 2].astype(np.int64) << 8
    value |= octets[at + 3]
    return value


def _read_tuples(
    octets: npt.NDArray[np.uint8], position: Ints, ends: Ints, present: Bools, widths: Ints | None
) -> tuple[_Tuples, Ints]:
    """Read one TupleData per present row; return the cells and the position behind each."""
    position = position.copy()
    _require(~present | (position + 2 <= ends))
    head = np.minimum(position, len(octets) - 2)
    counts = np.where(present, (octets[head].astype(np.int64) << 8) | octets[head + 1], 0)
    position[present] += 2
    # A cell takes a byte at least: counts that the messages cannot hold would ask for any amount of memory.
    _require(position + counts <= ends)
    if widths is not None:
        _require(~present | (counts == widths))
    offsets = np.zeros(len(position) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    kinds = np.empty(offsets[-1], np.uint8)
    starts = np.empty(offsets[-1], np.int64)
    lengths = np.empty(offsets[-1], np.int64)
    for column in range(int(counts.max(initial=0))):
        rows: Any = np.flatnonzero(counts > column)
        if len(rows) == len(position):
            rows = slice(None)
        at, end = position[rows], ends[rows]
        fits = at < end
        at = np.minimum(at, len(octets) - 8)
        kind = octets[at]
        is_text = kind == _TEXT
        length = np.where(is_text, _u32(octets, at + 1), 0)
        following = at + 1 + np.where(is_text, 4 + length, 0)
        fits &= is_text | (kind == _NULL) | (kind == _UNSENT)
        fits &= following <= end
        _require(fits)
        cell = offsets[:-1][rows] + column
        kinds[cell], starts[cell], lengths[cell] = kind, at + 5, length
        position[rows] = following
    return _Tuples(present, offsets, kinds, starts, lengths), position


def _cells(buffer: bytes, octets: npt.NDArray[np.uint8], tuples: _Tuples) -> tuple[pa.Array, pa.Array]:
    """Return the tuples as lists of text, and as lists of raw bytes for those that are not UTF-8."""
    count = len(tuples.kinds)
    total = int(tuples.lengths.sum())
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(tuples.lengths, out=offsets[1:])
    if total < count * _GATHER_BELOW:
        data = _gather(octets, tuples, offsets)
    else:
        view = memoryview(buffer)
        stops = tuples.starts + tuples.lengths
        data = b"".join([view[a:b] for a, b in zip(tuples.starts.tolist(), stops.tolist(), strict=True)])
    validity = np.packbits(tuples.kinds == _TEXT, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    text = pa.Array.from_buffers(pa.string(), count, buffers)
    raw = pa.nulls(len(tuples.present), RAW_CELLS)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        binary = pa.Array.from_buffers(pa.binary(), count, buffers)
        text, raw = _salvage(binary, tuples)
    return _lists(tuples, text, ~tuples.present), raw


def _gather(octets: npt.NDArray[np.uint8], tuples: _Tuples, offsets: npt.NDArray[np.int32]) -> bytes:
    firsts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), _GATHERED_AT_ONCE), side="right") - 1
    pieces = []
    for first, stop in pairwise([*firsts.tolist(), len(tuples.lengths)]):
        cells = slice(first, stop)
        index = np.repeat(tuples.starts[cells] - offsets[cells], tuples.lengths[cells])
        index += np.arange(offsets[first], offsets[stop])
        pieces.append(octets[index].tobytes())
    return b"".join(pieces)


def _salvage(binary: pa.Array, tuples: _Tuples) -> tuple[pa.Array, pa.Array]:
    """Replace what is not UTF-8 in the text, and keep the raw bytes of every tuple that has such a value."""
    values = binary.to_pylist()
    text = [None if value is None else value.decode("utf-8", "replace") for value in values]
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


def _lists(tuples: _Tuples, values: pa.Array, absent: Bools) -> pa.Array:
    offsets = pa.array(tuples.offsets, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values, mask=pa.array(absent))
    return lists.cast(pa.list_(pa.field("element", values.type)))


def _unsent(tuples: _Tuples) -> pa.Array:
    """Return the 0-based positions of the cells that were not sent, NULL for rows where all were."""
    cells = np.flatnonzero(tuples.kinds == _UNSENT)
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


def _letters(octets: npt.NDArray[np.uint8], present: Bools | None = None) -> pa.Array:
    """Return one-letter strings; NULL where not present."""
    offsets = pa.py_buffer(np.arange(len(octets) + 1, dtype=np.int32))
    validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(octets))
    return pa.Array.from_buffers(pa.string(), len(octets), [validity, offsets, data])
