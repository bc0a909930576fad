"""Conditions on silver that select the rows of key ranges, for a partial resync. Pure text.

Silver must select the same keys as the source. That needs types whose values both sort alike, unless a range
is one key.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.delta.sql import literal, quoted
from pipeline.key_ranges import KeyRange, has_same_order
from pipeline.silver.fold import Fold
from pipeline.silver.text_parsers import SilverType

Column = tuple[str, SilverType]  # quoted name


class KeyRangesUnusable(Exception):
    """Silver cannot select the rows of key ranges."""


def key_range_condition(fold: Fold, key_types: Sequence[int], ranges: Sequence[KeyRange]) -> str:
    """Return SQL that is true for silver's rows in the ranges.

    `key_types` are the oids of the key's types at the source, of domains those of their base types. Raises
    KeyRangesUnusable if silver sorts a type differently.
    """
    key = [(quoted(fold.columns[i].name), fold.columns[i].type) for i in fold.key]
    for each in ranges:
        pairs = zip(key_types, key[: each.width], strict=False)
        if not each.is_single and not all(has_same_order(oid, kind.ddl) for oid, (_, kind) in pairs):
            raise KeyRangesUnusable
    return " OR ".join(f"({_condition(key, each)})" for each in ranges)


def bounds_are_values(fold: Fold, ranges: Sequence[KeyRange]) -> str:
    """Return SQL that is true if the silver types can hold all bounds of the ranges."""
    kinds = [fold.columns[i].type for i in fold.key]
    values = {
        kind.value(literal(text))
        for each in ranges
        for texts in (each.first, each.last)
        for kind, text in zip(kinds, texts, strict=False)
    }
    return " AND ".join(f"({value}) IS NOT NULL" for value in sorted(values))


def _condition(key: Sequence[Column], each: KeyRange) -> str:
    if each.is_single:
        return " AND ".join(
            f"{kind.comparable(name)} <=> {_value(kind, text)}"
            for (name, kind), text in zip(key, each.first, strict=False)
        )
    bounds = ((">", each.first), ("<", each.last))
    return " AND ".join(_bound(key, operator, texts) for operator, texts in bounds if texts)


def _bound(key: Sequence[Column], operator: str, texts: Sequence[str]) -> str:
    """Return SQL for keys beyond or at a bound; the condition on the first column lets files be skipped."""
    alternatives = []
    equal = ""
    for (name, kind), text in zip(key, texts, strict=False):
        alternatives.append(f"({equal}{name} {operator} {_value(kind, text)})")
        equal += f"{name} = {_value(kind, text)} AND "
    alternatives.append(f"({equal.removesuffix(' AND ')})")
    name, kind = key[0]
    return f"{name} {operator}= {_value(kind, texts[0])} AND ({' OR '.join(alternatives)})"


def _value(kind: SilverType, text: str) -> str:
    return kind.comparable(f"({kind.value(literal(text))})")
