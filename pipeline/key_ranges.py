"""Ranges of keys: somebody names them to have their rows copied anew; source and silver both find them.

Pure. Keys compare column by column, as PostgreSQL compares rows. Which keys lie between two others both sides
have to see alike: of types that they order alike any range is taken, of others only keys that are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
VARCHAR, DATE, NUMERIC, UUID = 1043, 1082, 1700, 2950
TEXTS = frozenset({TEXT, VARCHAR})  # which both sides order by their bytes, under the collation C
_INTEGERS = ("SMALLINT", "INT", "BIGINT")
_ALIKE = {
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
    """Keys from `first` to `last`, both included: texts of the key's columns, or of the first of them.

    An end without values has no bound.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]

    @property
    def is_single(self) -> bool:
        """Say whether all of its keys have the same values in the columns that it names."""
        return self.first == self.last

    @property
    def width(self) -> int:
        """Return how many columns it names."""
        return max(len(self.first), len(self.last))


def is_ordered(type_oid: int) -> bool:
    """Say whether a type, beneath its domains, has an order that a silver type shares."""
    return type_oid in _ALIKE


def is_ordered_alike(type_oid: int, ddl: str) -> bool:
    """Say whether a silver type orders the values of a type as the server does."""
    return ddl.partition("(")[0] in _ALIKE.get(type_oid, ())


def find_fault(key_types: Sequence[int], ranges: Sequence[KeyRange]) -> str | None:
    """Say why ranges cannot be told in a key whose columns are of these types; None where they can."""
    if not key_types:
        return "its rows have no key (REPLICA IDENTITY): copy the whole table"
    for each in ranges:
        if each.width == 0:
            return "a range of keys needs a first key or a last one"
        if each.width > len(key_types):
            return f"its key has {len(key_types)} columns, and {each.width} values were given"
        if not each.is_single and not all(map(is_ordered, key_types[: each.width])):
            return "its key has a type that source and silver order differently: name single keys"
    return None
