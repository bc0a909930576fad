"""Ranges of primary-key values, which a partial resync copies again.

Pure. Keys compare column by column, as PostgreSQL compares rows. The source selects the rows of a range, and
silver must select the same ones: a range with bounds therefore needs types whose values both sides sort in
the same order, while a single key works with any type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
VARCHAR, DATE, NUMERIC, UUID = 1043, 1082, 1700, 2950
TEXTS = frozenset({TEXT, VARCHAR})  # both sides sort these by their bytes: under collation C at the source
INTEGERS = frozenset({INT2, INT4, INT8})
_INTEGERS = ("SMALLINT", "INT", "BIGINT")
# OID of a PostgreSQL type → silver types that sort its values in the same order
_SAME_ORDER = {
    BOOL: ("BOOLEAN",),
    BYTEA: ("BINARY",),
    INT2: _INTEGERS,
    INT4: _INTEGERS,
    INT8: _INTEGERS,
    OID: ("BIGINT",),
    TEXT: ("STRING",),
    VARCHAR: ("STRING",),
    DATE: ("DATE",),
    NUMERIC: ("DECIMAL",),
    UUID: ("STRING",),
}


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from `first` to `last`, both inclusive; an empty tuple is no bound.

    A bound has the text of each key column, or of the first ones.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]

    @property
    def is_single(self) -> bool:
        """Whether the range is one value of the columns that it names."""
        return self.first == self.last

    @property
    def width(self) -> int:
        """The number of columns that the range names."""
        return max(len(self.first), len(self.last))


def has_same_order(type_oid: int, ddl: str) -> bool:
    """Return whether a silver type sorts the values of a PostgreSQL type as the server does."""
    return ddl.partition("(")[0] in _SAME_ORDER.get(type_oid, ())


def describe_unusable(key_types: Sequence[int], ranges: Sequence[KeyRange]) -> str | None:
    """Return why ranges cannot select rows by a key of these types, and what to do; None if they can.

    `key_types` are the type OIDs of the key's columns, for domains those of their base types.
    """
    if not key_types:
        return "The table has no key (REPLICA IDENTITY). Resync the whole table."
    for each in ranges:
        if each.width == 0:
            return "The range has no bound. Give a first key or a last key."
        if each.width > len(key_types):
            return f"The range has {each.width} values, the key {len(key_types)} columns. Give fewer values."
        if not each.is_single and not all(type_oid in _SAME_ORDER for type_oid in key_types[: each.width]):
            return "The key has a type that source and silver sort differently. Give single keys."
    return None


def cover_keys(
    keys: Collection[tuple[str, ...]], key_types: Sequence[int], most: int
) -> tuple[KeyRange, ...]:
    """Return at most `most` ranges that together contain all keys, and possibly others; none if impossible.

    If there are more keys than `most`, ranges of their first columns contain them, or ranges of an integer
    first column, divided at the widest gaps between keys.
    """
    for width in range(len(key_types), 0, -1):
        prefixes = {key[:width] for key in keys}
        if len(prefixes) <= most:
            return tuple(KeyRange(prefix, prefix) for prefix in sorted(prefixes))
    if not key_types or key_types[0] not in INTEGERS:
        return ()
    numbers = sorted({int(key[0]) for key in keys})
    widest = sorted(pairwise(numbers), key=lambda pair: pair[0] - pair[1])[: most - 1]
    firsts = [numbers[0], *sorted(after for _, after in widest)]
    lasts = [*sorted(before for before, _ in widest), numbers[-1]]
    return tuple(KeyRange((str(a),), (str(b),)) for a, b in zip(firsts, lasts, strict=True))
