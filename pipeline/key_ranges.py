"""Ranges of primary-key values, which a partial resync copies again.

Pure. Keys compare column by column, as PostgreSQL compares rows. The source selects the rows of a range, and
silver must select the same ones: a range with bounds therefore needs types whose values both sides sort in
the same order, while a single key works with any type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeline.protocol.pg_types import Int4, PgType
from pipeline.units import format_count

# both sides sort these by their bytes: under collation C at the source
TEXTS = frozenset({PgType.TEXT, PgType.VARCHAR})
INTEGERS = frozenset({PgType.INT2, PgType.INT4, PgType.INT8})
_INTEGERS = ("SMALLINT", "INT", "BIGINT")
# OID of a PostgreSQL type → silver types that sort its values in the same order
_SAME_ORDER: dict[int, tuple[str, ...]] = {
    PgType.BOOL: ("BOOLEAN",),
    PgType.BYTEA: ("BINARY",),
    PgType.INT2: _INTEGERS,
    PgType.INT4: _INTEGERS,
    PgType.INT8: _INTEGERS,
    PgType.OID: ("BIGINT",),
    PgType.TEXT: ("STRING",),
    PgType.VARCHAR: ("STRING",),
    PgType.DATE: ("DATE",),
    PgType.NUMERIC: ("DECIMAL",),
    PgType.UUID: ("STRING",),
}
# of bounds as the catalog prints them, and not as people write them: each has its zone
_TIMES = {PgType.TIMESTAMP: ("TIMESTAMP_NTZ",), PgType.TIMESTAMPTZ: ("TIMESTAMP",)}


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The values of a key column from `first` to before `last`, None for no bound; to `last` if it is closed.

    `position` is that of the column in the key, which is not known before the copy is planned.
    """

    name: str
    first: str | None
    last: str | None
    is_closed: bool = False
    position: Int4 = -1

    @property
    def bounds(self) -> list[tuple[str, str]]:
        """The comparisons that the values satisfy: operator and text."""
        if self.first == self.last and self.first is not None:
            return [("=", self.first)]
        ends = ((">=", self.first), ("<=" if self.is_closed else "<", self.last))
        return [(operator, text) for operator, text in ends if text is not None]


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from `first` to `last`, both inclusive; an empty tuple is no bound.

    A bound has the text of each key column, or of the first ones. A range of `columns` has no such bounds,
    but the keys that have each of these columns in its range, such as those of a partition.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    columns: tuple[ColumnRange, ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether the range is one value of the columns that it names."""
        return not self.columns and self.first == self.last

    @property
    def width(self) -> int:
        """The number of columns that the range names."""
        return max(len(self.first), len(self.last), len(self.columns))

    def placed(self, names: Sequence[str]) -> KeyRange:
        """Return the range with the positions of its columns in a key."""
        columns = (replace(each, position=names.index(each.name)) for each in self.columns)
        return replace(self, columns=tuple(columns))


def has_same_order(type_oid: int, ddl: str, *, with_times: bool = False) -> bool:
    """Return whether a silver type sorts the values of a PostgreSQL type as the server does.

    Times count with `with_times` only: their bounds must have a zone.
    """
    types = _SAME_ORDER | _TIMES if with_times else _SAME_ORDER
    return ddl.partition("(")[0] in types.get(type_oid, ())


def describe_unusable(
    key_types: Sequence[int], ranges: Sequence[KeyRange], names: Sequence[str] = ()
) -> str | None:
    """Return why ranges cannot select rows by a key of these types, and what to do; None if they can.

    `key_types` are the type OIDs of the key's columns, for domains those of their base types, and `names`
    their names, which ranges of columns need.
    """
    types = dict(zip(names, key_types, strict=False))
    if not key_types:
        return "The table has no key (REPLICA IDENTITY). Resync the whole table."
    for each in ranges:
        if each.width == 0:
            return "The range has no bound. Give a first key or a last key."
        if each.width > len(key_types):
            return (
                f"The range has {format_count(each.width, 'value')}, the key "
                f"{format_count(len(key_types), 'column')}. Give fewer values."
            )
        used = [types.get(column.name) for column in each.columns] or key_types[: each.width]
        known = _SAME_ORDER | _TIMES if each.columns else _SAME_ORDER
        if not each.is_single and not all(type_oid in known for type_oid in used):
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
