"""Per-thread cache of newest table versions, so that a batch lists each log on a store once.

Each look at the newest version of a table asks the store. Within `one_look` a thread asks once for each
table: what this process commits is known without asking, and a commit that another writer made meanwhile is
found when ours is refused. What Spark commits is not known here, so a thread that uses Spark looks again
(`look_again`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def one_look(known: Iterable[str] = ()) -> Iterator[set[str]]:
    """Let this thread look once at each table in the block, and not at `known` ones; yield those looked at.

    Tables are named by their folders on this machine. A block within another one changes nothing.
    """
    before = _known()
    if before is None:
        _thread.known = set(known)
    found = _known()
    assert found is not None
    try:
        yield found
    finally:
        _thread.known = before


def look_again(path: str | None = None) -> None:
    """Let this thread look at a table again, or in the rest of its block at every table each time."""
    known = _known()
    if known is not None:
        if path is None:
            known.clear()
            _thread.known = None
        else:
            known.discard(path)


def is_looked_at(path: str) -> bool:
    """Return whether this thread has looked at a table in its block."""
    known = _known()
    return known is not None and path in known


def add_look(path: str) -> None:
    """Record that this thread has looked at a table."""
    known = _known()
    if known is not None:
        known.add(path)


def _known() -> set[str] | None:
    found: set[str] | None = getattr(_thread, "known", None)
    return found
