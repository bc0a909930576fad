"""Modes: what each mode costs next to `mirror` for the same changes of the same bronze, by either writer.

The sizes are small, because eight lakes are written. They are written in this process, and a first batch,
which loads the table, does not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.bench.limits import Measured
from tools.bench.rig import Rig

ROWS, CHANGES, ROUNDS = 50_000, 5_000, 2


def measure_modes(rig: Rig) -> Iterator[Measured]:
    """Yield the seconds of `mirror`, and the ratios of the other modes, for each writer."""
    mirror = 0.0
    for cost in rig.modes(rig.size(ROWS, 1000), rig.size(CHANGES, 100), ROUNDS):
        if cost.mode == "mirror":
            mirror = cost.median
            yield Measured(f"{cost.writer}_mirror", mirror)
        else:
            yield Measured(f"{cost.writer}_{cost.mode}", cost.median / mirror)
