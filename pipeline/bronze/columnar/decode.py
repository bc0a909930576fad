"""Row messages in, Arrow columns out: the hot half of decoding.

Insert, Update and Delete messages of any relations are decoded together: column after column, each step over
all rows at once. Layouts follow PostgreSQL's "Logical Replication Message Formats" (Insert, Update, Delete,
TupleData). Malformed messages are given to the scalar decoder, which names message, field and offset. Values
in binary format become PostgreSQL's text; without the types of the columns such values are refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.binary import NOT_REQUESTED, RowTypes, convert_to_text
from pipeline.bronze.columnar.protected_values import RowRules, protect_tuples
from pipeline.bronze.columnar.tuples import (
    BINARY,
    NULL,
    TEXT,
    UNCHANGED,
    Bools,
    Ints,
    Malformed,
    Octets,
    Tuples,
    cell_lists,
    contiguous_lists,
    letters,
    read_block,
    unchanged_toast_positions,
)
from pipeline.errors import ProtocolError
from pipeline.postgres.snapshot.read_table import Block
from pipeline.protocol.decode import decode
from pipeline.protocol.messages import Binary, Delete, Insert, Message, Update
from pipeline.units import format_count

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
    unchanged_toast: pa.Array
    raw_old: pa.Array
    raw_new: pa.Array


def decode_rows(
    messages: Sequence[bytes],
    widths: Ints | None = None,
    name_of: Callable[[int], str] | None = None,
    *,
    in_stream: bool = False,
    row_types: RowTypes | None = None,
    row_rules: RowRules | None = None,
) -> RowColumns:
    """Decode Insert, Update and Delete messages; raise ProtocolError for the first malformed one.

    `widths` are the column counts of the rows' relations: every tuple, a key too, has as many. `name_of`
    gives the words for a row in the error. Messages of a streamed transaction carry the xid that wrote them.
    If values may be in binary format, `row_types` and `widths` are needed. `row_rules` are those of columns
    that are left out, hashed or masked.
    """
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # Padding lets every fixed-width read stay inside the buffer; bounds are checked against `ends`.
    buffer = b"".join((*messages, b"\0" * 8))
    octets = np.frombuffer(buffer, np.uint8)
    try:
        xid_size = _XID_SIZE if in_stream else 0
        return _decode(buffer, octets, starts, ends, widths, xid_size, row_types, row_rules)
    except Malformed:
        raise _first_fault(messages, widths, name_of, in_stream, row_types) from None


def decode_copied(block: Block, width: int, row_rules: RowRules | None = None) -> tuple[pa.Array, pa.Array]:
    """Return the rows of a block as lists of text, those that are not UTF-8 also as lists of raw bytes."""
    octets, tuples = read_block(block, width)
    if row_rules is None:
        return contiguous_lists(octets, tuples)
    return cell_lists(*protect_tuples(octets, tuples, row_rules))


def _first_fault(
    messages: Sequence[bytes],
    widths: Ints | None,
    name_of: Callable[[int], str] | None,
    in_stream: bool,
    row_types: RowTypes | None,
) -> ProtocolError:
    for row, message in enumerate(messages):
        named = f" {name_of(row)}" if name_of else ""
        try:
            decoded = decode(message, in_stream=in_stream)
            fault = _fault(decoded, row, None if widths is None else int(widths[row]), named, row_types)
        except ProtocolError as error:
            fault = f"{str(error).removesuffix('.')} (the message is{named})." if named else str(error)
        if fault:
            return ProtocolError(fault)
    raise AssertionError("a row was refused that the scalar decoder accepts")


def _fault(
    decoded: Message, row: int, width: int | None, named: str, row_types: RowTypes | None
) -> str | None:
    name = type(decoded).__name__
    if not isinstance(decoded, Insert | Update | Delete):
        return f"{name}{named} is not a row message."
    old, new = getattr(decoded, "old", None), getattr(decoded, "new", None)
    for side, cells in (("old", old), ("new", new)):
        if cells is None:
            continue
        if width is not None and len(cells) != width:
            return (
                f"{name}{named}: {format_count(len(cells), 'column')} in the {side} tuple, but "
                f"its relation has {width}."
            )
        for column, cell in enumerate(cells):
            if isinstance(cell, Binary):
                fault = row_types.fault(row, column, cell) if row_types else NOT_REQUESTED
                if fault:
                    return f"{name}{named}: column {column + 1} of the {side} tuple {fault}"
    return None


def _decode(
    buffer: bytes,
    octets: Octets,
    starts: Ints,
    ends: Ints,
    widths: Ints | None,
    xid_size: int,
    row_types: RowTypes | None,
    row_rules: RowRules | None,
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
    cursor = starts + first_tag + 1
    old, cursor = _read_tuples(octets, cursor, ends, has_old, widths)
    # In an Update that carries an old tuple, the new one's tag follows it.
    follows = has_old & (op == UPDATE)
    _require(~follows | ((cursor < ends) & (octets[np.minimum(cursor, len(octets) - 1)] == _NEW)))
    cursor = cursor + follows
    new, cursor = _read_tuples(octets, cursor, ends, op != DELETE, widths)
    _require(cursor == ends)
    old_octets = convert_to_text(buffer, octets, old, row_types)
    new_octets = convert_to_text(buffer, octets, new, row_types)
    if row_rules is not None:
        old_octets, old = protect_tuples(old_octets, old, row_rules)
        new_octets, new = protect_tuples(new_octets, new, row_rules)
    old_cells, raw_old = cell_lists(old_octets, old)
    new_cells, raw_new = cell_lists(new_octets, new)
    return RowColumns(
        op=letters(op),
        subxid=_u32(octets, starts + 1) if xid_size else None,
        relation_id=_u32(octets, starts + 1 + xid_size),
        old_kind=letters(tag, has_old),
        old=old_cells,
        new=new_cells,
        unchanged_toast=unchanged_toast_positions(new),
        raw_old=raw_old,
        raw_new=raw_new,
    )


def _require(good: Bools) -> None:
    if not good.all():
        raise Malformed


def _u32(octets: Octets, at: Ints) -> Ints:
    everywhere: Any = np.ndarray((len(octets) - 3,), ">u4", octets, strides=(1,))
    values: Ints = everywhere[at].astype(np.int64)
    return values


def _read_tuples(
    octets: Octets, cursor: Ints, ends: Ints, present: Bools, widths: Ints | None
) -> tuple[Tuples, Ints]:
    """Read one TupleData per present row; return the cells and the byte after each.

    A row's cursor never goes back, so all its cells are inside its message if the last one is. Until that is
    known, cells behind the end are read from the padding.
    """
    cursor = cursor.copy()
    _require(~present | (cursor + 2 <= ends))
    head = np.minimum(cursor, len(octets) - 2)
    counts = np.where(present, (octets[head].astype(np.int64) << 8) | octets[head + 1], 0)
    cursor[present] += 2
    # A cell has at least one byte: counts that the messages cannot hold would need any amount of memory.
    _require(cursor + counts <= ends)
    if widths is not None:
        _require(~present | (counts == widths))
    offsets = np.zeros(len(cursor) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    kinds = np.empty(offsets[-1], np.uint8)
    starts = np.empty(offsets[-1], np.int64)
    lengths = np.empty(offsets[-1], np.int64)
    width = int(counts.max(initial=0))
    is_even = int(counts.min(initial=width)) == width
    heads: Any = np.ndarray((len(octets) - 7,), ">i8", octets, strides=(1,))  # kind, length, three bytes more
    for column in range(width):
        rows: Any = slice(None) if is_even else np.flatnonzero(counts > column)
        cell: Any = slice(column, None, width) if is_even else offsets[:-1][rows] + column
        at = np.minimum(cursor[rows], len(octets) - 8)
        head = heads[at].astype(np.int64)
        kind = (head >> 56).astype(np.uint8)
        length = (head >> 24) & 0xFFFFFFFF
        kinds[cell], starts[cell] = kind, at + 5
        if (kind == TEXT).all():
            cursor[rows] += length + 5
        else:
            is_sized = (kind == TEXT) | (kind == BINARY)
            length *= is_sized
            cursor[rows] += length + 4 * is_sized + 1
        lengths[cell] = length
    _require(cursor <= ends)
    _require((kinds == TEXT) | (kinds == NULL) | (kinds == UNCHANGED) | (kinds == BINARY))
    return Tuples(present, offsets, kinds, starts, lengths), cursor
