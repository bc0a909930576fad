"""The bounds of a partition, as the catalog prints them, as ranges of columns. Pure.

Ranges have all rows of the partition and maybe more: bounds of several columns count by the first one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.key_ranges import ColumnRange, KeyRange

_VALUE = re.compile(r"(E)?'((?:[^']|'')*)'|([^\s(),']+)")
_LIST, _RANGE = "FOR VALUES IN ", "FOR VALUES FROM "
_BOOLEANS = {"true": "t", "false": "f"}


def read_bounds(text: str, columns: Sequence[str | None]) -> tuple[KeyRange, ...] | None:
    """Return ranges with all rows of a partition, None if its bounds give none: hash, DEFAULT, expressions.

    `columns` are those of the parent's partition key, None for what is no column, or has an order or an
    equality of its own. A partition for NULL only has no ranges: no row with a key is there.
    """
    if not columns or (name := columns[0]) is None:
        return None
    if text.startswith(_LIST):
        values = [_text(*each) for each in _VALUE.findall(text[len(_LIST) :])]
        return tuple(KeyRange((), (), (ColumnRange(name, v, v),)) for v in values if v is not None)
    if not text.startswith(_RANGE):
        return None
    found = [each for each in _VALUE.findall(text[len(_RANGE) :]) if each[2] != "TO"]
    if len(found) != 2 * len(columns):
        return None
    following = found[len(columns) + 1 :]
    bound = ColumnRange(
        name,
        _finite(_text(*found[0])),
        _finite(_text(*found[len(columns)])),
        is_closed=bool(following) and following[0][2] != "MINVALUE",
    )
    return (KeyRange((), (), (bound,)),)


def _text(escapes: str, quoted: str, word: str) -> str | None:
    """Return the text of a value, None for NULL and for no bound."""
    if word:
        return None if word in ("NULL", "MINVALUE", "MAXVALUE") else _BOOLEANS.get(word, word)
    text = quoted.replace("''", "'")
    return text.replace("\\\\", "\\") if escapes else text


def _finite(text: str | None) -> str | None:
    return None if text is None or text.lower() in ("infinity", "-infinity") else text
