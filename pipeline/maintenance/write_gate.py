"""Let maintenance exchange the files of a table only while no thread of the job writes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class BusyError(Exception):
    """A job writes the table: it is left for later."""


class WriteGate:
    """Writes go first: an exchange is refused while one is under way, and a write waits for one commit only.

    Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._writing: Counter[str] = Counter()
        self._exchanging: set[str] = set()

    def is_writing(self, name: str) -> bool:
        """Return whether a table is being written."""
        return self._writing[name] > 0

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Write a table; wait while a commit of maintenance is made to it."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._exchanging)
            self._writing[name] += 1
        try:
            yield
        finally:
            with self._changed:
                self._writing[name] -= 1

    @contextmanager
    def exchanging(self, name: str) -> Iterator[None]:
        """Commit merged files of a table; raise BusyError if it is being written."""
        with self._changed:
            if self._writing[name] or name in self._exchanging:
                raise BusyError(name)
            self._exchanging.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._exchanging.discard(name)
                self._changed.notify_all()
