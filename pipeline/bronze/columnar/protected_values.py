"""Hash, mask and leave out values of decoded tuples, before they become Arrow arrays of rows.

All cells of a column are replaced at once. Equal values are hashed once; each hash costs about a microsecond.
NULL stays NULL, and unchanged TOAST stays unchanged, except in a column that is masked with NULL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.columnar.tuples import NULL, TEXT, Bools, Ints, Octets, Tuples, too_long
from pipeline.bronze.protection import Protection, mask_all_but_last4
from pipeline.protected_columns import EXCLUDE, HMAC_SHA256, LAST4_MASK, NULL_MASK, TEXT_MASK

Rules = Sequence[str | None]
_BYTE_LIMIT = 2**31 - 1
_BLOCK = 64  # bytes of SHA-256
_HEX_DIGITS = 64


@dataclass(frozen=True, slots=True)
class RowRules:
    """The relation version of each row, as an index, and the rules of each version's columns, if any."""

    of_row: npt.NDArray[np.int32]
    versions: Sequence[Rules | None]
    key: bytes

    @property
    def is_plain(self) -> bool:
        """Whether no row has a protected column."""
        return not any(self.versions)


def row_rules(of_row: npt.NDArray[np.int32], protections: Sequence[Protection | None]) -> RowRules | None:
    """Return the rules of rows, given the protection of each relation version; None if there are none."""
    found = [each for each in protections if each is not None and not each.is_plain]
    if not found:
        return None
    rules = [each.rules if each is not None and not each.is_plain else None for each in protections]
    return RowRules(of_row, rules, found[0].key)


def protect_tuples(octets: Octets, tuples: Tuples, rules: RowRules) -> tuple[Octets, Tuples]:
    """Return tuples without protected values, and the buffer that their cells refer to; all cells are text.

    `tuples` is changed. Columns that are left out are not in the result.
    """
    if rules.is_plain or not len(tuples.kinds):
        return octets, tuples
    kept: Bools = np.ones(len(tuples.kinds), np.bool_)
    blocks, size = [octets], len(octets)
    by_rule: dict[str, list[Ints]] = {}
    for rule, cells in _columns(tuples, rules):
        by_rule.setdefault(rule, []).append(cells)
    for rule, parts in by_rule.items():
        cells = np.concatenate(parts)
        if rule == EXCLUDE:
            kept[cells] = False
            continue
        if rule == NULL_MASK:
            tuples.kinds[cells], tuples.lengths[cells] = NULL, 0
            continue
        cells = cells[tuples.kinds[cells] == TEXT]
        if not len(cells):
            continue
        data, lengths = _replaced(rule, octets, tuples.starts[cells], tuples.lengths[cells], rules.key)
        tuples.starts[cells], tuples.lengths[cells] = size + np.cumsum(lengths) - lengths, lengths
        blocks.append(data)
        size += len(data)
        if size > _BYTE_LIMIT:
            raise too_long()
    if len(blocks) > 1:
        octets = np.concatenate(blocks)
    return octets, _without(tuples, kept)


def _columns(tuples: Tuples, rules: RowRules) -> Iterator[tuple[str, Ints]]:
    """Yield the cells of each protected column of each version, with its rule."""
    order = np.argsort(rules.of_row, kind="stable")
    bounds = np.searchsorted(rules.of_row[order], np.arange(len(rules.versions) + 1))
    for index, of_version in enumerate(rules.versions):
        if not of_version:
            continue
        rows = order[bounds[index] : bounds[index + 1]]
        firsts = tuples.offsets[:-1][rows[tuples.present[rows]]]
        for column, rule in enumerate(of_version if len(firsts) else ()):
            if rule is not None:
                yield rule, firsts + column


def _without(tuples: Tuples, kept: Bools) -> Tuples:
    """Return the tuples with the cells that are kept."""
    if kept.all():
        return tuples
    before = np.concatenate(([0], np.cumsum(kept)))
    return Tuples(
        tuples.present, before[tuples.offsets], tuples.kinds[kept], tuples.starts[kept], tuples.lengths[kept]
    )


def _replaced(rule: str, octets: Octets, starts: Ints, lengths: Ints, key: bytes) -> tuple[Octets, Ints]:
    """Return what replaces values: the texts one after the other, and their lengths."""
    if rule.startswith(TEXT_MASK):
        text = np.frombuffer(rule.removeprefix(TEXT_MASK).encode(), np.uint8)
        return np.tile(text, len(starts)), np.full(len(starts), len(text), np.int64)
    values = _values(octets, starts, lengths).dictionary_encode()
    indices = values.indices.to_numpy()
    if rule == LAST4_MASK:
        masked = _last4(values.dictionary).take(values.indices)
        ends = np.frombuffer(masked.buffers()[1], np.int32)[: len(masked) + 1].astype(np.int64)
        return np.frombuffer(masked.buffers()[2], np.uint8)[: ends[-1]], np.diff(ends)
    assert rule.startswith(HMAC_SHA256), rule
    hashes = np.frombuffer(hash_all(values.dictionary.to_pylist(), key), np.uint8)
    found = hashes.reshape(-1, _HEX_DIGITS)[indices].reshape(-1)
    return found, np.full(len(starts), _HEX_DIGITS, np.int64)


def _values(octets: Octets, starts: Ints, lengths: Ints) -> pa.Array:
    """Return values of a buffer, in any order, as an array of bytes."""
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > _BYTE_LIMIT:
        raise too_long()
    places = np.repeat(starts - ends[:-1], lengths) + np.arange(ends[-1])
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(octets[places])]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def _last4(values: pa.Array) -> pa.Array:
    try:
        texts = values.cast(pa.string())
        texts.validate(full=True)
    except pa.ArrowInvalid:
        found = [mask_all_but_last4(value.decode("utf-8", "surrogateescape")) for value in values.to_pylist()]
        return pa.array(found, pa.string())
    ends = pc.utf8_slice_codeunits(texts, start=-4)
    shown = pc.if_else(pc.greater_equal(pc.utf8_length(texts), 8), ends, "")
    return pc.binary_join_element_wise("****", shown, "")


def hash_all(values: Sequence[bytes], key: bytes) -> bytes:
    """Return HMAC-SHA-256 of each value (RFC 2104), in hex digits one after the other.

    The key's blocks are hashed once, which halves the time of `hmac.digest`.
    """
    key = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(octet ^ pad for octet in key)) for pad in (0x36, 0x5C))
    found = []
    for value in values:
        first, second = inner.copy(), outer.copy()
        first.update(value)
        second.update(first.digest())
        found.append(second.digest())
    return b"".join(found).hex().encode()
