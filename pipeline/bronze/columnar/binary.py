"""Convert cells in binary format to the text that the server would have sent.

A type with a function in this module is converted for all rows of a column at once; any other type is
converted value by value with `protocol/binary`. A function receives the starts and lengths of values in a
buffer, and returns the starts and lengths of their texts in another buffer. It leaves rare values (NaN,
infinity, BC, very long) and malformed ones to `protocol/binary`, and agrees with it on all others. Text that
needs no conversion remains in the messages; any other text is appended to them, and the cells refer to it
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.bronze.columnar.tuples import BINARY, TEXT, Bools, Ints, Malformed, Octets, Tuples, too_long
from pipeline.bronze.schema import storable
from pipeline.protocol.binary import extensions, numbers, times
from pipeline.protocol.binary.converters import FAULTS, Types, UnknownType
from pipeline.protocol.binary.extensions import read_text, read_versioned
from pipeline.protocol.binary.nested import Converter
from pipeline.protocol.messages import Relation
from pipeline.units import format_count

_MINUS = ord("-")
_NUMERIC_HEADER = 8
_MAX_GROUPS = 6  # of four digits: a numeric has 24 before the point…
_MAX_SCALE = 24  # …and as many after it; others are converted one by one
_DAY, _SECOND = 86_400_000_000, 1_000_000  # microseconds
_FIRST_DAY, _END_DAY = -730_119, 2_921_940  # of the years 1 to 9999, from 2000-01-01


@dataclass(slots=True)
class Texts:
    """The texts of values, by start and length in `data`; only those with `is_done` are converted."""

    data: Octets
    starts: Ints
    lengths: Ints
    is_done: Bools


ColumnReader: TypeAlias = Callable[[Octets, Ints, Ints], Texts]


def _table(entries: list[str], kind: str) -> npt.NDArray[Any]:
    return np.frombuffer("".join(entries).encode(), kind)


_QUADS = _table([f"{number:04d}" for number in range(10_000)], "u4")
_PAIRS = _table([f"{number:02d}" for number in range(100)], "u2")
_HEX_PAIRS = _table([f"{number:02x}" for number in range(256)], "u2")
_FALSE_TRUE = np.frombuffer(b"ft", np.uint8)


def read_bools(octets: Octets, starts: Ints, lengths: Ints) -> Texts:
    """Read booleans."""
    is_done = lengths == 1
    values = octets[np.where(is_done, starts, 0)]
    is_done &= values <= 1
    data = _FALSE_TRUE[values & 1]
    return Texts(data, np.arange(len(starts)), np.ones(len(starts), np.int64), is_done)


def read_numerics(octets: Octets, starts: Ints, lengths: Ints) -> Texts:
    """Read numeric: its groups of four decimal digits are written in their order."""
    is_done = lengths >= _NUMERIC_HEADER
    at = np.where(is_done, starts, 0)
    count, weight, sign, scale = (
        _fixed(octets, at + 2 * i, kind).astype(np.int64)
        for i, kind in enumerate((">u2", ">i2", ">u2", ">u2"))
    )
    is_done &= lengths == _NUMERIC_HEADER + 2 * count
    is_done &= (sign == numbers.NUMERIC_POSITIVE) | (sign == numbers.NUMERIC_NEGATIVE)
    is_done &= (weight >= -_MAX_GROUPS) & (weight < _MAX_GROUPS) & (scale <= _MAX_SCALE)
    whole_count = int(np.max(weight, where=is_done, initial=0)) + 1
    part_count = (int(np.max(scale, where=is_done, initial=0)) + 3) // 4

    def group(index: Ints) -> Ints:
        is_sent = is_done & (index >= 0) & (index < count)
        digits = _fixed(octets, np.where(is_sent, at + _NUMERIC_HEADER + 2 * index, 0), ">u2").astype(
            np.int64
        )
        digits[~is_sent] = 0
        np.logical_and(is_done, digits <= 9999, out=is_done)
        return np.minimum(digits, 9999)

    fields = [("sign", "u4"), ("whole", "u4", whole_count), ("point", "u1"), ("part", "u4", part_count)]
    out = np.empty(len(starts), np.dtype(fields))
    out["point"] = ord(".")
    whole, part = (out[name].reshape(len(starts), -1) for name in ("whole", "part"))
    for number in range(whole_count):
        whole[:, whole_count - 1 - number] = _QUADS[group(weight - number)]
    for number in range(part_count):
        part[:, number] = _QUADS[group(weight + 1 + number)]
    first = np.where(weight >= 0, group(np.zeros_like(weight)), 0)
    digits = 1 + 4 * np.maximum(weight, 0)
    for power in (10, 100, 1000):
        digits += first >= power
    extensions = _signed(out, 4 + 4 * whole_count, digits, sign != numbers.NUMERIC_POSITIVE, is_done)
    extensions.lengths += np.where(scale > 0, scale + 1, 0)
    return extensions


def read_float8s(octets: Octets, starts: Ints, lengths: Ints) -> Texts:
    """Read float8 of a size that Python writes as PostgreSQL does, except for the `.0` of integers."""
    is_done = lengths == 8
    values = _fixed(octets, np.where(is_done, starts, 0), ">f8").astype(np.float64)
    sizes = np.abs(values)
    is_done &= ((sizes >= 1e-4) & (sizes < 1e15)) | (sizes == 0)
    written = list(map(repr, values.tolist()))
    data = np.frombuffer("".join(written).encode(), np.uint8)
    sizes_written = np.fromiter(map(len, written), np.int64, len(written))
    ends = np.cumsum(sizes_written)
    is_whole = (data[ends - 2] == ord(".")) & (data[ends - 1] == ord("0"))
    return Texts(data, ends - sizes_written, sizes_written - 2 * is_whole, is_done)


def read_dates(octets: Octets, starts: Ints, lengths: Ints) -> Texts:
    """Read dates of the years 1 to 9999."""
    is_done = lengths == 4
    days = _fixed(octets, np.where(is_done, starts, 0), ">i4").astype(np.int64)
    out = np.empty(len(starts), np.dtype(_DATE))
    _write_dates(out, days, is_done)
    return Texts(out.view(np.uint8), _rows(out), np.full(len(starts), 10), is_done)


def read_uuids(octets: Octets, starts: Ints, lengths: Ints) -> Texts:
    """Read uuids."""
    is_done = lengths == 16
    out = np.empty(len(starts), np.dtype(_UUID))
    if is_done.any():
        values = _fixed(octets, np.where(is_done, starts, 0), "V16").view(np.uint8).reshape(-1, 16)
        pairs = _HEX_PAIRS[values]
        first = 0
        for name, kind, *size in _UUID:
            if kind == "u2":
                out[name] = pairs[:, first : first + size[0]]
                first += size[0]
            else:
                out[name] = ord("-")
    return Texts(out.view(np.uint8), _rows(out), np.full(len(starts), 36), is_done)


_DATE = [("year", "u4"), ("month_and_day", "S6")]
_MOMENT = [
    *_DATE, ("gap", "u1"), ("clock", "u8"),
    ("point", "u1"), ("hundreds", "u4"), ("rest", "u2"), ("zone", "S3"),
]  # fmt: skip
_UUID: list[tuple[Any, ...]] = [
    ("a", "u2", 4), ("-a", "u1"), ("b", "u2", 2), ("-b", "u1"), ("c", "u2", 2), ("-c", "u1"),
    ("d", "u2", 2), ("-d", "u1"), ("e", "u2", 6),
]  # fmt: skip
_WHOLE_SECOND = 19  # characters of a timestamp without a fraction


def _fixed(octets: Octets, at: Ints, kind: str) -> npt.NDArray[Any]:
    """Return the fixed-width values at these starts, whatever their alignment."""
    width = np.dtype(kind).itemsize
    everywhere: npt.NDArray[Any] = np.ndarray((len(octets) - width + 1,), kind, octets, strides=(1,))
    return everywhere[at]


def _rows(out: npt.NDArray[Any]) -> Ints:
    return np.arange(len(out), dtype=np.int64) * out.itemsize


def _integers(octets: Octets, starts: Ints, lengths: Ints, kind: str) -> Texts:
    is_done = lengths == np.dtype(kind).itemsize
    values = _fixed(octets, np.where(is_done, starts, 0), kind).astype(np.int64)
    is_negative = values < 0
    # The least int8 has no positive twin, but its bits are right without a sign.
    sizes = np.where(is_negative, -values, values).view(np.uint64)
    top = int(sizes.max(initial=0))
    digits = np.ones(len(starts), np.int64)
    power = 10
    while power <= top:
        digits += sizes >= power
        power *= 10
    group_count = (len(str(top)) + 3) // 4
    out = np.empty((len(starts), 1 + group_count), np.uint32)
    for number in range(group_count, 0, -1):
        higher = sizes // 10_000
        out[:, number] = _QUADS[sizes - higher * 10_000]
        sizes = higher
    rows = out.reshape(-1).view(np.dtype((np.void, 4 + 4 * group_count)))
    return _signed(rows, 4 + 4 * group_count, digits, is_negative, is_done)


def _signed(out: npt.NDArray[Any], end: int, digits: Ints, is_negative: Bools, is_done: Bools) -> Texts:
    """Return the texts of numbers, whose digits end at an offset of each row, with the sign before them."""
    data = out.view(np.uint8)
    starts = _rows(out) + end - digits - is_negative
    data[starts[is_negative & is_done]] = _MINUS
    return Texts(data, starts, digits + is_negative, is_done)


def _moments(octets: Octets, starts: Ints, lengths: Ints, zone: bytes) -> Texts:
    is_done = lengths == 8
    moments = _fixed(octets, np.where(is_done, starts, 0), ">i8").astype(np.int64)
    days = moments // _DAY
    micros = moments - days * _DAY
    out = np.empty(len(starts), np.dtype(_MOMENT))
    _write_dates(out, days, is_done)
    seconds = micros // _SECOND
    micros -= seconds * _SECOND
    out["gap"] = ord(" ")
    out["clock"] = _clocks()[seconds]
    data = out.view(np.uint8)
    extensions = Texts(data, _rows(out), np.full(len(starts), _WHOLE_SECOND), is_done)
    if micros.any():
        hundreds = micros // 100
        rest = micros - hundreds * 100
        out["point"] = ord(".")
        out["hundreds"] = _QUADS[hundreds]
        out["rest"] = _PAIRS[rest]
        extensions.lengths += np.where(rest > 0, 5 + _significant(2)[rest], _significant(4)[hundreds])
        extensions.lengths += (rest == 0) & (hundreds > 0)
    for octet in zone:
        data[extensions.starts + extensions.lengths] = octet
        extensions.lengths += 1
    return extensions


def _write_dates(out: npt.NDArray[Any], days: Ints, is_done: Bools) -> None:
    """Write the dates of days since 2000-01-01; days that have another form get any text."""
    np.logical_and(is_done, (days >= _FIRST_DAY) & (days < _END_DAY), out=is_done)
    first_days, names = _calendar()
    days = np.where(is_done, days - _FIRST_DAY, 0)
    years = days * 400 // 146_097 + 1  # or the next one, or the one before
    years -= days < first_days[years]
    years += days >= first_days[years + 1]
    is_leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    out["year"] = _QUADS[years]
    out["month_and_day"] = names[days - first_days[years] + 365 * is_leap]


@cache
def _calendar() -> tuple[Ints, npt.NDArray[Any]]:
    """Return each year's first day, counted from the year 1, and the days of a common and of a leap year."""
    years = np.arange(-1, 10_001, dtype=np.int64)
    first_days = 365 * years + years // 4 - years // 100 + years // 400
    days = [np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="M8[D]") for year in (2001, 2000)]
    return first_days, np.array([str(day)[4:] for day in np.concatenate(days)], "S6")


@cache
def _clocks() -> npt.NDArray[Any]:
    """Return the text of each second of a day."""
    clocks = [f"{m // 60:02d}:{m % 60:02d}:{second:02d}" for m in range(1440) for second in range(60)]
    return _table(clocks, "u8")


@cache
def _significant(width: int) -> Ints:
    """Return how many digits numbers of so many digits have without zeros at the end."""
    return np.array([len(f"{number:0{width}d}".rstrip("0")) for number in range(10**width)], np.int64)


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
                f"({storable(described.name)}) has {format_count(len(value), 'byte')} that "
                f"cannot be decoded as {name}."
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


COLUMN_READERS: dict[Converter, ColumnReader] = {
    extensions.read_bool: read_bools,
    numbers.read_int2: partial(_integers, kind=">i2"),
    numbers.read_int4: partial(_integers, kind=">i4"),
    numbers.read_int8: partial(_integers, kind=">i8"),
    numbers.read_uint4: partial(_integers, kind=">u4"),
    numbers.read_float8: read_float8s,
    numbers.read_numeric: read_numerics,
    times.read_date: read_dates,
    times.read_timestamp: partial(_moments, zone=b""),
    times.read_timestamptz: partial(_moments, zone=b"+00"),
    extensions.read_uuid: read_uuids,
}
