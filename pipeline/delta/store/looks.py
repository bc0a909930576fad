"""Per-thread cache of newest table versions, so that a batch lists each log on a store once.

Each look at the newest version of a table asks the store. Within `one_look` a thread asks once for each
table: what this process commits is known without asking, and a commit that another writer made meanwhile is
found when ours is refused. What Spark commits is not known here, so a thread that takes the session looks
again (`look_again`): the property that gives it says so, for all of its users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_looks: ContextVar[set[str] | None] = ContextVar("looks", default=None)  # a thread begins with none


@contextmanager
def one_look(known: Iterable[str] = ()) -> Iterator[set[str]]:
    """Let this thread look once at each table in the block, and not at `known` ones; yield those looked at.

    Tables are named by their folders on this machine. A block within another one changes nothing.
    """
    outer = _looks.get()
    found = set(known) if outer is None else outer
    token = _looks.set(found)
    try:
        yield found
    finally:
        _looks.reset(token)


def look_again(path: str | None = None) -> None:
    """Let this thread look at a table again, or in the rest of its block at every table each time."""
    known = _looks.get() or set()
    if path is None:
        known.clear()
        _looks.set(None)
    else:
        known.discard(path)


def is_looked_at(path: str) -> bool:
    """Return whether this thread has looked at a table in its block."""
    return path in (_looks.get() or ())


def add_look(path: str) -> None:
    """Record that this thread has looked at a table."""
    known = _looks.get()
    if known is not None:
        known.add(path)
