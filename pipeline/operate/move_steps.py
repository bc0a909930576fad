"""The steps of a move of the source to another server, as one pure table.

What the lake records says which step is next, so a command that ended early continues when it runs again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class MoveStep(enum.Enum):
    """What `pgdelta move-source` does next."""

    DRAIN = "capture the rest of the old server"
    SWITCH = "follow the new server"
    COMPARE = "compare, and copy what differs"
    DONE = "nothing to do"


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """What is known: bronze records the new server; the old one is given, and was drained by this run; tables
    wait for their comparison, which is requested after the drain."""

    is_switched: bool
    has_old: bool
    is_drained: bool
    has_open_comparisons: bool


STEPS: tuple[tuple[Callable[[MoveFacts], bool], MoveStep], ...] = (
    (lambda facts: not facts.is_switched and facts.has_open_comparisons, MoveStep.SWITCH),
    (lambda facts: not facts.is_switched and facts.has_old and not facts.is_drained, MoveStep.DRAIN),
    (lambda facts: not facts.is_switched, MoveStep.SWITCH),
    (lambda facts: facts.has_open_comparisons, MoveStep.COMPARE),
    (lambda facts: True, MoveStep.DONE),
)
"""The first condition that holds decides."""


def next_step(facts: MoveFacts) -> MoveStep:
    """Return the next step of a move."""
    return next(step for holds, step in STEPS if holds(facts))
