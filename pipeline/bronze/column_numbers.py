"""Conclude which columns a Relation message may describe, by the attribute numbers of its table. Pure.

Names do not tell, because the table may have been altered since the message was written: a column can be
renamed, and its name given to another one. What holds at any time: columns are sent in the order of their
numbers, a number never means another column, and a column that the catalog has is in every earlier message
from the moment it was added. A column that did not change since a horizon of the catalog had its name then.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.protocol.lsn import LSN

if TYPE_CHECKING:
    from pipeline.postgres.attributes import CatalogHorizon, TableAttributes

MAX_HORIZONS = 512


class CatalogHorizons:
    """The horizons of the catalog that are known; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._horizons: list[CatalogHorizon] = []

    def add(self, horizon: CatalogHorizon) -> None:
        """Add a horizon; of many, every second one of the older half is forgotten."""
        with self._lock:
            index = bisect_right(self._horizons, horizon)
            self._horizons.insert(index, horizon)
            if len(self._horizons) > MAX_HORIZONS:
                half = len(self._horizons) // 2
                self._horizons[:half] = self._horizons[:half:2]

    def before(self, lsn: LSN) -> CatalogHorizon | None:
        """Return the last horizon before a record of the WAL that starts at an LSN, None if none is known."""
        with self._lock:
            index = bisect_right(self._horizons, lsn, key=lambda horizon: horizon.lsn)
            return self._horizons[index - 1] if index else None


def possible_numbers(
    names: Sequence[str], table: TableAttributes, horizon: CatalogHorizon | None
) -> list[list[int]] | None:
    """Return the attribute numbers that each column of a message may have, in the order of the message.

    `names` are those of the message. Numbers above all of the catalog are columns that a transaction adds
    which is not visible yet. Returns None if nothing is known of the columns.
    """
    if table.is_aborted:
        return None
    needs_all = not (table.is_unseen or table.may_lack_columns(horizon))
    return _align(names, table, horizon, needs_all) or _align(names, table, horizon, False)


def _align(
    names: Sequence[str], table: TableAttributes, horizon: CatalogHorizon | None, needs_all: bool
) -> list[list[int]] | None:
    """Return the numbers by position over all ways to give them increasing numbers, None if there are none.

    With `needs_all`, no live column is left out up to the last one that existed. Sets of positions are bits.
    """
    count = len(names)
    place = {name: position for position, name in enumerate(names)}
    unchanged = {c.number: c.name for c in table.columns if table.is_unchanged(c, horizon)}
    free = (1 << count) - 1
    for name in unchanged.values():
        if name in place:
            free &= ~(1 << place[name])
    slots: list[tuple[int, int, bool, bool]] = []  # number, positions, may be left out, existed for sure
    for column in table.columns:
        if column.number not in unchanged:
            if column.name is not None or not table.is_unseen:
                is_optional = not needs_all or column.name is None or column.is_generated
                slots.append((column.number, free, is_optional, False))
        elif column.name in place:
            slots.append((column.number, 1 << place[column.name], False, True))
        elif column.name is not None and needs_all and not column.is_generated:
            return None
    if table.is_unseen:
        last = max((column.number for column in table.columns), default=0)
        slots += [(last + 1 + i, free, True, False) for i in range(count)]
    before, reach = [], 1  # bit p: the first p positions have numbers
    for _, positions, is_optional, _ in slots:
        before.append(reach)
        reach = ((reach & positions) << 1) | (reach if is_optional else 0)
    possible: list[list[int]] = [[] for _ in names]
    rest, may_end = 1 << count, True  # bit p: the positions from p on can have numbers
    for (number, positions, is_optional, existed), reach in zip(
        reversed(slots), reversed(before), strict=True
    ):
        found = reach & positions & (rest >> 1)
        while found:
            lowest = found & -found
            possible[lowest.bit_length() - 1].append(number)
            found ^= lowest
        may_end = may_end and not existed
        rest = ((rest >> 1) & positions) | (rest if is_optional else 0) | ((1 << count) if may_end else 0)
    return [numbers[::-1] for numbers in possible] if rest & 1 else None
