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
    """The facts that decide the next step."""

    is_switched: bool
    """Whether bronze records the new server."""
    has_old: bool
    """Whether the conninfo of the old server is given."""
    is_drained: bool
    """Whether this run captured the rest of the old server."""
    has_open_comparisons: bool
    """Whether requested comparisons of tables are open; they are requested after the drain."""


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
