"""Parts of a range whose merge needs more memory at once than this process should take. Pure.

Any LSN is a valid end of a range, so a large range of one table is applied as several, each by a commit of
its own. A transaction is never divided: all its rows end at one LSN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from pipeline.protocol.lsn import LSN
from pipeline.silver.write.writer_choice import MAX_CHANGES

MAX_VALUES = 80 << 20  # bytes of the values of a range that is not divided; their fold takes three times that
_VALUES_OF_PART = 40 << 20
_MAX_VALUES_OF_PART = 160 << 20
_CHANGES_OF_PART = MAX_CHANGES // 2


def count_parts(values: float, changes: int, files: Iterable[Mapping[str, Any]] = ()) -> int:
    """Return into how many parts a range with so many bytes of values, and changes, is divided.

    Each part may rewrite all `files` of the table, so those of a large table are larger.
    """
    if values <= MAX_VALUES and changes <= MAX_CHANGES:
        return 1
    table_bytes = sum(int(file["size"]) for file in files)
    part = max(_VALUES_OF_PART, min(table_bytes, _MAX_VALUES_OF_PART))
    by_values = 1 if values <= 2 * part else ceil(values / part)
    by_changes = 1 if changes <= MAX_CHANGES else ceil(changes / _CHANGES_OF_PART)
    return max(by_values, by_changes)


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
