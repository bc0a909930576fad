"""Parts of a range whose merge needs more memory at once than this process should take. Pure.

Any LSN is a valid end of a range, so a large range of one table is applied as several, each by a commit of
its own. A transaction is never divided: all its rows end at one LSN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from pipeline.protocol.lsn import LSN
from pipeline.silver.write.writer_choice import MAX_CHANGES

MAX_VALUES = (
    80 << 20
)  # bytes of the values of a range that is not divided: their fold takes three times as many
_VALUES_OF_PART = 40 << 20
_CHANGES_OF_PART = MAX_CHANGES // 2


def count_parts(values: float, changes: int) -> int:
    """Return into how many parts a range with so many bytes of values, and changes, is divided."""
    if values <= MAX_VALUES and changes <= MAX_CHANGES:
        return 1
    return max(ceil(values / _VALUES_OF_PART), ceil(changes / _CHANGES_OF_PART))


def part_ends(values: Sequence[tuple[LSN, float]], count: int) -> list[LSN]:
    """Return where all parts but the last one end, given where values end, ascending, and their bytes.

    Parts have about equally many bytes; there are fewer than `count` where an LSN has more.
    """
    part = sum(size for _, size in values) / count
    ends: list[LSN] = []
    size, last = 0.0, None
    for lsn, more in values:
        if last is not None and last < lsn and size >= part * (len(ends) + 1):
            ends.append(last)
        size += more
        last = lsn
    return ends
