"""Row messages in, Arrow columns out: the hot half of decoding.

Insert, Update and Delete messages of any relations are decoded side by side: column after column, each step
over all rows at once, so that no Python object is made per row or cell. Layouts follow PostgreSQL's "Logical
Replication Message Formats" (Insert, Update, Delete, TupleData). What this finds malformed is given to the
scalar decoder, which names the message, field and offset; the two agree on every message (a test says so).
Values in binary format become PostgreSQL's text, which is what bronze holds. The types of the columns come
from the caller; without them such values are refused: they were not asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.binary import NOT_ASKED_FOR, RowTypes, turn_into_text
from pipeline.bronze.columnar.tuples import (
    BINARY,
    NULL,
    TEXT,
    UNSENT,
    Bools,
    Ints,
    Malformed,
    Octets,
    Tuples,
    cell_lists,
    letters,
    unsent_positions,
)
from pipeline.errors import ProtocolError
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import Binary, Delete, Insert, Message, Update

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
_KEY, _OLD, _NEW = ord("K"), ord("O"), ord("N")
_FIRST_TAG = 5  # after the type byte and the relation's oid
_XID_SIZE = 4  # before the oid, in messages of a streamed transaction


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


def decode_rows(
    messages: Sequence[bytes],
    widths: Ints | None = None,
    name_of: Callable[[int], str] | None = None,
    *,
    in_stream: bool = False,
    row_types: RowTypes | None = None,
) -> RowColumns:
    """Decode Insert, Update and Delete messages; raise ProtocolError for the first malformed one.

    `widths` are the columns that each row's relation has: every tuple, a key too, has as many. `name_of` says
    what to call a row in the error. Messages of a streamed transaction carry the xid that wrote them. Where
    values in binary format may come, `row_types` say what they are; `widths` are then needed as well.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # Padding lets every fixed-width read stay inside the buffer; bounds are checked against `ends`.
    buffer = b"".join((*messages, b"\0" * 8))
    octets = np.frombuffer(buffer, np.uint8)
    try:
        return _decode(buffer, octets, starts, ends, widths, _XID_SIZE if in_stream else 0, row_types)
    except Malformed:
        raise _first_fault(messages, widths, name_of, in_stream, row_types) from None


def _first_fault(
    messages: Sequence[bytes],
    widths: Ints | None,
    name_of: Callable[[int], str] | None,
    in_stream: bool,
    row_types: RowTypes | None,
) -> ProtocolError:
    for row, message in enumerate(messages):
        place = f" {name_of(row)}" if name_of else ""
        try:
            decoded = decode(message, in_stream=in_stream)
            fault = _fault(decoded, row, None if widths is None else int(widths[row]), place, row_types)
        except ProtocolError as error:
            fault = f"{error} The message is{place}." if place else str(error)
        if fault:
            return ProtocolError(fault)
    raise AssertionError("a row was refused that the scalar decoder accepts")


def _fault(
    decoded: Message, row: int, width: int | None, place: str, row_types: RowTypes | None
) -> str | None:
    name = type(decoded).__name__
    if not isinstance(decoded, Insert | Update | Delete):
        return f"{name}{place} is not a row message"
    old, new = getattr(decoded, "old", None), getattr(decoded, "new", None)
    for side, cells in (("old", old), ("new", new)):
        if cells is None:
            continue
        if width is not None and len(cells) != width:
            return f"{name}{place}: {len(cells)} columns in the {side} tuple, its relation has {width}"
        for column, cell in enumerate(cells):
            if isinstance(cell, Binary):
                fault = row_types.fault(row, column, cell) if row_types else NOT_ASKED_FOR
                if fault:
                    return f"{name}{place}: column {column + 1} of the {side} tuple {fault}"
    return None


def _decode(
    buffer: bytes,
    octets: Octets,
    starts: Ints,
    ends: Ints,
    widths: Ints | None,
    xid_size: int,
    row_types: RowTypes | None,
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
    old_cells, raw_old = cell_lists(turn_into_text(buffer, octets, old, row_types), old)
    new_cells, raw_new = cell_lists(turn_into_text(buffer, octets, new, row_types), new)
    return RowColumns(
        op=letters(op),
        subxid=_u32(octets, starts + 1) if xid_size else None,
        relation_id=_u32(octets, starts + 1 + xid_size),
        old_kind=letters(tag, has_old),
        old=old_cells,
        new=new_cells,
        unsent=unsent_positions(new),
        raw_old=raw_old,
        raw_new=raw_new,
    )


def _require(good: Bools) -> None:
    if not good.all():
        raise Malformed


def _u32(octets: Octets, at: Ints) -> Ints:
    value: Ints = octets[at].astype(np.int64) << 24
    value |= octets[at + 1].astype(np.int64) << 16
    value |= octets[at + 2].astype(np.int64) << 8
    value |= octets[at + 3]
    return value


def _read_tuples(
    octets: Octets, position: Ints, ends: Ints, present: Bools, widths: Ints | None
) -> tuple[Tuples, Ints]:
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
        is_sized = kind == TEXT
        is_known = is_sized | (kind == NULL) | (kind == UNSENT)
        if not is_known.all():
            is_sized |= kind == BINARY
            is_known |= is_sized
        length = np.where(is_sized, _u32(octets, at + 1), 0)
        following = at + 1 + np.where(is_sized, 4 + length, 0)
        fits &= is_known
        fits &= following <= end
        _require(fits)
        cell = offsets[:-1][rows] + column
        kinds[cell], starts[cell], lengths[cell] = kind, at + 5, length
        position[rows] = following
    return Tuples(present, offsets, kinds, starts, lengths), position
