"""Cells in binary format, converted to the text that the server would have sent.

A column of one type is converted at once if `binary_types` has the type, else value by value with
`protocol/binary`. Text that needs no conversion stays in the messages; other text is appended to them, and
the cells refer to it there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.bronze.columnar.binary_types import COLUMN_READERS
from pipeline.bronze.columnar.tuples import BINARY, TEXT, Bools, Ints, Malformed, Octets, Tuples, too_long
from pipeline.bronze.schema import storable
from pipeline.protocol.binary.converters import FAULTS, Types, UnknownType
from pipeline.protocol.binary.nested import Converter
from pipeline.protocol.binary.texts import read_text, read_versioned
from pipeline.protocol.messages import Relation

_AT_ONCE = 4096
_BYTE_LIMIT = 2**31  # of text that was made


@dataclass(frozen=True, slots=True)
class RowTypes:
    """The relation of each row, as an index, and the types of each relation.

    A relation without types was not requested in binary format.
    """

    of_row: npt.NDArray[np.int32]
    relations: Sequence[tuple[Relation, Types | None]]

    def fault(self, row: int, column: int, value: bytes) -> str | None:
        """Return why a binary value cannot be converted, as the end of a sentence; None if it can."""
        relation, types = self.relations[int(self.of_row[row])]
        if types is None:
            return NOT_REQUESTED
        described = relation.columns[column]
        try:
            types.find(described.type_oid)(bytes(value))
        except UnknownType as unknown:
            return (
                f"({storable(described.name)}) is in binary format, and {storable(unknown.reason)}."
                " Set source.protocol.binary to false."
            )
        except FAULTS:
            name = storable(types.name_of(described.type_oid))
            return (
                f"({storable(described.name)}) has {len(value)} bytes that are no value of the type {name}."
            )
        return None


NOT_REQUESTED = "is in binary format, which was not requested."


def convert_to_text(buffer: bytes, octets: Octets, tuples: Tuples, row_types: RowTypes | None) -> Octets:
    """Make every binary cell a cell of text, and return the buffer that all cells refer to from now on.

    `octets` are those of `buffer`, the messages, with 8 bytes to spare. Raises Malformed if a value cannot be
    converted.
    """
    is_binary = tuples.kinds == BINARY
    if not is_binary.any():
        return octets
    if row_types is None:
        raise Malformed
    blocks, size = [octets], len(octets)
    by_converter: dict[Converter, list[Ints]] = {}
    for converter, cells in _columns(tuples, is_binary, row_types):
        by_converter.setdefault(converter, []).append(cells)
    for converter, parts in by_converter.items():
        cells = np.concatenate(parts)
        if converter is read_versioned:
            if not ((tuples.lengths[cells] > 0) & (octets[tuples.starts[cells]] == 1)).all():
                raise Malformed
            tuples.starts[cells] += 1
            tuples.lengths[cells] -= 1
        elif converter is not read_text:
            for block, done, starts, lengths in _texts(converter, buffer, octets, tuples, cells):
                tuples.starts[done], tuples.lengths[done] = starts + size, lengths
                blocks.append(block)
                size += len(block)
                if size > _BYTE_LIMIT:
                    raise too_long()
    tuples.kinds[is_binary] = TEXT
    return np.concatenate(blocks)


def _columns(tuples: Tuples, is_binary: Bools, row_types: RowTypes) -> Iterator[tuple[Converter, Ints]]:
    """Yield the binary cells of each column of each relation, with the converter of one."""
    order = np.argsort(row_types.of_row, kind="stable")
    bounds = np.searchsorted(row_types.of_row[order], np.arange(len(row_types.relations) + 1))
    for index in np.flatnonzero(np.diff(bounds)).tolist():
        relation, types = row_types.relations[index]
        rows = order[bounds[index] : bounds[index + 1]]
        firsts = tuples.offsets[:-1][rows[tuples.present[rows]]]
        for column, described in enumerate(relation.columns if len(firsts) else ()):
            cells = firsts + column
            cells = cells[is_binary[cells]]
            if len(cells) == 0:
                continue
            if types is None:
                raise Malformed
            try:
                yield types.find(described.type_oid), cells
            except UnknownType:
                raise Malformed from None


def _texts(
    converter: Converter, buffer: bytes, octets: Octets, tuples: Tuples, cells: Ints
) -> Iterator[tuple[Octets, Ints, Ints, Ints]]:
    """Yield blocks of text, with their cells and the start and length of each cell's text."""
    starts, lengths = tuples.starts[cells], tuples.lengths[cells]
    read_column = COLUMN_READERS.get(converter)
    if read_column is not None:
        texts = read_column(octets, starts, lengths)
        done = texts.is_done
        if done.all():
            yield texts.data, cells, texts.starts, texts.lengths
            return
        yield texts.data, cells[done], texts.starts[done], texts.lengths[done]
        cells, starts, lengths = cells[~done], starts[~done], lengths[~done]
    stops = starts + lengths
    for first in range(0, len(cells), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        bounds = zip(starts[part].tolist(), stops[part].tolist(), strict=True)
        try:
            made = [converter(buffer[start:stop]) for start, stop in bounds]
        except (UnknownType, *FAULTS):
            raise Malformed from None
        sizes = np.fromiter(map(len, made), np.int64, len(made))
        ends = np.cumsum(sizes)
        yield np.frombuffer(b"".join(made), np.uint8), cells[part], ends - sizes, sizes
